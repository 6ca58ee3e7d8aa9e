//! Hyper-V enlightenments.

use std::collections::BTreeMap;

use vireo_vmconfig::{ExtraDevice, HyperV, HyperVFeature};

use super::Field;
use super::platform::is_on;
use super::report::Findings;
use crate::v1;

/// As few retries as Windows takes, and the default.
const LEAST_RETRIES: u32 = 4096;
/// The CPU feature that the enlightened VMCS is for.
pub(super) const VMX: &str = "vmx";

/// Whether a feature with options is on.
fn unless_off(enabled: Option<Option<bool>>) -> Option<bool> {
    enabled.map(|enabled| enabled != Some(false))
}

fn state(feature: Option<&v1::FeatureState>) -> Option<bool> {
    unless_off(feature.map(|feature| feature.enabled))
}

/// The enlightenments of a manifest: on, off, or not named.
fn features(hyperv: &v1::FeatureHyperv) -> Vec<(HyperVFeature, Option<bool>)> {
    let timer = hyperv.synictimer.as_ref();
    let tlb = hyperv.tlbflush.as_ref();
    let (timer_on, tlb_on) =
        (unless_off(timer.map(|timer| timer.enabled)), unless_off(tlb.map(|tlb| tlb.enabled)));
    // An option of what is off is off.
    let option =
        |on: Option<bool>, option: Option<&v1::FeatureState>| state(option).map(|is| is && on == Some(true));
    vec![
        (HyperVFeature::Relaxed, state(hyperv.relaxed.as_ref())),
        (HyperVFeature::Vapic, state(hyperv.vapic.as_ref())),
        (HyperVFeature::VpIndex, state(hyperv.vpindex.as_ref())),
        (HyperVFeature::Runtime, state(hyperv.runtime.as_ref())),
        (HyperVFeature::Synic, state(hyperv.synic.as_ref())),
        (HyperVFeature::SynicTimer, timer_on),
        (HyperVFeature::SynicTimerDirect, option(timer_on, timer.and_then(|timer| timer.direct.as_ref()))),
        (HyperVFeature::Reset, state(hyperv.reset.as_ref())),
        (HyperVFeature::Frequencies, state(hyperv.frequencies.as_ref())),
        (HyperVFeature::Reenlightenment, state(hyperv.reenlightenment.as_ref())),
        (HyperVFeature::TlbFlush, tlb_on),
        (HyperVFeature::TlbFlushDirect, option(tlb_on, tlb.and_then(|tlb| tlb.direct.as_ref()))),
        (HyperVFeature::TlbFlushExtended, option(tlb_on, tlb.and_then(|tlb| tlb.extended.as_ref()))),
        (HyperVFeature::Ipi, state(hyperv.ipi.as_ref())),
        (HyperVFeature::Evmcs, state(hyperv.evmcs.as_ref())),
    ]
}

/// Whether the enlightened VMCS is on.
pub(super) fn has_evmcs(domain: &v1::DomainSpec) -> bool {
    let hyperv = domain.features.as_ref().and_then(|features| features.hyperv.as_ref());
    hyperv.is_some_and(|hyperv| is_on(hyperv.evmcs.as_ref()))
}

/// Reads them with what they require, as KubeVirt's defaulting adds it. `clock`: the manifest has the reference clock.
pub(super) fn read(features: &v1::Features, clock: Option<bool>, at: &Field, found: &mut Findings) {
    let passthrough = is_on(features.hyperv_passthrough.as_ref());
    let at_passthrough = at.at("hypervPassthrough");
    let at = at.at("hyperv");
    if passthrough {
        if features.hyperv.is_some() {
            found.invalid(&at, "is not for a VM with hypervPassthrough, which has them all: keep one");
        }
        add(HyperVFeature::Passthrough, &at_passthrough, found);
    }
    let Some(hyperv) = &features.hyperv else { return };
    if let Some(spinlocks) = &hyperv.spinlocks
        && spinlocks.enabled != Some(false)
    {
        let retries = spinlocks.spinlocks.unwrap_or(LEAST_RETRIES);
        let at = at.at("spinlocks");
        if retries < LEAST_RETRIES {
            let detail = format!("must be greater than or equal to {LEAST_RETRIES}");
            found.invalid_value(&at.at("spinlocks"), retries, detail);
        }
        found.extra_device(&at, ExtraDevice::HyperV(HyperV::Spinlocks(retries)));
    }
    if let Some(vendor) = &hyperv.vendorid
        && vendor.enabled != Some(false)
    {
        let at = at.at("vendorid");
        match vendor.vendorid.parse() {
            Ok(vendor) => found.extra_device(&at, ExtraDevice::HyperV(HyperV::VendorId(vendor))),
            Err(error) => found.invalid_value(&at.at("vendorid"), &vendor.vendorid, error),
        }
    }
    // In the order of their names, each with the field that asks for it.
    let mut on: BTreeMap<&str, (HyperVFeature, Field)> = BTreeMap::new();
    let named = self::features(hyperv);
    let is_off = |feature: HyperVFeature| {
        let of_clock = (feature == HyperVFeature::Time).then_some(clock).flatten();
        let named = named.iter().find(|(named, _)| *named == feature).and_then(|(_, on)| *on);
        named.or(of_clock) == Some(false)
    };
    for &(feature, _) in named.iter().filter(|(_, on)| *on == Some(true)) {
        let field = at.at(feature.as_str());
        on.insert(feature.as_str(), (feature, field.clone()));
        for &required in feature.requires() {
            if is_off(required) {
                let off = match required {
                    HyperVFeature::Time => Field::new("spec.domain.clock.timer.hyperv"),
                    required => at.at(required.as_str()),
                };
                found.invalid(&off, format!("{field} requires it: enable it, or remove that field"));
            }
            on.entry(required.as_str()).or_insert_with(|| (required, field.clone()));
        }
    }
    for (feature, field) in on.into_values() {
        // That of the clock is added by itself.
        if feature != HyperVFeature::Time || clock != Some(true) {
            add(feature, &field, found);
        }
    }
}

pub(super) fn add(feature: HyperVFeature, at: &Field, found: &mut Findings) {
    found.extra_device(at, ExtraDevice::HyperV(HyperV::Feature(feature)));
}
