use super::*;
use crate::state::Section as _;

/// Slots as KVM has them: a log that the guest's writes mark and that is empty once it was taken.
#[derive(Default)]
struct Slots(Arc<Mutex<Vec<u64>>>);

struct Log(Arc<Mutex<Vec<u64>>>);

impl MemorySlots for Slots {
    fn claim(&self, memory: Arc<DeviceMemory>) -> io::Result<Arc<dyn MemorySlot>> {
        let mut log = lock(&self.0);
        if log.is_empty() {
            log.resize(memory.bytes().len() / PAGE / 64, 0);
        }
        Ok(Arc::new(Log(self.0.clone())))
    }
}

impl MemorySlot for Log {
    fn map(&self, _address: Option<u64>) -> io::Result<()> {
        Ok(())
    }
    fn take_dirty(&self) -> io::Result<Vec<u64>> {
        let mut log = lock(&self.0);
        let empty = vec![0; log.len()];
        Ok(std::mem::replace(&mut log, empty))
    }
}

struct Scene {
    head: Arc<Head>,
    slots: Slots,
    canvas: Canvas,
}

fn scene() -> Scene {
    let slots = Slots::default();
    Scene { head: Head::new(&slots, None).unwrap(), slots, canvas: Canvas::default() }
}

impl Scene {
    fn set_mode(&self, width: u16, height: u16, bits: u16) {
        for (index, value) in [(4, 0), (1, width), (2, height), (3, bits), (4, 0x41)] {
            self.head.registers.write(0x500 + index * 2, &value.to_le_bytes());
        }
    }

    fn draw(&self, at: usize, pixel: u32) {
        self.head.memory.write(at as u64, &pixel.to_le_bytes());
    }

    fn mark(&self, at: usize) {
        lock(&self.slots.0)[at / PAGE / 64] |= 1 << (at / PAGE % 64);
    }

    fn refresh(&mut self) -> Vec<u32> {
        self.head.refresh(&mut self.canvas, false);
        self.canvas.picture().pixels
    }
}

#[test]
fn what_was_drawn_and_marked_is_on_the_canvas() {
    let mut scene = scene();
    scene.set_mode(128, 64, 32);
    assert_eq!(scene.refresh(), vec![0; 128 * 64]);
    assert_eq!((scene.canvas.width(), scene.canvas.height()), (128, 64));
    let at = (20 * 128 + 5) * 4;
    scene.draw(at, 0xff_12_34_56);
    assert_eq!(scene.refresh()[20 * 128 + 5], 0, "the kernel has not enabled it");
    scene.mark(at);
    assert_eq!(scene.refresh()[20 * 128 + 5], 0x12_34_56);
}

#[test]
fn another_mode_is_looked_at_whole() {
    let mut scene = scene();
    scene.set_mode(128, 64, 32);
    scene.refresh();
    scene.draw(0, 0xf800_f800);
    scene.set_mode(128, 64, 16);
    assert_eq!(scene.refresh()[..3], [0xff_0000, 0xff_0000, 0]);
}

#[test]
fn without_a_mode_the_picture_stays() {
    let mut scene = scene();
    scene.set_mode(128, 64, 32);
    scene.draw(0, 7);
    assert_eq!(scene.refresh()[0], 7);
    scene.set_mode(4000, 4000, 32);
    assert_eq!(scene.refresh()[0], 7);
}

#[test]
fn a_loaded_adapter_displays_the_same() {
    let mut before = scene();
    before.set_mode(128, 64, 32);
    before.draw(0, 7);
    before.draw(VIDEO_MEMORY - 4, 9);
    let seen = before.refresh();
    let state = before.head.encode().unwrap();
    assert!(state.len() < 3 * PAGE, "pages of zeros are left out");
    let mut after = scene();
    after.head.decode(&state).unwrap();
    assert_eq!(after.head.encode().unwrap(), state);
    assert_eq!(after.refresh(), seen);
    let mut last = [0; 4];
    after.head.memory.read((VIDEO_MEMORY - 4) as u64, &mut last);
    assert_eq!(last, [9, 0, 0, 0]);

    let saved = |registers: [u16; 11], pages| state::HeadState { registers, pages };
    let registers = after.head.registers.save();
    let mut other = registers;
    other[10] += 1;
    for damaged in [
        saved(other, Vec::new()),
        saved(registers, vec![(0, vec![0; PAGE - 1])]),
        saved(registers, vec![(4096, vec![0; PAGE])]),
    ] {
        assert!(matches!(after.head.load(damaged), Err(SectionError::Invalid(_))));
    }
}

#[test]
fn registers_identify_the_device() {
    let rom = [0x55, 0xaa, 1];
    let bochs = Bochs::new(Head::new(&Slots::default(), Some(&rom)).unwrap());
    let read = |register| {
        let mut data = [0; 4];
        bochs.read_config(register, &mut data);
        u32::from_le_bytes(data)
    };
    assert_eq!((read(0), read(8) >> 8), (0x1111_1234, 0x03_8000));
    let size = |register| {
        bochs.write_config(register, &[0xff; 4]);
        !(read(register) & !0xf) + 1
    };
    assert_eq!((size(0x10), size(0x18)), (16 << 20, 4096));
    bochs.write_config(0x30, &[0xfe, 0xff, 0xff, 0xff]);
    assert_eq!(read(0x30), 0xffff_f000, "a ROM of one page");
    assert!(Head::new(&Slots::default(), Some(&[])).is_err());
    assert!(Head::new(&Slots::default(), Some(&vec![0; MAX_ROM + 1])).is_err());
}
