use std::convert::Infallible;

use vireo_apiserver::controller::Rounds;
use vireo_apiserver::store::Change;

use super::*;
use crate::tests::Settle as _;

struct World {
    dir: tempfile::TempDir,
    store: Store,
    rounds: Rounds<Disks>,
}

fn key() -> Key {
    place::claims().key("default", "data")
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        place::prepare(&store, "node1").unwrap();
        let rounds = Rounds::of(Disks::over(Claims::below(dir.path().join("claims")), None));
        Self { dir, store, rounds }
    }

    fn put(&mut self, key: &Key, mut value: Value) {
        meta::create(&mut value, &key.namespace, &key.name);
        self.store.write(key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
    }

    fn claim(&mut self, size: &str, class: &str) {
        let mut value = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": size}}}});
        assert_eq!((place::claims().admit)(&mut value, None), []);
        self.put(&key(), value);
    }

    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Value)) {
        let object = self.store.get(key).unwrap();
        place::change(&self.store, &object, |value| {
            change(value);
            true
        })
        .unwrap();
        self.settle();
    }

    fn settle(&mut self) {
        self.rounds.settle(&self.store);
    }

    fn status(&self) -> Value {
        self.store.get(&key()).unwrap().value["status"].clone()
    }

    fn file(&self) -> std::path::PathBuf {
        self.dir.path().join("claims/default/data/disk.img")
    }

    fn waits(&self) -> bool {
        self.file().with_file_name("image.awaited").exists()
    }

    fn size(&self) -> u64 {
        std::fs::metadata(self.file()).unwrap().len()
    }

    fn reasons(&self) -> Vec<String> {
        let events = self.store.list("events", None).objects;
        let mut told: Vec<_> =
            events.iter().filter_map(|event| event.value["reason"].as_str().map(str::to_owned)).collect();
        told.sort();
        told
    }
}

#[test]
fn a_claim_is_bound_to_a_file_that_grows_with_it() {
    let mut world = World::new();
    world.claim("1Mi", CLASS);
    world.settle();
    assert_eq!(
        (&world.status()["phase"], &world.status()["capacity"]["storage"]),
        (&json!("Bound"), &json!("1Mi"))
    );
    assert_eq!((world.size(), &world.status()["accessModes"]), (1 << 20, &json!(["ReadWriteOnce"])));
    world.change(&key(), |claim| claim["spec"]["resources"]["requests"]["storage"] = json!("3Mi"));
    assert_eq!((world.size(), &world.status()["capacity"]["storage"]), (3 << 20, &json!("3Mi")));
    assert_eq!(world.reasons(), ["ProvisioningSucceeded", "VolumeResizeSuccessful"]);
    // A disk that was lost is not replaced by an empty one.
    std::fs::remove_file(world.file()).unwrap();
    world.change(&key(), |claim| claim["metadata"]["labels"] = json!({"a": "b"}));
    assert_eq!((&world.status()["phase"], world.file().exists()), (&json!("Lost"), false));
    let told = world.rounds.controller.files.find("default", "data").unwrap_err().to_string();
    assert!(told.starts_with("PVC default/data is Lost: "), "{told}");
}

#[test]
fn what_is_in_use_stays() {
    let mut world = World::new();
    world.claim("1Mi", CLASS);
    let vmi = place::vmis().key("default", "web");
    let volumes = json!([{"name": "root", "emptyDisk": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    world.put(&vmi, json!({"metadata": {}, "spec": {"volumes": volumes}, "status": {"phase": "Running"}}));
    world.settle();
    place::remove(&world.store, &world.store.get(&key()).unwrap()).unwrap();
    world.settle();
    assert!(world.file().exists() && world.store.get(&key()).is_some());
    world.change(&vmi, |vmi| vmi["status"]["phase"] = json!("Succeeded"));
    assert!(!world.file().exists() && world.store.get(&key()).is_none());
}

#[test]
fn what_cannot_be_made_is_told() {
    let mut world = World::new();
    world.claim("1Mi", "fast");
    world.settle();
    assert_eq!(
        (world.reasons(), &world.status()["phase"]),
        (vec!["ProvisioningFailed".to_owned()], &json!("Pending"))
    );
    place::remove(&world.store, &world.store.get(&key()).unwrap()).unwrap();
    world.settle();
    assert!(world.store.get(&key()).is_none());
    world.claim("1Ei", CLASS);
    world.settle();
    assert_eq!(world.reasons().len(), 2, "there is no room for it");
    let told = world.rounds.controller.files.find("default", "data").unwrap_err().to_string();
    assert!(told.starts_with("PVC default/data is Pending: ") && told.contains(" free"), "{told}");
    place::remove(&world.store, &world.store.get(&key()).unwrap()).unwrap();
    world.settle();
    let told = world.rounds.controller.files.find("default", "data").unwrap_err().to_string();
    assert!(told.contains("does not exist"), "{told}");
    world.claim("1Ei", CLASS);
    world.settle();
    assert!(world.rounds.due_at(&key()).is_some() && !world.file().exists());
}

#[test]
fn machines_wait_for_the_image_of_a_claim_that_is_to_get_one() {
    let mut world = World::new();
    world.claim("1Mi", CLASS);
    world.settle();
    assert!(!world.waits());
    let annotate = |name: &'static str, value: Value| {
        move |claim: &mut Value| {
            claim["metadata"]["annotations"][format!("cdi.kubevirt.io/storage.{name}")] = value
        }
    };
    world.change(&key(), annotate("upload.target", json!("")));
    assert!(world.waits());
    world.change(&key(), annotate("pod.phase", json!("Succeeded")));
    assert!(!world.waits());
    world.change(&key(), annotate("pod.phase", json!("Running")));
    assert!(world.waits());
    world.change(&key(), |claim| drop(meta::of(claim).remove("annotations")));
    assert!(!world.waits(), "it is as empty as any other");
}

#[test]
fn a_claim_has_its_volume_as_long_as_it_is_there() {
    let mut world = World::new();
    world.claim("1Mi", CLASS);
    world.settle();
    let uid = meta::text(&world.store.get(&key()).unwrap().value, "uid").to_owned();
    let volume = place::volumes().key("", &format!("pvc-{uid}"));
    let has = |world: &World| world.store.get(&volume).map(|volume| volume.value.clone());
    let made = has(&world).unwrap();
    assert_eq!(
        (&made["spec"]["claimRef"]["name"], &made["spec"]["capacity"]["storage"], &made["status"]["phase"]),
        (&json!("data"), &json!("1Mi"), &json!("Bound"))
    );
    let directory = world.file().parent().unwrap().to_string_lossy().into_owned();
    assert_eq!(made["spec"]["local"]["path"], directory);
    world.change(&key(), |claim| claim["spec"]["resources"]["requests"]["storage"] = json!("2Mi"));
    assert_eq!(has(&world).unwrap()["spec"]["capacity"]["storage"], "2Mi");
    // Whoever deletes it deletes no disk.
    place::remove(&world.store, &world.store.get(&volume).unwrap()).unwrap();
    world.settle();
    assert!(meta::is_leaving(&has(&world).unwrap()) && world.file().exists());
    world.change(&volume, |volume| {
        meta::of(volume).remove("deletionTimestamp");
    });
    place::change(&world.store, &world.store.get(&volume).unwrap(), |_| false).unwrap();
    world.settle();
    assert!(has(&world).is_some(), "it is made again");
    std::fs::remove_file(world.file()).unwrap();
    world.change(&key(), |claim| claim["metadata"]["labels"] = json!({"look": "again"}));
    let lost = has(&world).unwrap();
    assert_eq!(
        (&lost["status"]["phase"], &lost["status"]["reason"]),
        (&json!("Failed"), &json!("ClaimLost"))
    );
    let claim = world.store.get(&key()).unwrap();
    place::remove(&world.store, &claim).unwrap();
    world.settle();
    assert_eq!((has(&world), world.store.get(&key()).map(drop)), (None, None));
}

/// As `kubectl patch pvc` and `kubectl delete pvc` make it: the claim goes at once.
fn lose(world: &mut World) {
    let claim = world.store.get(&key()).unwrap();
    place::change(&world.store, &claim, |_| false).unwrap();
    world.settle();
}

#[test]
fn a_disk_goes_with_a_claim_whose_finalizer_was_removed() {
    for down in [false, true] {
        let mut world = World::new();
        world.claim("1Mi", CLASS);
        world.settle();
        if down {
            place::change(&world.store, &world.store.get(&key()).unwrap(), |_| false).unwrap();
            world.rounds = Rounds::of(Disks::over(Claims::below(world.dir.path().join("claims")), None));
        }
        match down {
            true => world.settle(),
            false => lose(&mut world),
        }
        assert!(!world.file().exists(), "{down}");
        assert!(world.store.list("persistentvolumes", None).objects.is_empty(), "{down}");
    }
}

#[test]
fn the_next_claim_of_a_name_does_not_get_the_disk_of_the_last() {
    let mut world = World::new();
    world.claim("1Mi", CLASS);
    world.settle();
    std::fs::write(world.file(), [7; 4096]).unwrap();
    let vmi = place::vmis().key("default", "web");
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    world.put(&vmi, json!({"metadata": {}, "spec": {"volumes": volumes}, "status": {"phase": "Running"}}));
    lose(&mut world);
    assert!(world.file().exists(), "it is in use");
    world.claim("1Mi", CLASS);
    world.settle();
    assert_eq!(world.status()["phase"], "Pending");
    world.change(&vmi, |vmi| vmi["status"]["phase"] = json!("Succeeded"));
    assert_eq!(world.status()["phase"], "Bound");
    assert!(std::fs::read(world.file()).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(world.store.list("persistentvolumes", None).objects.len(), 1);
}

#[test]
fn a_claim_without_a_disk_goes_though_a_vmi_waits_for_it() {
    let mut world = World::new();
    world.claim("1Ei", CLASS);
    let vmi = place::vmis().key("default", "web");
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    world.put(&vmi, json!({"metadata": {}, "spec": {"volumes": volumes}, "status": {"phase": "Pending"}}));
    world.settle();
    place::remove(&world.store, &world.store.get(&key()).unwrap()).unwrap();
    world.settle();
    assert!(world.store.get(&key()).is_none());
}
