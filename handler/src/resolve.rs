//! Builds the launch request from the validated spec and this node's facts. Pure.

use std::net::IpAddr;
use std::path::Path;

use jiff::Timestamp;
use vireo_api::spec::{
    Binding, BootSource, Disk, Filesystem, HYPERVISOR_ANNOTATION, HypervisorChoice, Interface, Ipv6Net, Vm,
};
use vireo_api::v1::SMBiosConfiguration;
use vireo_proto::{CONSOLE_SOCKET, RUN_DIRECTORY, USB_REDIRECTION_SOCKETS, VNC_SOCKET, launcher as wire};
use vireo_vmconfig::{CpuPlacement, DiskSource, ExtraDevice, HostNode, HugePage, KernelFiles, Smbios};

use crate::launcher::passt::Passt;
use crate::network::TAP;
use crate::network::bridge::{Bridge, Bridged, PodInterface, Route};
use crate::network::dns::Resolver;
use crate::network::inside::by_passt;
use crate::network::ports::Ports;
use crate::state::VmiDir;
use crate::storage::Prepared;

/// The facts that the node adds to a spec.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The VMI's files.
    pub dir: &'a VmiDir,
    /// The CPUs of the host that it has for itself, where the node agent gives them.
    pub cpus: &'a [u32],
    /// The NUMA nodes of the host.
    pub numa: &'a [HostNode],
    /// Its disks and kernel.
    pub prepared: &'a Prepared,
    /// The MTU behind masquerade.
    pub mtu: u32,
    /// Whether the guest has IPv6 behind masquerade.
    pub has_ipv6: bool,
    /// The interfaces of its Pod that its guest takes over.
    pub bridged: &'a Bridged,
    /// The host's name servers.
    pub resolver: &'a Resolver,
    /// The time, by which the offset of a time zone is known.
    pub now: Timestamp,
    /// `--hypervisor`.
    pub hypervisor: HypervisorChoice,
    /// What guests read about their system, where it is not as usual.
    pub smbios: &'a SMBiosConfiguration,
    /// Whether no guest gives free pages back.
    pub keep_free_pages: bool,
    /// Whether its launcher is in a Pod, which may get more interfaces while the guest runs.
    pub in_pod: bool,
}

impl Facts<'_> {
    fn of_nics(&self) -> NicFacts<'_> {
        let Facts { mtu, has_ipv6, bridged, resolver, .. } = *self;
        NicFacts { mtu, has_ipv6, bridged, resolver }
    }
}

/// Those for NICs.
#[derive(Clone, Copy)]
struct NicFacts<'a> {
    mtu: u32,
    has_ipv6: bool,
    bridged: &'a Bridged,
    resolver: &'a Resolver,
}

/// Builds the launch request.
pub fn request(vm: &Vm, facts: &Facts<'_>) -> wire::LaunchRequest {
    let view = facts.dir.launcher_view();
    let disk = |(disk, source): (&Disk, &DiskSource)| self::disk(disk, source);
    wire::LaunchRequest {
        vmi: Some(identity(vm)),
        fields: Some(vireo_api::spec::field_paths().into()),
        hypervisor: Some(hypervisor(vm.hypervisor(), facts.hypervisor)),
        cpu: Some(vm.cpu().into()),
        cpu_placement: vm.cpu_placement().map(|placement| cpu_placement(placement, facts).into()),
        clock_offset_seconds: vm.clock().offset(facts.now),
        io_threads: vm.io_threads().map(Into::into),
        memory_bytes: vm.memory().guest().get(),
        acpi_tables: facts.prepared.acpi_tables.iter().map(|table| table.bytes().to_vec()).collect(),
        downward_metrics_path: facts.prepared.metrics.as_deref().map(text).unwrap_or_default(),
        tpm_state_path: facts.prepared.tpm.as_deref().map(text).unwrap_or_default(),
        huge_page_bytes: vm.memory().huge_page().map_or(0, HugePage::bytes),
        firmware: Some((&boot_source(vm, facts.prepared)).into()),
        disks: vm.fixed_disks().zip(&facts.prepared.disks).map(disk).collect(),
        filesystems: filesystems(vm, facts.dir),
        interfaces: vm
            .interfaces()
            .iter()
            .filter_map(|interface| self::interface(vm, interface, facts.of_nics()))
            .collect(),
        serial_console: vm.serial_console(),
        rng: vm.rng(),
        graphics: vm.video().is_some(),
        video: vm.video().map_or(wire::Video::Unspecified, Into::into).into(),
        tablets: vm.tablets(),
        hotplug: vm.hotplug(),
        nic_hotplug: vm.hotplug() && facts.in_pod,
        hotplug_field: vm
            .disks_with_hotpluggable_volumes()
            .find(|disk| disk.is_hotpluggable())
            .map(|disk| disk.source_field().to_string())
            .unwrap_or_default(),
        hotplug_volumes: u32::try_from(vm.disks_with_hotpluggable_volumes().count()).unwrap_or(u32::MAX),
        memory_balloon: vm.has_balloon(),
        keep_free_pages: facts.keep_free_pages || vm.keeps_free_pages(),
        console_socket: text(&view.join(CONSOLE_SOCKET)),
        vnc_socket: if vm.video().is_some() { text(&view.join(VNC_SOCKET)) } else { String::new() },
        usb_redirection_sockets: usb_redirection_sockets(vm, &view),
        runtime_dir: text(&view.join(RUN_DIRECTORY)),
        extra_devices: vm.extra_devices().iter().map(Into::into).collect(),
        smbios: Some((&smbios(vm, facts.smbios)).into()),
        reboot_policy: wire::RebootPolicy::from(vm.lifecycle().reboot()).into(),
        start_paused: vm.lifecycle().start_paused(),
        termination_grace_seconds: Some(vm.lifecycle().grace_period().as_secs()),
    }
}

/// The CPUs of a VM on this node, and its NUMA nodes.
fn cpu_placement(wanted: &CpuPlacement, facts: &Facts<'_>) -> CpuPlacement {
    CpuPlacement {
        cpus: facts.cpus.to_vec(),
        numa: wanted.numa.as_ref().map(|_| facts.numa.to_vec()),
        ..wanted.clone()
    }
}

/// The identity of a VMI in the protocol.
pub fn identity(vm: &Vm) -> wire::Identity {
    let identity = vm.identity();
    wire::Identity {
        namespace: identity.namespace().to_owned(),
        name: identity.name().to_owned(),
        uid: identity.uid().as_uuid().to_string(),
    }
}

/// The manifest's choice overrides the node's.
fn hypervisor(manifest: HypervisorChoice, node: HypervisorChoice) -> wire::HypervisorChoice {
    use wire::hypervisor_choice::Kind;
    let annotation = format!("metadata.annotations[{HYPERVISOR_ANNOTATION}]");
    let (choice, by) = match (manifest, node) {
        (HypervisorChoice::Auto, HypervisorChoice::Auto) => (HypervisorChoice::Auto, String::new()),
        (HypervisorChoice::Auto, node) => (node, "the node's --hypervisor".to_owned()),
        (manifest, _) => (manifest, annotation),
    };
    let kind = match choice {
        HypervisorChoice::Auto => Kind::Auto,
        HypervisorChoice::Native => Kind::Native,
        HypervisorChoice::Qemu => Kind::Qemu,
    };
    wire::HypervisorChoice { kind: kind.into(), forced_by: by }
}

fn boot_source(vm: &Vm, prepared: &Prepared) -> vireo_vmconfig::BootSource {
    match vm.firmware().boot() {
        BootSource::Kernel(boot) => {
            let files = prepared.kernel.as_ref();
            vireo_vmconfig::BootSource::Kernel(KernelFiles {
                kernel: files.map(|files| files.kernel.clone()).unwrap_or_default(),
                initrd: files.and_then(|files| files.initrd.clone()),
                command_line: boot.command_line().to_owned(),
            })
        }
        BootSource::Bios { use_serial } => vireo_vmconfig::BootSource::Bios { use_serial: *use_serial },
        BootSource::Efi { secure_boot, persistent: _ } => vireo_vmconfig::BootSource::Efi {
            secure_boot: *secure_boot,
            persistent: prepared.variables.clone(),
        },
    }
}

/// Unless it is configured, manufacturer, product and family are those of KubeVirt: tools in guests look for them.
fn smbios(vm: &Vm, configured: &SMBiosConfiguration) -> Smbios {
    let text = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    Smbios {
        uuid: Some(vm.firmware().uuid().into_bytes()),
        serial: vm.firmware().serial().to_owned(),
        manufacturer: text(&configured.manufacturer, "KubeVirt"),
        product: text(&configured.product, "None"),
        version: configured.version.clone(),
        sku: configured.sku.clone(),
        family: text(&configured.family, "KubeVirt"),
        chassis: vm.chassis().clone(),
    }
}

/// The sockets of the slots for USB devices of clients, where its launcher sees them; none without slots.
fn usb_redirection_sockets(vm: &Vm, view: &Path) -> Vec<String> {
    let mut devices = vm.extra_devices().iter();
    match devices.any(|request| request.device == ExtraDevice::UsbRedirection) {
        true => USB_REDIRECTION_SOCKETS.iter().map(|socket| text(&view.join(socket))).collect(),
        false => Vec::new(),
    }
}

/// The file systems that a guest shares, where its launcher sees them.
fn filesystems(vm: &Vm, dir: &VmiDir) -> Vec<wire::Filesystem> {
    let message = |filesystem: &Filesystem| wire::Filesystem {
        name: filesystem.name().to_owned(),
        field: filesystem.field().to_string(),
        directory: text(&dir.filesystem(filesystem)),
        read_only: filesystem.is_read_only(),
    };
    vm.filesystems().iter().map(message).collect()
}

/// The protocol message of a disk with its source on this node.
pub fn disk(disk: &Disk, source: &DiskSource) -> wire::Disk {
    (&disk.config().with_source(source.clone())).into()
}

/// The message of a NIC on a bridge that is attached while the guest runs; none where the VM has no such NIC, or it has no MAC.
pub(crate) fn bridged_interface(
    vm: &Vm,
    name: &str,
    bridged: &Bridged,
    resolver: &Resolver,
) -> Option<wire::Interface> {
    let nic = vm.interfaces().iter().find(|nic| nic.name() == name)?;
    interface(vm, nic, NicFacts { mtu: 0, has_ipv6: false, bridged, resolver })
}

/// The message of a NIC; none of one on a bridge that is not there.
fn interface(vm: &Vm, interface: &Interface, facts: NicFacts<'_>) -> Option<wire::Interface> {
    let mut message = wire::Interface {
        name: interface.name().to_owned(),
        field: interface.field().to_string(),
        model: wire::interface::Model::from(interface.model()).into(),
        boot_order: interface.boot_order().unwrap_or(0),
        queue_pairs: vm.queue_pairs(interface),
        link_down: !interface.is_link_up(),
        pci_slot: interface.pci_slot().map_or(0, |slot| slot.number().into()),
        acpi_index: interface.acpi_index().unwrap_or(0),
        ..wire::Interface::default()
    };
    match interface.binding() {
        Binding::Masquerade { networks, .. } => {
            message.mac = interface.mac()?.to_string();
            TAP.clone_into(&mut message.tap);
            TAP.clone_into(&mut message.dhcp_device);
            message.mtu = facts.mtu;
            message.lease = Some(wire::Lease {
                address: networks.ipv4.guest().to_string(),
                prefix_length: u32::from(networks.ipv4.prefix()),
                gateway: networks.ipv4.gateway().to_string(),
                ..lease(vm, interface, facts.resolver)
            });
            message.ipv6_lease = facts.has_ipv6.then(|| ipv6_lease(vm, &networks.ipv6, facts.resolver));
        }
        Binding::Passt { .. } => {
            message.mac = interface.mac()?.to_string();
            message.passt = true;
        }
        Binding::Bridge => {
            let (bridge, pod) = (Bridge::of(vm, interface.name())?, facts.bridged.get(interface.name())?);
            message.mac = interface.mac().or_else(|| pod.mac())?.to_string();
            message.tap = bridge.tap();
            message.mtu = pod.mtu;
            message.dhcp_device = bridge.name();
            message.lease = bridged_lease(&bridge, pod, lease(vm, interface, facts.resolver));
        }
    }
    Some(message)
}

/// The lease of a guest that takes over the address of an interface, if it has one.
fn bridged_lease(bridge: &Bridge, pod: &PodInterface, options: wire::Lease) -> Option<wire::Lease> {
    let net = pod.address?;
    let routes = pod.routes.iter().filter(|route| route.destination.prefix_len() != 0);
    let route = |route: &Route| wire::lease::Route {
        destination: route.destination.addr().to_string(),
        prefix_length: u32::from(route.destination.prefix_len()),
        gateway: route.gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
    };
    Some(wire::Lease {
        address: net.addr().to_string(),
        prefix_length: u32::from(net.prefix_len()),
        gateway: pod.gateway().map(|gateway| gateway.to_string()).unwrap_or_default(),
        server: bridge.server().to_string(),
        routes: routes.map(route).collect(),
        ..options
    })
}

/// What a guest behind masquerade learns by router advertisements and DHCPv6.
fn ipv6_lease(vm: &Vm, network: &Ipv6Net, resolver: &Resolver) -> wire::Ipv6Lease {
    let (servers, search_domains) = self::resolver(vm, resolver);
    wire::Ipv6Lease {
        address: network.guest().to_string(),
        prefix_length: u32::from(network.prefix()),
        dns_servers: servers.iter().filter(|server| server.is_ipv6()).map(ToString::to_string).collect(),
        search_domains,
    }
}

/// What passt of the NICs of a VM is to do.
pub(crate) fn passt(vm: &Vm, host: &Resolver) -> Vec<Passt> {
    let (servers, search) = resolver(vm, host);
    let passt = |(nic, forwards): (&str, Vec<Ports>)| Passt {
        nic: nic.to_owned(),
        forwards,
        servers: servers.clone(),
        search: search.clone(),
    };
    by_passt(vm).map(passt).collect()
}

/// The name servers and search domains for the probes of a VM: those in the guest's leases.
pub fn probe_resolver(vm: &Vm, host: &Resolver, has_ipv6: bool) -> wire::probe_request::Resolver {
    let (servers, search_domains) = resolver(vm, host);
    let servers = servers.iter().filter(|server| server.is_ipv4() || has_ipv6);
    wire::probe_request::Resolver { servers: servers.map(ToString::to_string).collect(), search_domains }
}

/// The name servers and search domains of a VM: its own before the host's, which count unless its DNS policy is `None`.
fn resolver(vm: &Vm, host: &Resolver) -> (Vec<IpAddr>, Vec<String>) {
    let alone = vm.dns().policy() == vireo_api::spec::DnsPolicy::None;
    let servers = host.servers.iter().filter(|_| !alone);
    let mut servers: Vec<IpAddr> = vm.dns().nameservers().iter().chain(servers).copied().collect();
    servers.dedup();
    let search = host.search.iter().filter(|_| !alone);
    (servers, vm.dns().searches().iter().chain(search).cloned().collect())
}

/// All of a lease but the addresses.
fn lease(vm: &Vm, interface: &Interface, resolver: &Resolver) -> wire::Lease {
    let dhcp = interface.dhcp();
    let (servers, search_domains) = self::resolver(vm, resolver);
    wire::Lease {
        dns_servers: servers.iter().filter(|server| server.is_ipv4()).map(ToString::to_string).collect(),
        search_domains,
        hostname: vm.hostname().to_owned(),
        domain: String::new(),
        boot_file: dhcp.boot_file().unwrap_or_default().to_owned(),
        tftp_server: dhcp.tftp_server().unwrap_or_default().to_owned(),
        ntp_servers: dhcp.ntp_servers().iter().map(ToString::to_string).collect(),
        private_options: dhcp
            .private_options()
            .iter()
            .map(|(option, value)| wire::lease::PrivateOption {
                option: u32::from(*option),
                value: value.clone(),
            })
            .collect(),
        ..wire::Lease::default()
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
