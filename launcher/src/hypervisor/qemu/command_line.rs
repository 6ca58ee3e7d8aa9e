use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;
use vireo_vmconfig::{
    BootSource, CpuModel, GuestNuma, KernelFiles, PlatformFeature, RebootPolicy, Smbios, Video,
};

use super::args::Args;
use super::blockdev::{self, DiskFds};
use super::pci::Layout;
use super::{device, extra, hotplug, nics, numa, platform, virtiofs};
use crate::firmware::Firmware;
use crate::launch::Launch;

/// What the guest agent's port is called on our side.
pub(super) const AGENT: &str = "agent";

/// What is decided outside the launch message.
pub(super) struct Resources<'a> {
    /// KVM runs the guest.
    pub kvm: bool,
    /// The time of the host.
    pub now: Timestamp,
    /// Inherited `/dev/kvm`; QEMU opens it where it is missing.
    pub kvm_device: Option<i32>,
    /// For a start through it.
    pub firmware: Option<&'a Firmware>,
    /// Inherited descriptor of the firmware's variables.
    pub variables: Option<i32>,
    /// Inherited descriptors, for each disk that has a medium.
    pub files: Vec<Option<DiskFds>>,
    /// Inherited queues of the tap device of each interface, or the socket to its passt; QEMU opens a tap device without any.
    pub nics: Vec<Vec<i32>>,
    /// The node's vhost-net for each of them, inherited; none where QEMU moves the queues.
    pub vhost: Vec<Vec<i32>>,
    /// Inherited kernel and initrd, for a VM that starts from them.
    pub kernel: Option<(i32, Option<i32>)>,
    /// Inherited files with the ACPI tables of the launch message.
    pub acpi_tables: Vec<i32>,
    /// Inherited socket of the serial port.
    pub serial: Option<i32>,
    /// Inherited socket of the firmware's debug port.
    pub firmware_log: Option<i32>,
    /// Inherited socket of the QMP monitor.
    pub qmp: i32,
    /// Inherited socket of the guest agent's port.
    pub agent: Option<i32>,
    /// Inherited socket of the port for metrics.
    pub metrics: Option<i32>,
    /// Inherited socket of the TPM.
    pub tpm: Option<i32>,
    /// The NUMA nodes of the guest.
    pub numa: Option<&'a GuestNuma>,
    /// Inherited vhost-vsock, with its context ID.
    pub vsock: Option<(i32, u32)>,
}

/// QEMU's command line, without the program's name.
///
/// What users name travels as JSON wherever QEMU reads JSON, where a comma is a comma; the rest is escaped.
pub(super) fn arguments(launch: &Launch, resources: &Resources<'_>) -> Vec<String> {
    let mut args = Args::default();
    machine_type(&mut args, launch, resources);
    cpu(&mut args, launch, resources.kvm);
    memory(&mut args, launch, resources.numa);
    boot(&mut args, launch, resources);
    smbios(&mut args, &launch.smbios);
    for table in &resources.acpi_tables {
        args.option("-acpitable", format!("file=/proc/self/fd/{table}"));
    }
    chardevs(&mut args, resources);
    let layout = Layout::of(launch, resources.agent.is_some());
    blockdev::disks(&mut args, launch, &resources.files, layout);
    device::devices(&mut args, launch, &resources.nics, &resources.vhost);
    ports(&mut args, resources);
    hotplug::ports(&mut args, launch);
    nics::ports(&mut args, launch, hotplug::PORTS);
    extra::devices(&mut args, launch, resources.tpm, resources.vsock);
    virtiofs::devices(&mut args, launch);
    platform::board(&mut args, launch, resources.kvm);
    args.into_line()
}

fn machine_type(args: &mut Args, launch: &Launch, resources: &Resources<'_>) {
    let name = format!("{}_{}", launch.vmi.namespace, launch.vmi.name).replace(',', ",,");
    args.option("-name", format!("guest={name},debug-threads=on"));
    args.flag("-no-user-config");
    args.flag("-nodefaults");
    args.option("-display", "none");
    args.option("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    args.option("-msg", "timestamp=off");
    let smm = if needs_smm(launch, resources) { "on" } else { "off" };
    // Without graphics, SeaBIOS writes to the serial port.
    let firmware_on_serial = matches!(launch.boot, BootSource::Bios { use_serial: true });
    let graphics = if firmware_on_serial { ",graphics=off" } else { "" };
    args.option("-machine", format!("q35,smm={smm},vmport=off{graphics}"));
    accelerator(args, resources);
    args.option("-rtc", platform::clock(launch, resources.now));
    if launch.reboot == RebootPolicy::Terminate {
        args.flag("-no-reboot");
    }
    if launch.start_paused {
        args.flag("-S");
    }
}

/// QEMU fails at its start where too few huge pages are free.
fn memory(args: &mut Args, launch: &Launch, numa: Option<&GuestNuma>) {
    args.option("-m", format!("{}B", launch.memory_bytes));
    if launch.is_realtime() {
        numa::lock_memory(args);
    }
    match (launch.huge_page, numa) {
        (Some(page), Some(numa)) => numa::nodes(args, numa, page),
        (Some(page), None) => {
            let memory = json!({
                "qom-type": "memory-backend-memfd", "id": "ram", "size": launch.memory_bytes,
                "hugetlb": true, "hugetlbsize": page.bytes(), "share": true,
            });
            args.json("-object", &memory);
            args.option("-machine", "memory-backend=ram");
        }
        (None, _) => virtiofs::memory(args, launch),
    }
}

fn accelerator(args: &mut Args, resources: &Resources<'_>) {
    match resources.kvm_device {
        _ if !resources.kvm => args.option("-accel", "tcg"),
        None => args.option("-accel", "kvm"),
        Some(fd) => {
            args.option("-add-fd", format!("fd={fd},set={fd}"));
            args.option("-accel", format!("kvm,device=/dev/fdset/{fd}"));
        }
    }
}

/// Secure boot is nothing without system management mode. Nor is text on a VGA adapter: QEMU maps the adapter's window
/// at 0xa0000 together with the ranges of that mode, and a q35 machine that lacks them has RAM there.
fn needs_smm(launch: &Launch, resources: &Resources<'_>) -> bool {
    if platform::has(launch, PlatformFeature::SmmOff) {
        return false;
    }
    let is_vga = matches!(launch.video, Some(Video::Vga | Video::Virtio | Video::Cirrus));
    let draws_text = is_vga && !matches!(launch.boot, BootSource::Efi { .. });
    draws_text || resources.firmware.is_some_and(|firmware| firmware.secure)
}

fn cpu(args: &mut Args, launch: &Launch, kvm: bool) {
    let cpu = &launch.cpu;
    let mut model = match (cpu.model(), kvm) {
        (CpuModel::HostModel | CpuModel::HostPassthrough, true) => "host".to_owned(),
        // All that can be emulated is the nearest to all the host has, but for two features that promise fast string
        // instructions: a guest that believes it copies and clears memory by them, and they are emulated byte by byte.
        (CpuModel::HostModel | CpuModel::HostPassthrough, false) => "max,erms=off,fsrm=off".to_owned(),
        (CpuModel::Named(name), _) => name.clone(),
    };
    for feature in cpu.features() {
        let state = if feature.is_enabled() { "on" } else { "off" };
        model.push_str(&format!(",{}={state}", feature.name()));
    }
    platform::cpu(&mut model, launch);
    if launch.is_realtime() {
        // Its interrupts would delay the vCPU at any time.
        model.push_str(",pmu=off");
    }
    args.option("-cpu", model);
    let topology = cpu.topology();
    let (sockets, cores, threads) = (topology.sockets(), topology.cores(), topology.threads());
    args.option(
        "-smp",
        format!("cpus={},sockets={sockets},cores={cores},threads={threads}", topology.count()),
    );
}

fn boot(args: &mut Args, launch: &Launch, resources: &Resources<'_>) {
    // Only what has a boot index is tried.
    args.option("-boot", "strict=on");
    if let (BootSource::Kernel(KernelFiles { command_line, .. }), Some((kernel, initrd))) =
        (&launch.boot, resources.kernel)
    {
        let path = |fd: i32| format!("/proc/self/fd/{fd}");
        args.option("-kernel", path(kernel));
        if let Some(initrd) = initrd {
            args.option("-initrd", path(initrd));
        }
        args.option("-append", command_line.as_str());
    }
    let Some(firmware) = resources.firmware else { return };
    let Some(fd) = resources.variables else {
        args.option("-bios", firmware.code.to_string_lossy());
        return;
    };
    let code = json!({
        "driver": "raw", "node-name": "efi-code", "read-only": true,
        "file": { "driver": "file", "filename": firmware.code.to_string_lossy(), "read-only": true },
    });
    let variables = json!({
        "driver": "raw", "node-name": "efi-variables",
        "file": { "driver": "file", "filename": format!("/dev/fdset/{fd}") },
    });
    args.option("-add-fd", format!("fd={fd},set={fd}"));
    args.json("-blockdev", &code);
    args.json("-blockdev", &variables);
    args.option("-machine", "pflash0=efi-code,pflash1=efi-variables");
    if firmware.secure {
        args.option("-global", "driver=cfi.pflash01,property=secure,value=on");
    }
}

fn smbios(args: &mut Args, smbios: &Smbios) {
    if let Some(uuid) = smbios.uuid {
        args.option("-uuid", Uuid::from_bytes(uuid).to_string());
    }
    let system = [
        ("manufacturer", &smbios.manufacturer),
        ("product", &smbios.product),
        ("version", &smbios.version),
        ("serial", &smbios.serial),
        ("sku", &smbios.sku),
        ("family", &smbios.family),
    ];
    let chassis = &smbios.chassis;
    let chassis = [
        ("manufacturer", &chassis.manufacturer),
        ("version", &chassis.version),
        ("serial", &chassis.serial),
        ("asset", &chassis.asset),
        ("sku", &chassis.sku),
    ];
    smbios_table(args, 1, &system);
    smbios_table(args, 3, &chassis);
}

/// One of SMBIOS' types with the texts that are given.
fn smbios_table(args: &mut Args, kind: u8, fields: &[(&str, &String)]) {
    let given = fields.iter().filter(|(_, value)| !value.is_empty());
    let given: String = given.map(|(name, value)| format!(",{name}={}", value.replace(',', ",,"))).collect();
    if !given.is_empty() {
        args.option("-smbios", format!("type={kind}{given}"));
    }
}

fn chardevs(args: &mut Args, resources: &Resources<'_>) {
    args.option("-chardev", format!("socket,id=qmp,fd={}", resources.qmp));
    args.option("-mon", "chardev=qmp,mode=control");
    if let Some(fd) = resources.serial {
        args.option("-chardev", format!("socket,id=serial,fd={fd}"));
        args.option("-serial", "chardev:serial");
    }
    if let Some(fd) = resources.firmware_log {
        args.option("-chardev", format!("socket,id=firmware,fd={fd}"));
        args.option("-device", "isa-debugcon,iobase=0x402,chardev=firmware");
    }
}

/// After every other device, none of which their controller shall move to another slot.
fn ports(args: &mut Args, resources: &Resources<'_>) {
    let ports = [
        (AGENT, crate::agent::PORT, resources.agent),
        ("metrics", crate::metrics_port::PORT, resources.metrics),
    ];
    if ports.iter().any(|(.., fd)| fd.is_some()) {
        args.json("-device", &json!({ "driver": "virtio-serial-pci", "id": "ports" }));
    }
    for (id, name, fd) in ports {
        let Some(fd) = fd else { continue };
        args.option("-chardev", format!("socket,id={id},fd={fd}"));
        let port =
            json!({ "driver": "virtserialport", "bus": "ports.0", "id": id, "chardev": id, "name": name });
        args.json("-device", &port);
    }
}

#[cfg(test)]
#[path = "command_line_tests.rs"]
mod tests;
