//! Type checks and pruning of objects before defaulting.

use serde_json::Value;

use super::Resource;
use crate::schema::Findings;
use crate::schema::prune::Walk;
use crate::schema::structural;

impl Resource {
    /// Checks an object of a core kind or of a CustomResourceDefinition's, and takes out of it what is unknown. Other
    /// kinds keep what is unknown and are validated when they are admitted.
    pub fn check(&self, object: &mut Value) -> Findings {
        let mut findings = Findings::default();
        let definitions = self.definitions;
        if let Some(custom) = &self.custom {
            structural::prune(&custom.schema, object, "", &mut findings.unknown);
        }
        let mut walk = Walk { definitions, findings };
        match definitions.get(&self.kind) {
            Some(definition) if self.is_kubernetes() => walk.check(definition, object, ""),
            _ => {
                if let (Some(definition), Some(metadata)) =
                    (definitions.get("ObjectMeta"), object.get_mut("metadata"))
                {
                    walk.check(definition, metadata, "metadata");
                }
            }
        }
        walk.findings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::resource::{CONFIG_MAPS, KUBERNETES, kubernetes};

    #[test]
    fn core_kinds_are_checked_and_pruned() {
        let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "odd": 1, "data": {"a": "b", "c": 1},
            "metadata": {"name": "x", "labels": {"a": true}, "strange": {}, "generation": null}});
        let findings = CONFIG_MAPS.check(&mut map);
        assert_eq!(
            findings.mistyped,
            ["data.c: must be of type string", "metadata.labels.a: must be of type string"]
        );
        assert_eq!(findings.unknown, ["odd", "metadata.strange"]);
        assert_eq!(map["metadata"], json!({"name": "x", "labels": {"a": true}}));
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_kind_has_a_definition() {
        assert_eq!(KUBERNETES.undefined(), [""; 0]);
        for row in kubernetes() {
            assert!(KUBERNETES.get(&row.kind).is_some(), "{}", row.kind);
        }
    }

    #[test]
    fn every_definition_field_and_column_has_a_description() {
        assert_eq!(KUBERNETES.undescribed(), [""; 0]);
        for row in kubernetes() {
            assert_eq!(row.undescribed_columns(), [""; 0], "{}", row.kind);
        }
    }
}
