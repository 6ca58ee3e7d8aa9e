//! Devices of the host in a launcher Pod: the kubelet gave them to its container, with their addresses in the environment. Those of
//! networks are reported by Multus.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, OFlags, ResolveFlags, Uid, chownat, fstat};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use vireo_api::spec::{DeviceSource, HostDevice as Requested, VFIO_OVERHEAD};
use vireo_vmconfig::{DeviceRequest, ExtraDevice, HostDevice};

use super::root::Root;
use crate::devices::{MEDIATED, PCI, Sysfs, USB, variable};

/// Devices that a launcher Pod does not have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostDeviceError {
    /// The kubelet gave it none.
    #[error(
        "{field}: the launcher's container has no device of {resource}: no variable {variables} names one"
    )]
    Absent { field: String, resource: String, variables: String },
    /// It gave fewer than are requested.
    #[error(
        "{field}: the launcher's container has {given} devices of {resource}, of which {requested} are requested"
    )]
    TooFew { field: String, resource: String, given: usize, requested: usize },
    /// A variable names something else.
    #[error("{field}: the variable {variable} has {address:?}, which {why}")]
    Address { field: String, variable: String, address: String, why: String },
    /// Multus has reported no device.
    #[error(
        "{field}: Multus has reported no virtual function for the interface {interface} of the Pod: its network needs a resource of \
         virtual functions, and a CNI plugin that has them"
    )]
    NoFunction { field: String, interface: String },
    /// Multus has reported something else.
    #[error("{field}: Multus has reported {address:?} for the interface {interface} of the Pod, which {why}")]
    Function { field: String, interface: String, address: String, why: String },
}

/// The variables of a process: `/proc/PID/environ`. The process can change what is there.
struct Environment<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Environment<'a> {
    fn of(text: &'a str) -> Self {
        Self(text.split('\0').filter_map(|variable| variable.split_once('=')).collect())
    }

    /// The addresses in a variable, each once.
    fn addresses(&self, variable: &str) -> Vec<&'a str> {
        let mut addresses = Vec::new();
        for address in self.0.get(variable).into_iter().flat_map(|list| list.split(',')).map(str::trim) {
            if !address.is_empty() && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }
}

/// What reads the addresses of a variable.
type Parse = fn(&str) -> Result<HostDevice, vireo_vmconfig::ParseAddressError>;

const KINDS: [(&str, Parse); 3] = [
    (PCI, |address| address.parse().map(HostDevice::Pci)),
    (MEDIATED, |address| address.parse().map(HostDevice::Mediated)),
    (USB, |address| address.parse().map(HostDevice::Usb)),
];

/// The interfaces of a Pod that Multus has reported, with the PCI addresses of those that are devices.
type Networks = BTreeMap<String, Option<String>>;

/// The virtual functions of a Pod for those that are requested.
///
/// # Errors
/// Names the first that Multus has not reported.
pub(crate) fn functions(
    requested: &[Requested],
    networks: &Networks,
) -> Result<Vec<DeviceRequest>, HostDeviceError> {
    let wanted = requested.iter().filter_map(|device| match device.source() {
        DeviceSource::Network(wanted) => Some((device.field().to_string(), wanted.pod_interface())),
        DeviceSource::Resource(_) => None,
    });
    wanted.map(|(field, interface)| function(field, interface, networks)).collect()
}

/// The virtual function that a Pod has for a network.
fn function(field: String, interface: String, networks: &Networks) -> Result<DeviceRequest, HostDeviceError> {
    let Some(Some(address)) = networks.get(&interface) else {
        return Err(HostDeviceError::NoFunction { field, interface });
    };
    match address.parse() {
        Ok(address) => Ok(DeviceRequest { field, device: ExtraDevice::Host(HostDevice::Pci(address)) }),
        Err(error) => {
            let (address, why) = (address.clone(), error.to_string());
            Err(HostDeviceError::Function { field, interface, address, why })
        }
    }
}

/// The devices of a container for the resources that are requested, each once. A USB device that is requested may be several.
fn assign(
    requested: &[Requested],
    environment: &Environment<'_>,
) -> Result<Vec<DeviceRequest>, HostDeviceError> {
    let requested = requested.iter().filter_map(|device| match device.source() {
        DeviceSource::Resource(resource) => Some((device.field().to_string(), resource.as_str())),
        DeviceSource::Network(_) => None,
    });
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, resource) in requested.clone() {
        *counts.entry(resource).or_default() += 1;
    }
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    let mut assigned = Vec::new();
    for (field, resource) in requested {
        let count = counts.get(resource).copied().unwrap_or(1);
        let all = KINDS.map(|(prefix, parse)| (variable(prefix, resource), parse));
        let given = all.iter().find_map(|(variable, parse)| {
            let addresses = environment.addresses(variable);
            (!addresses.is_empty()).then_some((variable, parse, addresses))
        });
        let Some((variable, parse, addresses)) = given else {
            let variables = all.map(|(variable, _)| variable).join(", ");
            return Err(HostDeviceError::Absent { field, resource: resource.to_owned(), variables });
        };
        // The others of a PCI device's group may be there, too.
        let each = if variable.starts_with(USB) { addresses.len() / count } else { 1 };
        let from = used.entry(resource).or_default();
        let own = addresses.get(*from..*from + each.max(1)).ok_or_else(|| HostDeviceError::TooFew {
            field: field.clone(),
            resource: resource.to_owned(),
            given: addresses.len(),
            requested: count,
        })?;
        *from += own.len();
        for address in own {
            let device = parse(address).map_err(|error| HostDeviceError::Address {
                field: field.clone(),
                variable: variable.clone(),
                address: (*address).to_owned(),
                why: error.to_string(),
            })?;
            assigned.push(DeviceRequest { field: field.clone(), device: ExtraDevice::Host(device) });
        }
    }
    Ok(assigned)
}

/// Finds the devices that a VM requests in the Pod of the launcher with a process ID, beside the virtual functions of its networks,
/// and lets the launcher use all of them. Blocks.
///
/// # Errors
/// Names the first that is not there.
pub(crate) fn prepare(
    pid: i32,
    requested: &[Requested],
    functions: Vec<DeviceRequest>,
    memory: u64,
) -> io::Result<Vec<DeviceRequest>> {
    if requested.is_empty() {
        return Ok(Vec::new());
    }
    let process = format!("/proc/{pid}");
    let environment = fs::read(format!("{process}/environ"))?;
    let environment = String::from_utf8_lossy(&environment);
    let mut devices = functions;
    devices.extend(assign(requested, &Environment::of(&environment)).map_err(io::Error::other)?);
    let user = fs::metadata(&process)?;
    let owner = (Uid::from_raw(user.uid()), Gid::from_raw(user.gid()));
    let root = Root::of(pid)?;
    let mut locks_memory = false;
    for request in &devices {
        let ExtraDevice::Host(device) = request.device else { continue };
        locks_memory |= !matches!(device, HostDevice::Usb(_));
        let failed =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {device}: {error}", request.field));
        give(&root, &Sysfs::default(), device, owner).map_err(failed)?;
    }
    if locks_memory {
        permit_locking(pid, memory)?;
    }
    Ok(devices)
}

/// Lets the launcher with a process ID, and QEMU, lock this much memory and what devices take beside it.
///
/// # Errors
/// When the node agent has no right to do that, or the process has ended.
pub(crate) fn permit_locking(pid: i32, memory: u64) -> io::Result<()> {
    let limit = Some(memory.saturating_add(VFIO_OVERHEAD));
    Ok(prlimit(Pid::from_raw(pid), Resource::Memlock, Rlimit { current: limit, maximum: limit }).map(drop)?)
}

/// Makes a user the owner of the file of a device that a container has. The launcher cannot make device files, and its
/// cgroup has those devices alone that the kubelet gave it.
fn give(root: &Root, sysfs: &Sysfs, device: HostDevice, (user, group): (Uid, Gid)) -> io::Result<()> {
    let path = sysfs
        .file(device)
        .ok_or_else(|| io::Error::other("this node has no such device in an IOMMU group"))?;
    let opened = root.open(Path::new(&path), OFlags::PATH | OFlags::NOFOLLOW, ResolveFlags::NO_SYMLINKS);
    let file = opened.map_err(|error| {
        io::Error::new(error.kind(), format!("the container does not have {path}: {error}"))
    })?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::CharacterDevice {
        return Err(io::Error::other(format!("{path} of the container is not a device")));
    }
    Ok(chownat(file.as_fd(), "", Some(user), Some(group), AtFlags::EMPTY_PATH)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::{Value, json};
    use vireo_api::spec::Vm;
    use vireo_api::v1::VirtualMachineInstance;

    use super::*;
    use crate::devices::fake;

    fn requested(gpus: &[&str], others: &[&str]) -> Vec<Requested> {
        let devices = |names: &[&str]| {
            let device =
                |(index, name): (usize, &&str)| json!({"name": format!("d{index}"), "deviceName": name});
            names.iter().enumerate().map(device).collect::<Vec<Value>>()
        };
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {"domain": {"memory": {"guest": "64Mi"},
                "devices": {"gpus": devices(gpus), "hostDevices": devices(others)}}},
        }))
        .unwrap();
        Vm::try_from(&vmi).unwrap().host_devices().to_vec()
    }

    fn assigned(gpus: &[&str], others: &[&str], variables: &[&str]) -> Result<Vec<(String, String)>, String> {
        let text = variables.join("\0");
        let devices =
            assign(&requested(gpus, others), &Environment::of(&text)).map_err(|error| error.to_string())?;
        let short = |field: &str| field.replace("spec.domain.devices.", "");
        Ok(devices.iter().map(|one| (short(&one.field), one.device.to_string())).collect())
    }

    #[test]
    fn devices_share_the_addresses_of_their_resource() {
        let variables = [
            "PATH=/bin",
            "PCI_RESOURCE_NVIDIA_COM_T4=0000:01:00.0,0000:02:00.0,0000:02:00.0,",
            "MDEV_PCI_RESOURCE_A_B_GRID-1Q=0b2e4d3c-11aa-22bb-33cc-0123456789ab",
            "USB_RESOURCE_A_B_KEY=1:2,1:3,2:2,2:3",
        ];
        let devices =
            assigned(&["nvidia.com/T4", "a.b/GRID-1Q"], &["a.b/key", "nvidia.com/T4", "a.b/key"], &variables)
                .unwrap();
        let expected = [
            ("gpus[0]", "the host's PCI device 0000:01:00.0"),
            ("gpus[1]", "the host's mediated device 0b2e4d3c-11aa-22bb-33cc-0123456789ab"),
            ("hostDevices[0]", "the host's USB device 1:2"),
            ("hostDevices[0]", "the host's USB device 1:3"),
            ("hostDevices[1]", "the host's PCI device 0000:02:00.0"),
            ("hostDevices[2]", "the host's USB device 2:2"),
            ("hostDevices[2]", "the host's USB device 2:3"),
        ];
        let expected = expected.map(|(field, device)| (field.to_owned(), device.to_owned()));
        assert_eq!(devices, expected);
    }

    #[test]
    fn a_network_has_the_virtual_function_that_multus_reported() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {
                    "interfaces": [{"name": "pods", "masquerade": {}}, {"name": "blue", "sriov": {}}],
                    "hostDevices": [{"name": "d", "deviceName": "a.b/c"}]}},
                "networks": [{"name": "pods", "pod": {}}, {"name": "blue", "multus": {"networkName": "lan"}}]},
        }))
        .unwrap();
        let vm = Vm::try_from(&vmi).unwrap();
        let found = |networks: &[(&str, Option<&str>)]| {
            let networks =
                networks.iter().map(|(name, address)| ((*name).to_owned(), address.map(str::to_owned)));
            functions(vm.host_devices(), &networks.collect()).map_err(|error| error.to_string())
        };
        let text = |devices: &[DeviceRequest]| -> Vec<(String, String)> {
            devices.iter().map(|one| (one.field.clone(), one.device.to_string())).collect()
        };
        let expected = |field: &str, device: &str| {
            let field = format!("spec.domain.devices.{field}");
            vec![(field, format!("the host's PCI device {device}"))]
        };
        let blue = "pod16477688c0e";
        let given = found(&[("eth0", None), (blue, Some("0000:65:00.2"))]).unwrap();
        assert_eq!(text(&given), expected("interfaces[1]", "0000:65:00.2"));
        let of_resources = assign(vm.host_devices(), &Environment::of("PCI_RESOURCE_A_B_C=0000:01:00.0"));
        assert_eq!(text(&of_resources.unwrap()), expected("hostDevices[0]", "0000:01:00.0"));
        for networks in [&[("eth0", Some("0000:65:00.2"))][..], &[(blue, None)]] {
            let error = found(networks).unwrap_err();
            assert!(error.contains("interfaces[1]: Multus has reported no virtual function"), "{error}");
        }
        let error = found(&[(blue, Some("../0"))]).unwrap_err();
        assert!(error.contains("has reported \"../0\"") && error.contains("must be the address"), "{error}");
    }

    #[test]
    fn what_a_container_lacks_is_named() {
        for (variables, expected) in [
            (
                vec![],
                "hostDevices[0]: the launcher's container has no device of a.b/c: no variable PCI_RESOURCE_A_B_C",
            ),
            (vec!["PCI_RESOURCE_A_B_C="], "hostDevices[0]: the launcher's container has no device of a.b/c"),
            (
                vec!["PCI_RESOURCE_A_B_C=0000:01:00.0"],
                "hostDevices[1]: the launcher's container has 1 devices of a.b/c, of which 2 are requested",
            ),
            (
                vec!["PCI_RESOURCE_A_B_C=../0,0000:01:00.0"],
                "hostDevices[0]: the variable PCI_RESOURCE_A_B_C has \"../0\", which must be the address",
            ),
            (vec!["USB_RESOURCE_A_B_C=1:2"], "hostDevices[1]: the launcher's container has 1 devices"),
        ] {
            let error = assigned(&[], &["a.b/c", "a.b/c"], &variables).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn only_a_device_file_of_the_container_is_given() {
        let dir = tempfile::tempdir().unwrap();
        fake::pci(dir.path(), "0000:01:00.0", ("0x1", "0x2"), "vfio-pci", "7");
        let container = dir.path().join("root");
        fs::create_dir_all(container.join("dev/vfio")).unwrap();
        let user = fs::metadata(dir.path()).unwrap();
        let owner = (Uid::from_raw(user.uid()), Gid::from_raw(user.gid()));
        let give = |address: &str| {
            let device = HostDevice::Pci(address.parse().unwrap());
            give(&Root::at(&container).unwrap(), &Sysfs::at(dir.path()), device, owner)
                .unwrap_err()
                .to_string()
        };
        assert!(give("0000:02:00.0").contains("no such device"));
        assert!(give("0000:01:00.0").contains("the container does not have /dev/vfio/7"));
        let node = container.join("dev/vfio/7");
        symlink("/dev/null", &node).unwrap();
        assert!(give("0000:01:00.0").contains("is not a device"), "a link");
        fs::remove_file(&node).unwrap();
        fs::write(&node, "").unwrap();
        assert!(give("0000:01:00.0").contains("is not a device"));
        assert!(Path::new(&node).exists());
    }

    #[test]
    fn a_vm_without_devices_needs_nothing_of_its_launcher() {
        assert_eq!(prepare(-1, &[], Vec::new(), 0).unwrap(), []);
    }
}
