use std::time::Duration;

use vireo_vmconfig::{RebootPolicy, UnknownName};

use super::Field;
use super::report::Findings;
use crate::v1;

/// How long a guest may take to shut down where a manifest sets none.
const GRACE: i64 = 30;

/// How a VM starts and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    start_paused: bool,
    grace_period: Duration,
    eviction: EvictionStrategy,
    reboot: RebootPolicy,
}

/// What happens to a VM on a node that is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionStrategy {
    /// It is shut down.
    None,
    /// It moves, or stays in the way.
    LiveMigrate,
    /// It moves if it can, else it is shut down.
    LiveMigrateIfPossible,
    /// Another controller evicts it (`External`).
    External,
}

impl Lifecycle {
    /// The CPUs wait for an unpause.
    pub fn start_paused(&self) -> bool {
        self.start_paused
    }

    /// How long the guest may take to shut down; zero: it is killed at once.
    pub fn grace_period(&self) -> Duration {
        self.grace_period
    }

    /// What happens on a node that is emptied.
    pub fn eviction(&self) -> EvictionStrategy {
        self.eviction
    }

    /// What a reboot does.
    pub fn reboot(&self) -> RebootPolicy {
        self.reboot
    }
}

pub(super) fn read(spec: &v1::VirtualMachineInstanceSpec, found: &mut Findings) -> Lifecycle {
    let at = Field::new("spec");
    let start = at.at("startStrategy");
    let start_paused = match spec.start_strategy.as_deref() {
        None => false,
        Some("Paused") => {
            if spec.liveness_probe.is_some() {
                found.invalid(&start, "conflicts with livenessProbe: a paused VM does not respond to it");
            }
            true
        }
        Some(other) => {
            found.unsupported_value(&start, other, &["Paused"]);
            false
        }
    };
    let grace = spec.termination_grace_period_seconds.unwrap_or(GRACE);
    let seconds = u64::try_from(grace).ok();
    if seconds.is_none() {
        found.invalid(&at.at("terminationGracePeriodSeconds"), format!("{grace} is negative: count from 0"));
    }
    let eviction = match spec.eviction_strategy.as_deref() {
        None | Some("None") => EvictionStrategy::None,
        Some("LiveMigrate") => EvictionStrategy::LiveMigrate,
        Some("LiveMigrateIfPossible") => EvictionStrategy::LiveMigrateIfPossible,
        Some("External") => EvictionStrategy::External,
        Some(other) => {
            let supported = ["External", "LiveMigrate", "LiveMigrateIfPossible", "None"];
            found.unsupported_value(&at.at("evictionStrategy"), other, &supported);
            EvictionStrategy::None
        }
    };
    let reboot = spec.domain.reboot_policy.as_deref().map_or(Ok(RebootPolicy::default()), str::parse);
    let reboot = reboot.unwrap_or_else(|UnknownName { supported }| {
        let given = spec.domain.reboot_policy.as_deref().unwrap_or_default();
        found.unsupported_value(&at.at("domain.rebootPolicy"), given, supported);
        RebootPolicy::default()
    });
    Lifecycle { start_paused, grace_period: Duration::from_secs(seconds.unwrap_or(0)), eviction, reboot }
}
