//! The board, its features and its clocks: everything is either as it always is, or an extra device, or refused.

use vireo_vmconfig::ExtraDevice;

use super::Field;
use super::report::Findings;
use crate::v1;

/// Whether a feature that is named is on.
fn is_on(feature: Option<&v1::FeatureState>) -> bool {
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
    if let Some(clock) = &domain.clock {
        self::clock(clock, &at.at("clock"), found);
    }
    if let Some(features) = &domain.features {
        self::features(features, &at.at("features"), found);
    }
    if let Some(security) = &domain.launch_security {
        let at = at.at("launchSecurity");
        let kinds = [
            ("sev", security.sev.is_some()),
            ("snp", security.snp.is_some()),
            ("tdx", security.tdx.is_some()),
        ];
        let named = kinds.iter().find(|(_, there)| *there).map(|(name, _)| at.at(name));
        found.refuse_if(true, &named.unwrap_or(at), "a confidential VM");
    }
    io_threads(domain, &at, found);
    let threads = "the hypervisor decides about threads";
    found.notice_if(domain.io_threads_policy.is_some(), &at.at("ioThreadsPolicy"), threads);
    found.notice_if(domain.io_threads.is_some(), &at.at("ioThreads"), threads);
}

fn io_threads(domain: &v1::DomainSpec, at: &Field, found: &mut Findings) {
    match domain.io_threads_policy.as_deref() {
        None | Some("shared" | "auto") => {}
        Some("supplementalPool") => {
            let count = domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
            if count.is_none_or(|count| count < 1) {
                let detail =
                    "the number of iothreads needs to be set and positive for the supplementalPool policy";
                found.required_value(&at.at("ioThreads").at("supplementalPoolThreadCount"), detail);
            }
        }
        Some(other) => {
            found.unsupported_value(&at.at("ioThreadsPolicy"), other, &["auto", "shared", "supplementalPool"])
        }
    }
}

fn features(features: &v1::Features, at: &Field, found: &mut Findings) {
    found.refuse_if(is_off(features.acpi.as_ref()), &at.at("acpi"), "a VM without ACPI");
    if let Some(apic) = &features.apic {
        let at = at.at("apic");
        found.refuse_if(apic.enabled == Some(false), &at.at("enabled"), "a VM without APIC");
        let end = &at.at("endOfInterrupt");
        found.notice_if(apic.end_of_interrupt.is_some(), end, "the hypervisor decides about it");
    }
    if is_on(features.smm.as_ref()) {
        found.extra_device(&at.at("smm"), ExtraDevice::Smm);
    }
    if let Some(kvm) = &features.kvm {
        let hidden = &at.at("kvm").at("hidden");
        found.refuse_if(kvm.hidden == Some(true), hidden, "hiding the hypervisor");
    }
    found.refuse_if(features.pvspinlock.is_some(), &at.at("pvspinlock"), "choosing paravirtual spinlocks");
    let passthrough = is_on(features.hyperv_passthrough.as_ref());
    found.refuse_if(passthrough, &at.at("hypervPassthrough"), "Hyper-V enlightenment");
    if let Some(hyperv) = &features.hyperv {
        self::hyperv(hyperv, &at.at("hyperv"), found);
    }
}

fn hyperv(hyperv: &v1::FeatureHyperv, at: &Field, found: &mut Findings) {
    let unless_off = |enabled: Option<Option<bool>>| enabled.is_some_and(|enabled| enabled != Some(false));
    let wanted = [
        ("relaxed", is_on(hyperv.relaxed.as_ref())),
        ("vapic", is_on(hyperv.vapic.as_ref())),
        ("spinlocks", unless_off(hyperv.spinlocks.as_ref().map(|feature| feature.enabled))),
        ("vpindex", is_on(hyperv.vpindex.as_ref())),
        ("runtime", is_on(hyperv.runtime.as_ref())),
        ("synic", is_on(hyperv.synic.as_ref())),
        ("synictimer", unless_off(hyperv.synictimer.as_ref().map(|feature| feature.enabled))),
        ("reset", is_on(hyperv.reset.as_ref())),
        ("vendorid", unless_off(hyperv.vendorid.as_ref().map(|feature| feature.enabled))),
        ("frequencies", is_on(hyperv.frequencies.as_ref())),
        ("reenlightenment", is_on(hyperv.reenlightenment.as_ref())),
        ("tlbflush", unless_off(hyperv.tlbflush.as_ref().map(|feature| feature.enabled))),
        ("ipi", is_on(hyperv.ipi.as_ref())),
        ("evmcs", is_on(hyperv.evmcs.as_ref())),
    ];
    for (name, wanted) in wanted {
        found.refuse_if(wanted, &at.at(name), "Hyper-V enlightenment");
    }
}

fn clock(clock: &v1::Clock, at: &Field, found: &mut Findings) {
    if let Some(utc) = &clock.utc {
        let field = at.at("utc").at("offsetSeconds");
        found.refuse_if(utc.offset_seconds.is_some_and(|offset| offset != 0), &field, "a shifted clock");
    }
    let zone = clock.timezone.as_deref().unwrap_or("");
    found.refuse_if(!matches!(zone, "" | "UTC"), &at.at("timezone"), "a clock of local time");
    let Some(timer) = &clock.timer else { return };
    let at = at.at("timer");
    let lost = "the hypervisor decides what becomes of lost ticks";
    if let Some(hpet) = &timer.hpet {
        let at = at.at("hpet");
        if hpet.present != Some(false) {
            found.extra_device(&at, ExtraDevice::Hpet);
        }
        found.notice_if(!hpet.tick_policy.is_empty(), &at.at("tickPolicy"), lost);
    }
    let absent = |present: Option<bool>| present == Some(false);
    if let Some(pit) = &timer.pit {
        found.refuse_if(absent(pit.present), &at.at("pit").at("present"), "a VM without PIT");
        found.notice_if(!pit.tick_policy.is_empty(), &at.at("pit").at("tickPolicy"), lost);
    }
    if let Some(rtc) = &timer.rtc {
        found.refuse_if(absent(rtc.present), &at.at("rtc").at("present"), "a VM without RTC");
        found.notice_if(!rtc.tick_policy.is_empty(), &at.at("rtc").at("tickPolicy"), lost);
        found.notice_if(!rtc.track.is_empty(), &at.at("rtc").at("track"), "the clock follows the host's");
    }
    if let Some(kvm) = &timer.kvm {
        found.refuse_if(absent(kvm.present), &at.at("kvm").at("present"), "a VM without kvmclock");
    }
    if let Some(hyperv) = &timer.hyperv {
        found.refuse_if(!absent(hyperv.present), &at.at("hyperv"), "the Hyper-V reference clock");
    }
}
