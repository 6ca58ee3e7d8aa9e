use vireo_vmconfig::{Cpu, CpuFeature, CpuModel, CpuPlacement, CpuTopology, is_cpu_name};

use super::Field;
use super::hyperv::VMX;
use super::memory::Resources;
use super::report::Findings;
use crate::{cpu, v1};

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
    let model = model(&cpu.model, &at.at("model"), found);
    let features = features(&cpu.features, needs_vmx, &at.at("features"), found);
    Some(Cpu::new(topology?, model, features))
}

/// CPUs of the host that the VM has for itself. `vcpus` is the number of its vCPUs, where that is valid.
pub(super) fn placement(
    domain: &v1::DomainSpec,
    vcpus: Option<u32>,
    resources: &Resources,
    found: &mut Findings,
) -> Option<CpuPlacement> {
    let cpu = domain.cpu.as_deref()?;
    let isolate_emulator_thread = cpu.isolate_emulator_thread == Some(true);
    let has_huge_pages = domain.memory.as_ref().is_some_and(|memory| memory.hugepages.is_some());
    let numa = numa(cpu, has_huge_pages, found);
    let realtime = realtime(cpu, vcpus.unwrap_or(0), found);
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
    Some(CpuPlacement { cpus: Vec::new(), isolate_emulator_thread, numa: numa.then(Vec::new), realtime })
}

/// Whether the guest has the NUMA nodes of its CPUs, which the host knows.
fn numa(cpu: &v1::Cpu, has_huge_pages: bool, found: &mut Findings) -> bool {
    let wanted = cpu.has_nodes_of_host();
    let at = Field::new("spec.domain.cpu.numa.guestMappingPassthrough");
    if wanted && cpu.dedicated_cpu_placement != Some(true) {
        found.invalid(&at, "is only for dedicatedCpuPlacement: set that, too");
    }
    if wanted && !has_huge_pages {
        found.invalid(&at, "is only for memory in huge pages: set spec.domain.memory.hugepages, too");
    }
    wanted
}

/// The vCPUs that are scheduled in real time, where any may be.
fn realtime(cpu: &v1::Cpu, vcpus: u32, found: &mut Findings) -> Option<Vec<u32>> {
    let realtime = cpu.realtime.as_ref()?;
    let at = Field::new("spec.domain.cpu");
    if cpu.dedicated_cpu_placement != Some(true) {
        found.required_value(&at.at("dedicatedCpuPlacement"), "must be true for realtime");
    }
    if !cpu.has_nodes_of_host() {
        found.required_value(&at.at("numa").at("guestMappingPassthrough"), "must be set for realtime");
    }
    let mask = realtime.mask.as_str();
    masked(mask, vcpus).or_else(|| {
        let detail = "must be a list of vCPUs, such as 0-3,^1: numbers, ranges, and after '^' a number that is left out";
        found.invalid_value(&at.at("realtime").at("mask"), mask, detail);
        None
    })
}

/// Those of so many vCPUs that a mask has, as KubeVirt reads it: all by an empty one, and none that it leaves out, wherever.
/// `None`: it is no mask.
fn masked(mask: &str, vcpus: u32) -> Option<Vec<u32>> {
    if mask.is_empty() {
        return Some((0..vcpus).collect());
    }
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (mut ranges, mut left_out) = (Vec::new(), Vec::new());
    for part in mask.split(',').map(str::trim) {
        match (part.strip_prefix('^'), part.split_once('-')) {
            (Some(one), _) => left_out.push(number(one)?),
            (None, Some((first, last))) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then(|| ranges.push(first..=last))?;
            }
            (None, None) => ranges.push(number(part).map(|one| one..=one)?),
        }
    }
    let is_in = |vcpu: &u32| ranges.iter().any(|range| range.contains(vcpu)) && !left_out.contains(vcpu);
    Some((0..vcpus).filter(is_in).collect())
}

fn model(text: &str, at: &Field, found: &mut Findings) -> CpuModel {
    let model = text.parse().unwrap_or_else(|_| {
        found.invalid_value(
            at,
            text,
            "must be host-model, host-passthrough or a name of at most 63 letters, digits, '-', '_' and '.'",
        );
        CpuModel::default()
    });
    if let CpuModel::Named(name) = &model
        && !cpu::is_named_model(name)
    {
        let detail = "must be host-model, host-passthrough or a CPU model of QEMU";
        found.unknown_name(at, name, detail, cpu::similar_model(name));
    }
    model
}

/// Refuses in a request the name of a feature that no guest has, or that no node is found by.
fn feature_name(feature: &v1::CpuFeature, at: &Field, found: &mut Findings) {
    let name = &feature.name;
    match cpu::feature(name) {
        None => found.unknown_name(
            &at.at("name"),
            name,
            "must be a CPU feature of QEMU",
            cpu::similar_feature(name),
        ),
        Some(cpu::Feature::Unlabelled) if matches!(feature.policy.as_str(), "" | "require") => {
            let detail = format!(
                "no node has a label for {name}, so that none would be selected: use the policy optional"
            );
            found.refuse_request(&at.at("policy"), &feature.policy, detail);
        }
        Some(_) => {}
    }
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
        if is_cpu_name(name) {
            feature_name(feature, &at, found);
        }
        // QEMU leaves out what its host lacks, with either policy, unless all features of the guest are forced; nor does libvirt
        // force all.
        let why = "QEMU leaves out a feature that the node does not have, as it does with optional";
        found.notice_if(feature.policy == "force", &at.at("policy"), why);
    }
    if needs_vmx && read.iter().all(|feature| feature.name() != VMX) {
        read.extend(CpuFeature::new(VMX, true));
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_read_as_in_kubevirt() {
        for (mask, expected) in [
            ("", Some(vec![0, 1, 2, 3])),
            ("0-3,^1", Some(vec![0, 2, 3])),
            ("^1, 0-3", Some(vec![0, 2, 3])),
            ("2", Some(vec![2])),
            ("1-1,3", Some(vec![1, 3])),
            ("0-99", Some(vec![0, 1, 2, 3])),
            ("7", Some(vec![])),
            ("^0", Some(vec![])),
            ("3-0", None),
            ("0-", None),
            ("-1", None),
            ("^", None),
            ("^0-1", None),
            ("0,", None),
            ("+1", None),
            ("all", None),
            ("4294967296", None),
        ] {
            assert_eq!(masked(mask, 4), expected, "{mask}");
        }
    }
}
