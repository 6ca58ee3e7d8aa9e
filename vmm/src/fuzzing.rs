//! Entry points for fuzz targets (`fuzz`): scripts of accesses against devices, and what else a guest or a client sends.
//!
//! For one device, a script is a list of accesses: a byte that says whether to write (bit 0), which device where there are several
//! (bit 1) and how many bytes (bits 2 to 4, plus one), two bytes of offset, and the bytes of a write.

mod displays;
mod drives;
mod fakes;
mod platform;
mod saved;
mod script;
mod seeds;
mod transport;

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};

use vm_memory::{Bytes, GuestAddress};

use crate::bus::BusDevice;
use crate::config::MemorySize;
use crate::firmware::{Contents, Dma, Flash, FwCfg, Ports, Window};
use crate::memory::{self, GuestMemory};

pub use displays::{rfb, virtio_gpu, virtio_input, virtio_port};
pub use drives::{ahci, qcow2, scsi};
pub use platform::{pci, ports};
pub use saved::{saved_device, state};
pub use seeds::seeds;
pub use transport::{virtio_balloon, virtio_block, virtio_console, virtio_net, virtio_transport};

/// Bytes of the flash: three of its blocks.
const FLASH: usize = 3 * 4096;
/// RAM for DMA.
const RAM: u64 = 16 << 20;

struct Access<'a> {
    second: bool,
    offset: u64,
    len: usize,
    write: Option<&'a [u8]>,
}

/// The next access, and the script behind it.
fn next(script: &[u8]) -> Option<(Access<'_>, &[u8])> {
    let (&[kind, low, high], rest) = script.split_first_chunk::<3>()?;
    let len = usize::from(kind >> 2 & 7) + 1;
    let (write, rest) =
        if kind & 1 == 0 { (None, rest) } else { rest.split_at_checked(len).map(|(w, r)| (Some(w), r))? };
    let offset = u64::from(u16::from_le_bytes([low, high]));
    Some((Access { second: kind & 2 != 0, offset, len, write }, rest))
}

fn run(mut script: &[u8], devices: [(&dyn BusDevice, u64); 2]) {
    while let Some((access, rest)) = next(script) {
        script = rest;
        let (device, size) = devices[usize::from(access.second)];
        // The bus lets through only what lies in a device's range.
        let offset = access.offset % size;
        let len = access.len.min(usize::try_from(size - offset).unwrap_or(1));
        match access.write {
            Some(bytes) => device.write(offset, bytes.get(..len).unwrap_or(bytes)),
            None => device.read(offset, &mut [0; 8][..len]),
        }
    }
}

thread_local! {
    /// Made once: what a run leaves in memory is what the next begins with.
    static MEMORY: RefCell<Option<GuestMemory>> = const { RefCell::new(None) };
}

/// `fw_cfg`: the script begins with 64 bytes that lie at address 0 of guest memory, for DMA requests.
pub fn fw_cfg(script: &[u8]) {
    let Some((requests, script)) = script.split_first_chunk::<64>() else { return };
    let memory = MEMORY.with_borrow_mut(|made| {
        made.get_or_insert_with(|| {
            let size = MemorySize::from_bytes(RAM).expect("a size of RAM");
            memory::create(size, None).expect("address space")
        })
        .clone()
    });
    memory.write_slice(requests, GuestAddress(0)).expect("there is RAM at 0");
    let mut contents = Contents::new();
    contents.file("numbers", (0..=255).collect()).expect("room for a file");
    contents.files_made_late(&[("late", 4096)], || vec![vec![7; 5000]]).expect("room for a file");
    let device = Arc::new(FwCfg::new(contents, memory));
    run(script, [(&Ports(device.clone()), 2), (&Dma(device), 8)]);
}

/// The flash: its file must keep its size, and hold afterwards what the flash reads as.
pub fn flash(script: &[u8]) {
    struct Shown(Arc<std::sync::Mutex<bool>>);
    impl Window for Shown {
        fn show(&self) -> io::Result<()> {
            let was = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), true);
            assert!(!was, "shown twice");
            Ok(())
        }
        fn hide(&self) -> io::Result<()> {
            let was = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), false);
            assert!(was, "hidden twice");
            Ok(())
        }
    }
    let fd = rustix::fs::memfd_create("flash", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    let file = File::from(fd);
    file.set_len(FLASH as u64).expect("room");
    let shown = Arc::new(std::sync::Mutex::new(true));
    let device = Flash::new(file.try_clone().expect("a descriptor"), FLASH, Box::new(Shown(shown.clone())));
    run(script, [(&device, FLASH as u64); 2]);
    assert_eq!(file.metadata().expect("a file").len(), FLASH as u64);
    if *shown.lock().unwrap_or_else(PoisonError::into_inner) {
        let (mut read, mut kept) = ([0; 8], [0; 8]);
        device.read(4096, &mut read);
        file.read_exact_at(&mut kept, 4096).expect("the file");
        assert_eq!(read, kept);
    }
}

/// A kernel; where its first byte is odd, the second half is a RAM disk.
pub fn boot(script: &[u8]) {
    let Some((kind, kernel)) = script.split_first() else { return };
    let (kernel, initrd) = match kind & 1 {
        0 => (kernel, None),
        _ => {
            let (kernel, initrd) = kernel.split_at(kernel.len() / 2);
            (kernel, Some(drives::file(initrd)))
        }
    };
    crate::boot::fuzzing::run(drives::file(kernel), initrd);
}
