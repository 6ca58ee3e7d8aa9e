//! The Pod runtime: a launcher that the kubelet started in its Pod.
//!
//! The launcher's sockets are in a volume of the Pod, which the node agent finds below the kubelet's directory. It opens
//! the files and devices of the VM itself and passes them: the launcher sees none of the node's files.

mod claims;
mod host_devices;
mod images;
pub(crate) mod projected;
mod root;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use uuid::Uuid;
use vireo_api::names::{ATTACHMENT_SOCKET, IMAGES_VOLUME, SOCKETS_VOLUME};
use vireo_proto::files::{
    self, KVM, VHOST_NET, dhcp_name, dhcp_socket, dhcpv6_name, dhcpv6_socket, router_name, router_socket,
    tap_name, vhost_name,
};
use vireo_proto::launcher::{Disk, LaunchRequest, disk_source::Source, firmware::Boot};

use self::claims::{open_disk as open_claim, open_state};
pub(crate) use self::host_devices::prepare as prepare_host_devices;
pub(crate) use self::images::ImageContainer;
use self::root::Root;
use super::process;
use crate::network::netns;
use crate::network::tap::{self, Queues};
use crate::node::Attachments;
use crate::state::VmiDir;

/// Disks of claims by their paths in a Pod, with the size in bytes of those that have to be made.
pub(crate) type ClaimDisks = BTreeMap<String, Option<u64>>;

/// Finds the launcher of a Pod by its socket, and stamps it. `pods` is the kubelet's directory of Pods. Blocks.
///
/// # Errors
/// When it does not listen yet, or its socket is not of the Pod.
pub(crate) fn find(dir: &VmiDir, pods: &Path, pod: &str) -> io::Result<Pid> {
    let uid = parsed(pod)?;
    let volume = volume(pods, pod, SOCKETS_VOLUME);
    link(&dir.pod_link(), &volume)?;
    let socket = UnixStream::connect(dir.launcher_socket())?;
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

/// The network namespace of a process.
pub(crate) fn network_namespace(pid: i32) -> PathBuf {
    format!("/proc/{pid}/ns/net").into()
}

/// Opens the files and devices that a launch request names, for the launcher with a process ID. `claims` are the disks that
/// are in its Pod; all others are files of the node. Blocks.
///
/// # Errors
/// Names the first that cannot be opened.
pub(crate) fn open(
    request: &LaunchRequest,
    pid: i32,
    claims: &ClaimDisks,
) -> io::Result<Vec<(String, OwnedFd)>> {
    let namespace = &network_namespace(pid);
    let mut files = Vec::new();
    // Where there is none, the launcher reports the consequences.
    files.extend(open_file(KVM, true).ok());
    for disk in &request.disks {
        match claim(disk, claims) {
            Some((path, bytes)) => {
                let opened = open_claim(&Root::of(pid)?, path, bytes, !disk.read_only);
                files.push((path.to_owned(), opened.map_err(named(path))?));
            }
            None => files.extend(open_disk(disk)?),
        }
    }
    match request.firmware.as_ref().and_then(|firmware| firmware.boot.as_ref()) {
        Some(Boot::Kernel(boot)) => {
            let paths = [&boot.kernel_path, &boot.initrd_path];
            for path in paths.into_iter().filter(|path| !path.is_empty()) {
                files.push(open_file(path, false)?);
            }
        }
        Some(Boot::Efi(efi)) if claims.contains_key(&efi.variables_path) => {
            let path = &efi.variables_path;
            files.push((path.clone(), open_state(&Root::of(pid)?, path).map_err(named(path))?));
        }
        Some(Boot::Efi(_) | Boot::Bios(_)) | None => {}
    }
    for interface in &request.interfaces {
        let (device, pairs) = (interface.tap.clone(), interface.queue_pairs.max(1));
        let open = move || (0..pairs).map(|_| tap::open(&device, Queues::of(pairs))).collect();
        let opened: io::Result<Vec<OwnedFd>> = netns::inside(namespace, open)?;
        for (number, queue) in opened.map_err(named(&interface.tap))?.into_iter().enumerate() {
            files.push((tap_name(&interface.tap, number), queue));
            // Where there is none, hypervisors move the queue themselves.
            let vhost = open_file(VHOST_NET, true).ok();
            files.extend(vhost.map(|(_, device)| (vhost_name(&interface.tap, number), device)));
        }
        if interface.lease.is_some() {
            let device = interface.dhcp_device.clone();
            let socket = netns::inside(namespace, move || dhcp_socket(&device))?;
            files
                .push((dhcp_name(&interface.tap), socket.map_err(named("the DHCP server's socket"))?.into()));
        }
        if interface.ipv6_lease.is_some() {
            let device = interface.tap.clone();
            let sockets = move || (dhcpv6_socket(&device), router_socket(&device));
            let (dhcpv6, router) = netns::inside(namespace, sockets)?;
            let dhcpv6 = dhcpv6.map_err(named("the DHCPv6 server's socket"))?;
            files.push((dhcpv6_name(&interface.tap), dhcpv6.into()));
            let router = router.map_err(named("the socket for router advertisements"))?;
            files.push((router_name(&interface.tap), router));
        }
    }
    Ok(files)
}

/// The disk of a claim, with the size of one that has to be made.
fn claim<'a>(disk: &'a Disk, claims: &ClaimDisks) -> Option<(&'a str, Option<u64>)> {
    match disk.source.as_ref()?.source.as_ref()? {
        Source::Raw(raw) => claims.get(&raw.path).map(|bytes| (raw.path.as_str(), *bytes)),
        Source::Qcow2(_) | Source::Overlay(_) | Source::NoMedium(_) => None,
    }
}

/// Opens the files of a disk that is hotplugged: those of a claim in the attachment Pod that has it. `pods` is the kubelet's
/// directory of Pods. Blocks.
///
/// # Errors
/// Names the first that cannot be opened.
pub(crate) fn open_attached(
    disk: &Disk,
    attachments: &Attachments,
    pods: &Path,
) -> io::Result<Vec<(String, OwnedFd)>> {
    let found = attachments.values().find_map(|pod| Some((pod, claim(disk, &pod.disks)?)));
    let Some((pod, (path, bytes))) = found else { return open_disk(disk) };
    let uid: Uuid = parsed(&pod.uid)?;
    let process = files::peer(&volume(pods, &pod.uid, SOCKETS_VOLUME).join(ATTACHMENT_SOCKET));
    let process = process.map_err(named(&format!("{path} in the Pod {}", pod.name)))?;
    is_of_pod(process, uid)?;
    let root = Root::of(process.as_raw_nonzero().get())?;
    let opened = open_claim(&root, path, bytes, !disk.read_only);
    Ok(vec![(path.to_owned(), opened.map_err(named(path))?)])
}

/// Opens the files of a disk. Blocks.
///
/// # Errors
/// Names the first that cannot be opened.
pub(crate) fn open_disk(disk: &Disk) -> io::Result<Vec<(String, OwnedFd)>> {
    let write = !disk.read_only;
    Ok(match disk.source.as_ref().and_then(|source| source.source.as_ref()) {
        Some(Source::Raw(raw)) => vec![open_file(&raw.path, write)?],
        Some(Source::Qcow2(image)) => vec![open_file(&image.path, write)?],
        Some(Source::Overlay(overlay)) => {
            vec![open_file(&overlay.path, write)?, open_file(&overlay.backing_raw_path, false)?]
        }
        Some(Source::NoMedium(_)) | None => Vec::new(),
    })
}

fn open_file(path: &str, write: bool) -> io::Result<(String, OwnedFd)> {
    // Without O_NONBLOCK, opening a fifo would wait for its other end.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file: File =
        OpenOptions::new().read(true).write(write).custom_flags(flags).open(path).map_err(named(path))?;
    Ok((path.to_owned(), file.into()))
}

fn named(what: &str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot open {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use vireo_proto::launcher::{DiskSource, disk_source::Overlay};

    use super::*;
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

    #[test]
    fn every_file_of_a_disk_is_opened_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::write(path("image"), "").unwrap();
        let overlay = Overlay { path: path("image"), backing_raw_path: path("base") };
        let source = Some(DiskSource { source: Some(Source::Overlay(overlay)) });
        let disk = Disk { source, ..Disk::default() };
        let missing = open_disk(&disk).unwrap_err();
        assert!(missing.to_string().contains(&path("base")), "{missing}");
        fs::write(path("base"), "").unwrap();
        let names: Vec<String> = open_disk(&disk).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [path("image"), path("base")]);
    }
}
