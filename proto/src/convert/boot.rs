use std::path::{Path, PathBuf};

use vireo_vmconfig::{BootSource, KernelFiles};

use super::Problems;
use crate::launcher as wire;
use wire::firmware::Boot;

impl From<&BootSource> for wire::Firmware {
    fn from(source: &BootSource) -> Self {
        let boot = match source {
            BootSource::Kernel(KernelFiles { kernel, initrd, command_line }) => {
                Boot::Kernel(wire::KernelBoot {
                    kernel_path: text(Some(kernel)),
                    initrd_path: text(initrd.as_deref()),
                    command_line: command_line.clone(),
                })
            }
            BootSource::Bios { use_serial } => Boot::Bios(wire::Bios { use_serial: *use_serial }),
            BootSource::Efi { secure_boot, persistent } => Boot::Efi(wire::Efi {
                secure_boot: *secure_boot,
                variables_path: text(persistent.as_deref()),
            }),
        };
        Self { boot: Some(boot) }
    }
}

fn text(path: Option<&Path>) -> String {
    path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The boot source from its message; `None` if it is absent.
pub fn boot_source(problems: &mut Problems, firmware: Option<wire::Firmware>) -> Option<BootSource> {
    match firmware.and_then(|firmware| firmware.boot) {
        None => {
            problems.add("firmware", "absent");
            None
        }
        Some(Boot::Bios(bios)) => Some(BootSource::Bios { use_serial: bios.use_serial }),
        Some(Boot::Efi(efi)) => {
            let persistent = optional(problems, "firmware.efi.variables_path", efi.variables_path);
            Some(BootSource::Efi { secure_boot: efi.secure_boot, persistent })
        }
        Some(Boot::Kernel(boot)) => {
            if boot.command_line.contains('\0') {
                problems.add("firmware.kernel.command_line", "has a NUL byte");
            }
            Some(BootSource::Kernel(KernelFiles {
                kernel: problems.path("firmware.kernel.kernel_path", boot.kernel_path),
                initrd: optional(problems, "firmware.kernel.initrd_path", boot.initrd_path),
                command_line: boot.command_line,
            }))
        }
    }
}

fn optional(problems: &mut Problems, at: &str, path: String) -> Option<PathBuf> {
    (!path.is_empty()).then(|| problems.path(at, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_boot_source_survives_the_message() {
        let kernel = |initrd: Option<&str>| {
            BootSource::Kernel(KernelFiles {
                kernel: "/k".into(),
                initrd: initrd.map(Into::into),
                command_line: "quiet".to_owned(),
            })
        };
        for expected in [
            kernel(None),
            kernel(Some("/i")),
            BootSource::Bios { use_serial: true },
            BootSource::Bios { use_serial: false },
            BootSource::Efi { secure_boot: true, persistent: Some("/v".into()) },
            BootSource::Efi { secure_boot: false, persistent: None },
        ] {
            let mut problems = Problems::default();
            let got = boot_source(&mut problems, Some(wire::Firmware::from(&expected)));
            assert_eq!((got, problems.into_texts()), (Some(expected), Vec::new()));
        }
    }

    #[test]
    fn problems_have_paths() {
        let kernel = |kernel_path: &str, command_line: &str| wire::Firmware {
            boot: Some(Boot::Kernel(wire::KernelBoot {
                kernel_path: kernel_path.to_owned(),
                command_line: command_line.to_owned(),
                ..wire::KernelBoot::default()
            })),
        };
        for (message, text) in [
            (None, "firmware: absent"),
            (Some(wire::Firmware::default()), "firmware: absent"),
            (Some(kernel("", "")), "firmware.kernel.kernel_path: no path"),
            (Some(kernel("/k", "a\0b")), "firmware.kernel.command_line: has a NUL byte"),
        ] {
            let mut problems = Problems::default();
            boot_source(&mut problems, message);
            assert_eq!(problems.into_texts(), [text]);
        }
    }
}
