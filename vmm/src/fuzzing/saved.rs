//! Entry point to saved VMs.

use std::fs::File;
use std::sync::Arc;

use super::drives::ram;
use super::fakes::{Bells, Lines, Router};
use crate::bus::Bus;
use crate::config::ThreadHook;
use crate::legacy::{PowerManagement, ResetControl};
use crate::memory::RamRange;
use crate::pci::Root;
use crate::serial::Uart;
use crate::state::{AnySection, SavedVm};
use crate::virtio::rng::Rng;
use crate::virtio::{DeviceContext, PciDevice};

/// A saved VM: the first byte chooses whether the others are its payload, or the state of a serial port, of other devices on
/// ports, or of PCI functions, which are then let loose.
pub fn state(script: &[u8]) {
    let Some((kind, bytes)) = script.split_first() else { return };
    match kind % 4 {
        0 => {
            let fd = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
            let _ = SavedVm::decode(bytes, File::from(fd));
        }
        1 => {
            let uart = Uart::new(Arc::new(Lines), Box::new(|_: &[u8]| {})).expect("a serial port");
            load(&uart, bytes);
            super::run(&[0, 0, 0, 0, 5, 0, 0, 2, 0], [(&uart, 8); 2]);
        }
        2 => {
            load(&PowerManagement::new(Arc::new(Lines), Arc::default()), bytes);
            load(&ResetControl::new(Arc::default()), bytes);
        }
        _ => functions(bytes),
    }
}

fn load(section: &dyn AnySection, bytes: &[u8]) {
    if section.decode(bytes).is_ok() {
        section.after_load();
        let state = section.encode().expect("what was loaded can be saved");
        section.decode(&state).expect("what was saved can be loaded");
    }
}

fn functions(bytes: &[u8]) {
    let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
    let memory = ram();
    let range = [RamRange { start: 0, len: 64 << 10 }];
    let root = Root::new((&mmio, &pio), &range, Arc::new(Lines)).expect("a bus");
    let host = DeviceContext {
        memory,
        router: Arc::new(Router),
        doorbells: Arc::<Bells>::default(),
        threads: ThreadHook::default(),
    };
    root.add(PciDevice::new(Box::new(Rng), host).expect("a device")).expect("a slot");
    for (_, function) in root.named_functions() {
        let section = function.section().expect("a function that can be saved");
        if section.decode(bytes).is_ok() {
            root.follow_loaded();
            section.after_load();
            root.resume();
            root.pause();
        }
    }
    root.stop();
}
