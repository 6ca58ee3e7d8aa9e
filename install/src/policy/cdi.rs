//! CDI's, which become part of `admin`, `edit` and `view`. Of its kinds none is served but the configuration; its clients
//! must get 404 and not 403.

use serde_json::Value;
use vireo_apiserver::rbac::defaults::{
    Default, READ, TO_ADMIN, TO_EDIT, TO_VIEW, bind_to_known, bind_to_service_account, role, rule,
};

/// Namespace and name of the ServiceAccount of CDI's API server and upload proxy.
pub const CDI_API: (&str, &str) = ("cdi", "cdi-apiserver");
/// Its ClusterRole, by CDI's name.
const API_ROLE: &str = "cdi-apiserver";
const OURS: (&str, &str) = ("cdi.kubevirt.io", "");
const GROUP: &str = "cdi.kubevirt.io";
const CHANGED: [&str; 6] = [
    "dataimportcrons",
    "datasources",
    "datavolumes",
    "volumeclonesources",
    "volumeimportsources",
    "volumeuploadsources",
];
const READ_ONLY: [&str; 3] = ["cdiconfigs", "objecttransfers", "storageprofiles"];

pub(super) fn all() -> Vec<Default> {
    vec![
        role("cdi.kubevirt.io:admin", &[OURS, (TO_ADMIN, "true")], &full()),
        role("cdi.kubevirt.io:edit", &[OURS, (TO_EDIT, "true")], &full()),
        role(
            "cdi.kubevirt.io:view",
            &[OURS, (TO_VIEW, "true")],
            &[rule(&READ, GROUP, &CHANGED), rule(&READ, GROUP, &READ_ONLY), clone_source()],
        ),
        // Where uploads go.
        role(
            "cdi.kubevirt.io:config-reader",
            &[OURS],
            &[rule(&READ, GROUP, &["cdiconfigs", "storageprofiles"])],
        ),
        bind_to_known("cdi.kubevirt.io:config-reader", &[OURS]),
        role(
            API_ROLE,
            &[OURS],
            &[
                rule(&["get", "patch"], "", &["persistentvolumeclaims"]),
                rule(&["list"], "kubevirt.io", &["virtualmachineinstances"]),
            ],
        ),
        bind_to_service_account(API_ROLE, &[OURS], CDI_API),
    ]
}

fn full() -> [Value; 3] {
    [
        rule(&["*"], GROUP, &CHANGED),
        clone_source(),
        rule(&["*"], "upload.cdi.kubevirt.io", &["uploadtokenrequests"]),
    ]
}

/// Who may clone from a namespace; CDI asks for it by this name.
fn clone_source() -> Value {
    rule(&["create"], GROUP, &["datavolumes/source"])
}
