//! The file systems that a guest shares: a process of virtiofsd for each, beside the hypervisor, which connects to it. It has
//! the rights of the launcher, and ends with the VM.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use futures_util::future::select_all;
use tokio::process::Command;
use vireo_proto::launcher::Fault;
use vireo_vmm::config::Filesystem as Shared;

use super::child::ChildProcess;
use super::qemu::find_binary;
use crate::fault::{Code, chain, fault_at};
use crate::launch::{Filesystem, Launch};

/// The program, and the Debian package that brings it.
const PROGRAM: &str = "virtiofsd";
/// Where it is: on the path, or where Debian has it.
pub(super) const PROGRAMS: [&str; 2] = [PROGRAM, "/usr/libexec/virtiofsd"];

/// A process that shares a file system; killed when dropped.
#[derive(Debug)]
pub(super) struct Server {
    name: String,
    process: ChildProcess,
}

/// Where the hypervisor connects to the server of the `index`th file system.
pub(super) fn socket(launch: &Launch, index: usize) -> PathBuf {
    launch.runtime_dir.join(format!("fs{index}.sock"))
}

/// Starts the servers of a VM's file systems, by the first of the programs that is there.
///
/// # Errors
/// Names the field that requests it, and what is missing.
pub(super) fn start(programs: &[&Path], launch: &Launch) -> Result<Vec<Server>, Fault> {
    let mut servers = Vec::new();
    for (index, filesystem) in launch.filesystems.iter().enumerate() {
        let Filesystem { field, name, directory, .. } = filesystem;
        let failed = |why: String| {
            fault_at(Code::HostResource, field, format!("{field} shares the file system {name}: {why}"))
        };
        let binary = programs.iter().find_map(|program| find_binary(program).ok()).ok_or_else(|| {
            failed(format!("{PROGRAM} is not installed on this node: install the Debian package {PROGRAM}"))
        })?;
        // The server would report less.
        let directory_is_there = File::open(directory).and_then(|opened| opened.metadata());
        match directory_is_there {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(failed(format!("{} is not a directory", directory.display()))),
            Err(error) => return Err(failed(format!("cannot open {}: {error}", directory.display()))),
        }
        let server = spawn(&binary, filesystem, &socket(launch, index));
        servers.push(server.map_err(|error| failed(format!("cannot start {}: {error}", binary.display())))?);
    }
    Ok(servers)
}

fn spawn(binary: &Path, filesystem: &Filesystem, socket: &Path) -> io::Result<Server> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(socket)?;
    let fd = listener.as_raw_fd();
    let mut command = Command::new(binary);
    command
        .args(["--fd", &fd.to_string(), "--sandbox", "none", "--inode-file-handles=never"])
        .args(["--log-level", "error", "--shared-dir"])
        .arg(&filesystem.directory)
        .args(filesystem.read_only.then_some("--readonly"));
    let process = ChildProcess::spawn(command, PROGRAM, vec![fd])?;
    Ok(Server { name: filesystem.name.clone(), process })
}

/// Waits for the end of the first of the servers, and says how it came.
pub(super) async fn ended(servers: &mut [Server]) -> String {
    if servers.is_empty() {
        return std::future::pending().await;
    }
    let (reason, ..) = select_all(servers.iter_mut().map(|server| Box::pin(server.ended()))).await;
    reason
}

impl Server {
    async fn ended(&mut self) -> String {
        self.process.ended(&format!("the file system {} ({PROGRAM})", self.name)).await
    }
}

/// Connects to the servers, and negotiates with them. Waits for their answers.
///
/// # Errors
/// Names the field of the first that does not answer as it should.
pub(super) fn connect(launch: &Launch) -> Result<Vec<Shared>, Fault> {
    let connect = |(index, filesystem): (usize, &Filesystem)| {
        let Filesystem { field, name, .. } = filesystem;
        let failed = |why: String| {
            fault_at(Code::HostResource, field, format!("{field} shares the file system {name}: {why}"))
        };
        let stream = UnixStream::connect(socket(launch, index)).map_err(|error| failed(error.to_string()))?;
        Shared::new(name, stream).map_err(|error| failed(chain(&error)))
    };
    launch.filesystems.iter().enumerate().map(connect).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::launch::sample;

    pub(in crate::hypervisor) fn launch(directory: &Path, scratch: &Path) -> Launch {
        let filesystem = Filesystem {
            name: "config".to_owned(),
            field: "spec.x".to_owned(),
            directory: directory.to_owned(),
            read_only: true,
        };
        Launch { filesystems: vec![filesystem], runtime_dir: scratch.to_owned(), ..sample::kernel_boot() }
    }

    #[tokio::test]
    async fn what_is_missing_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let missing = [Path::new("vireo-no-such-program")];
        let fault = start(&missing, &launch(scratch.path(), scratch.path())).unwrap_err();
        assert_eq!((fault.code(), fault.field.as_str()), (Code::HostResource, "spec.x"));
        assert!(fault.detail.ends_with("install the Debian package virtiofsd"), "{}", fault.detail);
        let program = [missing[0], Path::new("/bin/true")];
        let absent = launch(&scratch.path().join("absent"), scratch.path());
        let fault = start(&program, &absent).unwrap_err();
        assert!(
            fault.detail.starts_with("spec.x shares the file system config: cannot open "),
            "{}",
            fault.detail
        );
        let fault = start(&program, &launch(Path::new("/bin/true"), scratch.path())).unwrap_err();
        assert!(fault.detail.ends_with("/bin/true is not a directory"), "{}", fault.detail);
    }

    #[tokio::test]
    async fn the_end_of_one_has_a_reason() {
        let scratch = tempfile::tempdir().unwrap();
        let mut servers = start(&[Path::new("/bin/false")], &launch(scratch.path(), scratch.path())).unwrap();
        assert_eq!(ended(&mut servers).await, "the file system config (virtiofsd) exited with code 1");
    }

    #[tokio::test]
    async fn a_server_that_does_not_speak_the_protocol_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let launch = launch(scratch.path(), scratch.path());
        let fault = connect(&launch).unwrap_err();
        assert!(
            fault.detail.starts_with("spec.x shares the file system config: No such file"),
            "{}",
            fault.detail
        );
        let _servers = start(&[Path::new("/bin/false")], &launch).unwrap();
        let fault = connect(&launch).unwrap_err();
        assert_eq!((fault.code(), fault.field.as_str()), (Code::HostResource, "spec.x"));
    }
}
