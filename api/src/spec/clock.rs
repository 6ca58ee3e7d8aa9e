//! The clocks and timers of a guest.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use vireo_vmconfig::{ExtraDevice, HyperVFeature, PlatformFeature};

use super::report::Findings;
use super::{Field, hyperv};
use crate::v1;

/// The largest offset in seconds: ten years.
const LARGEST_OFFSET: i64 = 10 * 366 * 24 * 3600;

/// What the real-time clock shows when a VM starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clock {
    /// So many seconds more than UTC.
    Offset(i64),
    /// The local time of a time zone of the IANA's database.
    Local(String),
}

impl Default for Clock {
    fn default() -> Self {
        Self::Offset(0)
    }
}

impl Clock {
    /// How many seconds it is ahead of UTC at a time.
    pub fn offset(&self, at: Timestamp) -> i64 {
        match self {
            Self::Offset(seconds) => *seconds,
            Self::Local(zone) => TimeZone::get(zone).map_or(0, |zone| zone.to_offset(at).seconds().into()),
        }
    }
}

/// Reads the clock and its timers.
pub(super) fn read(domain: &v1::DomainSpec, found: &mut Findings) -> Clock {
    let Some(clock) = domain.clock.as_deref() else { return Clock::default() };
    let at = Field::new("spec.domain.clock");
    timers(clock.timer.as_ref(), &at.at("timer"), found);
    let zone = clock.timezone.as_deref().filter(|zone| !zone.is_empty());
    if clock.utc.is_some() && zone.is_some() {
        found.invalid(&at, "has both utc and timezone: keep one");
    }
    if let Some(zone) = zone {
        if TimeZone::get(zone).is_err() {
            let detail = "must be a time zone of the IANA's database, such as Europe/Paris";
            found.invalid_value(&at.at("timezone"), zone, detail);
        }
        return Clock::Local(zone.to_owned());
    }
    let offset = clock.utc.as_ref().and_then(|utc| utc.offset_seconds).unwrap_or(0);
    if !(-LARGEST_OFFSET..=LARGEST_OFFSET).contains(&offset) {
        let detail = format!("must be between {} and {LARGEST_OFFSET}, inclusive", -LARGEST_OFFSET);
        found.invalid_value(&at.at("utc").at("offsetSeconds"), offset, detail);
    }
    Clock::Offset(offset)
}

/// Whether a manifest has the Hyper-V reference clock, if it says so.
pub(super) fn has_hyperv(domain: &v1::DomainSpec) -> Option<bool> {
    let timer = domain.clock.as_ref()?.timer.as_ref()?.hyperv.as_ref()?;
    Some(timer.present != Some(false))
}

fn timers(timer: Option<&v1::Timer>, at: &Field, found: &mut Findings) {
    let Some(timer) = timer else { return };
    let absent = |present: Option<bool>| present == Some(false);
    let platform = |found: &mut Findings, at: &Field, feature| {
        found.extra_device(at, ExtraDevice::Platform(feature));
    };
    if let Some(hpet) = &timer.hpet {
        let at = at.at("hpet");
        match hpet.present {
            Some(false) => platform(found, &at, PlatformFeature::HpetOff),
            _ => found.extra_device(&at, ExtraDevice::Hpet),
        }
        policy(&hpet.tick_policy, &["catchup", "delay", "discard", "merge"], &at, found);
        let why = "an HPET has no choice of what becomes of lost ticks";
        found.notice_if(!hpet.tick_policy.is_empty(), &at.at("tickPolicy"), why);
    }
    if let Some(pit) = &timer.pit {
        let at = at.at("pit");
        if absent(pit.present) {
            platform(found, &at.at("present"), PlatformFeature::PitOff);
        }
        policy(&pit.tick_policy, &["delay", "discard"], &at, found);
        if pit.tick_policy == "discard" {
            platform(found, &at.at("tickPolicy"), PlatformFeature::PitDiscardsTicks);
        }
    }
    if let Some(rtc) = &timer.rtc {
        let at = at.at("rtc");
        found.refuse_if(absent(rtc.present), &at.at("present"), "a VM without RTC");
        policy(&rtc.tick_policy, &["catchup", "delay"], &at, found);
        if rtc.tick_policy == "catchup" {
            platform(found, &at.at("tickPolicy"), PlatformFeature::RtcCatchesUp);
        }
        match rtc.track.as_str() {
            "" | "wall" => {}
            "guest" => platform(found, &at.at("track"), PlatformFeature::RtcTracksGuest),
            other => found.unsupported_value(&at.at("track"), other, &["guest", "wall"]),
        }
    }
    if let Some(kvm) = &timer.kvm
        && absent(kvm.present)
    {
        platform(found, &at.at("kvm").at("present"), PlatformFeature::KvmClockOff);
    }
    if let Some(clock) = &timer.hyperv
        && !absent(clock.present)
    {
        hyperv::add(HyperVFeature::Time, &at.at("hyperv"), found);
    }
}

fn policy(policy: &str, policies: &[&str], at: &Field, found: &mut Findings) {
    if !policy.is_empty() && !policies.contains(&policy) {
        found.unsupported_value(&at.at("tickPolicy"), policy, policies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_time_is_that_of_the_season() {
        let paris = Clock::Local("Europe/Paris".to_owned());
        for (time, offset) in [("2026-01-01T00:00:00Z", 3600), ("2026-07-01T00:00:00Z", 7200)] {
            assert_eq!(paris.offset(time.parse().unwrap()), offset, "{time}");
        }
        assert_eq!(Clock::Offset(-7).offset(Timestamp::UNIX_EPOCH), -7);
    }
}
