//! Where the content of the disk is, in the nested host.

use std::fmt;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::Error;

/// A file system on a device in memory, since the host's own are in memory without a device, as which `O_DIRECT` and
/// cold caches mean nothing; and a device without content. The names are the ones that kernels before 5.18 choose.
const SETUP: &str = "
modprobe configfs
mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
modprobe null_blk nr_devices=0
device() {
    mkdir /sys/kernel/config/nullb/$1
    cd /sys/kernel/config/nullb/$1
    shift
    for setting in irqmode=2 hw_queue_depth=256 \"$@\" power=1; do echo ${setting#*=} >${setting%%=*}; done
    cd /
}
device nullb0 size=1024 memory_backed=1 discard=1 completion_nsec=100000
device nullb1 size=65536 completion_nsec=2000000
mke2fs -q -t ext4 /dev/nullb0
mkdir -p /tmp/io
mount -t ext4 -o discard /dev/nullb0 /tmp/io
dd if=/dev/zero of=/tmp/io/base bs=1M count=256 conv=fsync status=none
";
const DROP_CACHES: &str = "sync; echo 3 >/proc/sys/vm/drop_caches";
const WARM: &str = "sync; cat /tmp/io/base >/dev/null";
const OVERLAY: &str = "sync; cat /tmp/io/base >/dev/null; rm -f /tmp/io/overlay; \
    qemu-img create -q -f qcow2 -b /tmp/io/base -F raw /tmp/io/overlay";

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Store {
    /// A raw file that the page cache has.
    Warm,
    /// The same file, and the page cache is empty before every job.
    Cold,
    /// A device that takes 2 ms for a request, as many at once as there are.
    Null,
    /// A qcow2 image without content over the raw file, which the page cache has.
    Qcow2,
}

impl Store {
    pub(crate) const ALL: [Self; 4] = [Self::Warm, Self::Cold, Self::Null, Self::Qcow2];

    /// Makes all of them.
    pub(crate) fn set_up() -> Result<(), Error> {
        shell(SETUP)
    }

    /// The image, or the device.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Warm | Self::Cold => Self::BASE,
            Self::Null => "/dev/nullb1",
            Self::Qcow2 => "/tmp/io/overlay",
        }
    }

    /// The raw file.
    pub(crate) const BASE: &str = "/tmp/io/base";

    /// Before a guest starts.
    pub(crate) fn before_guest(self) -> Result<(), Error> {
        match self {
            Self::Warm => shell(WARM),
            Self::Cold | Self::Null => Ok(()),
            Self::Qcow2 => shell(OVERLAY),
        }
    }

    /// Before a job starts. The device's content may be cached, too.
    pub(crate) fn before_job(self) -> Result<(), Error> {
        match self {
            Self::Warm | Self::Qcow2 => shell("sync"),
            Self::Cold | Self::Null => shell(DROP_CACHES),
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
            Self::Null => "null",
            Self::Qcow2 => "qcow2",
        })
    }
}

fn shell(script: &str) -> Result<(), Error> {
    let status = Command::new("bash").args(["-euc", script]).status()?;
    if status.success() { Ok(()) } else { Err(format!("{script}: {status}").into()) }
}
