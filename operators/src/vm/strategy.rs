use std::fmt;

use serde_json::{Value, json};
use vireo_api::v1::VirtualMachineSpec;

/// When a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStrategy {
    /// At all times.
    Always,
    /// Never.
    Halted,
    /// When it is asked to.
    Manual,
    /// When it is asked to, and again after a failure.
    RerunOnFailure,
    /// Until it ends for the first time.
    Once,
}

/// A spec that says no run strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// Two ways to say it.
    #[error("spec.running and spec.runStrategy exclude each other: leave spec.running out")]
    Both,
    /// Of a cluster that migrates VMs in from another one.
    #[error("spec.runStrategy: WaitAsReceiver needs migration between clusters, which there is not yet")]
    Receiver,
    /// None there is.
    #[error("spec.runStrategy: {0:?} is none of Always, Halted, Manual, RerunOnFailure and Once")]
    Unknown(String),
}

impl RunStrategy {
    const ALL: [Self; 5] = [Self::Always, Self::Halted, Self::Manual, Self::RerunOnFailure, Self::Once];

    /// What a spec says; nothing said is `Halted`.
    pub fn of(spec: &VirtualMachineSpec) -> Result<Self, StrategyError> {
        match (spec.running, spec.run_strategy.as_deref()) {
            (Some(_), Some(_)) => Err(StrategyError::Both),
            (Some(true), None) => Ok(Self::Always),
            (Some(false), None) | (None, None) => Ok(Self::Halted),
            (None, Some("WaitAsReceiver")) => Err(StrategyError::Receiver),
            (None, Some(text)) => {
                let found = Self::ALL.into_iter().find(|strategy| strategy.as_str() == text);
                found.ok_or_else(|| StrategyError::Unknown(text.to_owned()))
            }
        }
    }

    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Halted => "Halted",
            Self::Manual => "Manual",
            Self::RerunOnFailure => "RerunOnFailure",
            Self::Once => "Once",
        }
    }

    /// Says it in a spec, in the form that the spec has it in.
    pub(super) fn write(self, spec: &mut VirtualMachineSpec) {
        match (self, &mut spec.running) {
            (Self::Always, Some(running)) => *running = true,
            (Self::Halted, Some(running)) => *running = false,
            (_, running) => {
                *running = None;
                spec.run_strategy = Some(self.as_str().to_owned());
            }
        }
    }

    /// Sets it in a VM as JSON: in `spec.running` where that is set and can express it, else in `spec.runStrategy`.
    pub fn set(self, vm: &mut Value) {
        let running = vm.pointer("/spec/running").is_some_and(Value::is_boolean);
        match (running, self) {
            (true, Self::Always) => vm["spec"]["running"] = json!(true),
            (true, Self::Halted) => vm["spec"]["running"] = json!(false),
            _ => vm["spec"]["runStrategy"] = json!(self.as_str()),
        }
    }

    /// Whether starts that fail are tried less and less often.
    pub(super) fn backs_off(self) -> bool {
        matches!(self, Self::Always | Self::RerunOnFailure | Self::Once)
    }

    /// Whether it starts a VM by itself when it was chosen, and then not again.
    pub(super) fn starts_when_chosen(self) -> bool {
        matches!(self, Self::RerunOnFailure | Self::Once)
    }
}

impl fmt::Display for RunStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
