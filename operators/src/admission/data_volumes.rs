//! Templates of DataVolumes in VirtualMachines. CDI validates the DataVolumes themselves.

use serde_json::Value;
use vireo_api::v1::{DataVolumeTemplateSpec, VirtualMachine};
use vireo_client::Kind;

use crate::Problem;
use crate::data_volume::source::Source;

const TEMPLATES: &str = "dataVolumeTemplates";

/// What the templates of a VM are refused for.
pub(super) fn validate(vm: &VirtualMachine) -> Vec<Problem> {
    let templates = &vm.spec.data_volume_templates;
    let each = templates.iter().enumerate().filter_map(|(index, template)| {
        let at = format!("spec.{TEMPLATES}[{index}]");
        let name = &template.metadata.name;
        if templates.iter().take(index).any(|other| other.metadata.name == *name) && !name.is_empty() {
            return Some(Problem::duplicate(format!("{at}.metadata.name"), name));
        }
        validate_metadata(vm, template, &at).or_else(|| validate_spec(template, &vm.metadata.namespace, &at))
    });
    each.collect()
}

fn validate_metadata(vm: &VirtualMachine, template: &DataVolumeTemplateSpec, at: &str) -> Option<Problem> {
    let (name, namespace) = (&template.metadata.name, &template.metadata.namespace);
    if name.is_empty() {
        let message = "must not be empty: a volume of the template of the VMI refers to it";
        return Some(Problem::required(format!("{at}.metadata.name"), message));
    }
    if !namespace.is_empty() && *namespace != vm.metadata.namespace {
        let message = format!(
            "Embedded DataVolume namespace {namespace} differs from VM namespace {}",
            vm.metadata.namespace
        );
        return Some(Problem::invalid(format!("{at}.metadata.namespace"), message));
    }
    let volumes = vm.spec.template.iter().flat_map(|template| &template.spec.volumes);
    let mut claims = volumes.filter_map(|volume| volume.claim());
    (!claims.any(|claim| claim.name == name)).then(|| {
        let message = format!(
            "DataVolumeTemplate {name} must be referenced in the VMI template's 'volumes' list, by a dataVolume or a \
             persistentVolumeClaim"
        );
        Problem::required(at, message)
    })
}

fn validate_spec(template: &DataVolumeTemplateSpec, namespace: &str, at: &str) -> Option<Problem> {
    let spec = &template.spec;
    let has = |object: &Value, field: &str| object.get(field).is_some_and(|value| !value.is_null());
    let target = match (has(spec, "pvc"), has(spec, "storage")) {
        (true, false) => &spec["pvc"],
        (false, true) => &spec["storage"],
        (false, false) => {
            return Some(Problem::required(format!("{at}.spec.storage"), "name the storage: storage or pvc"));
        }
        (true, true) => {
            let message = "may not be given with pvc: name one of them";
            return Some(Problem::invalid(format!("{at}.spec.storage"), message));
        }
    };
    let is_external = has(target, "dataSource") || has(target, "dataSourceRef");
    match (is_external, has(spec, "source") || has(spec, "sourceRef")) {
        (true, true) => {
            let message = "External population is incompatible with source and sourceRef";
            Some(Problem::invalid(format!("{at}.spec.source"), message))
        }
        (false, false) => {
            let message =
                "name a source: source, sourceRef, or the dataSource or dataSourceRef of the storage";
            Some(Problem::required(format!("{at}.spec.source"), message))
        }
        (true, false) | (false, true) => {
            let error = Source::of(spec, namespace).err()?;
            Some(Problem::invalid(format!("{at}.{}", error.field), error.message))
        }
    }
}

/// What an object is refused for where the API server serves no DataVolumes. What is as it was is not refused.
pub fn without_data_volumes(kind: Kind, new: &Value, old: Option<&Value>) -> Option<Problem> {
    let path: &[&str] = match kind {
        Kind::VM => &["spec"],
        Kind::POOL => &["spec", "virtualMachineTemplate", "spec"],
        _ => return None,
    };
    let pointer = format!("/{}/{TEMPLATES}", path.join("/"));
    let templates = new.pointer(&pointer)?;
    let is_new = old.and_then(|old| old.pointer(&pointer)) != Some(templates);
    let is_any = templates.as_array().is_some_and(|templates| !templates.is_empty());
    (is_new && is_any).then(|| {
        let message = "there are no DataVolumes on a single host, as CDI is not there: fill a PersistentVolumeClaim \
                       with virtctl image-upload, and name it in a volume";
        Problem::unsupported(format!("{}.{TEMPLATES}", path.join(".")), message)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> Value {
        json!({
            "metadata": {"name": "root"},
            "spec": {"storage": {"resources": {"requests": {"storage": "1Gi"}}}, "source": {"blank": {}}},
        })
    }

    fn problems(templates: Value) -> Vec<(String, String)> {
        let volumes = json!([{"name": "root", "dataVolume": {"name": "root"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        let vm = json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {
            "dataVolumeTemplates": templates, "template": {"spec": {"volumes": volumes}}}});
        let found = validate(&serde_json::from_value(vm).unwrap());
        found.into_iter().map(|problem| (problem.field, problem.message)).collect()
    }

    /// The problem of a template with a change.
    fn problem(change: Value) -> (String, String) {
        let mut template = template();
        json_patch::merge(&mut template, &change);
        let mut found = problems(json!([template]));
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn templates_are_used_and_have_a_source() {
        let mut second = template();
        second["metadata"]["name"] = json!("data");
        second["metadata"]["namespace"] = json!("n");
        second["spec"] = json!({"pvc": {"dataSourceRef": {"name": "x"}}, "sourceRef": null, "later": 1});
        assert_eq!(problems(json!([template(), second])), []);
        for (change, field, message) in [
            (json!({"metadata": null}), "metadata.name", "must not be empty"),
            (json!({"metadata": {"namespace": "m"}}), "metadata.namespace", "differs from VM namespace n"),
            (
                json!({"metadata": {"name": "x"}}),
                "",
                "must be referenced in the VMI template's 'volumes' list",
            ),
            (json!({"spec": {"storage": null}}), "spec.storage", "storage or pvc"),
            (json!({"spec": {"pvc": {}}}), "spec.storage", "may not be given with pvc"),
            (
                json!({"spec": {"storage": {"dataSource": {"name": "x"}}}}),
                "spec.source",
                "External population is incompatible",
            ),
            (json!({"spec": {"source": null}}), "spec.source", "name a source"),
            (json!({"spec": {"source": {"blank": null}}}), "spec.source", "name one source"),
            (
                json!({"spec": {"source": {"http": {}}}}),
                "spec.source",
                "only one source may be given: blank, http",
            ),
            (json!({"spec": {"source": null, "sourceRef": {"kind": "X"}}}), "spec.sourceRef.kind", "\"X\""),
            (json!({"spec": null}), "spec.storage", "name the storage"),
        ] {
            let (at, why) = problem(change.clone());
            let expected = format!("spec.dataVolumeTemplates[0].{field}");
            assert_eq!(at, expected.trim_end_matches('.'), "{change}");
            assert!(why.contains(message), "{change}: {why}");
        }
        let twice = problems(json!([template(), template()]));
        let expected = ("spec.dataVolumeTemplates[1].metadata.name", "Duplicate value: \"root\"");
        assert_eq!(twice, [(expected.0.to_owned(), expected.1.to_owned())]);
    }

    #[test]
    fn without_data_volumes_there_are_no_templates() {
        let vm = json!({"spec": {"dataVolumeTemplates": [template()]}});
        let problem = without_data_volumes(Kind::VM, &vm, None).unwrap();
        assert_eq!(problem.field, "spec.dataVolumeTemplates");
        assert_eq!(without_data_volumes(Kind::VM, &vm, Some(&vm)), None, "it was stored before");
        let pool = json!({"spec": {"virtualMachineTemplate": vm}});
        let problem = without_data_volumes(Kind::POOL, &pool, None).unwrap();
        assert_eq!(problem.field, "spec.virtualMachineTemplate.spec.dataVolumeTemplates");
        for none in [json!({"spec": {"dataVolumeTemplates": []}}), json!({"spec": {}})] {
            assert_eq!(without_data_volumes(Kind::VM, &none, None), None);
        }
        assert_eq!(without_data_volumes(Kind::VMI, &vm, None), None);
    }
}
