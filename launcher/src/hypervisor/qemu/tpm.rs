//! The TPM of a guest: swtpm, a process beside QEMU, to which a socket pair connects it. It has the rights of the launcher,
//! and its state is in the VM's scratch directory: both end with the VM. Where the state is to outlive it, each change is
//! copied to a file that the node agent opened.

mod state;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use vireo_proto::launcher::Fault;
use vireo_vmconfig::{DeviceRequest, ExtraDevice};

use self::state::KeptState;
use super::event_loop::EXIT_TIMEOUT;
use super::process::find_binary;
use crate::fault::{Code, fault_at};
use crate::hypervisor::child::ChildProcess;
use crate::launch::Launch;

/// The program, and the Debian package that brings it.
pub(super) const PROGRAM: &str = "swtpm";
/// The directory of its state in the scratch directory.
const STATE: &str = "tpm";

/// A TPM that runs; killed when dropped, and ended by [`Tpm::end`].
#[derive(Debug)]
pub(super) struct Tpm {
    process: ChildProcess,
    kept: Option<Arc<Mutex<KeptState>>>,
}

impl Tpm {
    /// Waits until it has ended, by itself if it does in time, and keeps what it has stored last.
    pub(super) async fn end(mut self) {
        self.process.end(Instant::now() + EXIT_TIMEOUT).await;
        if let Some(kept) = self.kept {
            // The disk may take long to write it. A panic is logged as one.
            let _ = spawn_blocking(move || state::save(&kept)).await;
        }
    }
}

/// Starts the TPM of a VM that requests one. The socket is for QEMU.
///
/// # Errors
/// Names the field that requests it, and what is missing.
pub(super) fn start(
    program: &Path,
    launch: &Launch,
    state: Option<File>,
) -> Result<Option<(Tpm, StdStream)>, Fault> {
    let mut requests = launch.extra_devices.iter();
    let Some(DeviceRequest { field, device }) = requests.find(|request| request.device == ExtraDevice::Tpm)
    else {
        return Ok(None);
    };
    let failed =
        |why: String| fault_at(Code::HostResource, field, format!("{field} requests {device}: {why}"));
    let binary =
        find_binary(program).map_err(|why| failed(format!("{why}: install the Debian package {PROGRAM}")))?;
    let directory = launch.runtime_dir.join(STATE);
    let kept = std::fs::create_dir_all(&directory)
        .and_then(|()| state.map(|file| KeptState::load(file, &directory)).transpose())
        .map_err(|error| failed(format!("its state cannot be read: {error}")))?;
    spawn(&binary, &directory, kept)
        .map(Some)
        .map_err(|error| failed(format!("cannot start {}: {error}", binary.display())))
}

fn spawn(binary: &Path, state: &Path, kept: Option<KeptState>) -> io::Result<(Tpm, StdStream)> {
    let kept = kept.map(|kept| state::follow(kept, state)).transpose()?;
    let (ours, theirs) = StdStream::pair()?;
    let fd = theirs.as_raw_fd();
    let mut command = Command::new(binary);
    command
        .args(["socket", "--tpm2", "--ctrl", &format!("type=unixio,clientfd={fd}"), "--tpmstate"])
        .arg(format!("dir={},mode=0600", state.display()));
    Ok((Tpm { process: ChildProcess::spawn(command, PROGRAM, vec![fd])?, kept }, ours))
}

/// Waits for the end of a TPM, and says how it came.
pub(super) async fn ended(tpm: Option<&mut Tpm>) -> String {
    match tpm {
        Some(tpm) => tpm.process.ended(&format!("the TPM ({PROGRAM})")).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::launch::sample;

    fn launch(devices: Vec<ExtraDevice>, scratch: &Path) -> Launch {
        let field = "spec.domain.devices.tpm".to_owned();
        let extra_devices =
            devices.into_iter().map(|device| DeviceRequest { field: field.clone(), device }).collect();
        Launch { extra_devices, runtime_dir: scratch.to_owned(), ..sample::kernel_boot() }
    }

    #[tokio::test]
    async fn a_vm_without_a_tpm_needs_no_program() {
        let scratch = tempfile::tempdir().unwrap();
        let started = start(Path::new("vireo-no-such-program"), &launch(vec![], scratch.path()), None);
        assert!(started.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_named_with_its_package() {
        let scratch = tempfile::tempdir().unwrap();
        let launch = launch(vec![ExtraDevice::Tpm], scratch.path());
        let fault = start(Path::new("vireo-no-such-program"), &launch, None).unwrap_err();
        assert_eq!((fault.code(), fault.field.as_str()), (Code::HostResource, "spec.domain.devices.tpm"));
        assert_eq!(
            fault.detail,
            "spec.domain.devices.tpm requests a TPM: vireo-no-such-program is not installed on this node: \
             install the Debian package swtpm"
        );
    }

    #[tokio::test]
    async fn its_end_has_a_reason() {
        let scratch = tempfile::tempdir().unwrap();
        let (mut tpm, _socket) = spawn(Path::new("/bin/false"), scratch.path(), None).unwrap();
        assert_eq!(ended(Some(&mut tpm)).await, "the TPM (swtpm) exited with code 1");
    }

    #[tokio::test]
    async fn its_last_state_is_kept_when_it_has_ended() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("kept");
        let directory = scratch.path().join("state");
        std::fs::create_dir(&directory).unwrap();
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        // It stores its state at its end alone.
        let script = scratch.path().join("tpm");
        let stored = directory.join("tpm2-00.permall");
        std::fs::write(&script, format!("#!/bin/sh\nprintf last >{}\n", stored.display())).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
        let kept = KeptState::load(open(), &directory).unwrap();
        let (mut tpm, _socket) = spawn(&script, &directory, None).unwrap();
        // Without a thread that follows the state.
        tpm.kept = Some(Arc::new(Mutex::new(kept)));
        tpm.end().await;
        std::fs::remove_file(&stored).unwrap();
        KeptState::load(open(), &directory).unwrap();
        assert_eq!(std::fs::read_to_string(&stored).unwrap(), "last");
    }
}
