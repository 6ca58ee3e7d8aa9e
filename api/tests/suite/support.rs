//! The table of fields against the schema, and against what is done with a VMI that sets each of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use vireo_api::decode;
use vireo_api::spec::{
    Field, FieldSupport, HypervisorChoice, Runner, SUPPORT_TABLE, Support, Vm, support_markdown,
};
use vireo_api::v1::{Shape as _, VirtualMachineInstance, VirtualMachineInstanceSpec};

/// Leaves of KubeVirt's VirtualMachineInstanceSpec, where Kubernetes' own types count as one each.
const UPSTREAM_LEAVES: usize = 294;
/// Types of Kubernetes, and an empty object of KubeVirt that has a field here.
const OPAQUE: [&str; 4] = [
    "affinity",
    "tolerations[]",
    "topologySpreadConstraints[]",
    "accessCredentials[].userPassword.propagationMethod.qemuGuestAgent",
];

/// Fields that KubeVirt does not have there: the types are shared.
const NOT_UPSTREAM: [&str; 3] = [
    "accessCredentials[].userPassword.propagationMethod.configDrive",
    "accessCredentials[].userPassword.propagationMethod.noCloud",
    "volumes[].ephemeral.persistentVolumeClaim.hotpluggable",
];

/// Adds the leaves at and below `at`, with their types.
fn walk(
    schema: &Value,
    at: &str,
    definitions: &BTreeMap<String, Value>,
    leaves: &mut BTreeMap<String, String>,
) {
    let name = schema.get("$ref").and_then(Value::as_str);
    let schema = name.map_or(schema, |name| &definitions[name]);
    let properties = schema.get("properties").and_then(Value::as_object).filter(|known| !known.is_empty());
    if let Some(items) = schema.get("items").filter(|_| !OPAQUE.contains(&at)) {
        return walk(items, &format!("{at}[]"), definitions, leaves);
    }
    match properties.filter(|_| !OPAQUE.contains(&at)) {
        Some(properties) => {
            for (name, schema) in properties {
                let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                walk(schema, &at, definitions, leaves);
            }
        }
        None if schema.get("additionalProperties").is_some() => {
            leaves.insert(format!("{at}{{}}"), "map".to_owned());
        }
        None => {
            let kind = schema.get("type").and_then(Value::as_str).unwrap_or("quantity");
            leaves.insert(at.to_owned(), kind.to_owned());
        }
    }
}

/// The leaves of the schema that clients get.
fn leaves() -> BTreeMap<String, String> {
    let (mut definitions, mut leaves) = (BTreeMap::new(), BTreeMap::new());
    let schema = VirtualMachineInstanceSpec::schema(&mut definitions);
    walk(&schema, "", &definitions, &mut leaves);
    for leaf in NOT_UPSTREAM {
        assert!(leaves.remove(leaf).is_some(), "{leaf}");
    }
    leaves
}

/// Lays `more` over `value`: objects by field, lists by position.
fn lay(value: &mut Value, more: &Value) {
    match (value, more) {
        (Value::Object(fields), Value::Object(more)) => {
            for (name, more) in more {
                lay(fields.entry(name.clone()).or_insert(Value::Null), more);
            }
        }
        (Value::Array(elements), Value::Array(more)) => {
            for (index, more) in more.iter().enumerate() {
                if index == elements.len() {
                    elements.push(Value::Null);
                }
                lay(&mut elements[index], more);
            }
        }
        (value, more) => *value = more.clone(),
    }
}

/// The value at a leaf, in the objects and lists that lead to it.
fn nested(leaf: &str, value: Value) -> Value {
    leaf.rsplit('.').fold(value, |inner, part| match (part.strip_suffix("[]"), part.strip_suffix("{}")) {
        (Some(name), _) => json!({ name: [inner] }),
        (_, Some(name)) => json!({ name: inner }),
        _ => json!({ part: inner }),
    })
}

/// What a leaf needs beside itself, by its first characters: all that match count, in this order.
fn contexts() -> Vec<(&'static str, Value)> {
    let disks = |disk: Value| {
        json!({"domain": {"devices": {"disks": [disk]}},
            "volumes": [{"name": "a", "emptyDisk": {"capacity": "1Gi"}}]})
    };
    let disk = || disks(json!({"name": "a"}));
    let interface = |binding: &str| {
        json!({"domain": {"devices": {"interfaces": [{"name": "default", (binding): {}}]}},
            "networks": [{"name": "default", "pod": {}}]})
    };
    let bindings = ["masquerade", "bridge", "macvtap", "slirp", "passt", "passtBinding", "sriov"];
    let own = bindings.map(|binding| (binding, interface(binding)));
    let virtual_function = json!({"domain": {"devices": {"interfaces": [{"name": "default", "sriov": {}}]}},
        "networks": [{"name": "default", "multus": {"networkName": "lan"}}]});
    let domain = |domain: Value| json!({ "domain": domain });
    let devices = |devices: Value| domain(json!({ "devices": devices }));
    let network = |source: Value| {
        json!({"domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}]}},
            "networks": [{"name": "default", (source[0].as_str().unwrap()): source[1]}]})
    };
    let kernel = json!({"image": "example.com/linux:1", "kernelPath": "/boot/vmlinuz"});
    let in_huge_pages =
        json!({"cpu": {"dedicatedCpuPlacement": true}, "memory": {"hugepages": {"pageSize": "2Mi"}}});
    let mut contexts = vec![
        ("domain.devices.disks[]", disk()),
        ("domain.devices.disks[].blockSize", disks(json!({"disk": {"bus": "virtio"}}))),
        ("domain.devices.disks[].dedicatedIOThread", disks(json!({"disk": {"bus": "virtio"}}))),
        ("domain.devices.disks[].disk.pciAddress", disks(json!({"disk": {"bus": "virtio"}}))),
        ("domain.devices.disks[].disk.readonly", disks(json!({"disk": {"bus": "virtio"}}))),
        (
            "domain.devices.disks[].blockSize.custom",
            disks(json!({"blockSize": {"custom": {"logical": 512, "physical": 4096}}})),
        ),
        (
            "domain.devices.disks[].lun",
            json!({"volumes": [{"emptyDisk": null,
            "persistentVolumeClaim": {"claimName": "c"}}]}),
        ),
        (
            "domain.devices.disks[].shareable",
            json!({"volumes": [{"emptyDisk": null, "persistentVolumeClaim": {"claimName": "c"}}]}),
        ),
        (
            "domain.devices.inputs[]",
            devices(json!({"inputs": [{"name": "t", "type": "tablet", "bus": "virtio"}]})),
        ),
        ("domain.devices.sound", devices(json!({"sound": {"name": "s"}}))),
        // Through BIOS, QEMU alone starts from a network.
        (
            "domain.devices.interfaces[].bootOrder",
            domain(json!({"firmware": {"bootloader": {"efi": {"secureBoot": false}}}})),
        ),
        ("domain.devices.watchdog.name", devices(json!({"watchdog": {"i6300esb": {}}}))),
        ("domain.devices.watchdog", devices(json!({"watchdog": {"name": "w"}}))),
        ("domain.devices.gpus[]", devices(json!({"gpus": [{"name": "g", "deviceName": "example.com/g"}]}))),
        (
            "domain.devices.hostDevices[]",
            devices(json!({"hostDevices": [{"name": "h", "deviceName": "example.com/h"}]})),
        ),
        ("domain.devices.filesystems[]", devices(json!({"filesystems": [{"name": "x", "virtiofs": {}}]}))),
        ("domain.devices.filesystems[]", json!({"volumes": [{"name": "x", "configMap": {"name": "c"}}]})),
        (
            "domain.devices.interfaces[].dhcpOptions.privateOptions[]",
            devices(json!({"interfaces": [
            {"dhcpOptions": {"privateOptions": [{"option": 224, "value": "x"}]}}]})),
        ),
        (
            "domain.devices.interfaces[].portRanges[]",
            devices(json!({"interfaces": [{"portRanges": [{"protocol": "TCP", "start": 1, "end": 1}]}]})),
        ),
        ("domain.devices.interfaces[].ports[]", devices(json!({"interfaces": [{"ports": [{"port": 80}]}]}))),
        ("domain.ioThreads", domain(json!({"ioThreadsPolicy": "supplementalPool"}))),
        ("domain.cpu.features[]", domain(json!({"cpu": {"features": [{"name": "aes"}]}}))),
        ("domain.cpu.isolateEmulatorThread", domain(json!({"cpu": {"dedicatedCpuPlacement": true}}))),
        ("domain.cpu.numa", domain(in_huge_pages.clone())),
        ("domain.cpu.realtime", domain(in_huge_pages)),
        ("domain.cpu.realtime", domain(json!({"cpu": {"numa": {"guestMappingPassthrough": {}}}}))),
        (
            "domain.features.hyperv.vendorid",
            domain(json!({"features": {"hyperv": {"vendorid": {"vendorid": "v"}}}})),
        ),
        (
            "domain.firmware.bootloader.efi.persistent",
            domain(json!({"firmware": {"bootloader": {"efi": {"secureBoot": false}}}})),
        ),
        ("domain.firmware.bootloader.efi.secureBoot", domain(json!({"features": {"smm": {}}}))),
        ("domain.firmware.kernelBoot", domain(json!({"firmware": {"kernelBoot": {"container": kernel}}}))),
        (
            "domain.firmware.acpi",
            json!({"volumes": [{"name": "tables", "secret": {"secretName": "tables"}}]}),
        ),
        ("dnsConfig.options[]", json!({"dnsConfig": {"options": [{"name": "ndots"}]}})),
        ("networks[].name", interface("masquerade")),
        ("networks[].pod", interface("masquerade")),
        ("networks[].multus", network(json!(["multus", {"networkName": "lan"}]))),
        ("networks[].resourceClaim", network(json!(["resourceClaim", {"claimName": "c"}]))),
        (
            "accessCredentials[].sshPublicKey",
            json!({"accessCredentials": [{"sshPublicKey": {"source": {"secret": {"secretName": "s"}}}}]}),
        ),
        (
            "accessCredentials[].sshPublicKey.source",
            json!({"accessCredentials": [{"sshPublicKey":
                {"propagationMethod": {"qemuGuestAgent": {"users": ["ada"]}}}}]}),
        ),
        (
            "accessCredentials[].sshPublicKey.propagationMethod.noCloud",
            json!({"volumes": [{"name": "a", "cloudInitNoCloud": {"userData": "x"}}]}),
        ),
        (
            "accessCredentials[].sshPublicKey.propagationMethod.configDrive",
            json!({"volumes": [{"name": "a", "cloudInitConfigDrive": {"userData": "x"}}]}),
        ),
        (
            "accessCredentials[].userPassword",
            json!({"accessCredentials": [{"userPassword": {"source": {"secret": {"secretName": "s"}},
                "propagationMethod": {"qemuGuestAgent": {}}}}]}),
        ),
        ("resourceClaims[]", json!({"resourceClaims": [{"name": "c"}]})),
        ("utilityVolumes[]", json!({"utilityVolumes": [{"name": "u"}]})),
        ("volumes[]", json!({"volumes": [{"name": "a"}]})),
        ("volumes[].name", json!({"volumes": [{"emptyDisk": {"capacity": "1Gi"}}]})),
        ("volumes[].downwardMetrics", disks(json!({"name": "a", "disk": {"bus": "virtio"}}))),
        ("volumes[].downwardMetrics", json!({"volumes": [{"emptyDisk": null}]})),
        ("volumes[].containerDisk", json!({"volumes": [{"containerDisk": {"image": "example.com/d:1"}}]})),
        (
            "volumes[].hostDisk",
            json!({"volumes": [{"hostDisk": {"path": "/a.img", "type": "DiskOrCreate", "capacity": "1Gi"}}]}),
        ),
        (
            "volumes[].persistentVolumeClaim",
            json!({"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}),
        ),
        (
            "volumes[].persistentVolumeClaim.hotpluggable",
            disks(json!({"name": "a", "disk": {"bus": "scsi"}})),
        ),
        ("volumes[].persistentVolumeClaim.hotpluggable", json!({"volumes": [{"emptyDisk": null}]})),
        ("volumes[].persistentVolumeClaim.readOnly", disks(json!({"name": "a", "disk": {"bus": "virtio"}}))),
        ("volumes[].persistentVolumeClaim.readOnly", json!({"volumes": [{"emptyDisk": null}]})),
        ("volumes[].memoryDump", json!({"volumes": [{"memoryDump": {"claimName": "c"}}]})),
        (
            "volumes[].ephemeral",
            json!({"volumes": [{"ephemeral": {"persistentVolumeClaim": {"claimName": "c"}}}]}),
        ),
        ("volumes[].dataVolume", json!({"volumes": [{"dataVolume": {"name": "d"}}]})),
        ("volumes[].dataVolume.hotpluggable", disks(json!({"name": "a", "disk": {"bus": "scsi"}}))),
        ("volumes[].dataVolume.hotpluggable", json!({"volumes": [{"emptyDisk": null}]})),
        ("volumes[].configMap", json!({"volumes": [{"configMap": {"name": "c"}}]})),
        ("volumes[].secret", json!({"volumes": [{"secret": {"secretName": "s"}}]})),
        (
            "volumes[].downwardAPI.volumeLabel",
            json!({"volumes": [{"downwardAPI": {"fields": [
            {"path": "f", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}),
        ),
        (
            "volumes[].downwardAPI.fields[].",
            json!({"volumes": [{"downwardAPI": {"fields": [{"path": "f"}]}}]}),
        ),
        (
            "volumes[].downwardAPI.fields[].fieldRef",
            json!({"volumes": [{"downwardAPI": {"fields": [{"fieldRef": {"fieldPath": "metadata.name"}}]}}]}),
        ),
        (
            "volumes[].downwardAPI.fields[].mode",
            json!({"volumes": [{"downwardAPI": {"fields": [{"fieldRef": {"fieldPath": "metadata.name"}}]}}]}),
        ),
        (
            "volumes[].downwardAPI.fields[].path",
            json!({"volumes": [{"downwardAPI": {"fields": [{"fieldRef": {"fieldPath": "metadata.name"}}]}}]}),
        ),
        (
            "volumes[].downwardAPI.fields[].resourceFieldRef",
            json!({"volumes": [{"downwardAPI": {"fields": [
            {"resourceFieldRef": {"containerName": "compute", "resource": "limits.memory"}}]}}]}),
        ),
        (
            "volumes[].containerPath",
            json!({"domain": {"devices": {"filesystems": [{"name": "a", "virtiofs": {}}]}},
                "volumes": [{"containerPath": {"path": "/p"}}]}),
        ),
        ("volumes[].sysprep", json!({"volumes": [{"name": "a"}]})),
    ];
    for (binding, context) in own {
        contexts.push(match binding {
            "masquerade" => ("domain.devices.interfaces[]", context),
            "bridge" => ("domain.devices.interfaces[].bridge", context),
            "macvtap" => ("domain.devices.interfaces[].macvtap", context),
            "slirp" => ("domain.devices.interfaces[].slirp", context),
            "passt" => ("domain.devices.interfaces[].passt", context),
            "passtBinding" => ("domain.devices.interfaces[].passtBinding", context),
            _ => ("domain.devices.interfaces[].sriov", virtual_function.clone()),
        });
    }
    for probe in ["livenessProbe", "readinessProbe"] {
        let context = |of: &str, spec: Value| (of.to_owned(), json!({ probe: spec }));
        let mut of = vec![
            context("httpGet", json!({"httpGet": {"port": 80}})),
            context("tcpSocket", json!({"tcpSocket": {"port": 80}})),
            context(
                "httpGet.httpHeaders",
                json!({"httpGet": {"httpHeaders": [{"name": "a", "value": "b"}]}}),
            ),
        ];
        for name in
            ["failureThreshold", "initialDelaySeconds", "periodSeconds", "successThreshold", "timeoutSeconds"]
        {
            of.push(context(name, json!({"tcpSocket": {"port": 80}})));
        }
        contexts.extend(of.into_iter().map(|(of, context)| (&*format!("{probe}.{of}").leak(), context)));
    }
    contexts
}

/// The values of leaves that do not take any of their type.
fn values() -> Map<String, Value> {
    serde_json::from_str(include_str!("support_values.json")).unwrap()
}

/// A VMI that sets a leaf, and as little as possible beside it.
fn sample(leaf: &str, kind: &str) -> Value {
    let value = values().get(leaf).cloned().unwrap_or_else(|| match kind {
        "boolean" => json!(true),
        "integer" => json!(1),
        "string" => json!("x"),
        "quantity" => json!("1Gi"),
        _ => json!({}),
    });
    let mut spec = json!({"domain": {"memory": {"guest": "256Mi"}}});
    for (prefix, context) in contexts() {
        if leaf.starts_with(prefix) {
            lay(&mut spec, &context);
        }
    }
    let binding = leaf.strip_prefix("domain.devices.interfaces[].");
    let is_binding = binding.is_some_and(|binding| {
        matches!(
            binding,
            "binding.name" | "bridge" | "macvtap" | "slirp" | "passt" | "passtBinding" | "sriov"
        )
    });
    if is_binding && let Some(fields) = spec.pointer_mut("/domain/devices/interfaces/0") {
        fields.as_object_mut().map(|fields| fields.remove("masquerade"));
        // It begins as another one does.
        if binding == Some("passtBinding") {
            fields.as_object_mut().map(|fields| fields.remove("passt"));
        }
    }
    // Virtual functions are on no network of Pods.
    if binding == Some("sriov")
        && let Some(network) = spec.pointer_mut("/networks/0").and_then(Value::as_object_mut)
    {
        network.remove("pod");
    }
    lay(&mut spec, &nested(leaf, value));
    let metadata = json!({"name": "x", "namespace": "n", "uid": "5d307ca9-b3ef-428c-8861-06e72d69f223"});
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata, "spec": spec})
}

/// The path of a leaf in its sample.
fn path(leaf: &str) -> Field {
    let leaf = leaf.strip_suffix("{}").unwrap_or(leaf);
    Field::new(format!("spec.{}", leaf.replace("[]", "[0]")))
}

/// What is done with the sample of a leaf, in words; `None` if it is as the table has it.
fn difference(support: &FieldSupport, kind: &str) -> Option<String> {
    let sample = sample(support.path, kind);
    let text = sample["spec"].to_string();
    let decoded = decode::object::<VirtualMachineInstance>(sample);
    let read: Result<Vm, _> = decoded.check_request();
    let at = path(support.path);
    let names = |field: &Field| field.is_within(&at) || at.is_within(field) && field.as_str() != "spec";
    let found = match &read {
        Err(report) if report.problems().iter().any(|problem| names(problem.field())) => Support::Refused,
        Err(report) => return Some(format!("{}: {text}: refused for another field: {report}", support.path)),
        Ok(vm) if vm.notices().iter().any(|notice| names(notice.field())) => Support::NoEffect,
        Ok(vm) if !vm.notices().is_empty() => {
            return Some(format!("{}: {text}: another notice: {:?}", support.path, vm.notices()));
        }
        Ok(vm) => match Runner::of(vm, HypervisorChoice::Auto, true) {
            Runner::Native => Support::Both,
            Runner::Qemu | Runner::Emulated => Support::Qemu,
        },
    };
    let detail = read.err().map(|report| report.to_string()).unwrap_or_default();
    (found != support.support)
        .then(|| format!("{}: {found:?}, not {:?}: {text} {detail}", support.path, support.support))
}

#[test]
fn the_table_has_every_field_of_the_api_once() {
    let known = leaves();
    let listed: Vec<&str> =
        SUPPORT_TABLE.iter().flat_map(|section| section.fields).map(|support| support.path).collect();
    let known: BTreeSet<&str> = known.keys().map(String::as_str).collect();
    let unique: BTreeSet<&str> = listed.iter().copied().collect();
    let missing: Vec<_> = known.difference(&unique).collect();
    let unknown: Vec<_> = unique.difference(&known).collect();
    assert_eq!(
        (missing, unknown),
        (vec![], vec![]),
        "fields that only the API has, and that only the table has"
    );
    assert_eq!((listed.len(), unique.len()), (UPSTREAM_LEAVES, UPSTREAM_LEAVES));
}

#[test]
fn every_field_is_treated_as_the_table_says() {
    let known = leaves();
    let all = SUPPORT_TABLE.iter().flat_map(|section| section.fields);
    let differences: Vec<String> =
        all.filter_map(|support| difference(support, known.get(support.path)?)).collect();
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

/// Nothing is silent: [`every_field_is_treated_as_the_table_says`] finds a refusal, a notice or an effect for each.
#[test]
fn few_fields_are_refused() {
    const MOST: usize = 40;
    let all = SUPPORT_TABLE.iter().flat_map(|section| section.fields);
    let refused: Vec<&str> =
        all.filter(|field| field.support == Support::Refused).map(|field| field.path).collect();
    assert!(refused.len() <= MOST, "{} of at most {MOST}: {refused:?}", refused.len());
}

#[test]
fn what_is_refused_or_has_no_effect_has_its_reason() {
    for support in SUPPORT_TABLE.iter().flat_map(|section| section.fields) {
        let needs_reason = matches!(support.support, Support::Refused | Support::NoEffect);
        assert!(!needs_reason || support.note.len() > 10, "{}", support.path);
        assert!(!support.note.contains('|'), "{} breaks the table in docs/api.md", support.path);
    }
}

#[test]
fn the_documentation_has_the_table() {
    const MARKS: [&str; 2] = ["<!-- fields: begin -->\n", "<!-- fields: end -->"];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md");
    let text = std::fs::read_to_string(path).unwrap();
    let after = text.split_once(MARKS[0]).expect("the first mark").1;
    let table = after.split_once(MARKS[1]).expect("the second mark").0;
    assert!(table == support_markdown(), "replace the table by what `vireo manifests --fields` prints");
}

/// Every value that a sample has is one of a leaf.
#[test]
fn samples_are_of_fields() {
    let known = leaves();
    let values = values();
    let strangers: Vec<&String> = values.keys().filter(|leaf| !known.contains_key(*leaf)).collect();
    assert_eq!(strangers, Vec::<&String>::new());
}
