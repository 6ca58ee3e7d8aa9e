//! Firmware: where this node has it, and a VM's own copy of EFI's variables.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use vireo_proto::launcher::Fault;

use crate::fault::{Code, fault, fault_at};
use crate::files::PassedFiles;
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
/// The begin of a variable store, which has the signature of its volume and is written last: until then it is zeros.
const BEGIN: usize = 4096;

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
#[derive(Debug)]
pub struct Firmware {
    /// Code, shared and read-only.
    pub code: PathBuf,
    /// Variables, this VM's own.
    pub variables: Option<Variables>,
    /// The variables are out of reach of the guest's operating system, and enrolled keys are enforced.
    pub secure: bool,
}

/// The variables of one VM.
#[derive(Debug)]
pub struct Variables {
    /// What they are called in messages.
    pub path: PathBuf,
    /// Open for reading and writing.
    pub file: File,
}

impl Paths {
    /// Firmware for a VM, with its variables: the ones it has, or fresh ones in its scratch directory. Persistent ones may
    /// be among the passed files. `None` for a VM without firmware.
    ///
    /// # Errors
    /// Names what is missing, and the package that brings it.
    pub fn find(&self, launch: &Launch, passed: &PassedFiles) -> Result<Option<Firmware>, Fault> {
        match &launch.boot {
            BootSource::Kernel(_) => Ok(None),
            BootSource::Bios { .. } => {
                Ok(Some(Firmware { code: self.bios(&launch.fields)?, variables: None, secure: false }))
            }
            BootSource::Efi { secure_boot, persistent } => {
                let (code, template) = self.efi(*secure_boot, &launch.fields)?;
                let own = match persistent {
                    Some(path) => kept(&template, path, passed),
                    None => fresh(&template, launch.runtime_dir.join("efi-variables.fd")),
                }?;
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

/// Variables that begin anew at each start.
fn fresh(template: &Path, path: PathBuf) -> Result<Variables, Fault> {
    let make = || {
        let file = open(&path)?;
        file.set_len(0)?;
        file.write_all_at(&std::fs::read(template)?, 0)?;
        Ok(file)
    };
    named(make(), path.clone())
}

/// Variables that are kept, and made at the first start.
fn kept(template: &Path, path: &Path, passed: &PassedFiles) -> Result<Variables, Fault> {
    let make = || {
        let file = match passed.take_file(path) {
            Some(file) => file,
            None => open(path)?,
        };
        if !is_filled(&file)? {
            fill(&file, &std::fs::read(template)?)?;
        }
        Ok(file)
    };
    named(make(), path.to_owned())
}

fn named(file: io::Result<File>, path: PathBuf) -> Result<Variables, Fault> {
    match file {
        Ok(file) => Ok(Variables { path, file }),
        Err(error) => {
            let detail = format!("cannot make the EFI variables {}: {error}", path.display());
            Err(fault(Code::HostResource, detail))
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Whether a store was written whole.
fn is_filled(file: &File) -> io::Result<bool> {
    let mut begin = [0; BEGIN];
    match file.read_exact_at(&mut begin, 0) {
        Ok(()) => Ok(begin.iter().any(|byte| *byte != 0)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whole or not at all: a store that is half-written would look like one that is kept.
fn fill(file: &File, template: &[u8]) -> io::Result<()> {
    let (begin, rest) = template.split_at(template.len().min(BEGIN));
    file.set_len(0)?;
    file.write_all_at(rest, begin.len() as u64)?;
    file.sync_data()?;
    file.write_all_at(begin, 0)?;
    file.sync_all()
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

    /// A node with EFI, whose template of variables is `template`.
    fn node(dir: &Path, template: &[u8]) -> Paths {
        let (code, variables) = (dir.join("code"), dir.join("template"));
        std::fs::write(&code, b"code").unwrap();
        std::fs::write(&variables, template).unwrap();
        Paths { bios: None, efi_code: Some(code), efi_variables: Some(variables) }
    }

    #[test]
    fn variables_that_are_kept_are_not_touched_and_others_begin_anew() {
        let dir = tempfile::tempdir().unwrap();
        let template: Vec<u8> = (0..=255).cycle().take(3 * BEGIN).collect();
        let paths = node(dir.path(), &template);
        let kept = dir.path().join("kept.fd");
        for (keep, after) in [(Some(kept.clone()), &b"mine"[..]), (None, &template[..4])] {
            let found = || {
                let launch = launch(efi(keep.clone()), dir.path());
                paths.find(&launch, &PassedFiles::default()).unwrap().unwrap().variables.unwrap()
            };
            let own = found();
            assert_eq!(std::fs::read(&own.path).unwrap(), template);
            own.file.write_all_at(b"mine", 0).unwrap();
            let again = found();
            assert_eq!(again.path, own.path);
            assert_eq!(&std::fs::read(&own.path).unwrap()[..4], after);
        }
        assert_eq!(&std::fs::read(&kept).unwrap()[..4], b"mine");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_store_that_was_not_written_whole_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let template = vec![7; 3 * BEGIN];
        let (paths, at) = (node(dir.path(), &template), dir.path().join("kept.fd"));
        for broken in [vec![], vec![7; BEGIN - 1], [vec![0; BEGIN], vec![7; 9]].concat()] {
            std::fs::write(&at, &broken).unwrap();
            paths.find(&launch(efi(Some(at.clone())), dir.path()), &PassedFiles::default()).unwrap();
            assert_eq!(std::fs::read(&at).unwrap(), template, "{} bytes", broken.len());
        }
    }

    #[test]
    fn variables_that_are_passed_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let template = vec![7; 2 * BEGIN];
        let (paths, path) = (node(dir.path(), &template), PathBuf::from("/absent/efi-variables.fd"));
        let (socket, at) = (dir.path().join("files"), dir.path().join("kept.fd"));
        let passed = PassedFiles::serve(&socket).unwrap();
        let file = std::os::fd::OwnedFd::from(open(&at).unwrap());
        vireo_proto::files::pass(&socket, &[(path.display().to_string(), file)]).unwrap();
        let launch = launch(efi(Some(path.clone())), dir.path());
        let found = paths.find(&launch, &passed).unwrap().unwrap();
        assert_eq!(found.variables.unwrap().path, path);
        assert_eq!(std::fs::read(&at).unwrap(), template);
        let fault = paths.find(&launch, &PassedFiles::default()).unwrap_err();
        assert!(fault.detail.contains("/absent/efi-variables.fd"), "{}", fault.detail);
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
            let launch = launch(boot, Path::new("/tmp"));
            let fault = paths.find(&launch, &PassedFiles::default()).unwrap_err();
            assert!(
                fault.detail.contains(package) && fault.detail.contains("/absent/firmware"),
                "{}",
                fault.detail
            );
            assert_eq!((fault.code(), fault.field.as_str()), (Code::HostResource, field));
        }
    }
}
