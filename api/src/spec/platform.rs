//! The board, its features and its clocks: everything is either as it always is, or an extra device, or refused.

use vireo_vmconfig::{ExtraDevice, IoThreads, PlatformFeature};

use super::report::Findings;
use super::{Field, clock, hyperv};
use crate::v1;

/// Threads of the policy `auto`, as KubeVirt limits them.
const THREADS_PER_VCPU: u32 = 2;

/// Whether a feature that is named is on.
pub(super) fn is_on(feature: Option<&v1::FeatureState>) -> bool {
    feature.is_some_and(|feature| feature.enabled != Some(false))
}

fn is_off(feature: Option<&v1::FeatureState>) -> bool {
    feature.is_some_and(|feature| feature.enabled == Some(false))
}

/// Whether a text is a machine type that `spec.domain.machine.type` can have.
pub fn is_machine_type(text: &str) -> bool {
    text == "q35" || text.starts_with("pc-q35-")
}

pub(super) fn read(spec: &v1::VirtualMachineInstanceSpec, found: &mut Findings) {
    let domain = &spec.domain;
    let at = Field::new("spec.domain");
    match spec.architecture.as_str() {
        "" | "amd64" => {}
        other @ ("arm64" | "s390x") => {
            found.unsupported_value(&Field::new("spec.architecture"), other, &["amd64"])
        }
        other => found.invalid_value(&Field::new("spec.architecture"), other, "must be amd64"),
    }
    if let Some(machine) = &domain.machine {
        let kind = machine.r#type.as_str();
        if !kind.is_empty() && !is_machine_type(kind) {
            found.unsupported_value(&at.at("machine").at("type"), kind, &["q35"]);
        }
        found.notice_if(
            kind.starts_with("pc-q35-"),
            &at.at("machine").at("type"),
            "there is one version of the board",
        );
    }
    if let Some(features) = &domain.features {
        let at = at.at("features");
        self::features(features, &at, found);
        hyperv::read(features, clock::has_hyperv(domain), &at, found);
    }
    if let Some(security) = &domain.launch_security {
        let at = at.at("launchSecurity");
        let kinds = [
            ("sev", "AMD SEV", security.sev.is_some()),
            ("snp", "AMD SEV-SNP", security.snp.is_some()),
            ("tdx", "Intel TDX", security.tdx.is_some()),
        ];
        // Other than most refusals, this one does not depend on nodes: none of the hypervisors is started that way.
        let (at, by) = match kinds.iter().find(|(.., there)| *there) {
            Some((name, technology, _)) => (at.at(name), *technology),
            None => (at, "the processor"),
        };
        let detail = format!(
            "guests whose memory {by} encrypts are not started yet, whatever the node offers: remove this field"
        );
        found.not_supported(&at, detail);
    }
}

/// The threads of virtio disks without a dedicated one. `vcpus` is their number.
pub(super) fn io_threads(domain: &v1::DomainSpec, vcpus: u32, found: &mut Findings) -> Option<IoThreads> {
    let at = Field::new("spec.domain");
    let count = domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
    let count_field = at.at("ioThreads").at("supplementalPoolThreadCount");
    let is_pool = domain.io_threads_policy.as_deref() == Some("supplementalPool");
    found.notice_if(
        count.is_some() && !is_pool,
        &count_field,
        "it is for the ioThreadsPolicy supplementalPool",
    );
    match domain.io_threads_policy.as_deref() {
        // Where a disk has a thread of its own, the others share one.
        None => {
            let mut disks = domain.devices.disks.iter();
            disks.any(|disk| disk.dedicated_io_thread == Some(true)).then_some(IoThreads::Shared)
        }
        Some("shared") => Some(IoThreads::Shared),
        Some("auto") => {
            let most = u16::try_from(vcpus.saturating_mul(THREADS_PER_VCPU)).unwrap_or(IoThreads::MAX);
            Some(IoThreads::Pool(most.clamp(1, IoThreads::MAX)))
        }
        Some("supplementalPool") => {
            let valid = count.and_then(|count| u16::try_from(count).ok());
            let valid = valid.filter(|count| (1..=IoThreads::MAX).contains(count));
            if count.is_none_or(|count| count < 1) {
                let detail =
                    "the number of iothreads needs to be set and positive for the supplementalPool policy";
                found.required_value(&count_field, detail);
            } else if valid.is_none() {
                let detail = format!("must be between 1 and {}, inclusive", IoThreads::MAX);
                found.invalid_value(&count_field, count, detail);
            }
            valid.map(IoThreads::Supplemental)
        }
        Some(other) => {
            let policies = ["auto", "shared", "supplementalPool"];
            found.unsupported_value(&at.at("ioThreadsPolicy"), other, &policies);
            None
        }
    }
}

fn features(features: &v1::Features, at: &Field, found: &mut Findings) {
    let mut platform = |asked: bool, at: &Field, feature| {
        if asked {
            found.extra_device(at, ExtraDevice::Platform(feature));
        }
    };
    platform(is_off(features.acpi.as_ref()), &at.at("acpi"), PlatformFeature::AcpiOff);
    platform(is_off(features.smm.as_ref()), &at.at("smm"), PlatformFeature::SmmOff);
    platform(is_off(features.pvspinlock.as_ref()), &at.at("pvspinlock"), PlatformFeature::PvSpinlockOff);
    let hidden = features.kvm.as_ref().is_some_and(|kvm| kvm.hidden == Some(true));
    platform(hidden, &at.at("kvm").at("hidden"), PlatformFeature::KvmHidden);
    if let Some(apic) = &features.apic {
        let at = at.at("apic");
        platform(apic.end_of_interrupt == Some(false), &at.at("endOfInterrupt"), PlatformFeature::PvEoiOff);
        found.refuse_if(apic.enabled == Some(false), &at.at("enabled"), "a VM without APIC");
    }
    if is_on(features.smm.as_ref()) {
        found.extra_device(&at.at("smm"), ExtraDevice::Smm);
    }
}
