//! Opens the files and devices of the host that a VM needs. After this, no path is opened.
//!
//! Disk images are locked with open-file-description locks, which live as long as any descriptor of the file, also
//! in a child that inherited it. A writer locks the whole file, so it shuts out every other Vireo VM and, as
//! the range covers the bytes QEMU locks, any QEMU or `qemu-img` that opens it. A reader locks one byte
//! outside QEMU's range: any number of readers, no writer of ours. VMs that share a disk which they write to lock another byte.

mod vsock;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::FileType;
use tracing::debug;
use vireo_proto::files::{KVM, passt_name, tap_name, vhost_name};
use vireo_proto::launcher::Fault;

pub use self::vsock::Vsock;
use crate::agent::AgentPort;
use crate::fault::{Code, chain, fault_at};
use crate::files::PassedFiles;
use crate::firmware::{self, Firmware, Variables};
use crate::launch::{Disk, Interface, Kind, Launch};
use crate::pinning::Pinning;
use vireo_vmconfig::{BootSource, DiskSource, HugePage, KernelFiles, NicModel};

/// Open files of one VM, in the order of its [`Launch`].
#[derive(Debug)]
pub struct HostResources {
    /// The node's KVM; hypervisors open it themselves where it is absent.
    pub kvm: Option<OwnedFd>,
    /// Kernel and initrd, for a VM that starts from them.
    pub kernel: Option<(File, Option<File>)>,
    /// For a VM that starts through it.
    pub firmware: Option<HostFirmware>,
    /// One for each disk; absent for an empty CD drive.
    pub disks: Vec<Option<DiskFiles>>,
    /// The queues of the tap of each interface, or the socket to its passt. QEMU opens those by itself that the node agent did
    /// not: there are none then.
    pub nics: Vec<Vec<OwnedFd>>,
    /// The node's vhost-net for each queue of each virtio NIC; none where there is none, or where it is not for this process.
    pub vhost: Vec<Vec<OwnedFd>>,
    /// Where the state of the TPM is kept, if it is.
    pub tpm_state: Option<File>,
    /// Which of its threads run where, if it has CPUs of its own.
    pub pinning: Option<Arc<Pinning>>,
    /// The socket device, if it has one.
    pub vsock: Option<Vsock>,
    /// The metrics that the guest reads, if it does.
    pub metrics: Option<File>,
    /// The hypervisor's end of their port.
    pub metrics_port: Option<StdStream>,
    /// The guest agent's port.
    pub agent: Option<AgentPort>,
}

/// Firmware, as the hypervisor wants it.
#[derive(Debug)]
pub enum HostFirmware {
    /// Open, for the monitor: the code, and variables where there are any.
    Files(File, Option<File>),
    /// For QEMU, which opens the code itself.
    Paths(Firmware),
}

impl HostResources {
    /// The firmware's variables, for QEMU.
    pub fn variables(&self) -> Option<&File> {
        match &self.firmware {
            Some(HostFirmware::Paths(firmware)) => firmware.variables.as_ref().map(|own| &own.file),
            Some(HostFirmware::Files(..)) | None => None,
        }
    }
}

/// A disk's open and locked files.
#[derive(Debug)]
pub struct DiskFiles {
    /// The image; writable unless the disk is read-only.
    pub image: File,
    /// What it is an overlay on.
    pub backing: Option<File>,
}

/// The open files of a NIC that is attached to a VM while it runs.
#[derive(Debug)]
pub struct NicFiles {
    /// The queues of its tap.
    pub queues: Vec<OwnedFd>,
    /// What moves them in the hypervisor's place, one for each; else none.
    pub vhost: Vec<OwnedFd>,
}

/// The files of a NIC that is attached to a VM while it runs: those that the node agent passed, as nothing is opened by then.
///
/// # Errors
/// When the node agent has not passed a queue for each pair.
pub fn open_nic_files(interface: &Interface, passed: &PassedFiles) -> Result<NicFiles, Fault> {
    let tap = interface.peer.tap().unwrap_or_default();
    let pairs = interface.queue_pairs;
    let queues: Vec<OwnedFd> = (0..pairs).map_while(|queue| passed.take(&tap_name(tap, queue))).collect();
    let vhost: Vec<OwnedFd> = (0..pairs).map_while(|queue| passed.take(&vhost_name(tap, queue))).collect();
    if queues.len() < pairs {
        let detail = format!("interface {}: the queues of the tap {tap} were not passed", interface.name);
        return Err(fault_at(Code::HostResource, &interface.field, detail));
    }
    let vhost = if vhost.len() < pairs { Vec::new() } else { vhost };
    Ok(NicFiles { queues, vhost })
}

/// Why a file of the VM cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The system call failed.
    #[error("{what}: cannot open {path}")]
    Open {
        /// Whose file it is.
        what: String,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A directory, a fifo, a socket.
    #[error("{what}: {path} is not a regular file or block device")]
    NoImage {
        /// Whose file it is.
        what: String,
        /// Which file.
        path: PathBuf,
    },
    /// It takes no SCSI commands.
    #[error(
        "{what}: {path} is a file, and a lun needs a block device: use a claim of the volumeMode Block, or disk"
    )]
    NoBlockDevice {
        /// Whose file it is.
        what: String,
        /// Which file.
        path: PathBuf,
    },
    /// The node agent has not opened it.
    #[error("{what}: the node agent has not passed {path} open")]
    NotPassed {
        /// Whose file it is.
        what: String,
        /// Which file.
        path: PathBuf,
    },
    /// Locked by another process.
    #[error("{what}: {path} is in use by another VM or a disk tool on this node")]
    InUse {
        /// Whose file it is.
        what: String,
        /// Which file.
        path: PathBuf,
    },
    /// The file system cannot lock.
    #[error("{what}: cannot lock {path}")]
    Lock {
        /// Whose file it is.
        what: String,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A tap device that cannot be attached to.
    #[error("interface {interface}: cannot open the tap device {tap}")]
    Tap {
        /// The interface's name.
        interface: String,
        /// The device.
        tap: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No socket to passt.
    #[error("interface {interface}: the node agent passed no socket to passt")]
    NoPasst {
        /// The interface's name.
        interface: String,
    },
    /// No such network device.
    #[error("interface {interface}: network device {tap} not found in this network namespace")]
    NoTap {
        /// The interface's name.
        interface: String,
        /// The missing device.
        tap: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Opens and locks every file and device of a VM.
///
/// # Errors
/// Every file and device that cannot be opened, together.
pub fn open(
    launch: &Launch,
    kind: Kind,
    firmware: &firmware::Paths,
    passed: &PassedFiles,
) -> Result<HostResources, Fault> {
    let mut errors = Vec::new();
    let firmware = firmware.find(launch, passed)?.and_then(|found| {
        let ready = lock_variables(&found).and_then(|()| match kind {
            Kind::Native => open_firmware(found),
            Kind::Qemu => Ok(HostFirmware::Paths(found)),
        });
        collect(&mut errors, &launch.fields.bootloader, ready)
    });
    let kernel = match &launch.boot {
        BootSource::Kernel(KernelFiles { kernel, initrd, .. }) => {
            let kernel = open_file("the kernel", kernel, false, passed);
            let initrd =
                initrd.as_deref().map(|path| open_file("the initrd", path, false, passed)).transpose();
            let field = &launch.fields.kernel_boot;
            collect(&mut errors, field, kernel).zip(collect(&mut errors, field, initrd))
        }
        BootSource::Bios { .. } | BootSource::Efi { .. } => None,
    };
    let disks = launch.disks.iter().filter_map(|disk| {
        let what = format!("volume {}", disk.name);
        let opened = open_disk(&what, disk, |path, write| open_file(&what, path, write, passed));
        collect(&mut errors, &disk.field, opened)
    });
    let disks = disks.collect();
    let vhost = launch.interfaces.iter().map(|interface| open_vhost(interface, passed)).collect();
    let mut nics = Vec::new();
    for interface in &launch.interfaces {
        nics.extend(collect(&mut errors, &interface.field, open_nic(interface, kind, passed)));
    }
    let tpm_state = launch.tpm_state.as_deref().and_then(|path| {
        let what = "the state of the TPM";
        let opened = open_file(what, path, true, passed)
            .and_then(|file| lock(what, path, &file, Access::Alone).map(|()| file));
        collect(&mut errors, &launch.fields.devices, opened)
    });
    let metrics = launch.downward_metrics.as_deref().and_then(|path| {
        let opened = open_file("the metrics of the host", path, false, passed);
        collect(&mut errors, &launch.fields.devices, opened)
    });
    if let Some((field, _)) = errors.first() {
        let field = field.clone();
        let all: Vec<_> = errors.iter().map(|(_, error)| chain(error)).collect();
        return Err(fault_at(Code::HostResource, field, all.join("; ")));
    }
    if let Some(page) = launch.huge_page {
        check_huge_pages(launch, page)?;
    }
    let pinning = Pinning::of(launch)?;
    let vsock = vsock::open(launch, passed)?;
    let kvm = passed.duplicate(KVM);
    Ok(HostResources {
        kvm,
        kernel,
        firmware,
        disks,
        nics,
        vhost,
        tpm_state,
        pinning,
        vsock,
        metrics,
        metrics_port: None,
        agent: None,
    })
}

/// Whether enough huge pages are free. The hypervisor's own error would not say how many it needs.
fn check_huge_pages(launch: &Launch, page: HugePage) -> Result<(), Fault> {
    let Err(error) = vireo_vmm::memory::has_huge_pages(launch.memory_bytes, page) else { return Ok(()) };
    let field = &launch.fields.huge_pages;
    let count = launch.memory_bytes / page.bytes();
    let setting = match page {
        HugePage::Mib2 => "sysctl vm.nr_hugepages",
        HugePage::Gib1 => "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
    };
    let detail = format!(
        "{field} requests {count} huge pages of {page}, which are not free on this node: reserve more with \
         {setting}: {}",
        chain(&error)
    );
    Err(fault_at(Code::HostResource, field, detail))
}

/// Takes and locks a disk that is attached while the VM runs. Its files must have been passed: the filter of system calls lets
/// nothing be opened then.
///
/// # Errors
/// When its file cannot be had.
pub fn open_disk_files(disk: &Disk, passed: &PassedFiles) -> Result<DiskFiles, Fault> {
    let what = format!("volume {}", disk.name);
    let take = |path: &Path, _| {
        let not_passed = || HostError::NotPassed { what: what.clone(), path: path.to_owned() };
        passed.take_file(path).ok_or_else(not_passed)
    };
    let opened = open_disk(&what, disk, take);
    let opened = opened.map_err(|error| fault_at(Code::HostResource, &disk.field, chain(&error)))?;
    opened.ok_or_else(|| fault_at(Code::Invalid, &disk.field, "a volume without content cannot be attached"))
}

fn collect<T>(errors: &mut Vec<(String, HostError)>, field: &str, result: Result<T, HostError>) -> Option<T> {
    result.map_err(|error| errors.push((field.to_owned(), error))).ok()
}

fn lock_variables(firmware: &Firmware) -> Result<(), HostError> {
    let Some(Variables { path, file }) = &firmware.variables else { return Ok(()) };
    lock("the EFI variables", path, file, Access::Alone)
}

fn open_firmware(firmware: Firmware) -> Result<HostFirmware, HostError> {
    let code = open_file("the firmware", &firmware.code, false, &PassedFiles::default())?;
    Ok(HostFirmware::Files(code, firmware.variables.map(|variables| variables.file)))
}

/// Absent for an empty CD drive.
fn open_disk(
    what: &str,
    disk: &Disk,
    open: impl Fn(&Path, bool) -> Result<File, HostError>,
) -> Result<Option<DiskFiles>, HostError> {
    let write = !disk.read_only;
    let access = match (disk.tuning.shareable, write) {
        (true, _) => Access::WithWriters,
        (false, true) => Access::Alone,
        (false, false) => Access::Reads,
    };
    let (path, backing) = match &disk.source {
        DiskSource::NoMedium => return Ok(None),
        DiskSource::Raw(path) => (path, None),
        DiskSource::Qcow2 { path, backing } => (path, backing.as_ref()),
    };
    let image = open(path, write)?;
    if disk.tuning.scsi_passthrough && !is_block_device(&image) {
        return Err(HostError::NoBlockDevice { what: what.to_owned(), path: path.clone() });
    }
    lock(what, path, &image, access)?;
    let backing = backing.map(|path| {
        let file = open(path, false)?;
        lock(what, path, &file, Access::Reads)?;
        Ok(file)
    });
    Ok(Some(DiskFiles { image, backing: backing.transpose()? }))
}

fn is_block_device(image: &File) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    image.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

fn open_file(what: &str, path: &Path, write: bool, passed: &PassedFiles) -> Result<File, HostError> {
    use std::os::unix::fs::OpenOptionsExt;
    if let Some(file) = passed.take_file(path) {
        return Ok(file);
    }
    // Without O_NONBLOCK, opening a fifo would wait for its other end.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
    let open = |source| HostError::Open { what: what.to_owned(), path: path.to_owned(), source };
    let file = file.map_err(open)?;
    let kind = rustix::fs::fstat(&file).map_err(|errno| open(errno.into()))?.st_mode;
    match FileType::from_raw_mode(kind) {
        FileType::RegularFile | FileType::BlockDevice => Ok(file),
        _ => Err(HostError::NoImage { what: what.to_owned(), path: path.to_owned() }),
    }
}

/// What a VM does with a file, and what others may do meanwhile. One that writes alone locks the whole file. Those that read what
/// does not change, and those that share what changes, each have a byte that all of their kind lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Alone,
    Reads,
    WithWriters,
}

impl Access {
    /// The byte that all of its kind lock.
    fn byte(self) -> Option<i64> {
        match self {
            Self::Alone => None,
            Self::Reads => Some(0),
            Self::WithWriters => Some(1),
        }
    }
}

fn lock(what: &str, path: &Path, file: &File, access: Access) -> Result<(), HostError> {
    let (what, path) = (what.to_owned(), path.to_owned());
    let locked = match access.byte() {
        None => fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_WRLCK, 0, 0))).map(|_| true),
        // Each of two of different kinds takes its lock before it looks for the other's.
        Some(byte) => fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_RDLCK, byte, 1))).and_then(|_| {
            let mut other = range(libc::F_WRLCK, 1 - byte, 1);
            fcntl(file, FcntlArg::F_OFD_GETLK(&mut other))?;
            Ok(i32::from(other.l_type) == libc::F_UNLCK)
        }),
    };
    match locked {
        Ok(true) => Ok(()),
        Ok(false) | Err(Errno::EAGAIN | Errno::EACCES) => Err(HostError::InUse { what, path }),
        Err(errno) => Err(HostError::Lock { what, path, source: errno.into() }),
    }
}

/// Bytes to lock; 0 are all that follow.
fn range(kind: i32, start: i64, bytes: i64) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or(libc::c_short::MAX),
        l_whence: 0,
        l_start: start,
        l_len: bytes,
        l_pid: 0,
    }
}

/// The queues of a tap, or the socket to passt.
fn open_nic(interface: &Interface, kind: Kind, passed: &PassedFiles) -> Result<Vec<OwnedFd>, HostError> {
    let name = &interface.name;
    let Some(tap) = interface.peer.tap() else {
        let socket = passed.take(&passt_name(name));
        return Ok(vec![socket.ok_or_else(|| HostError::NoPasst { interface: name.clone() })?]);
    };
    let pairs = interface.queue_pairs;
    let queues: Vec<OwnedFd> = (0..pairs).map_while(|queue| passed.take(&tap_name(tap, queue))).collect();
    if !queues.is_empty() {
        return Ok(queues);
    }
    // Opening a tap that is not there would make one without a network.
    find_tap(name, tap)?;
    match kind {
        Kind::Native => open_tap(name, tap, pairs),
        Kind::Qemu => Ok(Vec::new()),
    }
}

/// A device for each queue of a tap, or none.
fn open_vhost(interface: &Interface, passed: &PassedFiles) -> Vec<OwnedFd> {
    let (NicModel::Virtio, Some(tap)) = (interface.model, interface.peer.tap()) else { return Vec::new() };
    let open = |queue| match passed.take(&vhost_name(tap, queue)) {
        Some(device) => Ok(device),
        None => vireo_vmm::sys::vhost::open(),
    };
    let devices: io::Result<Vec<_>> = (0..interface.queue_pairs).map(open).collect();
    devices.unwrap_or_else(|error| {
        debug!(interface = interface.name, %error, "no vhost-net: the hypervisor moves the queues");
        Vec::new()
    })
}

fn open_tap(interface: &str, tap: &str, queues: usize) -> Result<Vec<OwnedFd>, HostError> {
    let opened = vireo_vmm::sys::tap::open_queues(tap, queues);
    let (first, others) = opened.map_err(|source| HostError::Tap {
        interface: interface.to_owned(),
        tap: tap.to_owned(),
        source,
    })?;
    Ok(std::iter::once(first).chain(others).collect())
}

fn find_tap(interface: &str, tap: &str) -> Result<(), HostError> {
    use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};
    socket(AddressFamily::INET, SocketType::DGRAM, None)
        .and_then(|socket| name_to_index(socket, tap))
        .map(drop)
        .map_err(|errno| HostError::NoTap {
            interface: interface.to_owned(),
            tap: tap.to_owned(),
            source: errno.into(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{NicPeer, sample};

    /// Firmware that is there; QEMU would read it.
    fn existing() -> firmware::Paths {
        firmware::Paths { bios: std::env::current_exe().ok(), ..firmware::Paths::default() }
    }

    fn launch_in(dir: &Path) -> Launch {
        let mut launch = sample::kernel_boot();
        launch.boot = BootSource::Bios { use_serial: false };
        launch.interfaces.clear();
        launch.disks[0].source =
            DiskSource::Qcow2 { path: dir.join("overlay"), backing: Some(dir.join("base")) };
        launch
    }

    #[test]
    fn one_disk_has_one_writer_and_a_base_has_many_readers() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["overlay", "overlay2", "base"] {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        let launch = launch_in(dir.path());
        let first = open(&launch, Kind::Qemu, &existing(), &PassedFiles::default()).unwrap();
        let fault = open(&launch, Kind::Qemu, &existing(), &PassedFiles::default()).unwrap_err();
        assert_eq!(fault.code(), Code::HostResource);
        assert_eq!(fault.field, "spec.domain.devices.disks[0].disk.bus");
        assert!(
            fault.detail.contains("volume root") && fault.detail.contains("overlay is in use"),
            "{fault:?}"
        );

        let mut other = launch.clone();
        other.disks[0].source =
            DiskSource::Qcow2 { path: dir.path().join("overlay2"), backing: Some(dir.path().join("base")) };
        let second =
            open(&other, Kind::Qemu, &existing(), &PassedFiles::default()).expect("the base is shared");
        let mut writer = launch.clone();
        writer.disks[0].source = DiskSource::Raw(dir.path().join("base"));
        assert!(
            open(&writer, Kind::Qemu, &existing(), &PassedFiles::default())
                .unwrap_err()
                .detail
                .contains("base is in use")
        );

        drop((first, second));
        assert!(
            open(&writer, Kind::Qemu, &existing(), &PassedFiles::default()).is_ok()
                && open(&launch, Kind::Qemu, &existing(), &PassedFiles::default()).is_ok()
        );
    }

    #[test]
    fn a_shareable_disk_has_many_writers_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("data"), b"").unwrap();
        let launch = |shareable, read_only| {
            let mut launch = launch_in(dir.path());
            launch.disks[0].source = DiskSource::Raw(dir.path().join("data"));
            launch.disks[0].tuning.shareable = shareable;
            launch.disks[0].read_only = read_only;
            launch
        };
        let open = |launch| open(&launch, Kind::Qemu, &existing(), &PassedFiles::default());
        let is_in_use = |launch| open(launch).is_err_and(|fault| fault.detail.contains("data is in use"));
        let writers = [open(launch(true, false)).unwrap(), open(launch(true, false)).unwrap()];
        assert!(is_in_use(launch(false, false)) && is_in_use(launch(false, true)));
        assert!(open(launch(true, true)).is_ok(), "it expects that others write");
        drop(writers);
        let reader = open(launch(false, true)).unwrap();
        assert!(is_in_use(launch(true, false)) && is_in_use(launch(true, true)));
        drop(reader);
        let alone = open(launch(false, false)).unwrap();
        assert!(is_in_use(launch(true, false)));
        drop(alone);
        assert!(open(launch(true, false)).is_ok());
    }

    #[test]
    fn a_lun_is_a_block_device() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("data"), b"").unwrap();
        let mut launch = launch_in(dir.path());
        launch.disks[0].source = DiskSource::Raw(dir.path().join("data"));
        launch.disks[0].tuning.scsi_passthrough = true;
        let fault = open(&launch, Kind::Qemu, &existing(), &PassedFiles::default()).unwrap_err();
        assert!(fault.detail.contains("data is a file, and a lun needs a block device"), "{}", fault.detail);
    }

    #[test]
    fn huge_pages_that_are_missing_are_counted() {
        let memory_bytes = 1 << 40;
        let fields = vireo_vmconfig::FieldPaths { huge_pages: "pageSize".into(), ..Default::default() };
        let launch = Launch { memory_bytes, fields, ..sample::kernel_boot() };
        for (page, parts) in [
            (HugePage::Mib2, ["pageSize requests 524288 huge pages of 2Mi", "sysctl vm.nr_hugepages"]),
            (
                HugePage::Gib1,
                ["pageSize requests 1024 huge pages of 1Gi", "hugepages-1048576kB/nr_hugepages"],
            ),
        ] {
            let fault = check_huge_pages(&launch, page).unwrap_err();
            assert_eq!((fault.code(), fault.field.as_str()), (Code::HostResource, "pageSize"));
            for part in parts {
                assert!(fault.detail.contains(part), "{part} is missing in {}", fault.detail);
            }
        }
    }

    #[test]
    fn everything_that_is_missing_is_named_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut launch = launch_in(dir.path());
        launch.boot = sample::kernel_boot().boot;
        launch.interfaces = sample::kernel_boot().interfaces;
        let device = "no-such-tap".to_owned();
        launch.interfaces[0].peer = NicPeer::Tap { dhcp_device: device.clone(), device };
        let mut directory = launch.disks[0].clone();
        directory.name = "data".into();
        directory.read_only = true;
        directory.source = DiskSource::Raw(dir.path().to_owned());
        launch.disks.push(directory);
        let fault = open(&launch, Kind::Qemu, &existing(), &PassedFiles::default()).unwrap_err();
        assert_eq!(fault.field, "kernelBoot");
        for part in ["/images/kernel", "/images/initrd", "volume root", "volume data", "no-such-tap"] {
            assert!(fault.detail.contains(part), "{part} is missing in {}", fault.detail);
        }
    }
}
