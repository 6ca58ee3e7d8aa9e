//! Guests that are a disk: the image of `hack/images`, started by firmware and used through its login prompt.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::guest::{Drive, Monitor};
use crate::host::Process;
use crate::host::{Host, HostBuilder, HostError};

/// The image, as a host has it. Guests get copies.
const IMAGE: &str = "/in/guest.raw";
/// From the start of the monitor to the login prompt, on a busy test host.
const BOOT: Duration = Duration::from_secs(300);
const ANSWER: Duration = Duration::from_secs(60);

/// A number of its own for every command, since a console shows the answers to earlier ones too.
static ASKED: AtomicU32 = AtomicU32::new(1);

/// Debian's firmware, by the name it has in a host.
const FIRMWARE: [(&str, &str); 3] = [
    ("/usr/share/seabios/bios-256k.bin", "bios"),
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "efi-code"),
    ("/usr/share/OVMF/OVMF_VARS_4M.fd", "efi-variables"),
];

/// What starts the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// SeaBIOS.
    Bios,
    /// OVMF.
    Efi,
}

/// A copy of the variables that belong to OVMF.
const VARIABLES: &str = "/tmp/installed.variables";
/// OVMF restores CR8 in its timer's interrupt, and the emulation of SVM in QEMU 10.0 aborts when that happens while
/// another interrupt waits. On a slow host the next tick comes so early, so the ticks are kept apart: microseconds.
pub const TICKS_APART: &str = "echo 200000 >/sys/module/kvm/parameters/min_timer_period_us";

/// A VM that boots from its disks.
#[derive(Clone, Debug)]
pub struct Installed {
    /// What starts it.
    pub firmware: Firmware,
    /// CPUs.
    pub cpus: u32,
    /// RAM in MiB.
    pub memory_mib: u32,
    /// Raw images of virtio disks, by their paths in the host.
    pub disks: Vec<String>,
    /// What is on other buses.
    pub drives: Vec<Drive>,
}

impl Installed {
    /// A small VM with a fresh copy of the image.
    pub fn fresh(host: &Host, firmware: Firmware) -> Result<Self, HostError> {
        let disk = "/tmp/installed.raw";
        host.shell(&format!("cp --sparse=always {IMAGE} {disk}")).run()?.ok();
        if firmware == Firmware::Efi {
            keep_ticks_apart(host)?;
            host.shell(&format!("cp /in/efi-variables {VARIABLES}")).run()?.ok();
        }
        Ok(Self { firmware, cpus: 1, memory_mib: 256, disks: vec![disk.to_owned()], drives: Vec::new() })
    }

    /// The same with its disks on another bus, `sata` or `scsi`.
    #[must_use]
    pub fn on(mut self, bus: &'static str) -> Self {
        let drive = |path| Drive { path, bus, cdrom: false };
        self.drives.extend(self.disks.drain(..).map(drive));
        self
    }

    /// Starts it and returns while it boots.
    pub fn start<'h>(&self, host: &'h Host, monitor: Monitor) -> Result<Login<'h>, HostError> {
        let words = match monitor {
            Monitor::Vmm => self.vmm(),
            Monitor::Qemu => self.qemu(),
        };
        let (program, args) = words.split_first().map_or(("", &[][..]), |(p, a)| (p.as_str(), a));
        let process = host.command(program).args(args.iter().cloned()).directory("/tmp").spawn()?;
        Ok(Login { process })
    }

    fn vmm(&self) -> Vec<String> {
        let mut words: Vec<String> = vec!["/in/vmm".into()];
        match self.firmware {
            Firmware::Bios => words.extend(["--firmware", "/in/bios"].map(str::to_owned)),
            Firmware::Efi => {
                words.extend(["--firmware", "/in/efi-code", "--nvram", VARIABLES].map(str::to_owned))
            }
        }
        words.extend(["--cpus".into(), self.cpus.to_string()]);
        words.extend(["--memory".into(), format!("{}M", self.memory_mib)]);
        for disk in &self.disks {
            words.extend(["--disk".into(), format!("path={disk}")]);
        }
        words.extend(self.drives.iter().flat_map(Drive::vmm));
        words
    }

    fn qemu(&self) -> Vec<String> {
        let fixed = "qemu-system-x86_64 -machine q35,graphics=off -accel kvm -cpu host -nodefaults -display none \
            -serial stdio -device virtio-rng-pci";
        let mut words: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
        match self.firmware {
            Firmware::Bios => words.extend(["-bios".into(), "/in/bios".into()]),
            Firmware::Efi => {
                for (file, option) in [("/in/efi-code", ",readonly=on"), (VARIABLES, "")] {
                    words.extend(["-drive".into(), format!("if=pflash,format=raw,file={file}{option}")]);
                }
            }
        }
        words.extend(["-smp".into(), self.cpus.to_string(), "-m".into(), self.memory_mib.to_string()]);
        for (n, disk) in self.disks.iter().enumerate() {
            words.extend(["-drive".into(), format!("if=none,id=d{n},format=raw,file={disk}")]);
            words.extend(["-device".into(), format!("virtio-blk-pci,drive=d{n}")]);
        }
        words.extend(self.drives.iter().enumerate().flat_map(|(number, drive)| drive.qemu(number)));
        words
    }
}

/// Gives a host the image and the firmware.
pub fn provide(builder: HostBuilder) -> io::Result<HostBuilder> {
    let image = images("raw")?.join("vireo-guest.raw");
    Ok(provide_firmware(builder.file_as(image, "guest.raw".to_owned())))
}

/// The same with the image whose kernel knows SATA.
pub fn provide_full(builder: HostBuilder) -> io::Result<HostBuilder> {
    let image = images("full-raw")?.join("full/vireo-guest.raw");
    Ok(provide_firmware(builder.file_as(image, "guest.raw".to_owned())))
}

/// Gives a host Debian's firmware: `bios`, `efi-code` and `efi-variables`.
pub fn provide_firmware(builder: HostBuilder) -> HostBuilder {
    FIRMWARE.iter().fold(builder, |builder, (path, name)| builder.file_as(path, (*name).to_owned()))
}

/// Makes a nested host ready for guests that start by EFI.
pub fn keep_ticks_apart(host: &Host) -> Result<(), HostError> {
    host.shell(TICKS_APART).run()?.ok();
    Ok(())
}

/// The directory in which `hack/images` has `target`, made now where it is not there.
pub fn images(target: &str) -> io::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/images");
    let output = Command::new(script).arg(target).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("hack/images {target}: {}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

/// A guest at whose console one logs in. Dropping it kills its monitor.
#[derive(Debug)]
pub struct Login<'h> {
    process: Process<'h>,
}

impl<'h> Login<'h> {
    /// A guest whose serial line is a running command's standard input and output.
    pub fn over(process: Process<'h>) -> Self {
        Self { process }
    }

    /// Waits for the prompt and logs in, after the start and after every reboot. What the console showed until then.
    pub fn log_in(&mut self) -> Result<String, HostError> {
        let before = self.process.wait_for("login: ", BOOT)?;
        self.send("vireo")?;
        self.process.wait_for("Password: ", ANSWER)?;
        self.send("vireo")?;
        self.process.wait_for("# ", ANSWER)?;
        Ok(before)
    }

    /// Runs a shell line in the guest that must succeed; what it printed.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> Result<String, HostError> {
        // The console echoes the line: the marks in it are not yet those in the answer.
        let n = ASKED.fetch_add(1, Ordering::Relaxed);
        self.send(&format!("echo \"BEGIN\"-{n}; {line}; echo \"END\"-{n}-$?"))?;
        self.process.wait_for(&format!("BEGIN-{n}\r\n"), ANSWER)?;
        let mark = format!("END-{n}-");
        let text = self.process.wait_for(&mark, ANSWER)?;
        let code = self.process.wait_for("\r\n", ANSWER)?;
        let text = text.strip_suffix(&mark).unwrap_or(&text).replace('\r', "");
        assert_eq!(code.trim(), "0", "in the guest: {line}\n{text}");
        Ok(text)
    }

    /// Types a line and does not wait for anything.
    pub fn send(&mut self, line: &str) -> Result<(), HostError> {
        self.process.write(format!("{line}\r").as_bytes())
    }

    /// The monitor itself.
    pub fn monitor(&mut self) -> &mut Process<'h> {
        &mut self.process
    }
}
