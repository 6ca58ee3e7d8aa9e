//! The machine that is wanted, already checked: what a machine is built from.
//!
//! Each part has private fields and one door that checks. Everything the machine needs from the host is an open
//! file here: building a machine opens no path. The parts stay with the caller, so the same `Machine` can be built
//! again after the guest reset itself.

mod boot;
mod counters;
mod cpu;
mod disk;
mod graphics;
mod input;
mod machine;
mod memory;
mod net;
mod notice;
mod port;
mod stall;

pub use boot::{Boot, Firmware, KernelBoot};
pub use counters::{DiskCounters, Operations};
pub use cpu::{Cpus, CpusError};
pub use disk::{Attachment, Disk, DiskError, DiskImage, DiskSerial};
pub use graphics::{Adapter, Graphics};
pub use input::Input;
pub use machine::{Machine, TooManyDevices};
pub use memory::{MemorySize, MemorySizeError};
pub use net::Net;
pub use notice::{Notice, Notices};
pub use port::{Opened, Port};
pub(crate) use stall::{Answer, answer};
pub use stall::{DiskStall, StallCause, Stalls};
