//! The Pod runtime: a launcher that the kubelet started in its Pod.
//!
//! The launcher's sockets are in a volume of the Pod, which the node agent finds below the kubelet's directory.

mod claims;
mod host_devices;
mod images;
pub(crate) mod projected;
mod root;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{OFlags, ResolveFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use tokio::time::timeout;
use uuid::Uuid;
use vireo_api::names::{ATTACHMENT_SOCKET, DISKS_VOLUME, IMAGES_VOLUME, SOCKETS_VOLUME, hotplug_disk};
use vireo_proto::files;
use vireo_proto::launcher::{Disk, disk_source::Source};

pub(crate) use self::claims::ClaimSpace;
use self::claims::{NewDisk, open_disk as open_claim, open_state};
pub(crate) use self::host_devices::{functions, permit_locking, prepare as prepare_host_devices};
pub(crate) use self::images::{ImageContainer, ImageVolume};
use self::root::Root;
use super::files::{PodFiles, named, open_disk};
use super::{process, socket};
use crate::node::{Attachment, Attachments};
use crate::state::VmiDir;
use crate::storage::volumes::VolumeError;
use crate::storage::{ClaimError, DumpDirectory, HostDisks, fits_dump};

/// Disks of claims by their paths in a Pod, with the size in bytes of those that have to be made.
pub(crate) type ClaimDisks = BTreeMap<String, Option<u64>>;

/// How long an attachment Pod that runs has to make its socket.
const ATTACHMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds the launcher of a Pod by its socket, and stamps it. `pods` is the kubelet's directory of Pods. Blocks.
///
/// # Errors
/// When it does not listen yet, or its socket is not of the Pod.
pub(crate) fn find(dir: &VmiDir, pods: &Path, pod: &str) -> io::Result<Pid> {
    let uid = parsed(pod)?;
    let volume = volume(pods, pod, SOCKETS_VOLUME);
    link(&dir.pod_link(), &volume)?;
    let socket = UnixStream::connect(files::SocketPath::open(&dir.launcher_socket())?.path())?;
    let pid = socket_peercred(&socket)?.pid;
    is_of_pod(pid, uid)?;
    process::stamp(&dir.launcher_stamp(), pid)?;
    Ok(pid)
}

/// The UID of a Pod, which becomes a part of a path.
fn parsed(pod: &str) -> io::Result<Uuid> {
    pod.parse().map_err(|_| io::Error::other(format!("{pod:?} is not the UID of a Pod")))
}

/// Whether the process that serves a socket in the volume of a Pod is one of the Pod's, which may replace the socket.
///
/// # Errors
/// When it is not, or has ended.
fn is_of_pod(process: Pid, pod: Uuid) -> io::Result<()> {
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", process.as_raw_nonzero()))?;
    if is_in_pod(&cgroups, pod) {
        return Ok(());
    }
    Err(io::Error::other("the socket of the Pod is served by a process outside of it"))
}

/// A volume of a Pod that the kubelet made.
fn volume(pods: &Path, pod: &str, name: &str) -> PathBuf {
    pods.join(format!("{pod}/volumes/kubernetes.io~empty-dir/{name}"))
}

/// The socket at which a container of a Pod offers files of its image.
pub(crate) fn image_socket(pods: &Path, pod: &str, container: &str) -> PathBuf {
    volume(pods, pod, IMAGES_VOLUME).join(format!("{container}.sock"))
}

/// The directory of the volume of a Pod with the disks of its VMI that end with it.
pub(crate) fn disks(pods: &Path, pod: &str) -> PathBuf {
    volume(pods, pod, DISKS_VOLUME)
}

/// Whether a process with these cgroups is in a Pod. The kubelet's cgroup drivers spell its UID with `-` and with `_`.
fn is_in_pod(cgroups: &str, pod: Uuid) -> bool {
    let uid = pod.to_string();
    let spelled = [format!("pod{uid}"), format!("pod{}", uid.replace('-', "_"))];
    cgroups.lines().any(|line| spelled.iter().any(|name| line.contains(name)))
}

/// Makes a symbolic link, or replaces it.
fn link(at: &Path, to: &Path) -> io::Result<()> {
    if fs::read_link(at).is_ok_and(|now| now == to) {
        return Ok(());
    }
    match fs::remove_file(at) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => std::os::unix::fs::symlink(to, at),
    }
}

/// Opens the disk of a claim at a path in the Pod of a launcher. `None` for what is not a claim's. Blocks.
///
/// # Errors
/// When it cannot be opened.
pub(super) fn open_mounted(
    PodFiles { pid, claims, space }: &PodFiles,
    path: &str,
    write: bool,
) -> io::Result<Option<(String, OwnedFd)>> {
    let Some(bytes) = claims.get(path) else { return Ok(None) };
    let new = bytes.map(|bytes| NewDisk { bytes, space: *space });
    let opened = open_claim(&Root::of(*pid)?, path, new, write).map_err(named(path))?;
    Ok(Some((path.to_owned(), opened)))
}

/// The size in bytes of the disk of a claim at a path in the Pod of a launcher. Blocks.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn disk_size(pod: &PodFiles, path: &str) -> io::Result<u64> {
    let opened = open_mounted(pod, path, false)?.ok_or(io::ErrorKind::NotFound)?;
    // Block devices have their size there alone.
    File::from(opened.1).seek(SeekFrom::End(0))
}

/// Opens a file of the VM's state, as its EFI variables, in the Pod of the launcher with a process ID. Blocks.
///
/// # Errors
/// When it cannot be opened.
pub(super) fn open_kept(path: &str, pid: i32) -> io::Result<OwnedFd> {
    open_state(&Root::of(pid)?, path)
}

/// The network namespace of a process.
pub(crate) fn network_namespace(pid: i32) -> PathBuf {
    format!("/proc/{pid}/ns/net").into()
}

/// The disk of a claim, with the size of one that has to be made.
fn claim<'a>(disk: &'a Disk, claims: &ClaimDisks) -> Option<(&'a str, Option<u64>)> {
    match disk.source.as_ref()?.source.as_ref()? {
        Source::Raw(raw) => claims.get(&raw.path).map(|bytes| (raw.path.as_str(), *bytes)),
        Source::Qcow2(_) | Source::Overlay(_) | Source::NoMedium(_) => None,
    }
}

/// Waits until the socket of an attachment Pod is there: the kubelet reports that its process runs before that has made it.
/// Returns after [`ATTACHMENT_TIMEOUT`] in any case, or when it cannot wait: what opens files of the Pod reports the error.
/// `pods` is the kubelet's directory of Pods.
pub(crate) async fn await_attachment(pod: &Attachment, pods: &Path) {
    let socket = attachment_socket(pod, pods);
    let _ = timeout(ATTACHMENT_TIMEOUT, socket::appears(&socket)).await;
}

/// The attachment Pod that has the claim of a disk.
pub(crate) fn attachment_of<'a>(disk: &Disk, attachments: &'a Attachments) -> Option<&'a Attachment> {
    attachments.values().find(|pod| claim(disk, &pod.disks).is_some())
}

fn attachment_socket(pod: &Attachment, pods: &Path) -> PathBuf {
    volume(pods, &pod.uid, SOCKETS_VOLUME).join(ATTACHMENT_SOCKET)
}

/// Opens the files of a disk that is hotplugged: those of a claim in the attachment Pod that has it. `pods` is the kubelet's
/// directory of Pods. Blocks.
///
/// # Errors
/// Names the first that cannot be opened.
pub(crate) fn open_attached(
    disk: &Disk,
    (attachments, space): (&Attachments, ClaimSpace),
    pods: &Path,
) -> io::Result<Vec<(String, OwnedFd)>> {
    let found = attachment_of(disk, attachments).and_then(|pod| Some((pod, claim(disk, &pod.disks)?)));
    let Some((pod, (path, bytes))) = found else { return open_disk(disk, &HostDisks::default()) };
    let root = root_of(pod, path, pods)?;
    let new = bytes.map(|bytes| NewDisk { bytes, space });
    let opened = open_claim(&root, path, new, !disk.read_only);
    Ok(vec![(path.to_owned(), opened.map_err(named(path))?)])
}

/// What an attachment Pod has mounted, to open a path there.
///
/// # Errors
/// When its process has ended.
fn root_of(pod: &Attachment, path: &str, pods: &Path) -> io::Result<Root> {
    let uid: Uuid = parsed(&pod.uid)?;
    let process = files::peer(&attachment_socket(pod, pods));
    let process = process.map_err(named(&format!("{path} in the Pod {}", pod.name)))?;
    is_of_pod(process, uid)?;
    Root::of(process.as_raw_nonzero().get())
}

/// The directory for a memory dump of so many bytes in the file system of a claim, which its attachment Pod has mounted. `pods` is
/// the kubelet's directory of Pods. Blocks.
///
/// # Errors
/// When the claim is a block device or is smaller, or the directory cannot be opened.
pub(crate) fn dump_directory(
    attachment: &Attachment,
    (namespace, claim): (&str, &str),
    bytes: u64,
    pods: &Path,
) -> Result<DumpDirectory, ClaimError> {
    let disk = hotplug_disk(claim);
    let path = Path::new(&disk).parent().unwrap_or(Path::new(&disk));
    let failed = |source| VolumeError::Open { path: path.to_owned(), source };
    let Some(Some(size)) = attachment.disks.get(&disk) else {
        return Err(failed(io::Error::other("the claim is a block device: it needs a file system")).into());
    };
    fits_dump((namespace, claim), *size, bytes)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let opened =
        root_of(attachment, &disk, pods).and_then(|root| root.open(path, flags, ResolveFlags::empty()));
    Ok(DumpDirectory::new(path.to_owned(), opened.map_err(failed)?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::launcher::link::chain;
    use crate::state::StateDir;

    #[test]
    fn a_process_is_in_the_pod_that_its_cgroup_names() {
        let pod: Uuid = "0f0e0d0c-0b0a-0908-0706-050403020100".parse().unwrap();
        let table = [
            ("4:memory:/kubepods/besteffort/pod0f0e0d0c-0b0a-0908-0706-050403020100/abc\n", true),
            ("0::/kubepods.slice/kubepods-pod0f0e0d0c_0b0a_0908_0706_050403020100.slice/cri-1.scope\n", true),
            (
                "0::/kubepods.slice/kubepods-pod1f0e0d0c_0b0a_0908_0706_050403020100.slice/cri-1.scope\n",
                false,
            ),
            ("0::/system.slice/containerd.service\n", false),
        ];
        for (cgroups, expected) in table {
            assert_eq!(is_in_pod(cgroups, pod), expected, "{cgroups}");
        }
    }

    #[tokio::test]
    async fn an_attachment_pod_is_awaited_until_it_has_its_socket() {
        let pods = tempfile::tempdir().unwrap();
        let pod = Attachment {
            uid: Uuid::new_v4().to_string(),
            name: "hp-volume-data".to_owned(),
            disks: ClaimDisks::new(),
        };
        let socket = attachment_socket(&pod, pods.path());
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let waiting = tokio::spawn({
            let (pod, pods) = (pod.clone(), pods.path().to_owned());
            async move { await_attachment(&pod, &pods).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        fs::write(&socket, "").unwrap();
        waiting.await.unwrap();
        // Without a directory to watch, too.
        await_attachment(&pod, Path::new("/absent")).await;
    }

    #[test]
    fn a_memory_dump_needs_a_file_system_with_room() {
        let attachment = |path: &str, size| Attachment {
            uid: Uuid::new_v4().to_string(),
            name: "hp-volume-dumps".to_owned(),
            disks: ClaimDisks::from([(path.to_owned(), size)]),
        };
        let refused = |attachment: &Attachment| {
            let found = dump_directory(attachment, ("n", "dumps"), 2 << 20, Path::new("/absent"));
            found.unwrap_err()
        };
        let device = refused(&attachment("/dev/hotplug/dumps", None));
        assert!(chain(&device).contains("is a block device"), "{}", chain(&device));
        let path = "/var/run/kubevirt/hotplug-disks/dumps/disk.img";
        assert!(matches!(refused(&attachment(path, Some(1 << 20))), ClaimError::TooSmall { .. }));
        let gone = refused(&attachment(path, Some(2 << 20)));
        assert!(chain(&gone).contains("in the Pod hp-volume-dumps"), "{}", chain(&gone));
    }

    #[test]
    fn a_socket_of_another_process_is_not_taken_for_the_launchers() {
        let dir = tempfile::tempdir().unwrap();
        let pod = Uuid::new_v4();
        let pods = dir.path().join("pods");
        let volume = pods.join(format!("{pod}/volumes/kubernetes.io~empty-dir/{SOCKETS_VOLUME}"));
        fs::create_dir_all(&volume).unwrap();
        let vmi = StateDir::at(dir.path()).of_pods().vmi_dir(Uuid::new_v4());
        vmi.create().unwrap();
        let absent = find(&vmi, &pods, &pod.to_string()).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        // By the link, which `find` has made: the path of the volume is too long for a socket.
        let _socket = UnixListener::bind(vmi.launcher_socket()).unwrap();
        let foreign = find(&vmi, &pods, &pod.to_string()).unwrap_err();
        assert!(foreign.to_string().contains("outside of it"), "{foreign}");
        assert!(!vmi.launcher_stamp().exists());
        assert!(find(&vmi, &pods, "../../etc").is_err());
    }
}
