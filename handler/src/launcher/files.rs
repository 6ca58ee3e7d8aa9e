//! The files and devices of a VM, which the node agent opens and passes: a launcher sees none of the node's files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use vireo_proto::files::{
    KVM, VHOST_NET, VHOST_VSOCK, dhcp_name, dhcp_socket, dhcpv6_name, dhcpv6_socket, passt_name, router_name,
    router_socket, tap_name, vhost_name,
};
use vireo_proto::launcher::{
    Disk, Interface, LaunchRequest, disk_source::Source, extra_device::Device, firmware::Boot,
    firmware::Boot::Efi,
};

use super::passt::Passt;
use super::pod::{self, ClaimDisks, ClaimSpace};
use crate::network::netns;
use crate::network::tap::{self, Queues};
use crate::storage::HostDisks;

/// An open file with its name in the launch request.
pub(crate) type NamedFile = (String, OwnedFd);

/// Where the files of a VM are.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The network namespace of the VM, unless it has no NIC.
    pub(crate) namespace: Option<PathBuf>,
    /// The Pod of its launcher.
    pub(crate) pod: Option<PodFiles>,
    /// Which of its disks users named by their paths.
    pub(crate) host_disks: HostDisks,
    /// What passt of its NICs is to do.
    pub(crate) passt: Vec<Passt>,
    /// Its launcher.
    pub(crate) launcher: i32,
}

/// Files that are in a launcher Pod.
#[derive(Debug, Clone)]
pub(crate) struct PodFiles {
    /// The launcher.
    pub(crate) pid: i32,
    /// The disks of claims, and the files of the VM's state.
    pub(crate) claims: ClaimDisks,
    /// How much of the file system of a claim its disk takes.
    pub(crate) space: ClaimSpace,
}

/// Opens the files and devices that a launch request names. Blocks.
///
/// # Errors
/// Names the first that cannot be opened.
pub(crate) fn open(request: &LaunchRequest, origin: &Origin) -> io::Result<Vec<NamedFile>> {
    let mut files = Vec::new();
    // Where there is none, the launcher reports the consequences.
    files.extend(open_device(KVM).map(|device| (KVM.to_owned(), device)));
    let has_vsock = request.extra_devices.iter().any(|extra| matches!(extra.device, Some(Device::Vsock(_))));
    let vsock = has_vsock.then(|| open_device(VHOST_VSOCK)).flatten();
    files.extend(vsock.map(|device| (VHOST_VSOCK.to_owned(), device)));
    for disk in &request.disks {
        files.extend(open_disk_of(disk, origin)?);
    }
    match request.firmware.as_ref().and_then(|firmware| firmware.boot.as_ref()) {
        Some(Boot::Kernel(boot)) => {
            let paths = [&boot.kernel_path, &boot.initrd_path];
            for path in paths.into_iter().filter(|path| !path.is_empty()) {
                files.push(open_file(path, false)?);
            }
        }
        Some(Efi(efi)) => files.extend(open_state(&efi.variables_path, origin)?),
        Some(Boot::Bios(_)) | None => {}
    }
    files.extend(open_state(&request.tpm_state_path, origin)?);
    if !request.downward_metrics_path.is_empty() {
        files.push(open_file(&request.downward_metrics_path, false)?);
    }
    for interface in &request.interfaces {
        let namespace = origin
            .namespace
            .as_deref()
            .ok_or_else(|| io::Error::other(format!("the VM has no network for {}", interface.name)))?;
        if let Some(passt) = origin.passt.iter().find(|passt| passt.nic == interface.name) {
            files.push((passt_name(&interface.name), passt.start(namespace, origin.launcher)?));
        } else {
            open_interface(interface, namespace, &mut files)?;
        }
    }
    Ok(files)
}

/// A file that is kept when the VM is gone; none where there is no path.
fn open_state(path: &str, origin: &Origin) -> io::Result<Option<NamedFile>> {
    if path.is_empty() {
        return Ok(None);
    }
    let opened = match &origin.pod {
        Some(pod) if pod.claims.contains_key(path) => pod::open_kept(path, pod.pid),
        _ => open_kept(path),
    };
    Ok(Some((path.to_owned(), opened.map_err(named(path))?)))
}

/// A device of the node, if there is one.
fn open_device(path: &str) -> Option<OwnedFd> {
    Some(OpenOptions::new().read(true).write(true).open(path).ok()?.into())
}

/// Opens the queues of the tap of a NIC, and the sockets of the servers on it.
///
/// # Errors
/// When one cannot be opened, as a tap that is open already.
pub(crate) fn open_interface(
    interface: &Interface,
    namespace: &Path,
    files: &mut Vec<NamedFile>,
) -> io::Result<()> {
    let (device, pairs) = (interface.tap.clone(), interface.queue_pairs.max(1));
    let open = move || (0..pairs).map(|_| tap::open(&device, Queues::of(pairs))).collect();
    let opened: io::Result<Vec<OwnedFd>> = netns::inside(namespace, open)?;
    for (number, queue) in opened.map_err(named(&interface.tap))?.into_iter().enumerate() {
        files.push((tap_name(&interface.tap, number), queue));
        // Where there is none, hypervisors move the queue themselves.
        let vhost = open_device(VHOST_NET);
        files.extend(vhost.map(|device| (vhost_name(&interface.tap, number), device)));
    }
    if interface.lease.is_some() {
        // As the launcher reads the request.
        let device = match interface.dhcp_device.as_str() {
            "" => interface.tap.clone(),
            device => device.to_owned(),
        };
        let socket = netns::inside(namespace, move || dhcp_socket(&device))?;
        files.push((dhcp_name(&interface.tap), socket.map_err(named("the DHCP server's socket"))?.into()));
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
    Ok(())
}

/// Opens the files of a disk, which may be in the launcher's Pod. Blocks.
fn open_disk_of(disk: &Disk, origin: &Origin) -> io::Result<Vec<NamedFile>> {
    let mounted = |path: &str, write| match &origin.pod {
        Some(pod) => pod::open_mounted(pod, path, write),
        None => Ok(None),
    };
    let write = !disk.read_only;
    match disk.source.as_ref().and_then(|source| source.source.as_ref()) {
        Some(Source::Raw(raw)) => {
            if let Some(file) = mounted(&raw.path, write)? {
                return Ok(vec![file]);
            }
        }
        Some(Source::Overlay(overlay)) => {
            if let Some(backing) = mounted(&overlay.backing_raw_path, false)? {
                return Ok(vec![open_file(&overlay.path, write)?, backing]);
            }
        }
        Some(Source::Qcow2(_) | Source::NoMedium(_)) | None => {}
    }
    open_disk(disk, &origin.host_disks)
}

/// Opens the files of a disk. Blocks.
///
/// # Errors
/// Names the first that cannot be opened.
pub(crate) fn open_disk(disk: &Disk, host_disks: &HostDisks) -> io::Result<Vec<NamedFile>> {
    let write = !disk.read_only;
    Ok(match disk.source.as_ref().and_then(|source| source.source.as_ref()) {
        Some(Source::Raw(raw)) => match host_disks.open(Path::new(&raw.path), write) {
            Some(opened) => vec![(raw.path.clone(), opened.map_err(named(&raw.path))?.into())],
            None => vec![open_file(&raw.path, write)?],
        },
        Some(Source::Qcow2(image)) => vec![open_file(&image.path, write)?],
        Some(Source::Overlay(overlay)) => {
            vec![open_file(&overlay.path, write)?, open_file(&overlay.backing_raw_path, false)?]
        }
        Some(Source::NoMedium(_)) | None => Vec::new(),
    })
}

/// Opens a file or block device in a directory of the node's own.
fn open_file(path: &str, write: bool) -> io::Result<NamedFile> {
    let open = || {
        let file = OpenOptions::new().read(true).write(write).custom_flags(plain_flags()).open(path)?;
        let kind = file.metadata()?.file_type();
        if kind.is_file() || kind.is_block_device() {
            Ok(OwnedFd::from(file))
        } else {
            Err(io::Error::other("it is not a regular file or block device"))
        }
    };
    Ok((path.to_owned(), open().map_err(named(path))?))
}

/// Opens a file that a VM keeps in the state directory, which is made where it is absent.
fn open_kept(path: &str) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(plain_flags());
    let file: File = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file.into()),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Without O_NONBLOCK, opening a fifo would wait for its other end.
fn plain_flags() -> i32 {
    (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW).bits().cast_signed()
}

pub(super) fn named(what: &str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot open {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};
    use vireo_proto::launcher::{DiskSource, Efi as EfiBoot, Firmware, disk_source::Overlay};

    use super::*;

    fn without_network() -> Origin {
        Origin {
            namespace: None,
            pod: None,
            host_disks: HostDisks::default(),
            passt: Vec::new(),
            launcher: 0,
        }
    }

    #[test]
    fn every_file_of_a_disk_is_opened_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::write(path("image"), "").unwrap();
        let overlay = Overlay { path: path("image"), backing_raw_path: path("base") };
        let source = Some(DiskSource { source: Some(Source::Overlay(overlay)) });
        let disk = Disk { source, ..Disk::default() };
        let open = || open_disk(&disk, &HostDisks::default());
        let missing = open().unwrap_err();
        assert!(missing.to_string().contains(&path("base")), "{missing}");
        fs::write(path("base"), "").unwrap();
        let names: Vec<String> = open().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [path("image"), path("base")]);
    }

    #[test]
    fn only_files_and_block_devices_are_opened_and_nothing_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::write(path("file"), "").unwrap();
        symlink(path("file"), path("link")).unwrap();
        mkfifoat(CWD, path("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        assert!(open_file(&path("file"), true).is_ok());
        let fifo = open_file(&path("fifo"), false).unwrap_err().to_string();
        assert!(fifo.contains("not a regular file or block device"), "{fifo}");
        for bad in [path("link"), path("fifo"), path(""), "/dev/null".to_owned()] {
            assert!(open_file(&bad, false).is_err(), "{bad}");
            assert!(open_kept(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn state_is_made_for_the_launcher() {
        let dir = tempfile::tempdir().unwrap();
        let variables = dir.path().join("efi-variables.fd");
        let path = variables.to_string_lossy().into_owned();
        let boot = Boot::Efi(EfiBoot { variables_path: path.clone(), ..EfiBoot::default() });
        let tpm = dir.path().join("tpm-state");
        let tpm_state_path = tpm.to_string_lossy().into_owned();
        let request = LaunchRequest {
            firmware: Some(Firmware { boot: Some(boot) }),
            tpm_state_path: tpm_state_path.clone(),
            interfaces: vec![],
            ..LaunchRequest::default()
        };
        let names: Vec<String> =
            open(&request, &without_network()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&path) && names.contains(&tpm_state_path), "{names:?}");
        assert_eq!((fs::read(&variables).unwrap(), fs::read(&tpm).unwrap()), (vec![], vec![]));
        let request = LaunchRequest { interfaces: vec![Interface::default()], ..request };
        assert!(open(&request, &without_network()).is_err(), "there is no network namespace");
    }
}
