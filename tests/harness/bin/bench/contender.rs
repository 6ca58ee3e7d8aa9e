use std::fmt;

use serde::{Deserialize, Serialize};

use crate::inside::Plan;

/// What runs the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    /// The monitor alone.
    Vmm,
    /// The whole launcher, told over gRPC to launch.
    Launcher,
    /// What both are compared with.
    Qemu,
}

impl Contender {
    pub(crate) const ALL: [Self; 3] = [Self::Vmm, Self::Launcher, Self::Qemu];

    pub(crate) fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        text.split(',')
            .map(|name| {
                let found = Self::ALL.into_iter().find(|contender| contender.to_string() == name);
                found.ok_or_else(|| format!("{name:?} is none of vmm, launcher, qemu"))
            })
            .collect()
    }

    /// The command whose serial line is its standard input and output; `None` for the launcher, which is told later.
    pub(crate) fn command(self, plan: &Plan) -> Option<Vec<String>> {
        let fixed = match self {
            Self::Vmm => "/in/vmm --kernel /in/vmlinuz --initrd /in/initrd --cpus 1",
            Self::Qemu => {
                "qemu-system-x86_64 -machine q35 -accel kvm -cpu host -nodefaults -display none -serial stdio \
                 -kernel /in/vmlinuz -initrd /in/initrd -smp 1"
            }
            Self::Launcher => return None,
        };
        let mut words: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
        let line = plan.command_line.clone();
        match self {
            Self::Qemu => words.extend(["-m".into(), plan.memory_mib.to_string(), "-append".into(), line]),
            Self::Vmm | Self::Launcher => {
                words.extend(["--memory".into(), format!("{}M", plan.memory_mib), "--cmdline".into(), line])
            }
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
        })
    }
}
