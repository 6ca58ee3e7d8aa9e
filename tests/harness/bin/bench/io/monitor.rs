//! What runs the guest whose disk is measured.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::peer::Peer;
use super::store::Store;

/// The command line of the guest's kernel.
pub(crate) const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1";
/// RAM of the guest.
pub(crate) const MEMORY_MIB: u32 = 256;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Monitor {
    /// The monitor alone, which has no option for qcow2 with a backing file, through the page cache.
    Vmm,
    /// The same past the page cache.
    VmmDirect,
    /// The launcher with the same monitor in it, for qcow2 alone: elsewhere it would repeat what `Vmm` measured.
    Launcher,
    /// The same past the page cache.
    LauncherDirect,
    /// QEMU with an I/O thread that has the kernel read and write past the page cache, asynchronously.
    QemuDirect,
    /// QEMU with an I/O thread and threads that read and write through the page cache.
    QemuCached,
    /// Another monitor, see [`super::peer`].
    Peer,
}

impl Monitor {
    pub(crate) const ALL: [Self; 7] = [
        Self::Vmm,
        Self::VmmDirect,
        Self::Launcher,
        Self::LauncherDirect,
        Self::QemuDirect,
        Self::QemuCached,
        Self::Peer,
    ];

    /// Whether it is measured with that store.
    pub(crate) fn takes(self, store: Store) -> bool {
        match self {
            Self::Vmm | Self::VmmDirect => store != Store::Qcow2,
            Self::Launcher | Self::LauncherDirect => store == Store::Qcow2,
            Self::QemuDirect | Self::QemuCached => true,
            // Others have no qcow2, or other options for it.
            Self::Peer => store != Store::Qcow2,
        }
    }

    /// Whether its requests bypass the page cache.
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Self::VmmDirect | Self::LauncherDirect | Self::QemuDirect)
    }

    /// Whether it is what ours is compared with.
    pub(crate) fn is_qemu(self) -> bool {
        matches!(self, Self::QemuDirect | Self::QemuCached)
    }

    /// The command whose serial line is its standard input and output, of a guest with as many vCPUs and queues; `None` for
    /// the launcher, which gets a request.
    pub(crate) fn command(self, store: Store, queues: u32, peer: Option<&Peer>) -> Option<Vec<String>> {
        let path = store.path();
        let line = match self {
            Self::Peer => return Some(peer?.command(path, queues)),
            Self::Launcher | Self::LauncherDirect => return None,
            Self::Vmm | Self::VmmDirect => {
                let cache = if self.is_direct() { "none" } else { "writeback" };
                format!(
                    "/in/vmm --cpus {queues} --memory {MEMORY_MIB}M --disk path={path},cache={cache},queues={queues} --kernel /in/vmlinuz \
                     --initrd /in/initrd --cmdline"
                )
            }
            Self::QemuDirect | Self::QemuCached => {
                let format = if store == Store::Qcow2 { "qcow2" } else { "raw" };
                let cache =
                    if self.is_direct() { "cache=none,aio=native" } else { "cache=writeback,aio=threads" };
                format!(
                    "qemu-system-x86_64 -machine q35 -accel kvm -cpu host -nodefaults -display none -serial stdio -smp {queues} \
                     -m {MEMORY_MIB} -device virtio-rng-pci -object iothread,id=io \
                     -drive if=none,id=disk,format={format},file={path},{cache} \
                     -device virtio-blk-pci,drive=disk,iothread=io,num-queues={queues} -kernel /in/vmlinuz -initrd /in/initrd -append"
                )
            }
        };
        let words = line.split_whitespace().map(str::to_owned);
        Some(words.chain([COMMAND_LINE.to_owned()]).collect())
    }
}

impl fmt::Display for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Vmm => "vmm",
            Self::VmmDirect => "vmm-direct",
            Self::Launcher => "launcher",
            Self::LauncherDirect => "launcher-direct",
            Self::QemuDirect => "qemu-direct",
            Self::QemuCached => "qemu-cached",
            Self::Peer => "peer",
        })
    }
}
