use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::mpsc;
use tracing::debug;
use vireo_proto::launcher::Fault;
use vireo_vmm::FirmwareLogScanner;

use super::blockdev::{DiskFds, ImageFd, ImageKind};
use crate::console::Port;
use crate::fault::{Code, fault};
use crate::host::HostResources;
use crate::hypervisor::child::ChildProcess;
use crate::launch::Launch;
use vireo_vmconfig::{AcpiTable, CacheMode};

/// QEMU, running.
pub(super) struct Process {
    /// Killed when dropped.
    pub child: ChildProcess,
    /// Our end of its monitor.
    pub qmp: UnixStream,
    /// Receives a message whenever firmware finds no boot device.
    pub no_boot_device: mpsc::Receiver<()>,
}

/// What QEMU inherits.
pub(super) struct InheritedFds {
    kvm: Option<OwnedFd>,
    disks: Vec<Option<OwnedDisk>>,
    nics: Vec<Vec<OwnedFd>>,
    vhost: Vec<Vec<OwnedFd>>,
    kernel: Option<(OwnedFd, Option<OwnedFd>)>,
    variables: Option<OwnedFd>,
    acpi_tables: Vec<OwnedFd>,
    qmp: (StdStream, StdStream),
    serial: Option<(StdStream, StdStream)>,
    firmware: Option<(StdStream, StdStream)>,
    agent: Option<StdStream>,
    metrics: Option<StdStream>,
    tpm: Option<StdStream>,
    vsock: Option<OwnedFd>,
}

/// The image and what it is an overlay on.
type OwnedDisk = (OwnedImage, Option<OwnedImage>);

struct OwnedImage {
    fd: OwnedFd,
    kind: ImageKind,
}

impl OwnedImage {
    fn share(file: &File) -> io::Result<Self> {
        Ok(Self { fd: file.as_fd().try_clone_to_owned()?, kind: ImageKind::of(file)? })
    }

    fn number(&self) -> ImageFd {
        ImageFd { fd: self.fd.as_raw_fd(), kind: self.kind }
    }
}

impl InheritedFds {
    /// Duplicates the disks' descriptors and makes the socket pairs.
    pub(super) fn new(launch: &Launch, host: &HostResources, tpm: Option<StdStream>) -> Result<Self, Fault> {
        let open = move || -> io::Result<Self> {
            let disks = launch.disks.iter().zip(&host.disks).map(|(disk, files)| {
                let Some(files) = files else { return Ok(None) };
                if disk.cache == CacheMode::None {
                    set_direct_io(&files.image)?;
                    files.backing.as_ref().map(set_direct_io).transpose()?;
                }
                let backing = files.backing.as_ref().map(OwnedImage::share).transpose()?;
                Ok(Some((OwnedImage::share(&files.image)?, backing)))
            });
            let share_all = |all: &[Vec<OwnedFd>]| -> io::Result<Vec<Vec<OwnedFd>>> {
                all.iter().map(|queues| queues.iter().map(OwnedFd::try_clone).collect()).collect()
            };
            let share = |file: &File| file.as_fd().try_clone_to_owned();
            let by_path = |file: &File| openable(file, launch.memory_bytes);
            let kernel = host.kernel.as_ref().map(|(kernel, initrd)| {
                io::Result::Ok((by_path(kernel)?, initrd.as_ref().map(by_path).transpose()?))
            });
            Ok(Self {
                kvm: host.kvm.as_ref().map(OwnedFd::try_clone).transpose()?,
                disks: disks.collect::<io::Result<_>>()?,
                nics: share_all(&host.nics)?,
                vhost: share_all(&host.vhost)?,
                kernel: kernel.transpose()?,
                variables: host.variables().map(share).transpose()?,
                acpi_tables: launch.acpi_tables.iter().map(in_memory).collect::<io::Result<_>>()?,
                qmp: StdStream::pair()?,
                serial: launch.console_socket.is_some().then(StdStream::pair).transpose()?,
                firmware: host.firmware.is_some().then(StdStream::pair).transpose()?,
                agent: host.agent.as_ref().map(|port| port.stream.try_clone()).transpose()?,
                metrics: host.metrics_port.as_ref().map(StdStream::try_clone).transpose()?,
                tpm,
                vsock: host.vsock.as_ref().map(|vsock| vsock.device.try_clone()).transpose()?,
            })
        };
        open().map_err(|error| fault(Code::HostResource, format!("no descriptors for QEMU: {error}")))
    }

    /// Descriptor number of the node's KVM.
    pub(super) fn kvm_fd(&self) -> Option<RawFd> {
        self.kvm.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Descriptor numbers of the disks.
    pub(super) fn files(&self) -> Vec<Option<DiskFds>> {
        let numbers = |(image, backing): &OwnedDisk| DiskFds {
            image: image.number(),
            backing: backing.as_ref().map(OwnedImage::number),
        };
        self.disks.iter().map(|disk| disk.as_ref().map(numbers)).collect()
    }

    /// Descriptor numbers of the queues of tap devices and of the sockets to passt.
    pub(super) fn nic_fds(&self) -> Vec<Vec<RawFd>> {
        numbers(&self.nics)
    }

    /// Descriptor numbers of the node's vhost-net, for the tap devices' queues.
    pub(super) fn vhost_fds(&self) -> Vec<Vec<RawFd>> {
        numbers(&self.vhost)
    }

    /// Descriptor numbers of kernel and initrd.
    pub(super) fn kernel_fds(&self) -> Option<(RawFd, Option<RawFd>)> {
        self.kernel
            .as_ref()
            .map(|(kernel, initrd)| (kernel.as_raw_fd(), initrd.as_ref().map(AsRawFd::as_raw_fd)))
    }

    /// Descriptor number of the firmware's variables.
    pub(super) fn variables_fd(&self) -> Option<RawFd> {
        self.variables.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Descriptor numbers of ACPI tables.
    pub(super) fn acpi_table_fds(&self) -> Vec<RawFd> {
        self.acpi_tables.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Descriptor number of QEMU's end of its monitor.
    pub(super) fn qmp_fd(&self) -> RawFd {
        self.qmp.1.as_raw_fd()
    }

    /// Descriptor number of QEMU's end of its serial port.
    pub(super) fn serial_fd(&self) -> Option<RawFd> {
        self.serial.as_ref().map(|(_, theirs)| theirs.as_raw_fd())
    }

    /// Descriptor number of QEMU's end of the firmware's debug port.
    pub(super) fn firmware_fd(&self) -> Option<RawFd> {
        self.firmware.as_ref().map(|(_, theirs)| theirs.as_raw_fd())
    }

    /// Descriptor number of QEMU's end of the guest agent's port.
    pub(super) fn agent_fd(&self) -> Option<RawFd> {
        self.agent.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Descriptor number of QEMU's end of the port for metrics.
    pub(super) fn metrics_fd(&self) -> Option<RawFd> {
        self.metrics.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Descriptor number of QEMU's end of the TPM's socket.
    pub(super) fn tpm_fd(&self) -> Option<RawFd> {
        self.tpm.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Descriptor number of the node's vhost-vsock.
    pub(super) fn vsock_fd(&self) -> Option<RawFd> {
        self.vsock.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn inherited(&self) -> Vec<RawFd> {
        let images = self.disks.iter().flatten().flat_map(|(image, backing)| [Some(image), backing.as_ref()]);
        let images = images.flatten().map(|image| image.fd.as_raw_fd());
        images
            .chain([self.qmp_fd()])
            .chain(self.nic_fds().into_iter().chain(self.vhost_fds()).flatten())
            .chain(
                self.kernel_fds().into_iter().flat_map(|(kernel, initrd)| [Some(kernel), initrd]).flatten(),
            )
            .chain(self.variables_fd())
            .chain(self.acpi_table_fds())
            .chain(self.serial_fd())
            .chain(self.firmware_fd())
            .chain(self.agent_fd())
            .chain(self.metrics_fd())
            .chain(self.tpm_fd())
            .chain(self.vsock_fd())
            .chain(self.kvm_fd())
            .collect()
    }
}

/// A file that QEMU opens by the path of its descriptor. Where rules of landlock or the file's mode do not let it, it is a copy
/// in memory. `most` is how many bytes that may have.
fn openable(file: &File, most: u64) -> io::Result<OwnedFd> {
    match File::open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        opened => return opened.and_then(|_| file.as_fd().try_clone_to_owned()),
    }
    let length = file.metadata()?.len();
    if length > most {
        let text = format!("a kernel or initrd of {length} bytes does not fit in the guest's memory");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let mut copy = File::from(memfd_create("kernel", MemfdFlags::CLOEXEC)?);
    let mut file = file;
    file.rewind()?;
    io::copy(&mut file.take(length), &mut copy)?;
    Ok(copy.into())
}

/// A table in a file without a name, which QEMU reads.
fn in_memory(table: &AcpiTable) -> io::Result<OwnedFd> {
    let file = File::from(memfd_create("acpi-table", MemfdFlags::CLOEXEC)?);
    file.write_all_at(table.bytes(), 0)?;
    Ok(file.into())
}

fn numbers(queues: &[Vec<OwnedFd>]) -> Vec<Vec<RawFd>> {
    queues.iter().map(|queues| queues.iter().map(AsRawFd::as_raw_fd).collect()).collect()
}

/// QEMU takes a descriptor for a node that passes the host's cache by only where the descriptor does so already.
///
/// # Errors
/// When its file system has no such thing.
pub(super) fn set_direct_io(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::DIRECT)?)
}

/// Finds QEMU: a path as it is, a bare name on `PATH`.
///
/// # Errors
/// Why it cannot be started, for people.
pub fn find_binary(name: &Path) -> Result<PathBuf, String> {
    let is_program =
        |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if name.components().count() > 1 {
        return if is_program(name) {
            Ok(name.to_owned())
        } else {
            Err(format!("{} is not an executable file", name.display()))
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| is_program(path));
    found.ok_or_else(|| format!("{} is not installed on this node", name.display()))
}

/// Starts QEMU and bridges its serial port to the console.
pub(super) fn spawn(
    binary: &Path,
    arguments: &[String],
    inherited_fds: InheritedFds,
    port: Port,
) -> Result<Process, Fault> {
    let failed =
        |error: io::Error| fault(Code::Hypervisor, format!("cannot start {}: {error}", binary.display()));
    debug!(binary = %binary.display(), ?arguments, "starting QEMU");
    let inherited = inherited_fds.inherited();
    let mut command = Command::new(binary);
    command.args(arguments);
    let child = ChildProcess::spawn(command, "qemu", inherited).map_err(failed)?;
    let (found, no_boot_device) = mpsc::channel(1);
    let listener = || FirmwareLogListener { scanner: FirmwareLogScanner::default(), found: found.clone() };
    if let Some((ours, _)) = inherited_fds.serial {
        tokio::spawn(bridge(async_stream(ours).map_err(failed)?, port, listener()));
    }
    if let Some((ours, _)) = inherited_fds.firmware {
        tokio::spawn(listen(async_stream(ours).map_err(failed)?, listener()));
    }
    // Dropping the rest closes QEMU's ends here, so that its death closes ours.
    Ok(Process { child, qmp: async_stream(inherited_fds.qmp.0).map_err(failed)?, no_boot_device })
}

fn async_stream(stream: StdStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Moves bytes between QEMU's serial port and the console until QEMU is gone.
async fn bridge(serial: UnixStream, mut port: Port, mut listener: FirmwareLogListener) {
    let (mut from_guest, mut to_guest) = serial.into_split();
    let output = async {
        let mut chunk = vec![0; 4096];
        while let Ok(count @ 1..) = from_guest.read(&mut chunk).await {
            let bytes = chunk.get(..count).unwrap_or_default();
            port.output.write(bytes);
            listener.scan(bytes);
        }
    };
    let input = async {
        // QEMU reads only while the UART has room.
        while let Some(keys) = port.input.recv().await {
            if to_guest.write_all(&keys).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = output => {}
        () = input => {}
    }
}

/// Scans the firmware's log for the message that no boot device was found.
struct FirmwareLogListener {
    scanner: FirmwareLogScanner,
    found: mpsc::Sender<()>,
}

impl FirmwareLogListener {
    fn scan(&mut self, bytes: &[u8]) {
        if self.scanner.scan(bytes) {
            // It may be logged again after a reboot.
            self.scanner = FirmwareLogScanner::default();
            // Full: the previous message was not consumed yet. Closed: there is no receiver any more.
            let _ = self.found.try_send(());
        }
    }
}

/// Scans the firmware's debug port until QEMU is gone.
async fn listen(mut port: UnixStream, mut listener: FirmwareLogListener) {
    let mut chunk = vec![0; 4096];
    while let Ok(count @ 1..) = port.read(&mut chunk).await {
        listener.scan(chunk.get(..count).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use vireo_privileges::landlock::Rules;

    use super::*;

    #[test]
    fn a_kernel_that_cannot_be_opened_by_its_path_is_copied() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kernel");
        std::fs::write(&path, "kernel").unwrap();
        let file = File::open(&path).unwrap();
        let is_the_file = |fd: OwnedFd| {
            let (copy, file) = (File::from(fd).metadata().unwrap(), file.metadata().unwrap());
            (copy.dev(), copy.ino()) == (file.dev(), file.ino())
        };
        assert!(is_the_file(openable(&file, 5).unwrap()), "no copy is needed");
        // Rules hold for the thread that sets them, and those it starts.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let rules = Rules::new().unwrap();
                if !rules.restrict().unwrap() {
                    eprintln!("skipped: the kernel has no landlock");
                    return;
                }
                let refused = openable(&file, 5).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
                let copy = openable(&file, 6).unwrap();
                let again = std::fs::read_to_string(format!("/proc/self/fd/{}", copy.as_raw_fd()));
                assert_eq!(again.unwrap(), "kernel");
                assert!(!is_the_file(copy));
            });
        });
    }

    #[test]
    fn a_name_is_looked_up_and_a_path_is_not() {
        assert!(find_binary(Path::new("sh")).unwrap().is_absolute());
        assert_eq!(find_binary(Path::new("/bin/sh")), Ok(PathBuf::from("/bin/sh")));
        assert!(find_binary(Path::new("vireo-no-such-program")).unwrap_err().contains("not installed"));
        assert!(find_binary(Path::new("/etc/passwd")).unwrap_err().contains("not an executable file"));
    }
}
