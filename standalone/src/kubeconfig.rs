//! The file by which `kubectl` and `virtctl` find a server and are let in.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::files::{FileError, write_atomically};
use crate::pki::Identity;

/// Writes it, readable by its owner only.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, url: &str, authority: &str, who: &Identity) -> Result<(), FileError> {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: vireo\n\
         clusters:\n- name: vireo\n  cluster:\n    server: {url}\n    certificate-authority-data: {authority}\n\
         users:\n- name: vireo-admin\n  user:\n    client-certificate-data: {certificate}\n    client-key-data: {key}\n\
         contexts:\n- name: vireo\n  context:\n    cluster: vireo\n    user: vireo-admin\n    namespace: default\n",
        authority = STANDARD.encode(authority),
        certificate = STANDARD.encode(&who.certificate),
        key = STANDARD.encode(&who.key),
    );
    write_atomically(path, text.as_bytes())
}
