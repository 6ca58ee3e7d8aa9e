use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use vireo_proto::convert::{self, Problems, UnknownDevice};
use vireo_proto::launcher as wire;
use vireo_vmconfig::{
    AcpiTable, DeviceRequest, DiskBus, DiskSource, HugePage, MAX_QUEUE_PAIRS, NicModel, RebootPolicy, Video,
};

use super::types::*;

/// What an absent termination grace means, as in a pod.
const DEFAULT_GRACE_SECONDS: u64 = 30;

/// Limit of tablets.
const MAX_TABLETS: u32 = 8;

/// Limit of shared file systems.
const MAX_FILESYSTEMS: usize = 16;
/// The longest tag of one (VIRTIO 1.2, section 5.11.4).
const LONGEST_TAG: usize = 36;

/// Limit of ACPI tables, which have to fit beside those of the VM.
const MAX_ACPI_TABLES: usize = 2;

/// Everything wrong with a launch message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the launch message does not hold together: {}", .0.join("; "))]
pub struct LaunchError(Vec<String>);

impl TryFrom<wire::LaunchRequest> for Launch {
    type Error = LaunchError;

    fn try_from(request: wire::LaunchRequest) -> Result<Self, LaunchError> {
        let mut problems = Problems::default();
        let p = &mut problems;
        if request.memory_bytes == 0 {
            p.add("memory_bytes", "zero");
        }
        let huge_page = HugePage::of(request.huge_page_bytes);
        if huge_page.is_none() && request.huge_page_bytes != 0 {
            p.add("huge_page_bytes", format_args!("there are no pages of {} bytes", request.huge_page_bytes));
        }
        if request.vmi.is_none() {
            p.add("vmi", "absent");
        }
        let hypervisor = hypervisor_choice(p, request.hypervisor.unwrap_or_default());
        let cpu = convert::cpu(p, request.cpu.unwrap_or_default());
        let boot = convert::boot_source(p, request.firmware);
        let disks =
            each(p, request.disks, |p, index, disk| convert::disk(p, &format!("disks[{index}]"), disk));
        let interfaces = each(p, request.interfaces, interface);
        if request.filesystems.len() > MAX_FILESYSTEMS {
            let count = request.filesystems.len();
            p.add("filesystems", format_args!("{count} are more than {MAX_FILESYSTEMS}"));
        }
        let filesystems = each(p, request.filesystems, filesystem);
        let console_socket = request.serial_console.then(|| p.path("console_socket", request.console_socket));
        let wants_display = request.graphics && !request.vnc_socket.is_empty();
        let vnc_socket = wants_display.then(|| p.path("vnc_socket", request.vnc_socket));
        let usb_redirection_sockets = each(p, request.usb_redirection_sockets, |p, index, path| {
            Some(p.path(&format!("usb_redirection_sockets[{index}]"), path))
        });
        let video = request.graphics.then(|| choice::<wire::Video, Video>(p, "video", request.video));
        if request.tablets > MAX_TABLETS {
            p.add("tablets", format_args!("{} are more than {MAX_TABLETS}", request.tablets));
        }
        let runtime_dir = p.path("runtime_dir", request.runtime_dir);
        let tpm_state = named(request.tpm_state_path).map(|path| p.path("tpm_state_path", path));
        let downward_metrics =
            named(request.downward_metrics_path).map(|path| p.path("downward_metrics_path", path));
        let smbios = convert::smbios(p, request.smbios.unwrap_or_default());
        let acpi_tables = acpi_tables(p, request.acpi_tables);
        let (extra_devices, unknown_devices) = extra_devices(p, request.extra_devices);
        let reboot = choice::<wire::RebootPolicy, RebootPolicy>(p, "reboot_policy", request.reboot_policy);
        let io_threads = convert::io_threads(p, request.io_threads);
        let cpu_placement = request.cpu_placement.map(|placement| convert::cpu_placement(p, placement));
        let grace = request.termination_grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
        match (request.vmi, cpu, boot) {
            (Some(vmi), Some(cpu), Some(boot)) if p.is_empty() => Ok(Self {
                vmi,
                hypervisor,
                fields: request.fields.unwrap_or_default().into(),
                cpu,
                cpu_placement,
                memory_bytes: request.memory_bytes,
                huge_page,
                tpm_state,
                downward_metrics,
                clock_offset: request.clock_offset_seconds,
                io_threads,
                boot,
                disks,
                filesystems,
                interfaces,
                console_socket,
                rng: request.rng,
                video,
                tablets: request.tablets,
                hotplug: request.hotplug,
                nic_hotplug: request.nic_hotplug,
                hotplug_field: named(request.hotplug_field),
                hotplug_volumes: request.hotplug_volumes,
                vnc_socket,
                usb_redirection_sockets,
                memory_balloon: request.memory_balloon,
                keep_free_pages: request.keep_free_pages,
                runtime_dir,
                extra_devices,
                unknown_devices,
                smbios,
                acpi_tables,
                reboot,
                start_paused: request.start_paused,
                termination_grace: Duration::from_secs(grace),
            }),
            _ => Err(LaunchError(problems.into_texts())),
        }
    }
}

fn acpi_tables(p: &mut Problems, tables: Vec<Vec<u8>>) -> Vec<AcpiTable> {
    if tables.len() > MAX_ACPI_TABLES {
        p.add("acpi_tables", format_args!("{} are more than {MAX_ACPI_TABLES}", tables.len()));
    }
    each(p, tables, |p, index, table| {
        let table = AcpiTable::try_from(table);
        table.map_err(|error| p.add(&format!("acpi_tables[{index}]"), error)).ok()
    })
}

/// A field, if there is one.
fn named(field: String) -> Option<String> {
    Some(field).filter(|field| !field.is_empty())
}

fn each<T, U>(p: &mut Problems, from: Vec<T>, check: fn(&mut Problems, usize, T) -> Option<U>) -> Vec<U> {
    from.into_iter().enumerate().filter_map(|(index, item)| check(p, index, item)).collect()
}

fn hypervisor_choice(p: &mut Problems, choice: wire::HypervisorChoice) -> HypervisorChoice {
    use wire::hypervisor_choice::Kind as W;
    let by = if choice.forced_by.is_empty() { "the request".to_owned() } else { choice.forced_by };
    match p.number("hypervisor.kind", choice.kind) {
        Some(W::Native) => HypervisorChoice::Forced { kind: Kind::Native, by },
        Some(W::Qemu) => HypervisorChoice::Forced { kind: Kind::Qemu, by },
        Some(W::Unspecified | W::Auto) | None => HypervisorChoice::Auto,
    }
}

/// A value of the vocabulary, its default where the message leaves it open.
fn choice<M: TryFrom<i32> + Into<Option<T>>, T: Default>(p: &mut Problems, at: &str, number: i32) -> T {
    p.value::<M, T>(at, number).flatten().unwrap_or_default()
}

/// A disk that is to be attached.
pub fn disk_to_attach(request: wire::AttachVolumeRequest) -> Result<Disk, LaunchError> {
    let mut problems = Problems::default();
    let checked = convert::disk(&mut problems, "disk", request.disk.unwrap_or_default());
    match checked.filter(|_| problems.is_empty()) {
        Some(disk) if is_hotpluggable(&disk) => Ok(disk),
        Some(_) => Err(LaunchError(vec![
            "disk: only a raw one on scsi or virtio, or in a CD-ROM drive, is attached".to_owned(),
        ])),
        None => Err(LaunchError(problems.into_texts())),
    }
}

/// A NIC that is to be attached.
pub fn nic_to_attach(request: wire::AttachInterfaceRequest) -> Result<Interface, LaunchError> {
    let mut problems = Problems::default();
    let checked = interface(&mut problems, 0, request.interface.unwrap_or_default());
    match checked.filter(|_| problems.is_empty()) {
        Some(nic) if nic.model == NicModel::Virtio && nic.peer.tap().is_some() => Ok(nic),
        Some(_) => {
            Err(LaunchError(vec!["interface: only one of the model virtio on a tap is attached".to_owned()]))
        }
        None => Err(LaunchError(problems.into_texts())),
    }
}

fn is_hotpluggable(disk: &Disk) -> bool {
    matches!(disk.source, DiskSource::Raw(_))
        && (matches!(disk.bus, DiskBus::Scsi | DiskBus::Virtio) || disk.is_cdrom())
}

fn interface(p: &mut Problems, index: usize, interface: wire::Interface) -> Option<Interface> {
    let at = format!("interfaces[{index}]");
    let model = choice::<wire::interface::Model, NicModel>(p, &format!("{at}.model"), interface.model);
    let peer = match interface.passt {
        true => NicPeer::Passt,
        false => tap(p, &at, interface.tap, interface.dhcp_device),
    };
    if peer == NicPeer::Passt && interface.queue_pairs > 1 {
        p.add(&format!("{at}.queue_pairs"), format_args!("passt has one pair"));
    }
    let mtu = u16::try_from(interface.mtu)
        .map_err(|_| p.add(&format!("{at}.mtu"), format_args!("{} is too large", interface.mtu)));
    let pairs = usize::try_from(interface.queue_pairs.max(1)).unwrap_or(usize::MAX);
    let queue_pairs = (pairs <= MAX_QUEUE_PAIRS).then_some(pairs);
    if queue_pairs.is_none() {
        p.add(&format!("{at}.queue_pairs"), format_args!("{pairs} is more than {MAX_QUEUE_PAIRS}"));
    }
    let mac = p.parse(&format!("{at}.mac"), &interface.mac);
    let pci_slot = convert::pci_slot(p, &format!("{at}.pci_slot"), interface.pci_slot)?;
    let lease = interface.lease.and_then(|wire| lease(p, &format!("{at}.lease"), wire));
    let ipv6_lease = interface.ipv6_lease.and_then(|wire| ipv6_lease(p, &format!("{at}.ipv6_lease"), wire));
    Some(Interface {
        name: interface.name,
        field: interface.field,
        model,
        mac: mac?,
        peer,
        mtu: mtu.ok().filter(|&mtu| mtu != 0),
        boot_order: (interface.boot_order != 0).then_some(interface.boot_order),
        queue_pairs: queue_pairs?,
        link_up: !interface.link_down,
        pci_slot,
        acpi_index: (interface.acpi_index != 0).then_some(interface.acpi_index),
        lease,
        ipv6_lease,
    })
}

fn tap(p: &mut Problems, at: &str, device: String, dhcp_device: String) -> NicPeer {
    let dhcp_device = if dhcp_device.is_empty() { device.clone() } else { dhcp_device };
    for (part, device) in [("tap", &device), ("dhcp_device", &dhcp_device)] {
        if device.is_empty() || device.len() > 15 || device.contains(['/', '\0']) {
            p.add(&format!("{at}.{part}"), format_args!("invalid network device name: {device:?}"));
        }
    }
    NicPeer::Tap { device, dhcp_device }
}

fn filesystem(p: &mut Problems, index: usize, filesystem: wire::Filesystem) -> Option<Filesystem> {
    let at = format!("filesystems[{index}]");
    let wire::Filesystem { name, field, directory, read_only } = filesystem;
    if name.is_empty() || name.len() > LONGEST_TAG || name.contains('\0') {
        p.add(&format!("{at}.name"), format_args!("not a tag of 1 to {LONGEST_TAG} bytes: {name:?}"));
    }
    let directory = p.path(&format!("{at}.directory"), directory);
    Some(Filesystem { name, field, directory, read_only })
}

fn ipv6_lease(p: &mut Problems, at: &str, lease: wire::Ipv6Lease) -> Option<Ipv6Lease> {
    let address = p.parse(&format!("{at}.address"), &lease.address);
    let prefix_length = u8::try_from(lease.prefix_length).ok().filter(|&length| length <= 128);
    if prefix_length.is_none() {
        p.add(at, format_args!("no prefix length: {}", lease.prefix_length));
    }
    let servers = lease.dns_servers.iter();
    let dns_servers = servers.filter_map(|text| p.parse(&format!("{at}.dns_servers"), text)).collect();
    search_domains(p, at, &lease.search_domains);
    Some(Ipv6Lease {
        address: address?,
        prefix_length: prefix_length?,
        dns_servers,
        search_domains: lease.search_domains,
    })
}

fn search_domains(p: &mut Problems, at: &str, names: &[String]) {
    for name in names {
        if !is_domain(name) {
            p.add(&format!("{at}.search_domains"), format_args!("invalid domain name: {name:?}"));
        }
    }
}

fn lease(p: &mut Problems, at: &str, lease: wire::Lease) -> Option<Lease> {
    let mut addresses = |part: &str, texts: &[String]| -> Vec<Ipv4Addr> {
        texts.iter().filter_map(|text| p.parse(&format!("{at}.{part}"), text)).collect()
    };
    let dns_servers = addresses("dns_servers", &lease.dns_servers);
    let ntp_servers = addresses("ntp_servers", &lease.ntp_servers);
    let prefix_length = u8::try_from(lease.prefix_length).ok().filter(|&length| length <= 32);
    if prefix_length.is_none() {
        p.add(at, format_args!("no prefix length: {}", lease.prefix_length));
    }
    search_domains(p, at, &lease.search_domains);
    let mut private_options = Vec::new();
    for option in lease.private_options {
        match u8::try_from(option.option) {
            Ok(number @ 224..=254) => private_options.push((number, option.value)),
            _ => p.add(at, format_args!("option {} is not between 224 and 254", option.option)),
        }
    }
    let address = p.parse(&format!("{at}.address"), &lease.address);
    let gateway = optional(p, &format!("{at}.gateway"), &lease.gateway)?;
    let server = optional(p, &format!("{at}.server"), &lease.server)?.or(gateway);
    if server.is_none() {
        p.add(&format!("{at}.server"), format_args!("neither a server nor a gateway"));
    }
    let routes = lease.routes.into_iter().enumerate();
    let routes =
        routes.filter_map(|(index, wire)| route(p, &format!("{at}.routes[{index}]"), &wire)).collect();
    Some(Lease {
        address: address?,
        prefix_length: prefix_length?,
        gateway,
        server: server?,
        routes,
        dns_servers,
        search_domains: lease.search_domains,
        hostname: lease.hostname,
        domain: lease.domain,
        boot_file: lease.boot_file,
        tftp_server: lease.tftp_server,
        ntp_servers,
        private_options,
    })
}

/// An address that may be absent; `None` where it is invalid.
fn optional(p: &mut Problems, at: &str, text: &str) -> Option<Option<Ipv4Addr>> {
    if text.is_empty() { Some(None) } else { p.parse(at, text).map(Some) }
}

fn route(p: &mut Problems, at: &str, route: &wire::lease::Route) -> Option<Route> {
    let address: Option<Ipv4Addr> = p.parse(&format!("{at}.destination"), &route.destination);
    let gateway = optional(p, &format!("{at}.gateway"), &route.gateway)?;
    let length = u8::try_from(route.prefix_length).unwrap_or(u8::MAX);
    let destination = Ipv4Net::new(address?, length).ok();
    if destination.is_none() {
        p.add(&format!("{at}.prefix_length"), format_args!("no prefix length: {}", route.prefix_length));
    }
    Some(Route { destination: destination?, gateway: gateway.unwrap_or(Ipv4Addr::UNSPECIFIED) })
}

/// Whether a name fits DNS (RFC 1035, section 2.3.4).
fn is_domain(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.len() <= 253 && name.split('.').all(|label| (1..=63).contains(&label.len()))
}

fn extra_devices(
    p: &mut Problems,
    requests: Vec<wire::ExtraDevice>,
) -> (Vec<DeviceRequest>, Vec<UnknownDevice>) {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for (index, request) in requests.into_iter().enumerate() {
        match convert::extra_device(p, &format!("extra_devices[{index}]"), request) {
            Ok(request) => known.push(request),
            Err(device) => unknown.push(device),
        }
    }
    (known, unknown)
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::CpuModel;

    use super::*;

    #[test]
    fn a_nic_has_a_tap_or_passt_with_one_queue_pair() {
        let checked = |message: wire::Interface| {
            let mut problems = Problems::default();
            let mac = "52:54:00:12:34:56".to_owned();
            let read = interface(&mut problems, 0, wire::Interface { mac, ..message });
            let problems = problems.into_texts();
            read.filter(|_| problems.is_empty()).map(|nic| nic.peer).ok_or(problems.join("; "))
        };
        let passt = wire::Interface { passt: true, ..Default::default() };
        assert_eq!(checked(passt.clone()), Ok(NicPeer::Passt));
        let several = checked(wire::Interface { queue_pairs: 2, ..passt });
        assert!(several.unwrap_err().contains("interfaces[0].queue_pairs"));
        assert!(checked(wire::Interface::default()).unwrap_err().contains("interfaces[0].tap"));
        let tap = "tap0".to_owned();
        let expected = NicPeer::Tap { device: tap.clone(), dhcp_device: tap.clone() };
        assert_eq!(checked(wire::Interface { tap, ..Default::default() }), Ok(expected));
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let request = wire::LaunchRequest {
            cpu: Some(wire::Cpu { model: "Has,Comma".into(), ..Default::default() }),
            graphics: true,
            video: 77,
            huge_page_bytes: 4096,
            tpm_state_path: "/a\0b".into(),
            downward_metrics_path: "/a\0b".into(),
            usb_redirection_sockets: vec!["/a".into(), "/a\0b".into()],
            tablets: 9,
            disks: vec![wire::Disk { bus: 77, ..Default::default() }, wire::Disk::default()],
            interfaces: vec![wire::Interface {
                mac: "nonsense".into(),
                tap: "../tap".into(),
                queue_pairs: 9,
                lease: Some(wire::Lease { prefix_length: 33, ..Default::default() }),
                ipv6_lease: Some(wire::Ipv6Lease {
                    prefix_length: 129,
                    dns_servers: vec!["192.0.2.1".into()],
                    search_domains: vec!["a..b".into()],
                    ..Default::default()
                }),
                ..Default::default()
            }],
            ..Default::default()
        };
        let error = Launch::try_from(request).unwrap_err().to_string();
        for part in [
            "memory_bytes",
            "huge_page_bytes",
            "tpm_state_path",
            "downward_metrics_path",
            "vmi",
            "cpu.model",
            "firmware",
            "disks[0].bus",
            "disks[1]",
            "interfaces[0].queue_pairs",
            "interfaces[0].mac",
            "interfaces[0].tap",
            "interfaces[0].lease",
            "interfaces[0].lease.address",
            "interfaces[0].lease.server",
            "interfaces[0].ipv6_lease",
            "interfaces[0].ipv6_lease.address",
            "interfaces[0].ipv6_lease.dns_servers",
            "interfaces[0].ipv6_lease.search_domains",
            "runtime_dir",
            "tablets",
            "usb_redirection_sockets[1]",
            "video",
        ] {
            assert!(error.contains(&format!("{part}: ")), "{part} is missing in {error}");
        }
    }

    #[test]
    fn what_is_absent_has_its_meaning() {
        let launch = Launch::try_from(wire::LaunchRequest {
            vmi: Some(wire::Identity::default()),
            memory_bytes: 1 << 28,
            firmware: Some(wire::Firmware {
                boot: Some(wire::firmware::Boot::Bios(wire::Bios { use_serial: true })),
            }),
            runtime_dir: "/run".into(),
            graphics: true,
            ..Default::default()
        })
        .unwrap();
        assert_eq!(launch.cpu.count(), 1);
        assert_eq!(launch.cpu.model(), &CpuModel::HostModel);
        assert_eq!(launch.hypervisor, HypervisorChoice::Auto);
        assert_eq!(launch.reboot, RebootPolicy::Reboot);
        assert_eq!(launch.termination_grace, Duration::from_secs(30));
        assert_eq!(launch.console_socket, None);
        assert_eq!(launch.video, Some(Video::Vga));
    }
}
