//! NICs that come and go while an instance runs.

use serde_json::{Value, json};
use vireo_api::v1::InterfaceStatus;

use super::super::RestartOptions;
use super::world::World;

/// A spec with a NIC on the network of Pods, and these on bridges: names and states.
fn with(nics: &[(&str, &str)]) -> Value {
    let nic = |(name, state): &(&str, &str)| json!({"name": name, "bridge": {}, "state": state});
    let interfaces: Vec<Value> =
        [json!({"name": "pods", "masquerade": {}})].into_iter().chain(nics.iter().map(nic)).collect();
    let network = |(name, _): &(&str, &str)| json!({"name": name, "multus": {"networkName": "lan"}});
    let networks: Vec<Value> =
        [json!({"name": "pods", "pod": {}})].into_iter().chain(nics.iter().map(network)).collect();
    json!({"domain": {"devices": {"interfaces": interfaces}}, "networks": networks})
}

impl World {
    fn template(&mut self, spec: Value) {
        self.vm.spec.template.as_mut().unwrap().spec = serde_json::from_value(spec).unwrap();
        self.settle();
    }

    /// The guest has these NICs on bridges.
    fn guest_has(&mut self, names: &[&str]) {
        let shown = |name: &&str| InterfaceStatus { name: (*name).to_owned(), ..InterfaceStatus::default() };
        self.instance.as_mut().unwrap().status.interfaces = names.iter().map(shown).collect();
        self.settle();
    }

    /// The NICs on bridges of the template and of the instance with their states, and whether the VM waits for a restart.
    fn nics(&self) -> (Vec<String>, Vec<String>, bool) {
        let specs = [&self.vm.spec.template.as_ref().unwrap().spec, &self.instance.as_ref().unwrap().spec];
        let [template, instance] = specs.map(|spec| {
            let networks: Vec<&str> = spec.networks.iter().map(|network| network.name.as_str()).collect();
            let nics = &spec.domain.devices.interfaces;
            assert_eq!(networks, nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>());
            let nics = nics.iter().filter(|nic| nic.bridge.is_some());
            nics.map(|nic| format!("{} {}", nic.name, nic.state).trim_end().to_owned()).collect()
        });
        let conditions = &self.vm.status.conditions;
        (template, instance, conditions.iter().any(|one| one.r#type == "RestartRequired"))
    }
}

fn all(template: &[&str], instance: &[&str], restart: bool) -> (Vec<String>, Vec<String>, bool) {
    let [template, instance] =
        [template, instance].map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    (template, instance, restart)
}

fn running(nics: &[(&str, &str)]) -> World {
    let mut world = World::new("Always");
    world.template(with(nics));
    assert!(world.runs());
    world
}

#[test]
fn a_nic_is_plugged_and_unplugged_as_the_template_has_it() {
    let mut world = running(&[]);
    world.template(with(&[("lan", "")]));
    assert_eq!(world.nics(), all(&["lan"], &["lan"], false));
    world.guest_has(&["pods", "lan"]);
    world.template(with(&[("lan", "down")]));
    assert_eq!(world.nics(), all(&["lan down"], &["lan down"], false));
    world.template(with(&[("lan", "absent")]));
    assert_eq!(world.nics(), all(&["lan absent"], &["lan absent"], false), "the guest has it");
    // It is wanted again before the guest has released it.
    world.template(with(&[("lan", "")]));
    assert_eq!(world.nics(), all(&["lan"], &["lan absent"], false));
    world.template(with(&[("lan", "absent")]));
    world.guest_has(&["pods"]);
    assert_eq!(world.nics(), all(&[], &[], false));
    world.template(with(&[("lan", "")]));
    assert_eq!(world.nics(), all(&["lan"], &["lan"], false));
}

#[test]
fn a_nic_of_the_start_is_unplugged_by_the_next_one() {
    let mut world = running(&[("lan", "")]);
    world.guest_has(&["pods", "lan"]);
    for (template, shown) in [(&[("lan", "absent")][..], &["lan absent"][..]), (&[], &[])] {
        world.template(with(template));
        assert_eq!(world.nics(), all(shown, &["lan"], true), "{template:?}");
    }
    world.template(with(&[("lan", "absent")]));
    world.restart(RestartOptions::default()).unwrap();
    world.settle();
    assert_eq!(world.nics(), all(&[], &[], false));
}

#[test]
fn a_nic_that_leaves_the_template_at_once_stays_until_the_restart() {
    let mut world = running(&[]);
    world.template(with(&[("lan", "")]));
    world.guest_has(&["pods", "lan"]);
    world.template(with(&[]));
    assert_eq!(world.nics(), all(&[], &["lan"], true));
}

#[test]
fn a_plugged_nic_that_changes_does_so_with_the_next_start() {
    for (change, value) in [
        ("/domain/devices/interfaces/1/macAddress", json!("02:00:00:00:00:07")),
        ("/networks/1/multus/networkName", json!("other")),
    ] {
        let mut world = running(&[]);
        world.template(with(&[("lan", "")]));
        world.guest_has(&["pods", "lan"]);
        let mut spec = with(&[("lan", "")]);
        let (parent, field) = change.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[field] = value;
        world.template(spec);
        assert_eq!(world.nics(), all(&["lan"], &["lan"], true), "{change}");
        world.template(with(&[("lan", "")]));
        assert_eq!(world.nics(), all(&["lan"], &["lan"], false), "{change}");
    }
}

#[test]
fn other_nics_come_with_the_next_start() {
    for (change, value) in [
        ("/domain/devices/interfaces/1/model", json!("e1000")),
        ("/domain/devices/interfaces/1/pciAddress", json!("0000:00:05.0")),
        ("/domain/devices/interfaces/1/bootOrder", json!(1)),
        ("/domain/devices/disableHotplug", json!(true)),
        ("/networks/1/multus/default", json!(true)),
    ] {
        let mut world = running(&[]);
        let mut spec = with(&[("lan", "")]);
        let (parent, field) = change.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[field] = value;
        world.template(spec);
        assert_eq!(world.nics(), all(&["lan"], &[], true), "{change}");
    }
    // One of the start that changes, too.
    let mut world = running(&[("lan", "")]);
    let mut spec = with(&[("lan", "")]);
    spec["domain"]["devices"]["interfaces"][1]["macAddress"] = json!("02:00:00:00:00:07");
    world.template(spec);
    assert!(world.nics().2);
}
