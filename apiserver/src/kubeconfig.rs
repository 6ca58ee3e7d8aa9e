//! The file by which `kubectl` and `virtctl` find a server and are let in.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::files::{FileError, write_atomically};
use crate::pki::Pair;

/// Writes it, readable by its owner only.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, url: &str, authority: &str, who: &Pair) -> Result<(), FileError> {
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

/// Whether the file of an earlier start lets its reader in at this URL: on a full disk it cannot be replaced, and serves.
pub fn is_for(path: &Path, url: &str, authority: &str) -> bool {
    let fields =
        [format!("server: {url}\n"), format!("certificate-authority-data: {}\n", STANDARD.encode(authority))];
    std::fs::read_to_string(path).is_ok_and(|text| fields.iter().all(|field| text.contains(field)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::Certificates;

    #[test]
    fn a_file_is_for_one_server_of_one_authority() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let certificates = Certificates::new(dir.path(), vec!["localhost".to_owned()]);
        let current = certificates.reconcile(1_800_000_000).unwrap().0;
        let (url, certificate) = ("https://127.0.0.1:6443", current.authorities.bundle());
        assert!(!is_for(&path, url, &certificate), "there is none");
        write(&path, url, &certificate, &current.administrator).unwrap();
        assert!(is_for(&path, url, &certificate));
        assert!(!is_for(&path, "https://127.0.0.1:644", &certificate));
        assert!(!is_for(&path, url, "another"));
    }
}
