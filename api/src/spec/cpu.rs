use vireo_vmconfig::{Cpu, CpuFeature, CpuModel, CpuPlacement, CpuTopology};

use super::Field;
use super::hyperv::VMX;
use super::memory::Resources;
use super::report::Findings;
use crate::v1;

/// Where no number is given, the CPUs of the container's resources become sockets, as KubeVirt's defaulting does.
/// `needs_vmx`: an enlightenment requires nested virtualization.
pub(super) fn read(
    cpu: Option<&v1::Cpu>,
    needs_vmx: bool,
    resources: &Resources,
    found: &mut Findings,
) -> Option<Cpu> {
    let at = Field::new("spec.domain.cpu");
    let empty = v1::Cpu::default();
    let cpu = cpu.unwrap_or(&empty);
    let given = |count: Option<u32>| count.filter(|count| *count > 0);
    let (cores, mut sockets, threads) = (given(cpu.cores), given(cpu.sockets), given(cpu.threads));
    if cores.is_none() && sockets.is_none() && threads.is_none() {
        let share = resources.cpu_limit().or(resources.cpu_request());
        sockets =
            share.map(|cpus| u32::try_from(cpus.whole()).unwrap_or(u32::MAX)).filter(|count| *count > 0);
    }
    let [sockets, cores, threads] = [sockets, cores, threads].map(|count| count.unwrap_or(1));
    let topology =
        CpuTopology::new(sockets, cores, threads).map_err(|error| found.invalid(&at, error.to_string())).ok();
    if let Some(max) = cpu.max_sockets.filter(|max| *max > 0) {
        if sockets > max {
            found.invalid(&at.at("sockets"), format!("{sockets} is more than maxSockets, which is {max}"));
        }
        found.notice_if(max > sockets, &at.at("maxSockets"), "vCPUs cannot be hotplugged yet");
    }
    let numa = cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some());
    found.refuse_if(numa, &at.at("numa").at("guestMappingPassthrough"), "a guest NUMA topology");
    found.refuse_if(cpu.realtime.is_some(), &at.at("realtime"), "real-time scheduling");
    let model = model(&cpu.model, &at.at("model"), found);
    let features = features(&cpu.features, needs_vmx, &at.at("features"), found);
    Some(Cpu::new(topology?, model, features))
}

/// CPUs of the host that the VM has for itself. `vcpus` is the number of its vCPUs, where that is valid.
pub(super) fn placement(
    cpu: Option<&v1::Cpu>,
    vcpus: Option<u32>,
    resources: &Resources,
    found: &mut Findings,
) -> Option<CpuPlacement> {
    let cpu = cpu?;
    let isolate_emulator_thread = cpu.isolate_emulator_thread == Some(true);
    if cpu.dedicated_cpu_placement != Some(true) {
        if isolate_emulator_thread {
            let at = Field::new("spec.domain.cpu.isolateEmulatorThread");
            found.invalid(&at, "is only for dedicatedCpuPlacement: set that, too");
        }
        return None;
    }
    let at = Field::new("spec.domain.resources");
    let [request, limit] = [("requests", resources.cpu_request()), ("limits", resources.cpu_limit())]
        .map(|(name, given)| (at.at(name).at("cpu"), given));
    let wanted = vcpus.map(|vcpus| u64::from(vcpus) * 1000);
    for (field, given) in [request, limit] {
        if let (Some(given), Some(wanted)) = (given, wanted)
            && given.get() != wanted
        {
            let detail = format!("must be the number of vCPUs, {}: each has a CPU of its own", wanted / 1000);
            found.invalid_value(&field, format!("{}m", given.get()), detail);
        }
    }
    Some(CpuPlacement { cpus: Vec::new(), isolate_emulator_thread })
}

/// Whether a text is a CPU model that `spec.domain.cpu.model` can have.
pub fn is_cpu_model(text: &str) -> bool {
    !text.is_empty() && text.parse::<CpuModel>().is_ok()
}

fn model(text: &str, at: &Field, found: &mut Findings) -> CpuModel {
    text.parse().unwrap_or_else(|_| {
        found.invalid_value(
            at,
            text,
            "must be host-model, host-passthrough or a name of at most 63 letters, digits, '-', '_' and '.'",
        );
        CpuModel::default()
    })
}

fn features(
    features: &[v1::CpuFeature],
    needs_vmx: bool,
    at: &Field,
    found: &mut Findings,
) -> Vec<CpuFeature> {
    let mut read: Vec<CpuFeature> = Vec::new();
    for (index, feature) in features.iter().enumerate() {
        let at = at.index(index);
        let enabled = match feature.policy.as_str() {
            "" | "require" | "force" | "optional" => true,
            "disable" | "forbid" => false,
            other => {
                let policies = &["disable", "forbid", "force", "optional", "require"];
                found.unsupported_value(&at.at("policy"), other, policies);
                true
            }
        };
        let name = &feature.name;
        if needs_vmx && name == VMX && !matches!(feature.policy.as_str(), "" | "require") {
            let detail = "must be require: the Hyper-V enlightenment evmcs is for nested virtualization";
            found.invalid_value(&at.at("policy"), &feature.policy, detail);
        }
        match CpuFeature::new(name, enabled) {
            Err(_) => {
                found.invalid_value(
                    &at.at("name"),
                    name,
                    "must be a name of at most 63 letters, digits, '-', '_' and '.'",
                );
            }
            Ok(feature) if read.iter().any(|known| known.name() == feature.name()) => {
                found.duplicate_value(&at.at("name"), name);
            }
            Ok(feature) => read.push(feature),
        }
    }
    if needs_vmx && read.iter().all(|feature| feature.name() != VMX) {
        read.extend(CpuFeature::new(VMX, true));
    }
    read
}
