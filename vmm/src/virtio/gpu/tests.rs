use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{BUFFERS, EVENT_IDX, Guest, VERSION_1};
use super::*;
use crate::display::{Area, Canvas, Suggestion};
use crate::pci::Function as _;
use crate::state::{AnySection as _, Section, SectionError};

/// Where requests, answers and frames are in these guests' memory.
const ANSWERS: u64 = BUFFERS + 0x1000;
const PICTURE: u64 = BUFFERS + 0x10_0000;
const CONFIG: u64 = 0x2000;
const FEATURES: u64 = VERSION_1 | EVENT_IDX | EDID;

/// What firmware drew: one colour.
struct Wall;

impl Source for Wall {
    fn refresh(&self, canvas: &mut Canvas, whole: bool) {
        if whole {
            canvas.resize(100, 50);
            (0..50).for_each(|y| canvas.put(0, y, &[7; 100]));
        }
    }
}

struct Scene {
    guest: Guest,
    source: Arc<dyn Source>,
    canvas: Canvas,
    _wall: Arc<dyn Source>,
}

/// The state of a wall.
struct Colour;

impl Section for Colour {
    const TAG: &'static str = "wall";
    const VERSION: u16 = 1;
    type State = u8;

    fn save(&self) -> Result<u8, SectionError> {
        Ok(7)
    }
    fn load(&self, colour: u8) -> Result<(), SectionError> {
        if colour == 7 { Ok(()) } else { Err(SectionError::Invalid("another colour")) }
    }
}

fn gpu(wall: &Arc<dyn Source>) -> (Gpu, Arc<dyn Source>) {
    Gpu::new(Some((wall.clone(), Arc::new(Colour)))).unwrap()
}

fn scene() -> Scene {
    let wall: Arc<dyn Source> = Arc::new(Wall);
    let (gpu, source) = gpu(&wall);
    let mut guest = Guest::new(Box::new(gpu));
    guest.start(FEATURES, 16);
    Scene { guest, source, canvas: Canvas::default(), _wall: wall }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Scene {
    fn send(&mut self, queue: usize, kind: u32, flags: u32, body: &[u32]) -> (u32, Vec<u8>) {
        let header = [kind, flags, 0x1111, 0x2222, 0x3333, 0];
        let request = [words(&header), words(body)].concat();
        self.guest.memory.write_slice(&request, GuestAddress(BUFFERS)).unwrap();
        let len = u32::try_from(request.len()).unwrap();
        self.guest.add(queue, &[(BUFFERS, len, false), (ANSWERS, 2048, true)]);
        self.guest.kick(queue);
        let written = self.guest.wait(queue, 1)[0].1;
        let mut answer = vec![0; usize::try_from(written).unwrap()];
        self.guest.memory.read_slice(&mut answer, GuestAddress(ANSWERS)).unwrap();
        (u32::from_le_bytes(answer[..4].try_into().unwrap()), answer.split_off(24))
    }

    fn command(&mut self, kind: u32, body: &[u32]) -> u32 {
        self.send(CONTROL, kind, 0, body).0
    }

    /// A frame with its backing at `PICTURE`.
    fn picture(&mut self, number: u32, width: u32, height: u32) {
        assert_eq!(self.command(0x101, &[number, 2, width, height]), 0x1100);
        let at = u32::try_from(PICTURE).unwrap();
        assert_eq!(self.command(0x106, &[number, 1, at, 0, width * height * 4, 0]), 0x1100);
    }

    fn paint(&self, pixel: u64, colour: u32) {
        self.guest.memory.write_obj(colour, GuestAddress(PICTURE + pixel * 4)).unwrap();
    }

    fn seen(&mut self) -> Vec<u32> {
        self.source.refresh(&mut self.canvas, false);
        self.canvas.picture().pixels
    }
}

#[test]
fn only_flushed_areas_are_displayed() {
    let mut scene = scene();
    assert_eq!(scene.seen(), vec![7; 5000], "what firmware drew");
    scene.picture(1, 64, 32);
    scene.paint(0, 0xff_11_22_33);
    assert_eq!(scene.command(0x103, &[0, 0, 64, 32, 0, 1]), 0x1100);
    assert_eq!(scene.seen(), vec![0; 64 * 32], "not transferred yet");
    assert_eq!(scene.command(0x105, &[0, 0, 64, 32, 0, 0, 1, 0]), 0x1100);
    assert_eq!(scene.seen()[0], 0, "not flushed yet");
    assert_eq!(scene.command(0x104, &[0, 0, 1, 1, 1, 0]), 0x1100);
    assert_eq!(scene.seen()[0], 0x11_22_33);
    // A part of it, from where it is in the backing.
    scene.paint(5 * 64 + 9, 0xaa_bb_cc);
    assert_eq!(scene.command(0x105, &[9, 5, 2, 1, (5 * 64 + 9) * 4, 0, 1, 0]), 0x1100);
    assert_eq!(scene.command(0x104, &[9, 5, 2, 1, 1, 0]), 0x1100);
    assert_eq!(scene.seen()[5 * 64 + 9], 0xaa_bb_cc);
    // A part of the frame is the display.
    assert_eq!(scene.command(0x103, &[8, 4, 20, 10, 0, 1]), 0x1100);
    assert_eq!(scene.seen()[20 + 1], 0xaa_bb_cc);
    assert_eq!((scene.canvas.width(), scene.canvas.height()), (20, 10));
    assert_eq!(scene.command(0x103, &[0, 0, 0, 0, 0, 0]), 0x1100);
    assert_eq!(scene.seen(), vec![0; 200], "switched off");
    scene.guest.reset();
    assert_eq!(scene.seen(), vec![7; 5000], "firmware's again");
}

#[test]
fn a_loaded_adapter_displays_the_same() {
    let mut scene = scene();
    scene.picture(1, 64, 32);
    scene.paint(0, 0xff_11_22_33);
    assert_eq!(scene.command(0x105, &[0, 0, 64, 32, 0, 0, 1, 0]), 0x1100);
    assert_eq!(scene.command(0x103, &[0, 0, 64, 32, 0, 1]), 0x1100);
    scene.picture(2, 16, 8);
    assert_eq!(scene.send(CURSOR, 0x300, 0, &[0, 0, 0, 0, 2, 3, 4, 0]).0, 0x1100);
    let seen = scene.seen();
    assert_eq!(seen[0], 0x11_22_33);
    let cursor = scene.canvas.cursor_since(0).cloned();
    assert!(cursor.is_some());

    let (gpu, source) = gpu(&scene._wall);
    let guest = scene.guest.loaded_into(Box::new(gpu));
    let mut scene = Scene { guest, source, canvas: Canvas::default(), ..scene };
    assert_eq!(scene.seen(), seen);
    assert_eq!(scene.canvas.cursor_since(0).cloned(), cursor);
    // The frames are there, with their backings.
    scene.paint(3, 0xff_44_55_66);
    assert_eq!(scene.command(0x105, &[3, 0, 1, 1, 12, 0, 1, 0]), 0x1100);
    assert_eq!(scene.command(0x104, &[3, 0, 1, 1, 1, 0]), 0x1100);
    assert_eq!(scene.seen()[3], 0x44_55_66);
    assert_eq!(scene.command(0x101, &[1, 2, 4, 4]), 0x1203, "the number is taken");
    scene.guest.reset();
    scene.guest.start(FEATURES, 16);
    assert_eq!(scene.command(0x101, &[1, 2, 4, 4]), 0x1100, "another driver has none of them");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_damaged_state_is_survived(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..12)) {
        let mut scene = scene();
        scene.picture(1, 4, 4);
        assert_eq!(scene.command(0x103, &[0, 0, 4, 4, 0, 1]), 0x1100);
        assert!(scene.guest.device.pause());
        let mut state = scene.guest.device.encode().unwrap();
        for (at, value) in changes {
            let at = at % state.len();
            state[at] = value;
        }
        let (gpu, source) = gpu(&scene._wall);
        let next = Guest::new(Box::new(gpu));
        if next.device.decode(&state).is_ok() {
            next.device.after_load();
            source.refresh(&mut scene.canvas, true);
            next.device.resume();
            prop_assert!(next.device.pause());
        }
    }
}

#[test]
fn fences_come_back_with_their_answers() {
    let mut scene = scene();
    let (code, _) = scene.send(CONTROL, 0x101, 1, &[1, 2, 4, 4]);
    assert_eq!(code, 0x1100);
    let mut answer = [0_u32; 6];
    for (at, word) in (ANSWERS..).step_by(4).zip(&mut answer) {
        *word = scene.guest.memory.read_obj(GuestAddress(at)).unwrap();
    }
    assert_eq!(answer, [0x1100, 1, 0x1111, 0x2222, 0x3333, 0]);
}

#[test]
fn each_mistake_has_its_code() {
    let mut scene = scene();
    scene.picture(1, 64, 32);
    let (wide, at) = (u32::MAX, u32::try_from(PICTURE).unwrap());
    for (kind, body, code) in [
        (0x101, &[0, 2, 4, 4][..], 0x1203),
        (0x101, &[1, 2, 4, 4], 0x1203),
        (0x101, &[2, 5, 4, 4], 0x1205),
        (0x101, &[2, 2, 0, 4], 0x1205),
        (0x101, &[2, 2, 4, 8193], 0x1205),
        (0x101, &[2, 2, 8192, 8192], 0x1201),
        (0x101, &[2, 2, 4], 0x1200),
        (0x102, &[9, 0], 0x1203),
        (0x103, &[0, 0, 64, 32, 1, 1], 0x1202),
        (0x103, &[0, 0, 64, 32, 0, 9], 0x1203),
        (0x103, &[0, 0, 65, 32, 0, 1], 0x1205),
        (0x103, &[wide, 0, 2, 32, 0, 1], 0x1205),
        (0x104, &[0, 1, 64, 32, 1, 0], 0x1205),
        (0x104, &[0, 0, 0, 0, 1, 0], 0x1205),
        (0x104, &[0, 0, 1, 1, 9, 0], 0x1203),
        (0x105, &[0, 0, 64, 32, 4, 0, 1, 0], 0x1205),
        (0x105, &[0, 0, 64, 32, wide, wide, 1, 0], 0x1205),
        (0x105, &[0, 0, 64, 33, 0, 0, 1, 0], 0x1205),
        (0x105, &[0, 0, 64, 32, 0, 0, 9, 0], 0x1203),
        (0x106, &[1, 1, at, 0, 64, 0], 0x1200),
        (0x107, &[9, 0], 0x1203),
        (0x108, &[0, 0], 0x1200),
        (0x10a, &[1, 0], 0x1202),
        (0, &[], 0x1200),
        (wide, &[], 0x1200),
    ] {
        assert_eq!(scene.command(kind, body), code, "{kind:#x} {body:?}");
    }
    assert_eq!(scene.command(0x107, &[1, 0]), 0x1100);
    for (body, code) in [
        (&[1, 2, at, 0, 64, 0][..], 0x1205),
        (&[1, 1, at, 1, 64, 0], 0x1205),
        (&[1, 0x10000, at, 0, 64, 0], 0x1205),
        (&[1, 0x10001, at, 0, 64, 0], 0x1201),
    ] {
        assert_eq!(scene.command(0x106, body), code, "{body:?}");
    }
    assert_eq!(scene.command(0x105, &[0, 0, 64, 32, 0, 0, 1, 0]), 0x1200, "no backing");
    assert_eq!(scene.command(0x107, &[1, 0]), 0x1200);
}

#[test]
fn the_driver_learns_sizes_and_that_they_changed() {
    let mut scene = scene();
    let (code, info) = scene.send(CONTROL, 0x100, 0, &[]);
    assert_eq!((code, info.len()), (0x1101, 16 * 24));
    assert_eq!(info[..24], words(&[0, 0, 1024, 768, 1, 0]));
    assert!(info[24..].iter().all(|byte| *byte == 0));
    assert_eq!(scene.guest.read::<12>(CONFIG), [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    for (size, answer) in [
        ((63, 600), Suggestion::Impossible),
        ((800, 4096), Suggestion::Impossible),
        ((800, 600), Suggestion::Taken),
    ] {
        assert_eq!(scene.source.suggest(size.0, size.1), answer);
    }
    // The configuration's vector is behind those of the queues.
    scene.guest.router.take(super::super::testing::VECTOR_DATA + 2);
    assert_eq!(scene.guest.read::<4>(CONFIG), 1_u32.to_le_bytes());
    scene.guest.write(CONFIG + 4, &1_u32.to_le_bytes());
    assert_eq!(scene.guest.read::<4>(CONFIG), [0; 4]);
    let (_, info) = scene.send(CONTROL, 0x100, 0, &[]);
    assert_eq!(info[..24], words(&[0, 0, 800, 600, 1, 0]));
    let (code, edid) = scene.send(CONTROL, 0x10a, 0, &[0, 0]);
    assert_eq!((code, edid.len()), (0x1104, 8 + 1024));
    assert_eq!(edid[..8], words(&[128, 0]));
    assert_eq!((edid[8 + 56], edid[8 + 58] >> 4), (0x20, 3), "800 columns");
    scene.guest.reset();
    assert_eq!(scene.source.suggest(640, 480), Suggestion::NotMine, "no driver");
}

#[test]
fn a_cursor_is_the_viewers_to_draw() {
    let mut scene = scene();
    scene.seen();
    assert_eq!(scene.canvas.cursor_since(0), None);
    assert_eq!(scene.command(0x101, &[5, 1, 2, 1]), 0x1100);
    let at = u32::try_from(PICTURE).unwrap();
    assert_eq!(scene.command(0x106, &[5, 1, at, 0, 8, 0]), 0x1100);
    scene.paint(0, 0x80_11_22_33);
    assert_eq!(scene.command(0x105, &[0, 0, 2, 1, 0, 0, 5, 0]), 0x1100);
    let (code, _) = scene.send(CURSOR, 0x300, 0, &[0, 3, 4, 0, 5, 1, 9, 0]);
    assert_eq!(code, 0x1100);
    scene.seen();
    let cursor = Cursor { width: 2, height: 1, hot: (1, 0), pixels: vec![0x80_11_22_33, 0] };
    assert_eq!(scene.canvas.cursor_since(0).map(|cursor| (**cursor).clone()), Some(cursor));
    assert_eq!(scene.send(CURSOR, 0x301, 0, &[0, 7, 7, 0, 5, 1, 9, 0]).0, 0x1100);
    assert_eq!(scene.send(CURSOR, 0x300, 0, &[0, 3, 4, 0, 9, 0, 0, 0]).0, 0x1203);
    assert_eq!(scene.send(CURSOR, 0x300, 0, &[0, 3, 4, 0, 0, 0, 0, 0]).0, 0x1100);
    scene.seen();
    assert_eq!(scene.canvas.cursor_since(0).map(|cursor| cursor.width), Some(0), "hidden");
}

#[test]
fn many_flushes_are_few_rectangles() {
    let mut scene = scene();
    scene.picture(1, 64, 300);
    assert_eq!(scene.command(0x103, &[0, 0, 64, 300, 0, 1]), 0x1100);
    scene.seen();
    for y in 0_u32..300 {
        scene.paint(u64::from(y) * 64, 9);
    }
    assert_eq!(scene.command(0x105, &[0, 0, 64, 300, 0, 0, 1, 0]), 0x1100);
    for y in 0_u32..300 {
        assert_eq!(scene.command(0x104, &[0, y, 1, 1, 1, 0]), 0x1100);
    }
    let lit = scene.seen().iter().filter(|pixel| **pixel == 9).count();
    assert_eq!(lit, 300);
    assert_eq!(scene.canvas.changes(0, Area::default()).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any numbers in any command: nothing panics, what is kept stays within its bounds.
    #[test]
    fn random_commands_are_survived(
        commands in prop::collection::vec(
            (prop_oneof![0x100_u32..0x10c, 0x300_u32..0x302],
             prop::collection::vec(prop_oneof![0_u32..4, 0_u32..200, any::<u32>()], 0..12)), 0..40),
    ) {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        let (gpu, source) = Gpu::new(None).unwrap();
        let mut canvas = Canvas::default();
        for (kind, body) in commands {
            let request = [words(&[kind, 0, 0, 0, 0, 0]), words(&body)].concat();
            memory.write_slice(&request, GuestAddress(0)).unwrap();
            let segment = |at, len| {
                let mut segments = Segments::default();
                segments.push(&memory, GuestAddress(at), len).unwrap();
                segments
            };
            let len = u32::try_from(request.len()).unwrap();
            prop_assert!(gpu.execute(&memory, segment(0, len), &segment(4096, 2048)) >= 24);
            gpu.shared.resources().check();
            source.refresh(&mut canvas, false);
        }
    }
}
