//! The values of options: `key=value` lists and words.

use std::path::PathBuf;
use std::str::FromStr;

use vireo_vmconfig::{CacheMode, DiskBus, DiskDevice, MAX_QUEUE_PAIRS, UnknownName};
use vireo_vmm::config::{Adapter, Attachment, Blocks, Input, MAX_DISK_QUEUES, Vsock};

use super::{ArgsError, DiskArg, FilesystemArg, ImageFormat, NetArg, PeerArg, SerialArg, once};

pub(super) fn disk(text: &str) -> Result<DiskArg, ArgsError> {
    let (mut path, mut format, mut read_only, mut bus) = (None, None, None, None);
    let (mut queues, mut cache, mut block) = (None, None, None);
    for (key, value) in pairs(text) {
        match key {
            "path" => once(&mut path, "--disk: path", PathBuf::from(value))?,
            "format" => once(&mut format, "--disk: format", image_format(value)?)?,
            "readonly" => once(&mut read_only, "--disk: readonly", switch("--disk: readonly", value)?)?,
            "bus" => once(&mut bus, "--disk: bus", attachment(("--disk", DiskDevice::Disk), value)?)?,
            "queues" => once(&mut queues, "--disk: queues", disk_queues(value)?)?,
            "cache" => once(&mut cache, "--disk: cache", cache_mode(value)?)?,
            "block" => once(&mut block, "--disk: block", blocks(value)?)?,
            _ => return Err(unknown("--disk", key, "path, format, readonly, bus, queues, cache and block")),
        }
    }
    let path = path.ok_or(ArgsError::MissingKey { option: "--disk", key: "path" })?;
    let (attachment, queues) = (bus.unwrap_or_default(), queues.unwrap_or(1));
    if queues > 1 && attachment != Attachment::Virtio {
        return Err(ArgsError::QueuesOffVirtio);
    }
    if block.is_some() && attachment != Attachment::Virtio {
        return Err(ArgsError::BlockOffVirtio);
    }
    let blocks = block.unwrap_or_default();
    let (format, read_only) = (format.unwrap_or_default(), read_only.unwrap_or(false));
    Ok(DiskArg { path, format, read_only, attachment, queues, cache: cache.unwrap_or_default(), blocks })
}

fn cache_mode(value: &str) -> Result<CacheMode, ArgsError> {
    value.parse().map_err(|_| ArgsError::Cache(value.to_owned()))
}

fn image_format(value: &str) -> Result<ImageFormat, ArgsError> {
    match value {
        "raw" => Ok(ImageFormat::Raw),
        "qcow2" => Ok(ImageFormat::Qcow2),
        _ => Err(ArgsError::Format(value.to_owned())),
    }
}

/// Logical and physical blocks of this size.
fn blocks(value: &str) -> Result<Blocks, ArgsError> {
    let blocks = value.parse().ok().and_then(|bytes| Blocks::new(bytes, bytes, None).ok());
    blocks.ok_or_else(|| ArgsError::Block(value.to_owned()))
}

fn disk_queues(value: &str) -> Result<u16, ArgsError> {
    let count = value.parse().ok().filter(|count| (1..=MAX_DISK_QUEUES).contains(count));
    count.ok_or_else(|| ArgsError::DiskQueues(value.to_owned()))
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

pub(super) fn cdrom(text: &str) -> Result<DiskArg, ArgsError> {
    let (mut path, mut bus) = (None, None);
    for (key, value) in pairs(text) {
        match key {
            "path" => once(&mut path, "--cdrom: path", PathBuf::from(value))?,
            "bus" => once(&mut bus, "--cdrom: bus", attachment(("--cdrom", DiskDevice::CdRom), value)?)?,
            _ => return Err(unknown("--cdrom", key, "path and bus")),
        }
    }
    let path = path.ok_or(ArgsError::MissingKey { option: "--cdrom", key: "path" })?;
    let attachment = bus.unwrap_or(Attachment::Sata(DiskDevice::CdRom));
    let cache = CacheMode::default();
    Ok(DiskArg {
        path,
        format: ImageFormat::Raw,
        read_only: true,
        attachment,
        queues: 1,
        cache,
        blocks: Blocks::default(),
    })
}

pub(super) fn net(text: &str) -> Result<NetArg, ArgsError> {
    let (mut tap, mut stream, mut mac, mut queues, mut vhost) = (None, None, None, None, None);
    for (key, value) in pairs(text) {
        match key {
            "tap" => once(&mut tap, "--net: tap", value.to_owned())?,
            "stream" => once(&mut stream, "--net: stream", PathBuf::from(value))?,
            "mac" => once(&mut mac, "--net: mac", value.parse().map_err(ArgsError::Mac)?)?,
            "queues" => once(&mut queues, "--net: queues", queue_count(value)?)?,
            "vhost" => once(&mut vhost, "--net: vhost", switch("--net: vhost", value)?)?,
            _ => return Err(unknown("--net", key, "tap, stream, mac, queues and vhost")),
        }
    }
    let peer = match (tap, stream) {
        (Some(name), None) => PeerArg::Tap { name, queues: queues.unwrap_or(1), vhost },
        (None, Some(_)) if queues.is_some() || vhost.is_some() => return Err(ArgsError::TapAlone),
        (None, Some(path)) => PeerArg::Stream(path),
        (None, None) | (Some(_), Some(_)) => return Err(ArgsError::NoPeer),
    };
    Ok(NetArg { peer, mac })
}

fn queue_count(value: &str) -> Result<usize, ArgsError> {
    let count = value.parse().ok().filter(|count| (1..=MAX_QUEUE_PAIRS).contains(count));
    count.ok_or_else(|| ArgsError::Queues(value.to_owned()))
}

pub(super) fn adapter(text: &str) -> Result<Adapter, ArgsError> {
    match text {
        "bochs" => Ok(Adapter::Bochs),
        "virtio" => Ok(Adapter::Virtio),
        _ => Err(ArgsError::Video(text.to_owned())),
    }
}

pub(super) fn input(text: &str) -> Result<Input, ArgsError> {
    match text {
        "tablet" => Ok(Input::Tablet),
        "keyboard" => Ok(Input::Keyboard),
        _ => Err(ArgsError::Input(text.to_owned())),
    }
}

pub(super) fn context_id(text: &str) -> Result<u32, ArgsError> {
    let mut cid = None;
    for (key, value) in pairs(text) {
        match key {
            "cid" => {
                let number = value.parse().ok().filter(|cid| Vsock::CIDS.contains(cid));
                once(&mut cid, "--vsock: cid", number.ok_or_else(|| ArgsError::Cid(value.to_owned()))?)?;
            }
            _ => return Err(unknown("--vsock", key, "cid")),
        }
    }
    cid.ok_or(ArgsError::MissingKey { option: "--vsock", key: "cid" })
}

pub(super) fn filesystem(text: &str) -> Result<FilesystemArg, ArgsError> {
    let (mut tag, mut socket) = (None, None);
    for (key, value) in pairs(text) {
        match key {
            "tag" => once(&mut tag, "--fs: tag", value.to_owned())?,
            "socket" => once(&mut socket, "--fs: socket", PathBuf::from(value))?,
            _ => return Err(unknown("--fs", key, "tag and socket")),
        }
    }
    let tag = tag.ok_or(ArgsError::MissingKey { option: "--fs", key: "tag" })?;
    let socket = socket.ok_or(ArgsError::MissingKey { option: "--fs", key: "socket" })?;
    Ok(FilesystemArg { tag, socket })
}

/// A value that has a name in manifests.
pub(super) fn named<T: FromStr<Err = UnknownName>>(option: &'static str, text: &str) -> Result<T, ArgsError> {
    text.parse().map_err(|source| ArgsError::Name { option, value: text.to_owned(), source })
}

pub(super) fn serial_arg(text: &str) -> Result<SerialArg, ArgsError> {
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
