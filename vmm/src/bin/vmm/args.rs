use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser, ValueExt};
use vireo_vmconfig::{DiskBus, DiskDevice, MacAddr, ParseMacError};
use vireo_vmm::config::{Adapter, Attachment, Cpus, CpusError, Input, MemorySize, MemorySizeError};
use vireo_vmm::rfb::{Address, ParseAddressError};

pub(crate) const HELP: &str = "\
Boots a Linux kernel or a disk in a virtual machine on KVM.

Usage: vmm --kernel FILE [OPTION]...
       vmm --firmware FILE --disk path=FILE [OPTION]...

  --firmware FILE                  BIOS or EFI, such as /usr/share/seabios/bios-256k.bin; it shows itself on the
                                   serial port, and starts from the first disk that has something to start
  --nvram FILE                     variables of an EFI firmware, which is named by --firmware; written to. Begin
                                   with a copy of what belongs to it, such as /usr/share/OVMF/OVMF_VARS_4M.fd
  --kernel FILE                    bzImage as a distribution ships it, or an ELF kernel
  --initrd FILE                    initial ramdisk
  --cmdline TEXT                   kernel command line (default: console=ttyS0)
  --cpus N                         processors, 1 to 254 (default: 1)
  --memory SIZE                    RAM: 512M, 4G, a bare number counts MiB (default: 256M)
  --disk path=FILE[,readonly=on][,bus=BUS]
                                   raw disk image or block device on the bus virtio (default), sata or scsi;
                                   may be given several times
  --cdrom path=FILE[,bus=BUS]      image in a CD/DVD drive on the bus sata (default) or scsi; may be given
                                   several times
  --net tap=NAME[,mac=MAC]         network card on an existing tap device; may be given several times
  --serial stdio                   serial port on this terminal; Ctrl+] leaves (default)
  --serial file=FILE               serial output into a file
  --serial socket=FILE             serial port on a unix socket that is made here
  --vnc ADDRESS                    a screen for VNC viewers, at unix:PATH or 127.0.0.1:PORT
  --video ADAPTER                  what draws on it: bochs (default) or virtio
  --input KIND                     a virtio tablet (there is one with --vnc) or keyboard, beside the PS/2 mouse
                                   and keyboard that --vnc brings; may be given several times
  --help, --version

Set VMM_LOG to error, warn, info, debug or trace to choose what is logged (default: warn).

Exit status:
  0  the guest switched itself off
  1  an error, which is named, or a signal
  3  the guest crashed so that its processor triple-faulted
  4  the guest reset itself again and again, never running for long
  5  left with Ctrl+]
";

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Command {
    Run(Box<Args>),
    Help,
    Version,
}

/// A machine as the command line names it.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) boot: BootArg,
    pub(crate) cpus: Cpus,
    pub(crate) memory: MemorySize,
    pub(crate) disks: Vec<DiskArg>,
    pub(crate) nets: Vec<NetArg>,
    pub(crate) serial: SerialArg,
    pub(crate) vnc: Option<Address>,
    pub(crate) video: Adapter,
    pub(crate) inputs: Vec<Input>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BootArg {
    Kernel { kernel: PathBuf, initrd: Option<PathBuf>, cmdline: String },
    Firmware { code: PathBuf, variables: Option<PathBuf> },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DiskArg {
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    pub(crate) attachment: Attachment,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NetArg {
    pub(crate) tap: String,
    pub(crate) mac: Option<MacAddr>,
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
    Cpus(#[source] CpusError),
    #[error("--memory")]
    Memory(#[source] MemorySizeError),
    #[error("--net: mac")]
    Mac(#[source] ParseMacError),
    #[error("--vnc")]
    Vnc(#[source] ParseAddressError),
    #[error("{option}: {key:?} is no key of it; it has {known}")]
    UnknownKey { option: &'static str, key: String, known: &'static str },
    #[error("{option}: {key}= is missing")]
    MissingKey { option: &'static str, key: &'static str },
    #[error("{option}: {value:?} is neither on nor off")]
    NoSwitch { option: &'static str, value: String },
    #[error("{option}: {value:?} is no bus of it; write {known}")]
    Bus { option: &'static str, value: String, known: &'static str },
    #[error("--video {0:?}: write bochs or virtio")]
    Video(String),
    #[error("--video is of no use without --vnc")]
    VideoAlone,
    #[error("--input {0:?}: write tablet or keyboard")]
    Input(String),
    #[error("--serial {0:?}: write stdio, file=FILE or socket=FILE")]
    Serial(String),
}

/// Reads a command line whose first word is the program.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, ArgsError> {
    let mut parser = Parser::from_iter(words);
    let (mut kernel, mut initrd, mut cmdline) = (None, None, None);
    let (mut firmware, mut nvram) = (None, None);
    let (mut cpus, mut memory, mut serial) = (None, None, None);
    let (mut vnc, mut video) = (None, None);
    let (mut disks, mut nets, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("kernel") => once(&mut kernel, "--kernel", PathBuf::from(parser.value()?))?,
            Arg::Long("initrd") => once(&mut initrd, "--initrd", PathBuf::from(parser.value()?))?,
            Arg::Long("cmdline") => once(&mut cmdline, "--cmdline", parser.value()?.string()?)?,
            Arg::Long("firmware") => once(&mut firmware, "--firmware", PathBuf::from(parser.value()?))?,
            Arg::Long("nvram") => once(&mut nvram, "--nvram", PathBuf::from(parser.value()?))?,
            Arg::Long("cpus") => {
                let count = parser.value()?.parse()?;
                once(&mut cpus, "--cpus", Cpus::new(1, count, 1).map_err(ArgsError::Cpus)?)?;
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
        cpus: cpus.map_or_else(|| Cpus::new(1, 1, 1).map_err(ArgsError::Cpus), Ok)?,
        memory: memory.map_or_else(|| MemorySize::from_bytes(256 << 20).map_err(ArgsError::Memory), Ok)?,
        disks,
        nets,
        serial: serial.unwrap_or(SerialArg::Stdio),
        vnc,
        video: video.unwrap_or_default(),
        inputs,
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

fn disk(text: &str) -> Result<DiskArg, ArgsError> {
    let (mut path, mut read_only, mut bus) = (None, None, None);
    for (key, value) in pairs(text) {
        match key {
            "path" => once(&mut path, "--disk: path", PathBuf::from(value))?,
            "readonly" => once(&mut read_only, "--disk: readonly", switch("--disk: readonly", value)?)?,
            "bus" => once(&mut bus, "--disk: bus", attachment(("--disk", DiskDevice::Disk), value)?)?,
            _ => return Err(unknown("--disk", key, "path, readonly and bus")),
        }
    }
    let path = path.ok_or(ArgsError::MissingKey { option: "--disk", key: "path" })?;
    Ok(DiskArg { path, read_only: read_only.unwrap_or(false), attachment: bus.unwrap_or_default() })
}

/// A device of the option on the bus that is named.
fn attachment((option, device): (&'static str, DiskDevice), bus: &str) -> Result<Attachment, ArgsError> {
    let known = match device {
        DiskDevice::Disk => "virtio, sata or scsi",
        DiskDevice::CdRom => "sata or scsi",
    };
    let named: Option<DiskBus> = bus.parse().ok();
    let attachment = named.and_then(|bus| Attachment::new(bus, device).ok());
    attachment.ok_or_else(|| ArgsError::Bus { option, value: bus.to_owned(), known })
}

fn cdrom(text: &str) -> Result<DiskArg, ArgsError> {
    let (mut path, mut bus) = (None, None);
    for (key, value) in pairs(text) {
        match key {
            "path" => once(&mut path, "--cdrom: path", PathBuf::from(value))?,
            "bus" => once(&mut bus, "--cdrom: bus", attachment(("--cdrom", DiskDevice::CdRom), value)?)?,
            _ => return Err(unknown("--cdrom", key, "path and bus")),
        }
    }
    let path = path.ok_or(ArgsError::MissingKey { option: "--cdrom", key: "path" })?;
    Ok(DiskArg { path, read_only: true, attachment: bus.unwrap_or(Attachment::Sata(DiskDevice::CdRom)) })
}

fn net(text: &str) -> Result<NetArg, ArgsError> {
    let (mut tap, mut mac) = (None, None);
    for (key, value) in pairs(text) {
        match key {
            "tap" => once(&mut tap, "--net: tap", value.to_owned())?,
            "mac" => once(&mut mac, "--net: mac", value.parse().map_err(ArgsError::Mac)?)?,
            _ => return Err(unknown("--net", key, "tap and mac")),
        }
    }
    Ok(NetArg { tap: tap.ok_or(ArgsError::MissingKey { option: "--net", key: "tap" })?, mac })
}

fn adapter(text: &str) -> Result<Adapter, ArgsError> {
    match text {
        "bochs" => Ok(Adapter::Bochs),
        "virtio" => Ok(Adapter::Virtio),
        _ => Err(ArgsError::Video(text.to_owned())),
    }
}

fn input(text: &str) -> Result<Input, ArgsError> {
    match text {
        "tablet" => Ok(Input::Tablet),
        "keyboard" => Ok(Input::Keyboard),
        _ => Err(ArgsError::Input(text.to_owned())),
    }
}

fn serial_arg(text: &str) -> Result<SerialArg, ArgsError> {
    match text.split_once('=') {
        None if text == "stdio" => Ok(SerialArg::Stdio),
        Some(("file", path)) if !path.is_empty() => Ok(SerialArg::File(path.into())),
        Some(("socket", path)) if !path.is_empty() => Ok(SerialArg::Socket(path.into())),
        _ => Err(ArgsError::Serial(text.to_owned())),
    }
}

/// `key=value` parted by commas; a key alone has an empty value.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(',').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn switch(option: &'static str, value: &str) -> Result<bool, ArgsError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(ArgsError::NoSwitch { option, value: value.to_owned() }),
    }
}

fn unknown(option: &'static str, key: &str, known: &'static str) -> ArgsError {
    ArgsError::UnknownKey { option, key: key.to_owned(), known }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Command, ArgsError> {
        parse(std::iter::once("vmm").chain(line.split_whitespace()).map(OsString::from))
    }

    fn run(line: &str) -> Args {
        match words(line).unwrap() {
            Command::Run(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_kernel_is_enough() {
        let args = run("--kernel k");
        assert_eq!((args.cpus.count(), args.memory.bytes()), (1, 256 << 20));
        let boot = BootArg::Kernel { kernel: "k".into(), initrd: None, cmdline: "console=ttyS0".into() };
        assert_eq!((args.boot, args.serial), (boot, SerialArg::Stdio));
    }

    #[test]
    fn everything_can_be_said() {
        let args = run(
            "--kernel k --initrd=i --cmdline=quiet --cpus 4 --memory 6G --disk path=a,readonly=on \
                        --disk path=b,bus=sata --cdrom path=c,bus=scsi --net tap=t0,mac=52:54:00:00:00:01 --net tap=t1 --serial socket=s \
                        --vnc unix:v",
        );
        let boot = BootArg::Kernel { kernel: "k".into(), initrd: Some("i".into()), cmdline: "quiet".into() };
        assert_eq!(args.boot, boot);
        assert_eq!((args.cpus.count(), args.memory.bytes()), (4, 6 << 30));
        let disk = |path: &str, read_only, attachment| DiskArg { path: path.into(), read_only, attachment };
        let (sata, cdrom) = (Attachment::Sata(DiskDevice::Disk), Attachment::Scsi(DiskDevice::CdRom));
        let want = [disk("a", true, Attachment::Virtio), disk("b", false, sata), disk("c", true, cdrom)];
        assert_eq!(args.disks, want);
        assert_eq!(args.nets[0].mac, Some("52:54:00:00:00:01".parse().unwrap()));
        assert_eq!(args.nets[1], NetArg { tap: "t1".into(), mac: None });
        assert_eq!(args.serial, SerialArg::Socket("s".into()));
        assert_eq!(args.vnc, Some(Address::Unix("v".into())));
        assert_eq!((args.video, args.inputs), (Adapter::Bochs, vec![Input::Tablet]));
        assert_eq!(run("--kernel k --vnc unix:v --video virtio").video, Adapter::Virtio);
        assert_eq!(run("--kernel k --vnc unix:v --input keyboard").inputs, [Input::Keyboard]);
        assert_eq!(run("--kernel k").inputs, []);
    }

    #[test]
    fn firmware_is_enough_too() {
        let bios = BootArg::Firmware { code: "bios".into(), variables: None };
        assert_eq!(run("--firmware bios").boot, bios);
        let efi = BootArg::Firmware { code: "efi".into(), variables: Some("vars".into()) };
        assert_eq!(run("--firmware efi --nvram vars").boot, efi);
    }

    #[test]
    fn mistakes_name_the_option() {
        for (line, named) in [
            ("", "--kernel"),
            ("--firmware f --kernel k", "--kernel"),
            ("--kernel k --nvram n", "--nvram"),
            ("--firmware f --cmdline quiet", "--cmdline"),
            ("--firmware f --firmware f", "--firmware"),
            ("--kernel k --cpus 255", "--cpus"),
            ("--kernel k --cpus many", "many"),
            ("--kernel k --memory 1M", "--memory"),
            ("--kernel k --kernel l", "--kernel"),
            ("--kernel k --disk readonly=on", "--disk"),
            ("--kernel k --disk path=a,readonly=yes", "readonly"),
            ("--kernel k --disk path=a,cache=none", "cache"),
            ("--kernel k --disk path=a,bus=ide", "ide"),
            ("--kernel k --cdrom path=a,bus=virtio", "virtio"),
            ("--kernel k --cdrom readonly=on", "readonly"),
            ("--kernel k --net mac=52:54:00:00:00:01", "--net"),
            ("--kernel k --net tap=t,mac=x", "--net"),
            ("--kernel k --serial tty", "--serial"),
            ("--kernel k --input mouse", "mouse"),
            ("--kernel k --vnc unix:v --video vga", "vga"),
            ("--kernel k --video virtio", "--vnc"),
            ("--kernel k --vnc 0.0.0.0:5900", "--vnc"),
            ("--kernel k --bogus", "bogus"),
            ("k", "k"),
        ] {
            let error = words(line).unwrap_err().to_string();
            assert!(error.contains(named), "{line}: {error}");
        }
    }

    #[test]
    fn help_and_version_need_nothing_else() {
        assert!(matches!(words("--help"), Ok(Command::Help)));
        assert!(matches!(words("--version"), Ok(Command::Version)));
    }
}
