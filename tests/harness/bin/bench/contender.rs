use std::fmt;

use serde::{Deserialize, Serialize};

use crate::inside::Plan;
use crate::start::{DISK, Start, VARIABLES};
use vireo_tests::installed::Firmware;

/// What runs the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    /// The monitor alone.
    Vmm,
    /// The whole launcher, started by a gRPC launch request.
    Launcher,
    /// What both are compared with.
    Qemu,
    /// The launcher as root, without filters of its system calls.
    Bare,
    /// The launcher as the node agent isolates it.
    Isolated,
}

impl Contender {
    pub(crate) const ALL: [Self; 5] = [Self::Vmm, Self::Launcher, Self::Qemu, Self::Bare, Self::Isolated];
    /// Those that run unless others are asked for.
    pub(crate) const USUAL: [Self; 3] = [Self::Vmm, Self::Launcher, Self::Qemu];

    /// Whether it is the whole launcher.
    pub(crate) fn is_launcher(self) -> bool {
        matches!(self, Self::Launcher | Self::Bare | Self::Isolated)
    }

    /// The command whose serial line is its standard input and output; `None` for the launcher, which gets a request.
    pub(crate) fn command(self, plan: &Plan) -> Option<Vec<String>> {
        let fixed = match self {
            Self::Vmm => "/in/vmm --cpus 1",
            Self::Qemu => {
                "qemu-system-x86_64 -accel kvm -cpu host -nodefaults -display none -serial stdio -smp 1 -device virtio-rng-pci"
            }
            Self::Launcher | Self::Bare | Self::Isolated => return None,
        };
        let started = match (self, plan.start) {
            (Self::Vmm, Start::Kernel { .. }) => {
                "--kernel /in/vmlinuz --initrd /in/initrd --cmdline".to_owned()
            }
            (Self::Vmm, Start::Disk(Firmware::Bios)) => format!("--firmware /in/bios --disk path={DISK}"),
            (Self::Vmm, Start::Disk(Firmware::Efi)) => {
                format!("--firmware /in/efi-code --nvram {VARIABLES} --disk path={DISK}")
            }
            (_, Start::Answer) => return None,
            (_, Start::Kernel { .. }) => {
                "-machine q35 -kernel /in/vmlinuz -initrd /in/initrd -append".to_owned()
            }
            (_, Start::Disk(firmware)) => {
                let flash = "-drive if=pflash,format=raw,readonly=on,file=/in/efi-code -drive if=pflash,format=raw,file=";
                let firmware = match firmware {
                    Firmware::Bios => "-bios /in/bios".to_owned(),
                    Firmware::Efi => format!("{flash}{VARIABLES}"),
                };
                format!(
                    "-machine q35,graphics=off {firmware} -drive if=none,id=d,format=raw,file={DISK} \
                     -device virtio-blk-pci,drive=d"
                )
            }
        };
        let memory = match self {
            Self::Qemu => format!("-m {}", plan.memory_mib),
            _ => format!("--memory {}M", plan.memory_mib),
        };
        let line = format!("{fixed} {memory} {started}");
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if plan.start.shuts_down() {
            words.push(plan.command_line.clone());
        }
        Some(words)
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Vmm => "vmm",
            Self::Launcher => "launcher",
            Self::Qemu => "qemu",
            Self::Bare => "bare",
            Self::Isolated => "isolated",
        })
    }
}
