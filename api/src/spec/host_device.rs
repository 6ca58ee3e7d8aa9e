//! Devices of the host: `gpus` and `hostDevices`.

use std::collections::BTreeSet;

use super::report::Findings;
use super::{Field, HYPERVISOR_ANNOTATION, HypervisorChoice};
use crate::v1;

/// Bytes that VFIO locks beside the guest's memory: room for registers of devices, as KubeVirt reserves it.
pub const VFIO_OVERHEAD: u64 = 1 << 30;

/// A device of the host, by the resource of nodes that it is one of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    field: Field,
    resource: String,
}

impl HostDevice {
    /// The element of the manifest that requests it: `spec.domain.devices.hostDevices[0]`.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// The name of the resource: `nvidia.com/TU104GL_Tesla_T4`.
    pub fn resource(&self) -> &str {
        &self.resource
    }
}

/// What `gpus` and `hostDevices` have in common.
struct Request<'a> {
    name: &'a str,
    resource: &'a str,
    claim: Option<&'static str>,
    tag: &'a str,
}

pub(super) fn read(devices: &v1::Devices, hypervisor: HypervisorChoice, found: &mut Findings) {
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
    requests(gpus, &at.at("gpus"), hypervisor, found);
    let others = devices.host_devices.iter().map(|device| Request {
        name: &device.name,
        resource: &device.device_name,
        claim: claim(device.claim_name.as_deref(), device.request_name.as_deref()),
        tag: &device.tag,
    });
    requests(others, &at.at("hostDevices"), hypervisor, found);
}

/// The field that asks for a device of a resource claim.
fn claim(claim: Option<&str>, request: Option<&str>) -> Option<&'static str> {
    claim.map(|_| "claimName").or(request.map(|_| "requestName"))
}

fn requests<'a>(
    requests: impl Iterator<Item = Request<'a>>,
    at: &Field,
    hypervisor: HypervisorChoice,
    found: &mut Findings,
) {
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
            "the guest's metadata has no tags of devices",
        );
        if hypervisor == HypervisorChoice::Native {
            let why = format!(
                "the hypervisor native, which metadata.annotations[{HYPERVISOR_ANNOTATION}] requests, has no \
                 devices of the host: remove the annotation or the device"
            );
            found.not_supported(&at, why);
        }
        found.host_devices.push(HostDevice { field: at, resource: request.resource.to_owned() });
    }
}
