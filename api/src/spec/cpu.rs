use super::Field;
use super::memory::Resources;
use super::report::Findings;
use super::syntax::is_plain_word;
use crate::v1;

/// The most processors of a machine: 8-bit local APIC ids.
const MAX: u32 = 254;

/// The guest's processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    sockets: u32,
    cores: u32,
    threads: u32,
    model: CpuModel,
    features: Vec<CpuFeature>,
}

/// What processor the guest sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CpuModel {
    /// The named model nearest to the host.
    #[default]
    HostModel,
    /// The host's own.
    HostPassthrough,
    /// A named one; a plain word.
    Named(String),
}

impl CpuModel {
    /// As KubeVirt writes it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::HostModel => "host-model",
            Self::HostPassthrough => "host-passthrough",
            Self::Named(name) => name,
        }
    }
}

/// A CPU flag and what is wanted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuFeature {
    name: String,
    policy: CpuFeaturePolicy,
}

/// What is wanted of a CPU flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuFeaturePolicy {
    /// The guest sees it whether or not the host has it.
    Force,
    /// The host must have it.
    Require,
    /// The guest sees it if the host has it.
    Optional,
    /// The guest does not see it.
    Disable,
    /// The guest does not see it and the host must not have it.
    Forbid,
}

impl CpuFeature {
    /// As QEMU calls it; a plain word.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is wanted of it.
    pub fn policy(&self) -> CpuFeaturePolicy {
        self.policy
    }

    /// Whether the guest is to see it.
    pub fn is_enabled(&self) -> bool {
        !matches!(self.policy, CpuFeaturePolicy::Disable | CpuFeaturePolicy::Forbid)
    }
}

impl Cpu {
    /// Sockets, from 1.
    pub fn sockets(&self) -> u32 {
        self.sockets
    }

    /// Cores in a socket, from 1.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// Threads in a core, from 1.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// How many in all: 1 to 254.
    pub fn count(&self) -> u32 {
        // `read` keeps the product within `MAX`.
        self.sockets * self.cores * self.threads
    }

    /// What the guest sees.
    pub fn model(&self) -> &CpuModel {
        &self.model
    }

    /// Flags, each once.
    pub fn features(&self) -> &[CpuFeature] {
        &self.features
    }
}

/// Where no number is given, the CPUs of the container's resources become sockets, as KubeVirt's defaulting does.
pub(super) fn read(cpu: Option<&v1::Cpu>, resources: &Resources, found: &mut Findings) -> Option<Cpu> {
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
    let all = sockets.checked_mul(cores).and_then(|count| count.checked_mul(threads));
    let fits = all.is_some_and(|count| count <= MAX);
    if !fits {
        found.invalid(
            &at,
            format!(
                "{sockets} sockets of {cores} cores with {threads} threads are more than {MAX} processors"
            ),
        );
    }
    if let Some(max) = cpu.max_sockets.filter(|max| *max > 0) {
        if sockets > max {
            found.invalid(&at.at("sockets"), format!("{sockets} is more than maxSockets, which is {max}"));
        }
        found.notice_if(max > sockets, &at.at("maxSockets"), "plugging in processors");
    }
    let dedicated = cpu.dedicated_cpu_placement == Some(true);
    found.refuse_if(dedicated, &at.at("dedicatedCpuPlacement"), "pinning to exclusive CPUs");
    found.refuse_if(
        cpu.isolate_emulator_thread == Some(true),
        &at.at("isolateEmulatorThread"),
        "a CPU for the hypervisor's threads",
    );
    let numa = cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some());
    found.refuse_if(numa, &at.at("numa").at("guestMappingPassthrough"), "a guest NUMA topology");
    found.refuse_if(cpu.realtime.is_some(), &at.at("realtime"), "real-time scheduling");
    let model = model(&cpu.model, &at.at("model"), found);
    let features = features(&cpu.features, &at.at("features"), found);
    fits.then_some(Cpu { sockets, cores, threads, model, features })
}

fn model(text: &str, at: &Field, found: &mut Findings) -> CpuModel {
    match text {
        "" | "host-model" => CpuModel::HostModel,
        "host-passthrough" => CpuModel::HostPassthrough,
        name => {
            if !is_plain_word(name) {
                found.invalid_value(
                    at,
                    name,
                    "must be host-model, host-passthrough or a name of letters, digits, '-', '_' and '.'",
                );
            }
            CpuModel::Named(name.to_owned())
        }
    }
}

fn features(features: &[v1::CpuFeature], at: &Field, found: &mut Findings) -> Vec<CpuFeature> {
    let mut read: Vec<CpuFeature> = Vec::new();
    for (index, feature) in features.iter().enumerate() {
        let at = at.index(index);
        let name = &feature.name;
        if !is_plain_word(name) {
            found.invalid_value(&at.at("name"), name, "must be a name of letters, digits, '-', '_' and '.'");
        } else if read.iter().any(|known| known.name == *name) {
            found.duplicate_value(&at.at("name"), name);
        }
        let policy = match feature.policy.as_str() {
            "" | "require" => CpuFeaturePolicy::Require,
            "force" => CpuFeaturePolicy::Force,
            "optional" => CpuFeaturePolicy::Optional,
            "disable" => CpuFeaturePolicy::Disable,
            "forbid" => CpuFeaturePolicy::Forbid,
            other => {
                found.unsupported_value(
                    &at.at("policy"),
                    other,
                    &["disable", "forbid", "force", "optional", "require"],
                );
                CpuFeaturePolicy::Require
            }
        };
        read.push(CpuFeature { name: name.clone(), policy });
    }
    read
}
