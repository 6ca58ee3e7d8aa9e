//! The file systems that a guest shares: a process of virtiofsd for each, beside QEMU, which connects to it. It has the rights
//! of the launcher, and ends with the VM.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use futures_util::future::select_all;
use serde_json::json;
use tokio::process::Command;
use vireo_proto::launcher::Fault;

use super::args::Args;
use super::child::ChildProcess;
use super::escaped;
use super::process::find_binary;
use crate::fault::{Code, fault_at};
use crate::launch::{Filesystem, Launch};

/// The program, and the Debian package that brings it.
const PROGRAM: &str = "virtiofsd";
/// Where it is: on the path, or where Debian has it.
pub(super) const PROGRAMS: [&str; 2] = [PROGRAM, "/usr/libexec/virtiofsd"];
/// Requests that the queue of a device holds.
const QUEUE: u32 = 1024;

/// A process that shares a file system; killed when dropped.
#[derive(Debug)]
pub(super) struct Server {
    name: String,
    process: ChildProcess,
}

/// Where QEMU connects to the server of the `index`th file system.
fn socket(launch: &Launch, index: usize) -> PathBuf {
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

/// The guest's memory, which the servers map. Huge pages are memory of such a file already.
pub(super) fn memory(args: &mut Args, launch: &Launch) {
    if launch.filesystems.is_empty() || launch.huge_page.is_some() {
        return;
    }
    let memory = json!({
        "qom-type": "memory-backend-memfd", "id": "ram", "size": launch.memory_bytes, "share": true,
    });
    args.json("-object", &memory);
    args.option("-machine", "memory-backend=ram");
}

/// The devices, each with the tag by which the guest mounts it.
pub(super) fn devices(args: &mut Args, launch: &Launch) {
    for (index, filesystem) in launch.filesystems.iter().enumerate() {
        let id = format!("fs{index}");
        args.option("-chardev", format!("socket,id={id},path={}", escaped(&socket(launch, index))));
        let device = json!({
            "driver": "vhost-user-fs-pci", "id": id, "chardev": id, "tag": filesystem.name, "queue-size": QUEUE,
        });
        args.json("-device", &device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::sample;

    fn launch(directory: &Path, scratch: &Path) -> Launch {
        let filesystem = Filesystem {
            name: "config".to_owned(),
            field: "spec.x".to_owned(),
            directory: directory.to_owned(),
            read_only: true,
        };
        Launch { filesystems: vec![filesystem], runtime_dir: scratch.to_owned(), ..sample::kernel_boot() }
    }

    #[test]
    fn each_file_system_is_a_device_on_shared_memory() {
        let launch = launch(Path::new("/files"), Path::new("/run,x"));
        let mut args = Args::default();
        memory(&mut args, &launch);
        devices(&mut args, &launch);
        let expected = "-object {\"id\":\"ram\",\"qom-type\":\"memory-backend-memfd\",\"share\":true,\"size\":268435456} \
             -machine memory-backend=ram -chardev socket,id=fs0,path=/run,,x/fs0.sock \
             -device {\"chardev\":\"fs0\",\"driver\":\"vhost-user-fs-pci\",\"id\":\"fs0\",\"queue-size\":1024,\"tag\":\"config\"}";
        assert_eq!(args.into_line().join(" "), expected);
        let mut args = Args::default();
        memory(&mut args, &sample::kernel_boot());
        devices(&mut args, &sample::kernel_boot());
        assert_eq!(args.into_line(), [""; 0]);
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
}
