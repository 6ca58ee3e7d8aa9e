//! The provisioner of claims, as its user of a whole server.

use std::path::PathBuf;

use vireo_apiserver::meta;
use vireo_apiserver::store::Key;
use vireo_handler::provisioner::{CLASS, Provisioner};
use vireo_handler::storage::Claims;

use super::*;
use crate::compose::client;
use crate::resource::storage;
use vireo_install::policy::LOCAL_PROVISIONER;

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/data";
const ANNOTATION: &str = "cdi.kubevirt.io/storage";

/// A server with a provisioner, which provisions while this lives.
struct Provisioned {
    world: World,
    dir: tempfile::TempDir,
    files: Claims,
    provisioner: tokio::task::JoinSet<()>,
}

impl Provisioned {
    fn new() -> Self {
        let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
        let files = Claims::below(dir.path().join("claims"), vireo_handler::storage::ImageReader::InProcess);
        let mut provisioned = Self { world, dir, files, provisioner: tokio::task::JoinSet::new() };
        provisioned.start();
        provisioned
    }

    fn start(&mut self) {
        let client = client(&self.world.server, LOCAL_PROVISIONER, "local-provisioner");
        let provisioner = Provisioner::new(client, self.files.clone(), "node1", || {});
        self.provisioner.spawn(async move { provisioner.run().await });
    }

    async fn stop(&mut self) {
        self.provisioner.shutdown().await;
    }

    async fn claim(&self, size: &str, class: &str) {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": size}}}});
        let (code, made) = self.world.ask("POST", CLAIMS, claim).await;
        assert_eq!(code, 201, "{made}");
    }

    async fn change(&self, patch: Value) {
        let (code, changed) = self.world.patch(CLAIM, "merge", patch).await;
        assert_eq!(code, 200, "{changed}");
    }

    async fn delete(&self) {
        let (code, deleted) = self.world.ask("DELETE", CLAIM, Value::Null).await;
        assert_eq!(code, 200, "{deleted}");
    }

    /// A VMI in a phase, which uses the claim.
    fn vmi(&self, phase: &str) {
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        let vmi = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {}, "spec": {"volumes": volumes}, "status": {"phase": phase}});
        let key = kubevirt::VMIS.key("default", "web");
        let written = self.store().write(&key, |before, _| {
            let mut new = before.map_or_else(|| vmi.clone(), |before| before.to_value());
            if before.is_none() {
                meta::create(&mut new, "default", "web");
            }
            new["status"]["phase"] = json!(phase);
            Ok::<_, ()>(vireo_apiserver::store::Change::Put(new))
        });
        written.unwrap();
    }

    fn store(&self) -> &vireo_apiserver::store::Store {
        &self.world.server.store
    }

    fn get(&self, key: &Key) -> Option<Value> {
        self.store().get(key).map(|object| object.to_value())
    }

    fn claimed(&self) -> Option<Value> {
        self.get(&storage::CLAIMS.key("default", "data"))
    }

    fn status(&self) -> Value {
        self.claimed().map(|claim| claim["status"].clone()).unwrap_or_default()
    }

    fn volumes(&self) -> Vec<Value> {
        let all = self.store().list("persistentvolumes", None).objects;
        all.iter().map(|volume| volume.to_value()).collect()
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("claims/default/data/disk.img")
    }

    fn size(&self) -> Option<u64> {
        Some(std::fs::metadata(self.file()).ok()?.len())
    }

    fn events(&self, reason: &str) -> usize {
        let events = self.store().list("events", None).objects;
        events.iter().filter(|event| event.value()["reason"] == reason).count()
    }

    fn problem(&self) -> String {
        self.files.find("default", "data").err().map(|error| error.to_string()).unwrap_or_default()
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        self.world.until(what, holds, || (self.claimed(), self.volumes())).await;
    }

    async fn bound(&self) {
        self.until("the claim is bound", || {
            self.status()["phase"] == "Bound" && self.events("ProvisioningSucceeded") == 1
        })
        .await;
    }
}

#[tokio::test]
async fn a_claim_is_bound_to_a_file_that_grows_with_it() {
    let of = Provisioned::new();
    of.claim("1Mi", CLASS).await;
    of.bound().await;
    let status = of.status();
    assert_eq!((&status["capacity"]["storage"], of.size()), (&json!("1Mi"), Some(1 << 20)));
    assert_eq!(status["accessModes"], json!(["ReadWriteOnce"]));
    of.change(json!({"spec": {"resources": {"requests": {"storage": "3Mi"}}}})).await;
    of.until("it grew", || of.status()["capacity"]["storage"] == "3Mi").await;
    of.until("and says so", || of.events("VolumeResizeSuccessful") == 1).await;
    assert_eq!(of.size(), Some(3 << 20));
    // A disk that was lost is not replaced by an empty one.
    std::fs::remove_file(of.file()).unwrap();
    of.change(json!({"metadata": {"labels": {"a": "b"}}})).await;
    of.until("it is lost", || of.events("ClaimLost") == 1).await;
    assert_eq!((&of.status()["phase"], of.file().exists()), (&json!("Lost"), false));
    assert!(of.problem().starts_with("PVC default/data is Lost: "), "{}", of.problem());
}

#[tokio::test]
async fn a_disk_in_use_stays() {
    let of = Provisioned::new();
    of.claim("1Mi", CLASS).await;
    of.bound().await;
    of.vmi("Running");
    of.delete().await;
    // What is behind it in the queue is done after it.
    let other = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "other"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    of.world.ask("POST", CLAIMS, other).await;
    let bound = || {
        of.get(&storage::CLAIMS.key("default", "other")).is_some_and(|one| one["status"]["phase"] == "Bound")
    };
    of.until("the next claim is bound", bound).await;
    assert!(of.file().exists() && of.claimed().is_some());
    of.vmi("Succeeded");
    of.until("it is gone", || of.claimed().is_none()).await;
    assert!(!of.file().exists());
}

#[tokio::test]
async fn a_claim_without_disk_has_a_reason() {
    let of = Provisioned::new();
    of.claim("1Mi", "fast").await;
    of.until("no such class", || of.events("ProvisioningFailed") == 1).await;
    assert_eq!(of.status()["phase"], "Pending");
    of.delete().await;
    of.until("it is gone", || of.claimed().is_none()).await;
    of.claim("1Ei", CLASS).await;
    of.until("no room", || of.events("ProvisioningFailed") == 2).await;
    let problem = of.problem();
    assert!(problem.starts_with("PVC default/data is Pending: ") && problem.contains(" free"), "{problem}");
    // A VMI waits for it, and does not use it.
    of.vmi("Pending");
    of.delete().await;
    of.until("it is gone", || of.claimed().is_none()).await;
    of.claim("1Mi", CLASS).await;
    of.bound().await;
}

#[tokio::test]
async fn claims_get_what_was_not_promised_to_others() {
    let of = Provisioned::new();
    let stat = rustix::fs::statvfs(of.dir.path()).unwrap();
    let most = (stat.f_bavail * stat.f_frsize / 10 * 6).to_string();
    let other = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "other"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": most}}}});
    assert_eq!(of.world.ask("POST", CLAIMS, other).await.0, 201);
    let other = || of.get(&storage::CLAIMS.key("default", "other"));
    of.until("the first is bound", || other().is_some_and(|one| one["status"]["phase"] == "Bound")).await;
    of.claim(&most, CLASS).await;
    of.until("the second has no space", || of.events("ProvisioningFailed") > 0).await;
    assert_eq!(of.status()["phase"], "Pending");
    let problem = of.problem();
    assert!(problem.contains("are promised to claims") && problem.contains(" free of "), "{problem}");
    assert!(!of.file().exists());
    assert_eq!(of.world.ask("DELETE", &format!("{CLAIMS}/other"), Value::Null).await.0, 200);
    of.until("now it has", || of.status()["phase"] == "Bound").await;
}

#[tokio::test]
async fn vmis_wait_for_the_image_of_a_claim_that_is_to_get_one() {
    let of = Provisioned::new();
    of.claim("1Mi", CLASS).await;
    of.bound().await;
    let waits = || of.file().with_file_name("image.awaited").exists();
    assert!(!waits());
    let annotate = |name: &str, value: Value| json!({"metadata": {"annotations": {format!("{ANNOTATION}.{name}"): value}}});
    of.change(annotate("upload.target", json!(""))).await;
    let offered =
        || of.claimed().unwrap()["metadata"]["annotations"][format!("{ANNOTATION}.pod.phase")] == "Running";
    of.until("it takes an image", offered).await;
    assert!(waits());
    of.change(annotate("pod.phase", json!("Succeeded"))).await;
    of.change(annotate("upload.target", Value::Null)).await;
    of.change(json!({"spec": {"resources": {"requests": {"storage": "2Mi"}}}})).await;
    of.until("all is seen", || of.status()["capacity"]["storage"] == "2Mi").await;
    assert!(!waits());
}

#[tokio::test]
async fn a_claim_has_its_volume_as_long_as_it_is_there() {
    let of = Provisioned::new();
    of.claim("1Mi", CLASS).await;
    of.bound().await;
    let [made] = of.volumes().try_into().unwrap();
    let uid = of.claimed().unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(made["metadata"]["name"], format!("pvc-{uid}"));
    assert_eq!(
        (&made["spec"]["claimRef"]["name"], &made["status"]["phase"]),
        (&json!("data"), &json!("Bound"))
    );
    let directory = of.file().parent().unwrap().to_string_lossy().into_owned();
    assert_eq!(
        (&made["spec"]["local"]["path"], &made["spec"]["capacity"]["storage"]),
        (&json!(directory), &json!("1Mi"))
    );
    of.change(json!({"spec": {"resources": {"requests": {"storage": "2Mi"}}}})).await;
    of.until("the volume grows", || of.volumes()[0]["spec"]["capacity"]["storage"] == "2Mi").await;

    // Users can neither make nor change volumes, nor bind claims; deleting a volume deletes no disk.
    let path = format!("/api/v1/persistentvolumes/pvc-{uid}");
    let refused = of.world.patch(&path, "merge", json!({"spec": {"capacity": {"storage": "9Mi"}}})).await;
    assert_eq!(refused.0, 422);
    let refused = of.world.patch(CLAIM, "merge", json!({"spec": {"volumeName": "mine"}})).await;
    assert_eq!(refused.0, 422);
    assert_eq!(of.world.ask("DELETE", &path, Value::Null).await.0, 200);
    let gone = of.world.patch(&path, "merge", json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(gone.0, 200);
    of.until("it is made again", || {
        of.volumes()
            .first()
            .is_some_and(|one| !meta::is_being_deleted(one) && one["status"]["phase"] == "Bound")
    })
    .await;
    assert!(of.file().exists());

    std::fs::remove_file(of.file()).unwrap();
    of.change(json!({"metadata": {"labels": {"look": "again"}}})).await;
    of.until("the volume failed", || of.volumes()[0]["status"]["reason"] == "ClaimLost").await;
    of.delete().await;
    of.until("both are gone", || of.claimed().is_none() && of.volumes().is_empty()).await;
}

/// As `kubectl patch pvc` and `kubectl delete pvc` do: the claim goes at once.
async fn lose(of: &Provisioned) {
    of.change(json!({"metadata": {"finalizers": null}})).await;
    of.delete().await;
}

#[tokio::test]
async fn a_disk_goes_with_a_claim_whose_finalizer_was_removed() {
    for down in [false, true] {
        let mut of = Provisioned::new();
        of.claim("1Mi", CLASS).await;
        of.bound().await;
        if down {
            of.stop().await;
        }
        lose(&of).await;
        if down {
            of.start();
        }
        of.until("the volume is gone", || of.volumes().is_empty()).await;
        assert!(!of.file().exists(), "{down}");
    }
}

#[tokio::test]
async fn the_next_claim_of_a_name_does_not_get_the_disk_of_the_last() {
    let of = Provisioned::new();
    of.claim("1Mi", CLASS).await;
    of.bound().await;
    std::fs::write(of.file(), [7; 4096]).unwrap();
    of.vmi("Running");
    lose(&of).await;
    of.claim("1Mi", CLASS).await;
    of.until("it waits", || of.events("ProvisioningFailed") > 0).await;
    assert_eq!(of.status()["phase"], "Pending");
    of.vmi("Succeeded");
    of.until("it is bound", || of.status()["phase"] == "Bound").await;
    assert!(std::fs::read(of.file()).unwrap().iter().all(|byte| *byte == 0));
    of.until("the old volume is gone", || of.volumes().len() == 1).await;
}
