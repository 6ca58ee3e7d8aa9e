use std::sync::Arc;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::config::MemorySize;
use crate::memory;

const RAM: u64 = 16 << 20;
const READ: u32 = 2;
const SKIP: u32 = 4;
const SELECT: u32 = 8;

fn device() -> (Arc<FwCfg>, GuestMemory) {
    let memory = memory::create(MemorySize::from_bytes(RAM).unwrap(), None).unwrap();
    let mut contents = Contents::new();
    contents.file("numbers", (0..=255).collect()).unwrap();
    contents.files_made_late(&[("late", 8)], || vec![b"lately".to_vec()]).unwrap();
    (Arc::new(FwCfg::new(contents, memory.clone())), memory)
}

fn select(device: &Arc<FwCfg>, key: u16) {
    Ports(device.clone()).write(0, &key.to_le_bytes());
}

fn next(device: &Arc<FwCfg>) -> u8 {
    let mut byte = [0xaa];
    Ports(device.clone()).read(1, &mut byte);
    byte[0]
}

/// Runs one transfer whose structure is at `at`; the control word it ends with.
fn transfer((device, memory): &(Arc<FwCfg>, GuestMemory), at: u64, control: u32, len: u32, to: u64) -> u32 {
    let mut access = control.to_be_bytes().to_vec();
    access.extend(len.to_be_bytes());
    access.extend(to.to_be_bytes());
    memory.write_slice(&access, GuestAddress(at)).unwrap();
    let dma = Dma(device.clone());
    let [a, b, c, d, e, f, g, h] = at.to_be_bytes();
    dma.write(0, &[a, b, c, d]);
    dma.write(4, &[e, f, g, h]);
    let mut answer = [0; 4];
    memory.read_slice(&mut answer, GuestAddress(at)).unwrap();
    u32::from_be_bytes(answer)
}

#[test]
fn bytes_come_one_by_one_and_zeros_behind_the_end() {
    let (device, _) = device();
    select(&device, 0);
    assert_eq!([next(&device), next(&device), next(&device), next(&device), next(&device)], *b"QEMU\0");
    select(&device, 0x20);
    assert_eq!([next(&device), next(&device)], [0, 1]);
    select(&device, 0x1234);
    assert_eq!(next(&device), 0);
}

#[test]
fn the_dma_register_shows_its_signature() {
    let dma = Dma(device().0);
    let mut whole = [0; 8];
    dma.read(0, &mut whole);
    assert_eq!(&whole, b"QEMU CFG");
    let mut half = [0; 4];
    dma.read(4, &mut half);
    assert_eq!(&half, b" CFG");
}

#[test]
fn a_transfer_selects_skips_and_reads_on() {
    let pair = device();
    assert_eq!(transfer(&pair, 0x1000, 0x20 << 16 | SELECT | SKIP, 16, 0), 0);
    assert_eq!(transfer(&pair, 0x1000, READ, 4, 0x2000), 0);
    assert_eq!(next(&pair.0), 20, "both ways share the offset");
    let mut got = [0; 4];
    pair.1.read_slice(&mut got, GuestAddress(0x2000)).unwrap();
    assert_eq!(got, [16, 17, 18, 19]);
    // An eight-byte write starts one, too.
    pair.1
        .write_slice(&[0, 0x21, 0, 10, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0x30, 0], GuestAddress(0x1000))
        .unwrap();
    pair.1.write_slice(&[0xee; 16], GuestAddress(0x3000)).unwrap();
    Dma(pair.0.clone()).write(0, &0x1000_u64.to_be_bytes());
    let mut got = [0; 12];
    pair.1.read_slice(&mut got, GuestAddress(0x3000)).unwrap();
    assert_eq!(&got, b"lately\0\0\0\0\xee\xee");
}

#[test]
fn what_cannot_be_done_is_answered_with_an_error() {
    let pair = device();
    for (control, len, to) in [
        (0x20 << 16 | SELECT | 16, 4, 0x2000),
        (READ, 4, RAM),
        (READ, 4, u64::MAX - 2),
        (READ, 8192, RAM - 4096),
        (READ, u32::MAX, 0),
    ] {
        assert_eq!(transfer(&pair, 0x1000, control, len, to), 1, "{control:#x} {len:#x} {to:#x}");
    }
    // These cannot be reported.
    for at in [RAM - 8, u64::MAX - 3] {
        Dma(pair.0.clone()).write(0, &at.to_be_bytes());
    }
    assert_eq!(transfer(&pair, 0x1000, READ | SELECT, 4, 0x2000), 0, "it works after that");
}

proptest! {
    #[test]
    fn no_sequence_of_accesses_panics(
        accesses in prop::collection::vec((0..16_u64, prop::collection::vec(any::<u8>(), 1..9), any::<bool>()), 0..60),
        access in prop::array::uniform16(any::<u8>()),
    ) {
        let (device, memory) = device();
        memory.write_slice(&access, GuestAddress(0)).unwrap();
        let (ports, dma) = (Ports(device.clone()), Dma(device));
        for (offset, mut data, write) in accesses {
            let target: &dyn BusDevice = if offset < 8 { &dma } else { &ports };
            if write { target.write(offset % 8, &data) } else { target.read(offset % 8, &mut data) }
            dma.write(0, &[0; 8]);
        }
    }
}
