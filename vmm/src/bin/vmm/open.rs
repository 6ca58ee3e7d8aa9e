//! Opens what the command line names.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use vireo_vmconfig::{CacheMode, MacAddr, ParseMacError};
use vireo_vmm::config::{
    Balloon, Boot, Disk, DiskImage, Filesystem, FilesystemError, Firmware, KernelBoot, Net, Notice, Notices,
    TooManyDevices, VmConfig, Vsock, VsockError, Watchdog,
};
use vireo_vmm::sys::{tap, vhost};

use crate::args::{Args, BootArg, DiskArg, FilesystemArg, ImageFormat, NetArg, PeerArg};

/// What cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("{option}: cannot open {path:?}")]
    File {
        option: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{option}: {path:?} is in use by another VM")]
    InUse { option: &'static str, path: PathBuf },
    #[error("--net: cannot open the tap device {name:?}: make it first (ip tuntap add mode tap name {name})")]
    Tap {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "--net: cannot connect to {path:?}: start passt, or what else is to get the frames, with this socket first"
    )]
    Stream {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("--net: vhost: cannot open /dev/vhost-net: load the module vhost_net")]
    Vhost(#[source] io::Error),
    #[error("--vsock: cannot open /dev/vhost-vsock: load the module vhost_vsock")]
    Vsock(#[source] io::Error),
    #[error("--vsock: cid={cid}")]
    Cid {
        cid: u32,
        #[source]
        source: io::Error,
    },
    #[error("--vsock")]
    VsockConfig(#[from] VsockError),
    #[error("--fs: cannot connect to {path:?}: start virtiofsd with this socket first")]
    FilesystemSocket {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("--fs")]
    Filesystem(#[from] FilesystemError),
    #[error("--kvm-fd {fd}")]
    Kvm {
        fd: RawFd,
        #[source]
        source: io::Error,
    },
    #[error("--net: cannot derive an address from {name:?}")]
    Mac {
        name: PathBuf,
        #[source]
        source: ParseMacError,
    },
    #[error("too many devices")]
    Devices(#[from] TooManyDevices),
}

/// The VM that `args` describe, with all its files open.
pub(crate) fn open(args: &Args) -> Result<VmConfig, OpenError> {
    let boot = boot(&args.boot)?;
    let disks = args.disks.iter().map(disk).collect::<Result<_, _>>()?;
    let nets = args.nets.iter().map(net).collect::<Result<_, _>>()?;
    let notices = Notices::new(|notice| match notice {
        Notice::NoBootDevice => eprintln!("vmm: the firmware found no bootable device"),
        other => tracing::info!(?other, "notice"),
    });
    let config = VmConfig::new(args.cpus, args.memory, boot)
        .with_kvm(args.kvm.map(inherited).transpose()?)
        .with_rng(true)
        .with_balloon(args.balloon.then(Balloon::default))
        .with_panic_devices(args.panic.clone())
        .with_watchdog(args.watchdog.map(Watchdog::new))
        .with_vsock(args.vsock.map(vsock).transpose()?)
        .with_filesystems(args.filesystems.iter().map(filesystem).collect::<Result<_, _>>()?)
        .with_notices(notices)
        .with_inputs(args.inputs.clone());
    Ok(config.with_devices(disks, nets)?)
}

fn vsock(cid: u32) -> Result<Vsock, OpenError> {
    let device = vhost::open_vsock().map_err(OpenError::Vsock)?;
    vhost::set_guest_cid(&device, cid).map_err(|source| OpenError::Cid { cid, source })?;
    Ok(Vsock::new(device, cid)?)
}

fn filesystem(arg: &FilesystemArg) -> Result<Filesystem, OpenError> {
    let path = &arg.socket;
    let socket = UnixStream::connect(path)
        .map_err(|source| OpenError::FilesystemSocket { path: path.clone(), source })?;
    Ok(Filesystem::new(&arg.tag, socket)?)
}

/// A descriptor of the process that started this one.
fn inherited(fd: RawFd) -> Result<OwnedFd, OpenError> {
    let failed = |source: io::Error| OpenError::Kvm { fd, source };
    if fd < 0 {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    // SAFETY: dup(2) fails for a number that is not a descriptor, and the borrow ends with this statement.
    #[expect(unsafe_code, reason = "a number is all that a command line can have")]
    let own = rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 3);
    own.map_err(|errno| failed(errno.into()))
}

fn boot(arg: &BootArg) -> Result<Boot, OpenError> {
    Ok(match arg {
        BootArg::Kernel { kernel, initrd, cmdline } => Boot::Kernel(KernelBoot {
            kernel: read("--kernel", kernel)?,
            initrd: initrd.as_deref().map(|path| read("--initrd", path)).transpose()?,
            command_line: cmdline.clone(),
        }),
        BootArg::Firmware { code, variables } => {
            let code = read("--firmware", code)?;
            let variables = variables.as_deref().map(|path| exclusive("--nvram", path, true)).transpose()?;
            Boot::Firmware(Firmware::new(code).variables(variables).on_serial(true))
        }
    })
}

fn read(option: &'static str, path: &Path) -> Result<File, OpenError> {
    File::open(path).map_err(|source| OpenError::File { option, path: path.to_owned(), source })
}

fn disk(arg: &DiskArg) -> Result<Disk, OpenError> {
    let file = exclusive("--disk", &arg.path, !arg.read_only)?;
    let image = match arg.format {
        ImageFormat::Raw => DiskImage::Raw(file),
        ImageFormat::Qcow2 => DiskImage::Qcow2 { image: file, backing: None },
    };
    let disk = Disk::new(image)
        .read_only(arg.read_only)
        .attach(arg.attachment)
        .queues(arg.queues)
        .with_blocks(arg.blocks);
    Ok(disk.direct(arg.cache == CacheMode::None).write_through(arg.cache == CacheMode::WriteThrough))
}

/// Locked for as long as it is open: two VMs that write one disk destroy its file systems.
fn exclusive(option: &'static str, path: &Path, write: bool) -> Result<File, OpenError> {
    let file_error = |source| OpenError::File { option, path: path.to_owned(), source };
    let file = File::options().read(true).write(write).open(path).map_err(file_error)?;
    let lock =
        if write { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    match rustix::fs::flock(&file, lock) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse { option, path: path.to_owned() }),
        Err(errno) => Err(file_error(errno.into())),
    }
}

fn net(arg: &NetArg) -> Result<Net, OpenError> {
    let name: &Path = match &arg.peer {
        PeerArg::Tap { name, .. } => name.as_ref(),
        PeerArg::Stream(path) => path,
    };
    let mac = match arg.mac {
        Some(mac) => mac,
        None => derived(name).map_err(|source| OpenError::Mac { name: name.to_owned(), source })?,
    };
    match &arg.peer {
        PeerArg::Tap { name, queues, vhost } => net_on_tap((name, *queues), *vhost, mac),
        PeerArg::Stream(path) => {
            let socket = UnixStream::connect(path)
                .map_err(|source| OpenError::Stream { path: path.clone(), source })?;
            Ok(Net::stream(socket.into(), mac))
        }
    }
}

fn net_on_tap((name, queues): (&str, usize), vhost: Option<bool>, mac: MacAddr) -> Result<Net, OpenError> {
    let opened = tap::open_queues(name, queues);
    let (first, others) = opened.map_err(|source| OpenError::Tap { name: name.to_owned(), source })?;
    let devices = match vhost {
        Some(false) => Vec::new(),
        // Where it cannot be had, the monitor does without.
        None => vhost_devices(queues).unwrap_or_default(),
        Some(true) => vhost_devices(queues).map_err(OpenError::Vhost)?,
    };
    Ok(Net::new(first, mac).more_queues(others).vhost(devices))
}

fn vhost_devices(count: usize) -> io::Result<Vec<OwnedFd>> {
    (0..count).map(|_| vhost::open()).collect()
}

/// The same address for the same tap or socket, every time: guests know their NICs by it. The hash is FNV-1a.
fn derived(name: &Path) -> Result<MacAddr, ParseMacError> {
    let bytes = name.as_os_str().as_bytes().iter();
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let [a, b, c, ..] = hash.to_le_bytes();
    format!("52:54:00:{a:02x}:{b:02x}:{c:02x}").parse()
}

#[cfg(test)]
mod tests {
    use vireo_vmm::config::{Attachment, Blocks};

    use super::*;

    fn arg(path: &Path, read_only: bool) -> DiskArg {
        DiskArg {
            path: path.to_owned(),
            format: ImageFormat::Raw,
            read_only,
            attachment: Attachment::Virtio,
            queues: 1,
            blocks: Blocks::default(),
            cache: CacheMode::default(),
        }
    }

    #[test]
    fn a_disk_has_one_writer_or_many_readers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (write, read) = (arg(file.path(), false), arg(file.path(), true));
        let writer = disk(&write).unwrap();
        assert!(matches!(disk(&write), Err(OpenError::InUse { .. })));
        assert!(matches!(disk(&read), Err(OpenError::InUse { .. })));
        drop(writer);
        let _reader = disk(&read).unwrap();
        assert!(disk(&read).is_ok());
        assert!(matches!(disk(&write), Err(OpenError::InUse { .. })));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = disk(&arg(Path::new("/nonexistent/disk"), false)).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/disk"));
    }

    #[test]
    fn a_derived_address_is_stable_and_its_own() {
        let derived = |name: &str| derived(name.as_ref()).unwrap();
        assert_eq!(derived("tap0").to_string(), "52:54:00:16:d0:ac");
        assert_eq!(derived("tap0"), derived("tap0"));
        assert_ne!(derived("tap0"), derived("tap1"));
    }

    #[test]
    fn a_socket_needs_a_process_that_listens() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("socket");
        let arg = NetArg { peer: PeerArg::Stream(path.clone()), mac: None };
        let error = net(&arg).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let net = net(&arg).unwrap();
        assert_eq!((net.mac(), net.queue_pairs()), (derived(&path).unwrap(), 1));
        listener.accept().unwrap();
    }
}
