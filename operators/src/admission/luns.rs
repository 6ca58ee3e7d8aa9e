//! LUNs, which are block devices.

use serde_json::Value;
use vireo_client::Kind;

use super::host_paths::Instance;
use super::networks::changed;
use crate::Problem;

/// Why there are no LUNs where claims are files.
const NO_LUN: &str = "Unsupported value: lun: the claims of a single host are files, which take no SCSI commands: use disk: {}";

/// What an object is refused for where claims are files. What is as it was is not refused.
pub fn without_block_devices(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<Problem> {
    let Some(instance) = Instance::of(kind, new, old) else { return Vec::new() };
    let luns = changed(&instance, "domain.devices.disks").filter(|(_, disk)| disk["lun"].is_object());
    luns.map(|(field, _)| Problem::unsupported(format!("{field}.lun"), NO_LUN)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_single_host_has_no_luns() {
        let vmi = json!({"spec": {"domain": {"devices": {"disks": [{"name": "a", "disk": {}}, {"name": "b", "lun": {}}]}}}});
        let found = without_block_devices(Kind::VMI, &vmi, None);
        let fields: Vec<_> = found.into_iter().map(|problem| problem.field).collect();
        assert_eq!(fields, ["spec.domain.devices.disks[1].lun"]);
        assert_eq!(without_block_devices(Kind::VMI, &vmi, Some(&vmi)), [], "it was stored before");
    }
}
