//! CDI's, for who fills claims from files.

use super::kubernetes::{TO_ADMIN, TO_EDIT};
use super::{Default, READ, bind_to_known, role, rule};

const OURS: (&str, &str) = ("cdi.kubevirt.io", "");

pub(super) fn all() -> Vec<Default> {
    let upload = || rule(&["*"], "upload.cdi.kubevirt.io", &["uploadtokenrequests"]);
    vec![
        role("cdi.kubevirt.io:admin", &[OURS, (TO_ADMIN, "true")], &[upload()]),
        role("cdi.kubevirt.io:edit", &[OURS, (TO_EDIT, "true")], &[upload()]),
        // Where uploads go.
        role("cdi.kubevirt.io:config-reader", &[OURS], &[rule(&READ, "cdi.kubevirt.io", &["cdiconfigs"])]),
        bind_to_known("cdi.kubevirt.io:config-reader", &[OURS]),
    ]
}
