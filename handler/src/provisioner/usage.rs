//! Which claims a VirtualMachineInstance uses.

use serde_json::Value;
use vireo_api::v1::Volume;

use crate::reconcile::status::Phase;

/// The part of a VMI that determines which claims it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimUsers {
    /// Its phase.
    pub phase: Phase,
    claims: Vec<String>,
}

impl ClaimUsers {
    /// Reads a VMI.
    pub fn of(vmi: &Value) -> Self {
        let list = |at: &str| vmi.pointer(at).and_then(Value::as_array).into_iter().flatten();
        let named = |volume: &Value| {
            let volume: Volume = serde_json::from_value(volume.clone()).ok()?;
            let dump = volume.memory_dump.as_deref().map(|dump| dump.claim_name.as_str());
            Some(volume.used_claim().map(|claim| claim.name).or(dump)?.to_owned())
        };
        // An unplugged volume is in use until the guest has released it.
        let plugged = |volume: &Value| {
            Some(volume.pointer("/persistentVolumeClaimInfo/claimName")?.as_str()?.to_owned())
        };
        let claims = list("/spec/volumes").filter_map(named);
        let claims = claims.chain(list("/status/volumeStatus").filter_map(plugged)).collect();
        let phase = vmi.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
        Self { phase: Phase::parse(phase), claims }
    }

    /// Whether it uses a claim of its namespace. A VMI that has ended uses none.
    pub fn uses(&self, claim: &str) -> bool {
        !self.phase.is_final() && self.claims.iter().any(|name| name == claim)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_used_by_volumes_and_by_what_is_still_plugged() {
        let vmi = |phase: &str| {
            json!({
                "spec": {"volumes": [{"name": "a", "emptyDisk": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "m", "memoryDump": {"claimName": "dumps"}}, {"name": "l", "ephemeral": {"persistentVolumeClaim": {"claimName": "base"}}}]},
                "status": {"phase": phase, "volumeStatus": [{"name": "c", "persistentVolumeClaimInfo": {"claimName": "old"}}]},
            })
        };
        let running = ClaimUsers::of(&vmi("Running"));
        assert!(running.uses("dumps"));
        assert!(running.uses("data") && running.uses("base") && running.uses("old") && !running.uses("a"));
        assert!(!ClaimUsers::of(&vmi("Succeeded")).uses("data"));
        assert!(!ClaimUsers::of(&json!({})).uses("data"));
    }
}
