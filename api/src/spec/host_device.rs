//! Devices of the host: `gpus`, `hostDevices` and virtual functions of networks.

use std::collections::BTreeSet;

use vireo_vmconfig::MacAddr;

use super::Field;
use super::report::Findings;
use crate::names::pod_interface;
use crate::v1;

/// Bytes that VFIO locks beside the guest's memory: room for registers of devices, as KubeVirt reserves it.
pub const VFIO_OVERHEAD: u64 = 1 << 30;

/// A device of the host that a guest gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    field: Field,
    source: DeviceSource,
}

/// Which device it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSource {
    /// One of a resource of nodes, by its name: `nvidia.com/TU104GL_Tesla_T4`.
    Resource(String),
    /// The virtual function (SR-IOV) that the launcher Pod has for a network.
    Network(VirtualFunction),
}

/// A NIC that is a virtual function of the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualFunction {
    name: String,
    mac: Option<MacAddr>,
    tag: String,
}

impl VirtualFunction {
    /// The common name of the NIC and its network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address that the manifest gives it: the CNI plugin of its network sets it.
    pub fn mac(&self) -> Option<MacAddr> {
        self.mac
    }

    /// By which the guest knows it in a config drive; empty without one.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// What Multus calls it in the Pod.
    pub fn pod_interface(&self) -> String {
        pod_interface(&self.name)
    }
}

impl HostDevice {
    /// The element of the manifest that requests it: `spec.domain.devices.hostDevices[0]`.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// Which device it is.
    pub fn source(&self) -> &DeviceSource {
        &self.source
    }
}

/// Reads a NIC with the binding `sriov`.
pub(super) fn virtual_function(
    interface: &v1::Interface,
    field: Field,
    mac: Option<MacAddr>,
    found: &mut Findings,
) {
    let why = "a virtual function is passed on as it is";
    found.notice_if(!interface.ports.is_empty(), &field.at("ports"), why);
    found.notice_if(!interface.model.is_empty(), &field.at("model"), why);
    found.notice_if(interface.dhcp_options.is_some(), &field.at("dhcpOptions"), why);
    if !interface.port_ranges.is_empty() {
        let why = "ranges of ports are for masquerade: a virtual function is passed on as it is";
        found.forbidden(&field.at("portRanges"), why);
    }
    found.refuse_if(
        interface.boot_order.is_some(),
        &field.at("bootOrder"),
        "a start from a virtual function",
    );
    let place = "a place of a virtual function in the guest";
    found.refuse_if(!interface.pci_address.is_empty(), &field.at("pciAddress"), place);
    let has_index = interface.acpi_index.is_some_and(|index| index != 0);
    found.refuse_if(has_index, &field.at("acpiIndex"), "an index of a virtual function");
    found.refuse_if(interface.state == "down", &field.at("state"), "the link state of a virtual function");
    let (name, tag) = (interface.name.clone(), interface.tag.clone());
    let source = DeviceSource::Network(VirtualFunction { name, mac, tag });
    found.host_devices.push(HostDevice { field, source });
}

/// What `gpus` and `hostDevices` have in common.
struct Request<'a> {
    name: &'a str,
    resource: &'a str,
    claim: Option<&'static str>,
    tag: &'a str,
}

pub(super) fn read(devices: &v1::Devices, found: &mut Findings) {
    let at = Field::new("spec.domain.devices");
    for (index, gpu) in devices.gpus.iter().enumerate() {
        let display = gpu.virtual_gpu_options.as_ref().and_then(|options| options.display.as_ref());
        let is_shown = display.is_some_and(|display| display.enabled != Some(false));
        let at = at.at("gpus").index(index).at("virtualGPUOptions").at("display");
        found.refuse_if(is_shown, &at, "the display of a virtual GPU");
    }
    let gpus = devices.gpus.iter().map(|gpu| Request {
        name: &gpu.name,
        resource: &gpu.device_name,
        claim: claim(gpu.claim_name.as_deref(), gpu.request_name.as_deref()),
        tag: &gpu.tag,
    });
    requests(gpus, &at.at("gpus"), found);
    let others = devices.host_devices.iter().map(|device| Request {
        name: &device.name,
        resource: &device.device_name,
        claim: claim(device.claim_name.as_deref(), device.request_name.as_deref()),
        tag: &device.tag,
    });
    requests(others, &at.at("hostDevices"), found);
}

/// The field that asks for a device of a resource claim.
fn claim(claim: Option<&str>, request: Option<&str>) -> Option<&'static str> {
    claim.map(|_| "claimName").or(request.map(|_| "requestName"))
}

fn requests<'a>(requests: impl Iterator<Item = Request<'a>>, at: &Field, found: &mut Findings) {
    let mut names = BTreeSet::new();
    for (index, request) in requests.enumerate() {
        let at = at.index(index);
        if request.name.is_empty() {
            found.required_value(&at.at("name"), "a device of the host needs a name");
        } else if !names.insert(request.name) {
            found.duplicate_value(&at.at("name"), request.name);
        }
        if let Some(field) = request.claim {
            found.refuse_if(true, &at.at(field), "a device of a resource claim");
        }
        if request.resource.is_empty() && request.claim.is_none() {
            found.required_value(&at.at("deviceName"), "write the resource that a device plugin offers");
        }
        found.notice_if(
            !request.tag.is_empty(),
            &at.at("tag"),
            "the config drive is made before the guest's firmware gives the device an address",
        );
        let source = DeviceSource::Resource(request.resource.to_owned());
        found.host_devices.push(HostDevice { field: at, source });
    }
}
