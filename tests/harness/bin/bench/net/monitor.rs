//! What runs the guest whose network is measured.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The command line of the guest's kernel.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1";
const MEMORY_MIB: u32 = 256;
/// The guest's tap in the nested host.
pub(crate) const TAP: &str = "tap0";

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Monitor {
    /// The monitor, which moves the queues itself.
    Vmm,
    /// The monitor with vhost-net.
    VmmVhost,
    /// Another build of it.
    Other,
    /// QEMU, which moves the queues itself.
    Qemu,
    /// QEMU with vhost-net.
    QemuVhost,
}

impl Monitor {
    pub(crate) const ALL: [Self; 5] = [Self::Vmm, Self::VmmVhost, Self::Other, Self::Qemu, Self::QemuVhost];

    /// Whether it is what ours is compared with.
    pub(crate) fn is_qemu(self) -> bool {
        matches!(self, Self::Qemu | Self::QemuVhost)
    }

    /// Its program in the nested host.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Vmm | Self::VmmVhost => "/in/vmm",
            Self::Other => "/in/other",
            Self::Qemu | Self::QemuVhost => "qemu-system-x86_64",
        }
    }

    /// The command whose serial line is its standard input and output. The guest has a vCPU for each queue pair.
    pub(crate) fn command(self, pairs: u32) -> Vec<String> {
        let program = self.program();
        let line = if self.is_qemu() {
            let vhost = if self == Self::QemuVhost { "on" } else { "off" };
            let (queues, multiqueue) = match pairs {
                1 => (String::new(), String::new()),
                several => (format!(",queues={several}"), format!(",mq=on,vectors={}", 2 * several + 2)),
            };
            format!(
                "{program} -machine q35 -accel kvm -cpu host -nodefaults -display none -serial stdio -smp {pairs} \
                 -m {MEMORY_MIB} -device virtio-rng-pci \
                 -netdev tap,id=net,ifname={TAP},script=no,downscript=no,vhost={vhost}{queues} \
                 -device virtio-net-pci,netdev=net,romfile={multiqueue} -kernel /in/vmlinuz -initrd /in/initrd -append"
            )
        } else {
            // Another build may not know of queues, or of vhost.
            let queues = if pairs == 1 { String::new() } else { format!(",queues={pairs}") };
            let vhost = match self {
                Self::VmmVhost => ",vhost=on",
                Self::Vmm => ",vhost=off",
                _ => "",
            };
            format!(
                "{program} --cpus {pairs} --memory {MEMORY_MIB}M --net tap={TAP}{queues}{vhost} --kernel /in/vmlinuz \
                 --initrd /in/initrd --cmdline"
            )
        };
        let words = line.split_whitespace().map(str::to_owned);
        words.chain([COMMAND_LINE.to_owned()]).collect()
    }
}

impl fmt::Display for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Vmm => "vmm",
            Self::VmmVhost => "vmm-vhost",
            Self::Other => "other",
            Self::Qemu => "qemu",
            Self::QemuVhost => "qemu-vhost",
        })
    }
}
