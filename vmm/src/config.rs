//! The VM that is wanted, already checked: what a VM is built from.
//!
//! Each part has private fields and one constructor that checks. Everything the VM needs from the host is an open
//! file here: building a VM opens no path. The parts stay with the caller, so the same `VmConfig` can be built
//! again after the guest reset itself.

mod balloon;
mod blocks;
mod boot;
mod cd_drive;
mod clock;
mod counters;
mod disk;
mod filesystem;
mod graphics;
mod growth;
mod input;
mod memory;
mod net;
mod notice;
mod port;
mod stall;
mod threads;
mod vm;
mod vsock;
mod watchdog;

pub(crate) use balloon::BALLOON_PAGE;
pub use balloon::{Balloon, MemoryStatistics};
pub use blocks::{Blocks, BlocksError};
pub use boot::{Boot, Firmware, KernelBoot};
pub use cd_drive::{CdDrive, MediumLocked};
pub(crate) use clock::ClockOffset;
pub use counters::{DiskCounters, Operations};
pub use disk::{Attachment, Disk, DiskError, DiskImage, DiskSerial, MAX_DISK_QUEUES};
pub use filesystem::{Filesystem, FilesystemError};
pub use graphics::{Adapter, Graphics};
pub use growth::DiskGrowth;
pub use input::Input;
pub use memory::{MemorySize, MemorySizeError};
pub(crate) use net::NetPeer;
pub use net::{Link, Net};
pub use notice::{Notice, Notices};
pub use port::{Opened, Port};
pub(crate) use stall::{Answer, Holding, LaneStall, answer};
pub use stall::{DiskStall, StallCause, Stalls};
pub use threads::{Starting, ThreadHook, ThreadKind};
pub use vireo_vmconfig::SATA_PORTS;
pub use vm::{SCSI_TARGETS, TooManyDevices, VmConfig};
pub use vsock::{Vsock, VsockError};
pub use watchdog::Watchdog;
