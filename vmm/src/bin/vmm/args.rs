mod help;
mod value;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

use lexopt::{Arg, Parser, ValueExt};
use vireo_vmconfig::{
    CacheMode, CpuTopology, CpuTopologyError, MAX_QUEUE_PAIRS, MacAddr, PanicModel, ParseMacError,
    UnknownName, WatchdogAction,
};
use vireo_vmm::config::{Adapter, Attachment, Blocks, Input, MAX_DISK_QUEUES, MemorySize, MemorySizeError};
use vireo_vmm::rfb::{Address, ParseAddressError};

pub(crate) use help::HELP;
use value::{adapter, cdrom, context_id, disk, filesystem, input, named, net, serial_arg};

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Command {
    Run(Box<Args>),
    Help,
    Version,
}

/// A VM as the command line names it.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) boot: BootArg,
    pub(crate) cpus: CpuTopology,
    pub(crate) memory: MemorySize,
    pub(crate) disks: Vec<DiskArg>,
    pub(crate) nets: Vec<NetArg>,
    pub(crate) serial: SerialArg,
    pub(crate) vnc: Option<Address>,
    pub(crate) video: Adapter,
    pub(crate) inputs: Vec<Input>,
    pub(crate) balloon: bool,
    pub(crate) panic: Vec<PanicModel>,
    pub(crate) watchdog: Option<WatchdogAction>,
    /// A triple fault is a crash, where it resets a PC.
    pub(crate) exit_on_triple_fault: bool,
    /// The context ID of its socket device.
    pub(crate) vsock: Option<u32>,
    pub(crate) filesystems: Vec<FilesystemArg>,
    pub(crate) kvm: Option<RawFd>,
    /// Where the VM is saved on request.
    pub(crate) save: Option<PathBuf>,
    /// What is started in place of a boot.
    pub(crate) load: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BootArg {
    Kernel { kernel: PathBuf, initrd: Option<PathBuf>, cmdline: String },
    Firmware { code: PathBuf, variables: Option<PathBuf> },
}

/// The format of a disk image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ImageFormat {
    #[default]
    Raw,
    /// Without a backing file.
    Qcow2,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DiskArg {
    pub(crate) path: PathBuf,
    pub(crate) format: ImageFormat,
    pub(crate) read_only: bool,
    pub(crate) attachment: Attachment,
    pub(crate) queues: u16,
    pub(crate) cache: CacheMode,
    pub(crate) blocks: Blocks,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NetArg {
    pub(crate) peer: PeerArg,
    pub(crate) mac: Option<MacAddr>,
}

/// What a NIC exchanges its frames with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PeerArg {
    Tap {
        name: String,
        /// Pairs of queues; 1 is a tap without others.
        queues: usize,
        /// Whether the kernel moves them; by default where it can.
        vhost: Option<bool>,
    },
    /// A process that listens at a socket.
    Stream(PathBuf),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FilesystemArg {
    pub(crate) tag: String,
    /// Of the process that shares it.
    pub(crate) socket: PathBuf,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SerialArg {
    Stdio,
    File(PathBuf),
    Socket(PathBuf),
}

/// What is wrong with the command line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArgsError {
    #[error("{0} (see vmm --help)")]
    Usage(#[from] lexopt::Error),
    #[error("--kernel or --firmware is missing: name a bzImage, an ELF kernel or a BIOS (see vmm --help)")]
    NoBoot,
    #[error("--nvram is of no use without --firmware")]
    NvramAlone,
    #[error("{0} is of no use with --firmware, which finds what to start on the disks")]
    NotWithFirmware(&'static str),
    #[error("{0} is given twice")]
    Twice(&'static str),
    #[error("--cpus")]
    Cpus(#[source] CpuTopologyError),
    #[error("--memory")]
    Memory(#[source] MemorySizeError),
    #[error("--net: mac")]
    Mac(#[source] ParseMacError),
    #[error("--net: queues: unsupported value {0:?}: supported values: 1 to {MAX_QUEUE_PAIRS}")]
    Queues(String),
    #[error("--net: write tap=NAME or stream=PATH")]
    NoPeer,
    #[error("--net: queues and vhost are supported with tap alone")]
    TapAlone,
    #[error("--disk: format: unsupported value {0:?}: supported values: raw, qcow2")]
    Format(String),
    #[error("--disk: queues: unsupported value {0:?}: supported values: 1 to {MAX_DISK_QUEUES}")]
    DiskQueues(String),
    #[error("--disk: cache: unsupported value {0:?}: supported values: writeback, writethrough, none")]
    Cache(String),
    #[error("--disk: block: unsupported value {0:?}: supported values: powers of two, 512 to {max}", max = Blocks::MAX)]
    Block(String),
    #[error("--disk: block: supported on the bus virtio alone")]
    BlockOffVirtio,
    #[error("--disk: queues: several are supported on the bus virtio alone")]
    QueuesOffVirtio,
    #[error("--vnc")]
    Vnc(#[source] ParseAddressError),
    #[error("{option}: unknown key {key:?}: supported keys: {known}")]
    UnknownKey { option: &'static str, key: String, known: &'static str },
    #[error("{option}: {key}= is missing")]
    MissingKey { option: &'static str, key: &'static str },
    #[error("{option}: unsupported value {value:?}: supported values: on, off")]
    NoSwitch { option: &'static str, value: String },
    #[error("{option}: unsupported bus {value:?}: supported values: {known}")]
    Bus { option: &'static str, value: String, known: &'static str },
    #[error("--video {0:?}: write bochs or virtio")]
    Video(String),
    #[error("--video is of no use without --vnc")]
    VideoAlone,
    #[error("--input {0:?}: write tablet or keyboard")]
    Input(String),
    #[error("--vsock: cid: unsupported value {0:?}: supported values: 3 to 4294967294")]
    Cid(String),
    #[error("{option}: unsupported value {value:?}")]
    Name {
        option: &'static str,
        value: String,
        #[source]
        source: UnknownName,
    },
    #[error("--serial {0:?}: write stdio, file=FILE or socket=FILE")]
    Serial(String),
}

/// Reads a command line whose first word is the program.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, ArgsError> {
    let mut parser = Parser::from_iter(words);
    let (mut kernel, mut initrd, mut cmdline) = (None, None, None);
    let (mut firmware, mut nvram) = (None, None);
    let (mut cpus, mut memory, mut serial) = (None, None, None);
    let (mut vnc, mut video, mut kvm, mut watchdog, mut vsock) = (None, None, None, None, None);
    let (mut save, mut load, mut balloon, mut filesystems) = (None, None, false, Vec::new());
    let mut exit_on_triple_fault = false;
    let (mut disks, mut nets, mut inputs, mut panic) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("kernel") => once(&mut kernel, "--kernel", PathBuf::from(parser.value()?))?,
            Arg::Long("initrd") => once(&mut initrd, "--initrd", PathBuf::from(parser.value()?))?,
            Arg::Long("cmdline") => once(&mut cmdline, "--cmdline", parser.value()?.string()?)?,
            Arg::Long("firmware") => once(&mut firmware, "--firmware", PathBuf::from(parser.value()?))?,
            Arg::Long("nvram") => once(&mut nvram, "--nvram", PathBuf::from(parser.value()?))?,
            Arg::Long("cpus") => {
                let count = parser.value()?.parse()?;
                once(&mut cpus, "--cpus", CpuTopology::new(1, count, 1).map_err(ArgsError::Cpus)?)?;
            }
            Arg::Long("memory") => {
                let size = parser.value()?.string()?.parse().map_err(ArgsError::Memory)?;
                once(&mut memory, "--memory", size)?;
            }
            Arg::Long("disk") => disks.push(disk(&parser.value()?.string()?)?),
            Arg::Long("cdrom") => disks.push(cdrom(&parser.value()?.string()?)?),
            Arg::Long("net") => nets.push(net(&parser.value()?.string()?)?),
            Arg::Long("serial") => once(&mut serial, "--serial", serial_arg(&parser.value()?.string()?)?)?,
            Arg::Long("vnc") => {
                let address = parser.value()?.string()?.parse().map_err(ArgsError::Vnc)?;
                once(&mut vnc, "--vnc", address)?;
            }
            Arg::Long("video") => once(&mut video, "--video", adapter(&parser.value()?.string()?)?)?,
            Arg::Long("kvm-fd") => once(&mut kvm, "--kvm-fd", parser.value()?.parse()?)?,
            Arg::Long("balloon") => balloon = true,
            Arg::Long("panic") => panic.push(named("--panic", &parser.value()?.string()?)?),
            Arg::Long("watchdog") => {
                let action = named("--watchdog", &parser.value()?.string()?)?;
                once(&mut watchdog, "--watchdog", action)?;
            }
            Arg::Long("exit-on-triple-fault") => exit_on_triple_fault = true,
            Arg::Long("vsock") => once(&mut vsock, "--vsock", context_id(&parser.value()?.string()?)?)?,
            Arg::Long("fs") => filesystems.push(filesystem(&parser.value()?.string()?)?),
            Arg::Long("save") => once(&mut save, "--save", PathBuf::from(parser.value()?))?,
            Arg::Long("load") => once(&mut load, "--load", PathBuf::from(parser.value()?))?,
            Arg::Long("input") => inputs.push(input(&parser.value()?.string()?)?),
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
            Arg::Long("version") | Arg::Short('V') => return Ok(Command::Version),
            Arg::Long(_) | Arg::Short(_) | Arg::Value(_) => return Err(arg.unexpected().into()),
        }
    }
    if vnc.is_none() && video.is_some() {
        return Err(ArgsError::VideoAlone);
    }
    if inputs.is_empty() && vnc.is_some() {
        inputs.push(Input::Tablet);
    }
    Ok(Command::Run(Box::new(Args {
        boot: boot((kernel, initrd, cmdline), (firmware, nvram))?,
        cpus: cpus.map_or_else(|| CpuTopology::new(1, 1, 1).map_err(ArgsError::Cpus), Ok)?,
        memory: memory.map_or_else(|| MemorySize::from_bytes(256 << 20).map_err(ArgsError::Memory), Ok)?,
        disks,
        nets,
        serial: serial.unwrap_or(SerialArg::Stdio),
        vnc,
        video: video.unwrap_or_default(),
        inputs,
        balloon,
        panic,
        watchdog,
        exit_on_triple_fault,
        vsock,
        filesystems,
        kvm,
        save,
        load,
    })))
}

type Kernel = (Option<PathBuf>, Option<PathBuf>, Option<String>);

fn boot(
    (kernel, initrd, cmdline): Kernel,
    (firmware, variables): (Option<PathBuf>, Option<PathBuf>),
) -> Result<BootArg, ArgsError> {
    let given =
        [("--kernel", kernel.is_some()), ("--initrd", initrd.is_some()), ("--cmdline", cmdline.is_some())];
    match (kernel, firmware) {
        (_, None) if variables.is_some() => Err(ArgsError::NvramAlone),
        (Some(kernel), None) => {
            let cmdline = cmdline.unwrap_or_else(|| "console=ttyS0".to_owned());
            Ok(BootArg::Kernel { kernel, initrd, cmdline })
        }
        (_, Some(code)) => match given.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(ArgsError::NotWithFirmware(option)),
            None => Ok(BootArg::Firmware { code, variables }),
        },
        (None, None) => Err(ArgsError::NoBoot),
    }
}

fn once<T>(slot: &mut Option<T>, option: &'static str, value: T) -> Result<(), ArgsError> {
    match slot.replace(value) {
        Some(_) => Err(ArgsError::Twice(option)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
