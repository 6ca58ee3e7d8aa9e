//! Firmware: where this node has it, and a VM's own copy of EFI's variables.

use std::io;
use std::path::{Path, PathBuf};

use vireo_proto::launcher::Fault;

use crate::fault::{Code, fault, fault_at};
use crate::launch::Launch;
use vireo_vmconfig::{BootSource, FieldPaths};

/// Where distributions put SeaBIOS.
const BIOS: [&str; 3] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/bios-256k.bin",
    "/usr/share/seavgabios/bios-256k.bin",
];
/// Where distributions put OVMF.
const EFI: [&str; 3] = ["/usr/share/OVMF", "/usr/share/edk2/ovmf", "/usr/share/edk2/x64"];

/// What is not where distributions have it.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    /// SeaBIOS, 256 KiB.
    pub bios: Option<PathBuf>,
    /// OVMF's code, without secure boot.
    pub efi_code: Option<PathBuf>,
    /// The template of the variables for that code.
    pub efi_variables: Option<PathBuf>,
}

/// Firmware for one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firmware {
    /// Code, shared and read-only.
    pub code: PathBuf,
    /// Variables, this VM's own.
    pub variables: Option<PathBuf>,
    /// The variables are out of reach of the guest's operating system, and enrolled keys are enforced.
    pub secure: bool,
}

impl Paths {
    /// Firmware for a VM, with its variables: the ones it has, or fresh ones in its scratch directory.
    /// `None` for a VM without firmware.
    ///
    /// # Errors
    /// Names what is missing, and the package that brings it.
    pub fn find(&self, launch: &Launch) -> Result<Option<Firmware>, Fault> {
        match &launch.boot {
            BootSource::Kernel(_) => Ok(None),
            BootSource::Bios { .. } => {
                Ok(Some(Firmware { code: self.bios(&launch.fields)?, variables: None, secure: false }))
            }
            BootSource::Efi { secure_boot, persistent } => {
                let (code, template) = self.efi(*secure_boot, &launch.fields)?;
                let own = own_variables(&template, persistent.as_deref(), &launch.runtime_dir)?;
                Ok(Some(Firmware { code, variables: Some(own), secure: *secure_boot }))
            }
        }
    }

    fn bios(&self, fields: &FieldPaths) -> Result<PathBuf, Fault> {
        let candidates = match &self.bios {
            Some(path) => vec![path.clone()],
            None => BIOS.iter().map(PathBuf::from).collect(),
        };
        let found = candidates.iter().find(|path| path.is_file());
        found.cloned().ok_or_else(|| {
            missing(
                &fields.bios,
                &format!("no BIOS on this node: {} is not there", listed(&candidates)),
                "seabios",
                "--bios",
            )
        })
    }

    fn efi(&self, secure: bool, fields: &FieldPaths) -> Result<(PathBuf, PathBuf), Fault> {
        let (code, template) = if secure {
            ("OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.ms.fd")
        } else {
            ("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd")
        };
        let candidates = match (&self.efi_code, &self.efi_variables) {
            (Some(code), Some(template)) if !secure => vec![(code.clone(), template.clone())],
            _ => EFI.iter().map(|dir| (Path::new(dir).join(code), Path::new(dir).join(template))).collect(),
        };
        let found = candidates.iter().find(|(code, template)| code.is_file() && template.is_file());
        found.cloned().ok_or_else(|| {
            let looked: Vec<_> = candidates.iter().map(|(code, _)| code.clone()).collect();
            let what =
                format!("no EFI firmware on this node: {} with its {template} is not there", listed(&looked));
            missing(&fields.efi, &what, "ovmf", "--efi-code and --efi-variables")
        })
    }
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
}

fn missing(field: &str, what: &str, package: &str, options: &str) -> Fault {
    let detail = format!(
        "{what}: install the Debian package {package}, or name another file with {options} of virt-launcher"
    );
    fault_at(Code::HostResource, field, detail)
}

/// Persistent variables are kept; others are copied from the template at each start.
fn own_variables(template: &Path, keep: Option<&Path>, runtime: &Path) -> Result<PathBuf, Fault> {
    let own = keep.map_or_else(|| runtime.join("efi-variables.fd"), Path::to_owned);
    if keep.is_none() || !own.exists() {
        fresh(template, &own).map_err(|error| {
            fault(Code::HostResource, format!("cannot make the EFI variables {}: {error}", own.display()))
        })?;
    }
    Ok(own)
}

/// Whole or not at all: a half-written store would look like a kept one.
fn fresh(template: &Path, to: &Path) -> io::Result<()> {
    let part = to.with_extension("part");
    std::fs::write(&part, std::fs::read(template)?)?;
    std::fs::rename(part, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::launch::sample;

    fn efi(persistent: Option<PathBuf>) -> BootSource {
        BootSource::Efi { secure_boot: false, persistent }
    }

    fn launch(boot: BootSource, runtime_dir: &Path) -> Launch {
        Launch { boot, runtime_dir: runtime_dir.to_owned(), ..sample::kernel_boot() }
    }

    #[test]
    fn variables_that_are_kept_are_not_touched_and_others_begin_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (code, template) = (dir.path().join("code"), dir.path().join("template"));
        std::fs::write(&code, b"code").unwrap();
        std::fs::write(&template, b"vars").unwrap();
        let paths = Paths { bios: None, efi_code: Some(code), efi_variables: Some(template) };
        let kept = dir.path().join("kept.fd");
        for (keep, after) in [(Some(kept.clone()), &b"mine"[..]), (None, b"vars")] {
            let found = || paths.find(&launch(efi(keep.clone()), dir.path())).unwrap().unwrap();
            let own = found().variables.unwrap();
            assert_eq!(std::fs::read(&own).unwrap(), b"vars");
            std::fs::write(&own, b"mine").unwrap();
            assert_eq!(found().variables, Some(own.clone()));
            assert_eq!(std::fs::read(&own).unwrap(), after);
        }
        assert_eq!(std::fs::read(&kept).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "nothing half-written stays");
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let absent = PathBuf::from("/absent/firmware");
        let paths =
            Paths { bios: Some(absent.clone()), efi_code: Some(absent.clone()), efi_variables: Some(absent) };
        for (boot, package, field) in [
            (BootSource::Bios { use_serial: false }, "package seabios", "bios"),
            (efi(None), "package ovmf", "efi"),
        ] {
            let fault = paths.find(&launch(boot, Path::new("/tmp"))).unwrap_err();
            assert!(
                fault.detail.contains(package) && fault.detail.contains("/absent/firmware"),
                "{}",
                fault.detail
            );
            assert_eq!((fault.code(), fault.field.as_str()), (Code::HostResource, field));
        }
    }
}
