use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::{Host, HostError, Places};
use crate::agent::PORT;
use crate::image::Image;

const COMMAND_LINE: &str = "console=ttyS0 loglevel=5 panic=-1 mitigations=off audit=0 random.trust_cpu=on no_timer_check cryptomgr.notests";
/// A huge page that a guest reads before it writes to it is the page of zeros. Linux 6.1 makes small ones of it then, each with
/// two faults of the guest, which take long on an emulated CPU: 18,000 where GRUB loads a kernel.
const NO_ZERO_PAGE: &str = "echo 0 >/sys/kernel/mm/transparent_hugepage/use_zero_page";
/// What a kernel needs to use an IOMMU of Intel.
const IOMMU: &str = " intel_iommu=on";
/// First process of a host that is the test host: the shell reaps what daemons leave, so it must not become the agent.
const HERE: &str = "mount -t tmpfs tmpfs /run; \"$1\" --agent-here; exit";
/// What it does before, in a network of its own.
const NETWORK: &str = "ip link set lo up; echo 1 >/proc/sys/net/ipv4/ip_forward; ";

/// What kind of host is wanted.
#[derive(Clone, Debug)]
pub struct HostBuilder {
    agent: PathBuf,
    memory_mib: u32,
    cpus: u32,
    numa_nodes: bool,
    deadline: Duration,
    files: Vec<(PathBuf, String)>,
    output: Option<PathBuf>,
    tap: Option<String>,
    own_network: bool,
    spare_device: bool,
    to_measure: bool,
    disk: Option<PathBuf>,
}

impl HostBuilder {
    /// `agent` is the `nested` binary: `env!("CARGO_BIN_EXE_nested")` in tests of this crate.
    pub fn new(agent: impl Into<PathBuf>) -> Self {
        Self {
            agent: agent.into(),
            memory_mib: 2048,
            cpus: 1,
            numa_nodes: false,
            deadline: Duration::from_secs(300),
            files: Vec::new(),
            output: None,
            tap: None,
            own_network: true,
            spare_device: false,
            to_measure: false,
            disk: None,
        }
    }

    /// Leaves it the test host's network, for servers elsewhere. Only for [`HostBuilder::here`].
    #[must_use]
    pub fn on_this_network(mut self) -> Self {
        self.own_network = false;
        self
    }

    /// RAM in MiB; taken from the test host only as it is used. Default 2048.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Emulated CPUs. One is steadiest, and the default.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Gives it two NUMA nodes with half of its memory each: the first has the CPUs with even numbers. Default: one.
    #[must_use]
    pub fn numa_nodes(mut self) -> Self {
        self.numa_nodes = true;
        self
    }

    /// How long it may live from now on, all commands together. Default 5 minutes.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Makes a file readable (and executable, if it is) as `/in/<its name>`.
    #[must_use]
    pub fn file(self, source: impl AsRef<Path>) -> Self {
        let name = source.as_ref().file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.file_as(source, name)
    }

    /// Makes a file readable as `/in/<name>`; `name` may have directories.
    #[must_use]
    pub fn file_as(mut self, source: impl AsRef<Path>, name: impl Into<String>) -> Self {
        self.files.push((source.as_ref().to_owned(), name.into()));
        self
    }

    /// Makes a directory with everything in it readable as `/in/<name>`.
    pub fn tree(mut self, source: impl AsRef<Path>, name: &str) -> Result<Self, HostError> {
        let fail = |source: io::Error| HostError::File { path: name.into(), source };
        for entry in fs::read_dir(source).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = format!("{name}/{}", entry.file_name().to_string_lossy());
            self = match entry.file_type().map_err(fail)?.is_dir() {
                true => self.tree(entry.path(), &name)?,
                false => self.file_as(entry.path(), name),
            };
        }
        Ok(self)
    }

    /// The directory that the host sees as `/out`, writable. Default: one that goes with the host.
    #[must_use]
    pub fn output(mut self, directory: impl Into<PathBuf>) -> Self {
        self.output = Some(directory.into());
        self
    }

    /// The tap device of this network to which the nested host's only NIC, `eth0`, is connected. Default: no NIC.
    #[must_use]
    pub fn tap(mut self, name: impl Into<String>) -> Self {
        self.tap = Some(name.into());
        self
    }

    /// Gives it devices to be passed on to a guest: an IOMMU and behind it a PCI device 1234:11e8 that nothing in the host has a
    /// driver for, and a NIC 8086:10c9 with virtual functions 8086:10ca; an empty USB disk 46f4:0001. Default: none of
    /// them.
    #[must_use]
    pub fn spare_device(mut self) -> Self {
        self.spare_device = true;
        self
    }

    /// Leaves huge pages as Debian sets them, for figures that hold for other hosts. Default: guests start faster.
    #[must_use]
    pub fn to_measure(mut self) -> Self {
        self.to_measure = true;
        self
    }

    /// A raw image that the host has as `/dev/vdb` and that outlives it. Default: none.
    #[must_use]
    pub fn disk(mut self, image: impl Into<PathBuf>) -> Self {
        self.disk = Some(image.into());
        self
    }

    /// Boots it; returns when it takes commands.
    pub fn start(self) -> Result<Host, HostError> {
        let image = Image::get()?;
        let scratch = share(&self)?;
        image.write_host_initrd(&scratch.path().join("initrd")).map_err(HostError::Start)?;
        if self.spare_device {
            let disk = File::create(scratch.path().join("spare"));
            disk.and_then(|disk| disk.set_len(1 << 20)).map_err(HostError::Start)?;
        }
        let output = self.output.clone().unwrap_or_else(|| scratch.path().join("out"));
        let qemu = qemu(&self, &image, scratch.path(), &output);
        let places = Places { input: "/in".into(), work: "/tmp".into(), out: "/out".into(), output };
        let host = Host::start(qemu, scratch, places, self.deadline)?;
        if !self.to_measure {
            host.shell(NO_ZERO_PAGE).run()?.ok();
        }
        Ok(host)
    }

    /// Takes the test host itself for the host, so that a scenario that needs no KVM runs the same here. There are
    /// no CPUs and no memory to choose then. Commands run in namespaces of their own for networks, mounts and
    /// processes, all of which go with the host.
    pub fn here(self) -> Result<Host, HostError> {
        let scratch = share(&self)?;
        let work = scratch.path().join("work");
        fs::create_dir_all(&work).map_err(HostError::Start)?;
        let output = self.output.clone().unwrap_or_else(|| scratch.path().join("out"));
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let places =
            Places { input: text(&scratch.path().join("in")), work: text(&work), out: text(&output), output };
        let mut agent = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            agent.arg("--map-root-user");
        }
        let mut script = HERE.to_owned();
        if self.own_network {
            agent.arg("--net");
            script.insert_str(0, NETWORK);
        }
        agent.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", &script]);
        agent.arg("sh").arg(scratch.path().join("in/.agent"));
        agent.stdin(Stdio::piped()).stdout(Stdio::piped());
        Host::start(agent, scratch, places, self.deadline)
    }
}

/// Puts the files into a directory of their own: hard links where that goes, copies elsewhere.
fn share(wanted: &HostBuilder) -> Result<TempDir, HostError> {
    let parent = std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let scratch = tempfile::Builder::new()
        .prefix("vireo-nested-host-")
        .tempdir_in(&parent)
        .map_err(|source| HostError::File { path: parent, source })?;
    let agent = (wanted.agent.clone(), ".agent".to_owned());
    for (source, name) in wanted.files.iter().chain([&agent]) {
        let fail = |error| HostError::File { path: source.clone(), source: error };
        let target = scratch.path().join("in").join(name);
        let real = fs::canonicalize(source).map_err(fail)?;
        fs::create_dir_all(target.parent().unwrap_or(&target)).map_err(fail)?;
        fs::hard_link(&real, &target).or_else(|_| fs::copy(&real, &target).map(drop)).map_err(fail)?;
    }
    let out = scratch.path().join("out");
    fs::create_dir_all(&out).map_err(|source| HostError::File { path: out, source })?;
    Ok(scratch)
}

fn numa_nodes(wanted: &HostBuilder) -> Vec<String> {
    let node = |node: u32| {
        let memory = format!("memory-backend-ram,id=node{node},size={}M", wanted.memory_mib / 2);
        let cpus: String = (node..wanted.cpus).step_by(2).map(|cpu| format!(",cpus={cpu}")).collect();
        let own = format!("node,nodeid={node},memdev=node{node}{cpus}");
        ["-object".to_owned(), memory, "-numa".to_owned(), own]
    };
    // Of nodes that are declared. The way back is as long.
    let distance = ["-numa", "dist,src=0,dst=1,val=21"].map(str::to_owned);
    node(0).into_iter().chain(node(1)).chain(distance).collect()
}

fn qemu(wanted: &HostBuilder, image: &Image, scratch: &Path, output: &Path) -> Command {
    let share = |tag: &str, path: &Path, more: &str| {
        format!("local,path={},mount_tag={tag},security_model=none,multidevs=remap{more}", path.display())
    };
    // setpriv: a killed test must not leave an emulator behind.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
    // Without fast string instructions: the emulation runs them byte by byte, so that clearing memory would cost seconds.
    command.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.arg("-smp").arg(wanted.cpus.to_string());
    command.arg("-m").arg(format!("{}M", wanted.memory_mib));
    if wanted.numa_nodes {
        command.args(numa_nodes(wanted));
    }
    command.arg("-kernel").arg(image.host_kernel());
    command.arg("-initrd").arg(scratch.join("initrd"));
    command.arg("-append").arg(format!("{COMMAND_LINE}{}", if wanted.spare_device { IOMMU } else { "" }));
    let root = format!("if=none,id=root,format=raw,read-only=on,file={}", image.root().display());
    command.arg("-drive").arg(root).args(["-device", "virtio-blk-pci,drive=root"]);
    if let Some(disk) = &wanted.disk {
        let disk = format!("if=none,id=disk,format=raw,file={}", disk.display());
        command.arg("-drive").arg(disk).args(["-device", "virtio-blk-pci,drive=disk"]);
    }
    command.arg("-virtfs").arg(share("in", &scratch.join("in"), ",readonly=on"));
    command.arg("-virtfs").arg(share("out", output, ""));
    command.args(["-device", "virtio-serial-pci", "-chardev", "stdio,id=agent,signal=off"]);
    command.arg("-device").arg(format!("virtserialport,chardev=agent,name={PORT}"));
    command.args(["-device", "virtio-rng-pci"]);
    if wanted.spare_device {
        // With interrupt remapping, which VFIO asks for.
        command.args(["-device", "intel-iommu,intremap=on", "-device", "edu"]);
        let disk = format!("if=none,id=spare,format=raw,file={}", scratch.join("spare").display());
        command.arg("-drive").arg(disk);
        command.args(["-device", "qemu-xhci,id=usb", "-device", "usb-storage,bus=usb.0,drive=spare"]);
        // Behind a port, each function is in an IOMMU group of its own.
        command.args(["-device", "pcie-root-port,id=functions,chassis=1", "-device", "igb,bus=functions"]);
    }
    if let Some(tap) = &wanted.tap {
        command.arg("-netdev").arg(format!("tap,id=network,ifname={tap},script=no,downscript=no"));
        command.args(["-device", "virtio-net-pci,netdev=network"]);
    }
    command.arg("-serial").arg(format!("file:{}", scratch.join("console").display()));
    let stderr = File::create(scratch.join("qemu")).map_or_else(|_| Stdio::inherit(), Stdio::from);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
    command
}
