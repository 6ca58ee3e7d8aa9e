//! Test guests: one of Debian's kernels with a RAM disk that executes the lines of the serial port.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::host::{Host, HostBuilder, HostError};
use crate::host::{Output, Process};
use crate::image::{Image, ImageError, Kernel};
use crate::initrd::Initrd;

const INIT: &str = include_str!("image/guest-init");
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_rng",
    "virtio_console",
    "virtio_balloon",
    "crc32c_generic",
    "ext4",
    "evdev",
    "psmouse",
    "virtio_input",
    "virtio_gpu",
    "button",
    "ahci",
    "virtio_scsi",
    "sd_mod",
    "sr_mod",
    "isofs",
    "virtiofs",
    "cpuid",
    "vmw_vsock_virtio_transport",
    "pvpanic_pci",
    "pvpanic_mmio",
    "i6300esb",
    "e1000",
    "igb",
    "ne2k_pci",
    "pcnet32",
    "8139cp",
    "xhci_pci",
    "efivarfs",
];
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1";
/// From the start of the monitor to the guest's first process, on a busy test host.
const BOOT: Duration = Duration::from_secs(90);

/// The descriptor of an inherited `/dev/kvm`.
const KVM_FD: &str = "3";

/// A number of its own for every command, since a console shows the answers to earlier ones too.
static ASKED: AtomicU32 = AtomicU32::new(1);

/// Which of Debian's kernels, as packaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// `linux-image-cloud-amd64`.
    Cloud,
    /// `linux-image-amd64`.
    Full,
}

/// What runs a guest in the nested host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Monitor {
    /// `/in/vmm`: ours.
    Vmm,
    /// QEMU with KVM: the control that separates faults of the emulation from ours.
    Qemu,
}

impl Monitor {
    /// What runs the guests of a node agent in its place, by the name that it has for it.
    #[must_use]
    pub const fn hypervisor(self) -> &'static str {
        match self {
            Self::Vmm => "native",
            Self::Qemu => "qemu",
        }
    }
}

impl fmt::Display for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vmm => "vmm",
            Self::Qemu => "qemu",
        })
    }
}

/// A disk or CD-ROM drive that is not on virtio-blk.
#[derive(Clone, Debug)]
pub struct Drive {
    /// Of the raw image, in the host.
    pub path: String,
    /// `sata` or `scsi`.
    pub bus: &'static str,
    /// A CD-ROM drive with the image in it.
    pub cdrom: bool,
}

impl Drive {
    pub(crate) fn vmm(&self) -> [String; 2] {
        let option = if self.cdrom { "--cdrom" } else { "--disk" };
        [option.to_owned(), format!("path={},bus={}", self.path, self.bus)]
    }

    pub(crate) fn qemu(&self, number: usize) -> Vec<String> {
        let media = if self.cdrom { "cdrom" } else { "disk" };
        let kind = if self.cdrom { "cd" } else { "hd" };
        let device = match self.bus {
            "sata" => format!("ide-{kind},bus=ide.{number},drive=b{number}"),
            _ => format!("scsi-{kind},drive=b{number}"),
        };
        let mut words = vec!["-drive".to_owned()];
        words.push(format!("if=none,id=b{number},format=raw,media={media},file={}", self.path));
        if self.bus == "scsi" && number == 0 {
            words.extend(["-device".into(), "virtio-scsi-pci".into()]);
        }
        words.extend(["-device".into(), device]);
        words
    }
}

/// A display adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Video {
    /// A linear framebuffer.
    Bochs,
    /// The same with virtio-gpu beside it.
    Virtio,
}

/// A test guest, the same under either monitor.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// Its kernel.
    pub kernel: Flavour,
    /// CPUs.
    pub cpus: u32,
    /// RAM in MiB.
    pub memory_mib: u32,
    /// Raw images of virtio disks, by their paths in the host.
    pub disks: Vec<String>,
    /// Queues of each of them.
    pub disk_queues: u32,
    /// Where in the host it shows its display, if it has one: a socket's path.
    pub vnc: Option<String>,
    /// What draws on it.
    pub video: Video,
    /// Raw images of what is on other buses.
    pub drives: Vec<Drive>,
    /// A tap of the host.
    pub tap: Option<String>,
    /// Queue pairs of its NIC.
    pub queue_pairs: u32,
    /// The host's kernel moves them.
    pub vhost: bool,
    /// Added to the kernel's command line.
    pub command_line: String,
    /// A memory balloon that reports free pages.
    pub balloon: bool,
    /// Its monitor may not open `/dev/kvm` and inherits it.
    pub unprivileged: bool,
    /// More arguments of our monitor.
    pub arguments: Vec<String>,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            kernel: Flavour::Cloud,
            cpus: 1,
            memory_mib: 256,
            disks: Vec::new(),
            disk_queues: 1,
            vnc: None,
            video: Video::Bochs,
            drives: Vec::new(),
            tap: None,
            queue_pairs: 1,
            vhost: false,
            command_line: String::new(),
            balloon: false,
            unprivileged: false,
            arguments: Vec::new(),
        }
    }
}

/// Gives a host both kernels with their RAM disks: `/in/{cloud,full}/{vmlinuz,initrd}`. The RAM disks are written
/// to `scratch`; guests find `programs` in their path.
pub fn provide(builder: HostBuilder, scratch: &Path, programs: &[&Path]) -> Result<HostBuilder, ImageError> {
    let image = Image::get()?;
    let one = |builder: HostBuilder, name: &str, kernel: &Kernel| -> Result<HostBuilder, ImageError> {
        let initrd = scratch.join(format!("{name}-initrd"));
        write_initrd(&image, kernel, programs, &initrd)?;
        Ok(builder
            .file_as(&kernel.image, format!("{name}/vmlinuz"))
            .file_as(initrd, format!("{name}/initrd")))
    };
    let builder = one(builder, "cloud", &image.cloud_kernel()?)?;
    one(builder, "full", &image.full_kernel()?)
}

/// Writes the RAM disk that makes a test guest of `kernel`.
pub fn write_initrd(image: &Image, kernel: &Kernel, programs: &[&Path], path: &Path) -> std::io::Result<()> {
    let mut initrd = Initrd::with_busybox(&image.busybox())?;
    initrd.modules(&kernel.modules, &kernel.version, MODULES)?;
    initrd.file("init", INIT.as_bytes())?;
    for program in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        initrd.file(&format!("bin/{name}"), &std::fs::read(program)?)?;
    }
    initrd.save(path)
}

/// The command of a user without any right, which inherits `/dev/kvm`.
fn unprivileged(words: Vec<String>) -> Vec<String> {
    let script = format!("exec chroot --userspec=107:107 --groups= / \"$@\" {KVM_FD}<>/dev/kvm");
    ["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()].into_iter().chain(words).collect()
}

fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl GuestConfig {
    /// Starts the guest and returns while it boots.
    pub fn start<'h>(&self, host: &'h Host, monitor: Monitor) -> Result<Guest<'h>, HostError> {
        let words = match monitor {
            Monitor::Vmm => self.vmm(),
            Monitor::Qemu => self.qemu(),
        };
        let words = if self.unprivileged { unprivileged(words) } else { words };
        let (program, args) = words.split_first().map_or(("", &[][..]), |(p, a)| (p.as_str(), a));
        let process = host.command(program).args(args.iter().cloned()).directory("/tmp").spawn()?;
        Ok(Guest { process, asked: 0 })
    }

    fn boot(&self) -> [String; 3] {
        let name = match self.kernel {
            Flavour::Cloud => "cloud",
            Flavour::Full => "full",
        };
        let line = format!("{COMMAND_LINE} {}", self.command_line);
        [format!("/in/{name}/vmlinuz"), format!("/in/{name}/initrd"), line.trim_end().to_owned()]
    }

    fn vmm(&self) -> Vec<String> {
        let [kernel, initrd, line] = self.boot();
        let mut words: Vec<String> = vec!["/in/vmm".into(), "--kernel".into(), kernel];
        words.extend(["--initrd".into(), initrd, "--cmdline".into(), line]);
        words.extend(["--cpus".into(), self.cpus.to_string()]);
        words.extend(["--memory".into(), format!("{}M", self.memory_mib)]);
        for disk in &self.disks {
            words.extend(["--disk".into(), format!("path={disk},queues={}", self.disk_queues)]);
        }
        words.extend(self.drives.iter().flat_map(Drive::vmm));
        if let Some(tap) = &self.tap {
            words.extend([
                "--net".into(),
                format!("tap={tap},queues={},vhost={}", self.queue_pairs, switch(self.vhost)),
            ]);
        }
        if self.balloon {
            words.push("--balloon".into());
        }
        if self.unprivileged {
            words.extend(["--kvm-fd".into(), KVM_FD.into()]);
        }
        if let Some(path) = &self.vnc {
            let video = match self.video {
                Video::Bochs => "bochs",
                Video::Virtio => "virtio",
            };
            words.extend(["--vnc".into(), format!("unix:{path}"), "--video".into(), video.into()]);
        }
        words.extend(self.arguments.iter().cloned());
        words
    }

    fn qemu(&self) -> Vec<String> {
        let [kernel, initrd, line] = self.boot();
        let fixed = "qemu-system-x86_64 -machine q35 -cpu host -nodefaults -display none -serial stdio \
            -device virtio-rng-pci";
        let mut words: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
        if self.unprivileged {
            words.extend(["-add-fd".into(), format!("fd={KVM_FD},set={KVM_FD}")]);
            words.extend(["-accel".into(), format!("kvm,device=/dev/fdset/{KVM_FD}")]);
        } else {
            words.extend(["-accel".into(), "kvm".into()]);
        }
        words.extend(["-kernel".into(), kernel, "-initrd".into(), initrd, "-append".into(), line]);
        words.extend(["-smp".into(), self.cpus.to_string(), "-m".into(), self.memory_mib.to_string()]);
        for (n, disk) in self.disks.iter().enumerate() {
            words.extend(["-drive".into(), format!("if=none,id=d{n},format=raw,file={disk}")]);
            words.extend([
                "-device".into(),
                format!("virtio-blk-pci,drive=d{n},num-queues={}", self.disk_queues),
            ]);
        }
        words.extend(self.drives.iter().enumerate().flat_map(|(number, drive)| drive.qemu(number)));
        if let Some(tap) = &self.tap {
            let several = self.queue_pairs > 1;
            let queues = if several { format!(",queues={}", self.queue_pairs) } else { String::new() };
            let multiqueue =
                if several { format!(",mq=on,vectors={}", 2 * self.queue_pairs + 2) } else { String::new() };
            let vhost = switch(self.vhost);
            let netdev = format!("tap,id=n,ifname={tap},script=no,downscript=no,vhost={vhost}{queues}");
            words.extend(["-netdev".into(), netdev]);
            words.extend(["-device".into(), format!("virtio-net-pci,netdev=n{multiqueue}")]);
        }
        if self.balloon {
            words.extend(["-device".into(), "virtio-balloon-pci,free-page-reporting=on".into()]);
        }
        if let Some(path) = &self.vnc {
            let video = match self.video {
                Video::Bochs => "bochs-display",
                Video::Virtio => "virtio-vga",
            };
            words.extend(["-device".into(), video.into(), "-vnc".into(), format!("unix:{path}")]);
            words.extend(["-device".into(), "virtio-tablet-pci".into()]);
        }
        words
    }
}

/// A started test guest. Dropping it kills its monitor.
#[derive(Debug)]
pub struct Guest<'h> {
    process: Process<'h>,
    asked: u32,
}

/// What a guest prints when its first process runs.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Another one after every boot.
    pub boot_id: String,
    /// All it and its kernel printed until then.
    pub console: String,
}

impl<'h> Guest<'h> {
    /// A guest whose serial line is a running command's standard input and output, such as `virtctl console`.
    pub fn over(process: Process<'h>) -> Self {
        Self { process, asked: 0 }
    }

    /// Waits for the guest's first process, after the start and after every reboot.
    pub fn ready(&mut self) -> Result<Ready, HostError> {
        let before = self.process.wait_for("GUEST READY ", BOOT)?;
        let line = self.process.wait_for("\n", BOOT)?;
        let boot_id = line.split_whitespace().next().unwrap_or_default().to_owned();
        Ok(Ready { boot_id, console: before + &line })
    }

    /// Runs a shell line in the guest that must succeed; what it printed.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn run(&mut self, line: &str, deadline: Duration) -> Result<String, HostError> {
        let (code, text) = self.run_any(line, deadline)?;
        assert!(code == 0, "in the guest: {line}\nexit code {code}\n{text}");
        Ok(text)
    }

    /// Runs a shell line in the guest; its exit code and what it printed.
    pub fn run_any(&mut self, line: &str, deadline: Duration) -> Result<(i32, String), HostError> {
        self.send(line)?;
        let end = Instant::now() + deadline;
        self.process.wait_for(&format!("GUEST ASKED {}", self.asked), deadline)?;
        let deadline = end.saturating_duration_since(Instant::now());
        self.process.wait_for("\n", deadline)?;
        let mark = format!("GUEST DONE {} ", self.asked);
        let text = self.process.wait_for(&mark, deadline)?;
        let code = self.process.wait_for("\n", deadline)?;
        let text = text.strip_suffix(&mark).unwrap_or(&text).replace('\r', "");
        Ok((code.trim().parse().unwrap_or(-1), text))
    }

    /// Sends the guest a shell line and does not wait for it: the last one a guest gets.
    pub fn send(&mut self, line: &str) -> Result<(), HostError> {
        self.asked = ASKED.fetch_add(1, Ordering::Relaxed);
        self.process.write(format!("{} {line}\n", self.asked).as_bytes())
    }

    /// The monitor itself.
    pub fn monitor(&mut self) -> &mut Process<'h> {
        &mut self.process
    }

    /// All that its console and its monitor printed so far.
    pub fn output(&self) -> String {
        self.process.stdout()
    }

    /// Waits for the monitor's end.
    pub fn wait(&mut self, deadline: Duration) -> Result<Output, HostError> {
        self.process.wait(deadline)
    }
}
