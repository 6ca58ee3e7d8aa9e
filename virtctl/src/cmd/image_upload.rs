//! `virtctl image-upload`: creates a claim, requests a token, sends the image, and waits for the disk.

mod progress;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::fs::File;
use tokio::time::{Instant, sleep};

use super::{Failure, Interrupted};
use crate::cli::{ImageUpload, Server};
use crate::client::{Client, ClientError, Proxy};
use progress::Progress;

const TARGET: &str = "cdi.kubevirt.io/storage.upload.target";
const PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
const READY: &str = "cdi.kubevirt.io/storage.pod.ready";
const IMMEDIATE: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
const SUCCEEDED: &str = "Succeeded";
/// How soon the claim is looked at again.
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Wrong {
    #[error("DataVolumes are not supported: upload to a claim, with image-upload pvc")]
    DataVolume,
    #[error("--archive-path is not available: a claim holds a disk, name its image by --image-path")]
    Archive,
    #[error("PVC {0} already exists: use --no-create to upload to it")]
    Exists(String),
    #[error("PVC {0} is not there for an upload: it lacks the annotation {TARGET}")]
    NoTarget(String),
    #[error("PVC {0} has its image already")]
    Filled(String),
    #[error("the server has no upload proxy URL: set --uploadproxy-url")]
    NoProxy,
    #[error("the server gives no token for PVC {0}")]
    NoToken(String),
    #[error("PVC {name} does not get {what} within {seconds} s: {seen}")]
    Late { name: String, what: &'static str, seconds: u64, seen: String },
    #[error("PVC {name} gets no disk: {why}")]
    Provisioning { name: String, why: String },
}

/// A claim that this command made and did not fill.
#[derive(Debug, thiserror::Error)]
#[error(
    "PVC {namespace}/{name} was created and still waits for its image, send one with --no-create or delete the PVC"
)]
struct Unfilled {
    namespace: String,
    name: String,
    source: Failure,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
struct Unreadable {
    path: PathBuf,
    source: std::io::Error,
}

pub(crate) async fn run(server: &Server, args: &ImageUpload) -> Result<(), Failure> {
    if args.kind == "dv" {
        return Err(Wrong::DataVolume.into());
    }
    let path = args.image_path.as_deref().ok_or(Wrong::Archive)?;
    let (file, length) = open(path).await.map_err(|source| Unreadable { path: path.to_owned(), source })?;
    let client = Client::new(server).await?;
    let namespace = client.namespace().to_owned();
    let claim = Claim { client: &client, name: &args.name, seconds: args.wait_secs };
    // Whatever can fail without a claim fails before there is one.
    let url = match &args.uploadproxy_url {
        Some(url) => url.clone(),
        None => asked_for(&client).await?,
    };
    let proxy = client.proxy(&url, args.insecure)?;
    let created = claim.there(args).await?;
    let filled = tokio::select! {
        filled = claim.fill(&proxy, (file, length)) => filled,
        Ok(()) = tokio::signal::ctrl_c() => Err(Interrupted.into()),
    };
    filled.map_err(|source| match created {
        true => Unfilled { namespace: namespace.clone(), name: args.name.clone(), source }.into(),
        false => source,
    })?;
    println!(
        "Uploading data completed successfully, waiting for processing to complete, you can hit ctrl-c without interrupting the progress"
    );
    claim.wait("its disk", |claim| annotation(claim, PHASE) == Some(SUCCEEDED)).await?;
    println!("Processing completed successfully");
    println!("Uploading {} completed successfully to PVC {namespace}/{}", path.display(), args.name);
    Ok(())
}

async fn open(path: &Path) -> std::io::Result<(File, u64)> {
    let file = File::open(path).await?;
    let metadata = file.metadata().await?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    Ok((file, metadata.len()))
}

async fn asked_for(client: &Client) -> Result<String, Failure> {
    let config = client.get("/apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config").await?;
    let spoken = |at: &str| config.pointer(at).and_then(Value::as_str).filter(|url| !url.is_empty());
    let url = spoken("/spec/uploadProxyURLOverride").or_else(|| spoken("/status/uploadProxyURL"));
    Ok(url.ok_or(Wrong::NoProxy)?.to_owned())
}

async fn send(proxy: &Proxy, token: &str, (file, length): (File, u64)) -> Result<(), Failure> {
    let mut progress = Progress::new(length);
    let reported = proxy.upload(token, (file, length), move |sent| progress.report(sent)).await;
    Ok(reported?)
}

fn annotation<'a>(claim: &'a Value, name: &str) -> Option<&'a str> {
    claim.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

/// The claim that is filled.
struct Claim<'a> {
    client: &'a Client,
    name: &'a str,
    seconds: u64,
}

impl Claim<'_> {
    fn collection(&self) -> String {
        format!("/api/v1/namespaces/{}/persistentvolumeclaims", self.client.namespace())
    }

    async fn get(&self) -> Result<Option<Value>, ClientError> {
        match self.client.get(&format!("{}/{}", self.collection(), self.name)).await {
            Ok(claim) => Ok(Some(claim)),
            Err(ClientError::Refused { code: StatusCode::NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends it the image.
    async fn fill(&self, proxy: &Proxy, image: (File, u64)) -> Result<(), Failure> {
        println!("Waiting for PVC {} upload pod to be ready...", self.name);
        self.wait("ready for an upload", |claim| annotation(claim, READY) == Some("true")).await?;
        println!("Pod now ready");
        let token = self.token().await?;
        println!("Uploading data to {}", proxy.url());
        send(proxy, &token, image).await
    }

    /// Makes it, or sees that it may be filled; whether it was made.
    async fn there(&self, args: &ImageUpload) -> Result<bool, Failure> {
        let name = self.name.to_owned();
        match (self.get().await?, args.no_create) {
            (None, false) => {
                self.client.post(&self.collection(), &manifest(args)).await?;
                println!("PVC {}/{name} created", self.client.namespace());
                return Ok(true);
            }
            (None, true) => {
                let message = format!("persistentvolumeclaims {name:?} not found");
                return Err(ClientError::Refused { code: StatusCode::NOT_FOUND, message }.into());
            }
            (Some(claim), _) if annotation(&claim, PHASE) == Some(SUCCEEDED) => {
                return Err(Wrong::Filled(name).into());
            }
            (Some(claim), _) if annotation(&claim, TARGET).is_none() => {
                return Err(Wrong::NoTarget(name).into());
            }
            (Some(_), true) => println!("Using existing PVC {}/{name}", self.client.namespace()),
            (Some(_), false) => return Err(Wrong::Exists(name).into()),
        }
        Ok(false)
    }

    /// Why it gets no disk, from an event.
    async fn provisioning_failure(&self, claim: &Value) -> Result<Option<String>, Failure> {
        let uid = claim.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let namespace = self.client.namespace();
        let fields = format!("involvedObject.uid%3D{uid},reason%3DProvisioningFailed");
        let path = format!("/api/v1/namespaces/{namespace}/events?fieldSelector={fields}");
        let events = match self.client.get(&path).await {
            Ok(events) => events,
            // Who may fill claims need not be one who may read events.
            Err(ClientError::Refused { code: StatusCode::FORBIDDEN, .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let last = events.get("items").and_then(|items| items.as_array()?.last());
        Ok(last.and_then(|event| event.get("message")?.as_str()).map(str::to_owned))
    }

    async fn wait(&self, what: &'static str, done: impl Fn(&Value) -> bool) -> Result<(), Failure> {
        let end = Instant::now() + Duration::from_secs(self.seconds);
        loop {
            let claim = self.get().await?.unwrap_or_default();
            if done(&claim) {
                return Ok(());
            }
            if claim.pointer("/status/phase").is_some_and(|phase| phase == "Pending")
                && let Some(why) = self.provisioning_failure(&claim).await?
            {
                return Err(Wrong::Provisioning { name: self.name.to_owned(), why }.into());
            }
            if Instant::now() >= end {
                let phase = claim.pointer("/status/phase").and_then(Value::as_str).unwrap_or("gone");
                let (name, seen) = (self.name.to_owned(), format!("it is {phase}"));
                return Err(Wrong::Late { name, what, seconds: self.seconds, seen }.into());
            }
            sleep(AGAIN).await;
        }
    }

    async fn token(&self) -> Result<String, Failure> {
        let namespace = self.client.namespace();
        let path = format!("/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/{namespace}/uploadtokenrequests");
        let request = json!({
            "apiVersion": "upload.cdi.kubevirt.io/v1beta1", "kind": "UploadTokenRequest",
            "metadata": {"name": "token-for-virtctl", "namespace": namespace}, "spec": {"pvcName": self.name},
        });
        let answer = self.client.post(&path, &request).await?;
        let answer: Value = serde_json::from_slice(&answer).map_err(ClientError::Json)?;
        let token = answer.pointer("/status/token").and_then(Value::as_str);
        Ok(token.ok_or_else(|| Wrong::NoToken(self.name.to_owned()))?.to_owned())
    }
}

/// The claim that is made.
fn manifest(args: &ImageUpload) -> Value {
    let mut annotations = json!({ (TARGET): "", "cdi.kubevirt.io/storage.contentType": "kubevirt" });
    if args.force_bind {
        annotations[IMMEDIATE] = json!("");
    }
    let mut spec = json!({
        "accessModes": [args.access_mode], "resources": {"requests": {"storage": args.size}},
    });
    if args.block_volume || args.volume_mode.as_deref() == Some("block") {
        spec["volumeMode"] = json!("Block");
    } else if args.volume_mode.is_some() {
        spec["volumeMode"] = json!("Filesystem");
    }
    if let Some(class) = &args.storage_class {
        spec["storageClassName"] = json!(class);
    }
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": args.name, "annotations": annotations}, "spec": spec,
    });
    for (what, given) in [
        ("instancetype", &args.default_instancetype),
        ("instancetype-kind", &args.default_instancetype_kind),
        ("preference", &args.default_preference),
        ("preference-kind", &args.default_preference_kind),
    ] {
        if let Some(given) = given {
            claim["metadata"]["labels"][format!("instancetype.kubevirt.io/default-{what}")] = json!(given);
        }
    }
    claim
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(line: &str) -> Result<ImageUpload, clap::Error> {
        let words = ["virtctl", "image-upload"].into_iter().chain(line.split(' '));
        let Command::ImageUpload(args) = Cli::try_parse_from(words)?.command else { panic!("{line}") };
        Ok(*args)
    }

    #[test]
    fn the_claim_has_the_settings_of_the_command_line() {
        let made = manifest(&args("pvc data --size=1Gi --image-path=x").unwrap());
        assert_eq!(
            made["spec"],
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
        );
        assert_eq!(made["metadata"]["annotations"][TARGET], "");
        let line = "pvc data --size 1Gi --image-path x --access-mode ReadWriteMany --volume-mode block --storage-class local --force-bind";
        let made = manifest(&args(line).unwrap());
        assert_eq!(
            (&made["spec"]["volumeMode"], &made["spec"]["storageClassName"]),
            (&json!("Block"), &json!("local"))
        );
        assert_eq!(
            (&made["spec"]["accessModes"][0], &made["metadata"]["annotations"][IMMEDIATE]),
            (&json!("ReadWriteMany"), &json!(""))
        );
        assert!(made["metadata"].get("labels").is_none());
        let line = "pvc data --size 1Gi --image-path x --default-instancetype small --default-instancetype-kind VirtualMachineInstancetype --default-preference linux";
        let labels = &manifest(&args(line).unwrap())["metadata"]["labels"];
        assert_eq!(
            labels,
            &json!({"instancetype.kubevirt.io/default-instancetype": "small",
                "instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype",
                "instancetype.kubevirt.io/default-preference": "linux"})
        );
        assert!(
            args("pvc data --size 1Gi --image-path x --default-preference-kind y").is_err(),
            "of nothing"
        );
        for wrong in ["pvc data --image-path=x", "pvc data --size=1Gi", "vm data --size=1Gi --image-path=x"] {
            assert!(args(wrong).is_err(), "{wrong}");
        }
        assert!(args("pvc data --no-create --image-path=x").unwrap().no_create);
    }
}
