//! `addvolume` and `removevolume`: what is changed, and with which volume.

use serde_json::{Value, json};

use crate::objects::{VM, lines, status, virtctl};

const DATA_VOLUME: &str = "GET /apis/cdi.kubevirt.io/v1beta1/namespaces/prod/datavolumes/data";
const CLAIM: &str = "GET /api/v1/namespaces/prod/persistentvolumeclaims/data";
const SUBRESOURCES: &str = "/apis/subresources.kubevirt.io/v1/namespaces/prod";

fn ok() -> (u16, Value) {
    (200, json!({}))
}

fn absent() -> (u16, Value) {
    status(404, "there is none")
}

#[tokio::test]
async fn a_claim_becomes_a_volume_of_the_vm() {
    let add = ["addvolume", "web", "--volume-name=data", "--disk-name=drive", "--serial=S", "--persist"];
    let (requests, code, printed) = virtctl(&add, &[absent(), ok(), ok(), (202, json!({}))]).await;
    assert_eq!(code, Some(0), "{printed}");
    let put = format!("PUT {SUBRESOURCES}/virtualmachines/web/addvolume");
    assert_eq!(lines(&requests), [DATA_VOLUME, CLAIM, &format!("GET {VM}"), &put]);
    let disk = json!({"name": "drive", "disk": {"bus": "scsi"}, "serial": "S"});
    let source = json!({"persistentVolumeClaim": {"claimName": "data", "hotpluggable": true}});
    assert_eq!(requests[3].1, json!({"name": "drive", "disk": disk, "volumeSource": source}));
}

#[tokio::test]
async fn an_instance_without_a_vm_is_changed_itself() {
    let add = ["addvolume", "web", "--volume-name=data"];
    let (requests, code, printed) = virtctl(&add, &[ok(), absent(), (202, json!({}))]).await;
    assert_eq!(code, Some(0), "{printed}");
    let put = format!("PUT {SUBRESOURCES}/virtualmachineinstances/web/addvolume");
    assert_eq!(lines(&requests), [DATA_VOLUME, &format!("GET {VM}"), &put]);
    assert_eq!(requests[2].1["volumeSource"], json!({"dataVolume": {"name": "data", "hotpluggable": true}}));

    let remove = ["removevolume", "web", "--volume-name=data"];
    let (requests, code, printed) = virtctl(&remove, &[absent(), (202, json!({}))]).await;
    assert_eq!(code, Some(0), "{printed}");
    let put = format!("PUT {SUBRESOURCES}/virtualmachineinstances/web/removevolume");
    assert_eq!(lines(&requests), [format!("GET {VM}"), put]);
    assert_eq!(requests[1].1, json!({"name": "data"}));
}

#[tokio::test]
async fn a_vm_that_is_forbidden_is_an_error() {
    let forbidden = || status(403, "you may not");
    let remove = ["removevolume", "web", "--volume-name=data"];
    let (requests, code, printed) = virtctl(&remove, &[forbidden()]).await;
    assert!(code == Some(1) && printed.contains("you may not"), "{printed}");
    assert_eq!(lines(&requests), [format!("GET {VM}")]);
    // A user who may not read DataVolumes can still add a claim.
    let add = ["addvolume", "web", "--volume-name=data"];
    let (requests, code, _) = virtctl(&add, &[forbidden(), absent()]).await;
    assert_eq!((code, lines(&requests)), (Some(1), vec![DATA_VOLUME, CLAIM]));
}
