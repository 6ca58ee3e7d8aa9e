use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;

const READ_ARRAY: u8 = 0xff;
const SIZE: usize = 3 * BLOCK;

struct Shown(Arc<AtomicBool>);

impl Window for Shown {
    fn show(&self) -> io::Result<()> {
        assert!(!self.0.swap(true, Ordering::Relaxed), "shown twice");
        Ok(())
    }
    fn hide(&self) -> io::Result<()> {
        assert!(self.0.swap(false, Ordering::Relaxed), "hidden twice");
        Ok(())
    }
}

struct Chip {
    flash: Flash,
    file: File,
    shown: Arc<AtomicBool>,
}

fn chip() -> Chip {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[0; SIZE], 0).unwrap();
    let shown = Arc::new(AtomicBool::new(true));
    let flash = Flash::new(file.try_clone().unwrap(), SIZE, Box::new(Shown(shown.clone())));
    Chip { flash, file, shown }
}

impl Chip {
    fn write(&self, offset: u64, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.flash.write(offset, &[*byte]));
    }

    fn read(&self, offset: u64) -> u8 {
        let mut byte = [0];
        self.flash.read(offset, &mut byte);
        byte[0]
    }

    fn kept(&self, at: u64) -> u8 {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, at).unwrap();
        byte[0]
    }

    fn is_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed)
    }
}

/// How OVMF distinguishes flash from RAM and ROM: the byte that it writes is not kept, and the cleared status differs
/// from what was there.
#[test]
fn it_is_recognised_as_flash() {
    let chip = chip();
    chip.file.write_all_at(&[0x5a], 0).unwrap();
    chip.write(0, &[command::CLEAR_STATUS]);
    assert_eq!(chip.read(0), 0x5a);
    chip.write(0, &[command::READ_STATUS]);
    assert_eq!(chip.read(0), 0);
    assert!(!chip.is_shown());
    chip.write(0, &[READ_ARRAY]);
    assert_eq!(chip.read(0), 0x5a);
    assert!(chip.is_shown());
}

#[test]
fn bytes_are_written_to_the_file_at_once() {
    let chip = chip();
    for (offset, byte) in [(0, 0x12), (4097, 0x34)] {
        chip.write(offset, &[command::PROGRAM_OLD, byte]);
        assert_eq!((chip.read(offset), chip.kept(offset)), (READY, byte));
    }
    chip.write(0, &[READ_ARRAY]);
    assert_eq!((chip.read(4097), chip.is_shown()), (0x34, true));
}

#[test]
fn an_erasure_clears_its_block_once_it_is_confirmed() {
    let chip = chip();
    chip.write(4100, &[command::ERASE, 0]);
    assert_eq!((chip.read(0), chip.kept(4096)), (READY | WRONG_SEQUENCE, 0));
    chip.write(4100, &[command::CLEAR_STATUS, command::ERASE, command::CONFIRM]);
    assert_eq!(chip.read(0), READY);
    let kept = [4095, 4096, 8191, 8192].map(|at| chip.kept(at));
    assert_eq!(kept, [0, 0xff, 0xff, 0]);
}

#[test]
fn a_buffer_is_written_once_it_is_confirmed() {
    let chip = chip();
    chip.write(16, &[command::WRITE_BUFFER, 1]);
    chip.write(16, &[7]);
    chip.write(17, &[8]);
    assert_eq!(chip.kept(16), 0);
    chip.write(16, &[command::CONFIRM]);
    assert_eq!([chip.kept(16), chip.kept(17), chip.kept(18)], [7, 8, 0]);
    chip.write(32, &[command::WRITE_BUFFER, 0, 9, READ_ARRAY]);
    assert_eq!((chip.read(0), chip.kept(32)), (READY | WRONG_SEQUENCE, 0));
}

#[test]
fn what_the_file_does_not_take_is_reported() {
    let path = tempfile::NamedTempFile::new().unwrap();
    let read_only = File::open(path.path()).unwrap();
    let flash = Flash::new(read_only, SIZE, Box::new(Shown(Arc::new(AtomicBool::new(true)))));
    let status = || {
        let mut byte = [0];
        flash.read(0, &mut byte);
        byte[0]
    };
    flash.write(0, &[command::PROGRAM]);
    flash.write(0, &[1]);
    assert_eq!(status(), READY | PROGRAM_FAILED);
    flash.write(0, &[command::ERASE]);
    flash.write(0, &[command::CONFIRM]);
    assert_eq!(status(), READY | PROGRAM_FAILED | ERASE_FAILED);
}

#[test]
fn it_tells_its_size_in_blocks() {
    let chip = chip();
    chip.write(0, &[command::QUERY]);
    assert_eq!([chip.read(0x10), chip.read(0x11), chip.read(0x12)], *b"QRY");
    assert_eq!([chip.read(0x2d), chip.read(0x2e), chip.read(0x2f), chip.read(0x30)], [2, 0, 16, 0]);
    chip.write(0, &[command::READ_ID]);
    assert_eq!([chip.read(0), chip.read(1)], ID);
}

proptest! {
    /// Nothing panics, nothing grows the file, and the window is shown exactly while reads mean bytes.
    #[test]
    fn any_sequence_of_accesses_is_survived(
        accesses in prop::collection::vec(
            (0..u64::try_from(SIZE).unwrap(), prop::collection::vec(any::<u8>(), 1..9), any::<bool>(), 0..16_usize),
            0..200,
        ),
    ) {
        const COMMANDS: [u8; 12] = [0xff, 0x40, 0x10, 0x20, 0x50, 0x60, 0x70, 0x90, 0x98, 0xe8, 0xd0, 0xff];
        let chip = chip();
        for (offset, mut data, write, command) in accesses {
            if let (Some(first), Some(command)) = (data.first_mut(), COMMANDS.get(command)) {
                *first = *command;
            }
            if write { chip.flash.write(offset, &data) } else { chip.flash.read(offset, &mut data) }
            prop_assert_eq!(chip.is_shown(), matches!(chip.flash.state().mode, Mode::Array));
        }
        prop_assert_eq!(chip.file.metadata().unwrap().len(), u64::try_from(SIZE).unwrap());
    }
}
