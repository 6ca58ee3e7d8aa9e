//! What is started: a kernel that the monitor loads, or a disk by firmware.

use std::path::Path;
use std::process::Command;

use vireo_tests::installed::{self, Firmware};
use vireo_tests::{HostBuilder, Image, Initrd};

use crate::Error;

/// What the first process of the benchmark's own ramdisk prints.
const FIRST_PROCESS: &str = "GUEST-INIT-RUNS";
/// What the image of `hack/images` shows when it is up.
const LOGIN: &str = "login: ";
/// The files that a start by firmware writes to, created anew for each.
pub(crate) const DISK: &str = "/tmp/bench.raw";
/// Likewise, where that is UEFI.
pub(crate) const VARIABLES: &str = "/tmp/bench.variables";

/// One kind of start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Debian's cloud or full kernel and a small ramdisk.
    Kernel { full: bool },
    /// The image of `hack/images`.
    Disk(Firmware),
    /// No guest: a launcher until it answers and has its files.
    Answer,
}

impl Start {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "cloud" => Ok(Self::Kernel { full: false }),
            "full" => Ok(Self::Kernel { full: true }),
            "bios" => Ok(Self::Disk(Firmware::Bios)),
            "efi" => Ok(Self::Disk(Firmware::Efi)),
            "answer" => Ok(Self::Answer),
            other => Err(format!("{other:?} is none of cloud, full, bios, efi, answer")),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kernel { full: false } => "cloud",
            Self::Kernel { full: true } => "full",
            Self::Disk(Firmware::Bios) => "bios",
            Self::Disk(Firmware::Efi) => "efi",
            Self::Answer => "answer",
        }
    }

    /// What the guest prints when the clock is to stop.
    pub(crate) fn mark(self) -> &'static str {
        match self {
            Self::Kernel { .. } | Self::Answer => FIRST_PROCESS,
            Self::Disk(_) => LOGIN,
        }
    }

    /// Whether the guest powers off when it is given a line; else it is killed.
    pub(crate) fn shuts_down(self) -> bool {
        matches!(self, Self::Kernel { .. })
    }

    /// Gives the host what is started. `scratch` holds what is made for it.
    pub(crate) fn provide(self, builder: HostBuilder, scratch: &Path) -> Result<HostBuilder, Error> {
        let full = match self {
            Self::Kernel { full } => full,
            Self::Disk(_) => return Ok(installed::provide(builder)?),
            Self::Answer => return Ok(builder),
        };
        let image = Image::get()?;
        let kernel = if full { image.full_kernel()? } else { image.cloud_kernel()? };
        let initrd = scratch.join("initrd");
        write_initrd(&image, &initrd)?;
        Ok(builder.file_as(&kernel.image, "vmlinuz").file_as(initrd, "initrd"))
    }

    /// Before the clock starts, in the host.
    pub(crate) fn prepare(self) -> Result<(), Error> {
        let line = match self {
            Self::Kernel { .. } | Self::Answer => return Ok(()),
            Self::Disk(Firmware::Bios) => format!("cp --sparse=always /in/guest.raw {DISK}"),
            Self::Disk(Firmware::Efi) => format!(
                "{}; cp /in/efi-variables {VARIABLES}; cp --sparse=always /in/guest.raw {DISK}",
                installed::TICKS_APART
            ),
        };
        let status = Command::new("bash").args(["-ec", &line]).status()?;
        if status.success() { Ok(()) } else { Err(format!("{line}: {status}").into()) }
    }
}

/// A ramdisk whose first process reports at once, waits for a line and powers off.
fn write_initrd(image: &Image, path: &Path) -> std::io::Result<()> {
    let mut initrd = Initrd::with_busybox(&image.busybox())?;
    let init = format!("#!/bin/sh\necho {FIRST_PROCESS}\nread -r line\n/bin/busybox poweroff -f\n");
    initrd.file("init", init.as_bytes())?;
    initrd.save(path)
}
