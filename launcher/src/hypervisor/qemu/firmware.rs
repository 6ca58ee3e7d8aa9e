use std::io;
use std::path::{Path, PathBuf};

use vireo_proto::launcher::Fault;

use crate::fault::{Code, fault, fault_at};

/// Where distributions put OVMF.
const DIRECTORIES: [&str; 3] = ["/usr/share/OVMF", "/usr/share/edk2/ovmf", "/usr/share/edk2/x64"];

/// EFI firmware for one machine.
#[derive(Debug)]
pub(super) struct Firmware {
    /// Code, shared and read-only.
    pub code: PathBuf,
    /// Variables, this machine's own.
    pub variables: PathBuf,
    /// The variables are out of reach of the guest's operating system, and enrolled keys are enforced.
    pub secure: bool,
}

/// Finds OVMF and gives the machine its variables: the ones it has, or fresh ones.
pub(super) fn find(secure: bool, variables: Option<&Path>, runtime: &Path) -> Result<Firmware, Fault> {
    let (code, template) = if secure {
        ("OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.ms.fd")
    } else {
        ("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd")
    };
    let directory = DIRECTORIES
        .iter()
        .map(Path::new)
        .find(|dir| dir.join(code).is_file() && dir.join(template).is_file())
        .ok_or_else(|| {
            let looked = DIRECTORIES.join(", ");
            let detail =
                format!("no EFI firmware on this node: {code} and {template} are in none of {looked}");
            fault_at(Code::NoQemu, "spec.domain.firmware.bootloader.efi", detail)
        })?;
    let own = variables.map_or_else(|| runtime.join("efi-variables.fd"), Path::to_owned);
    let kept = variables.is_some() && own.exists();
    if !kept {
        fresh(&directory.join(template), &own).map_err(|error| {
            fault(Code::HostResource, format!("cannot make the EFI variables {}: {error}", own.display()))
        })?;
    }
    Ok(Firmware { code: directory.join(code), variables: own, secure })
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

    #[test]
    fn variables_start_as_the_template() {
        let dir = tempfile::tempdir().unwrap();
        let (template, own) = (dir.path().join("template"), dir.path().join("own.fd"));
        std::fs::write(&template, b"vars").unwrap();
        fresh(&template, &own).unwrap();
        assert_eq!(std::fs::read(&own).unwrap(), b"vars");
        assert!(fresh(&dir.path().join("absent"), &own).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
