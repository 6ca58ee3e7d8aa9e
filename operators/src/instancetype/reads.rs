//! Reads of the API for functions that look objects up. A request that decides by them sees the writes before it, which a
//! cache may not show yet.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use kube::Client;
use serde_json::Value;
use vireo_api::spec::is_dns_subdomain;
use vireo_client::{Kind, ObjectKey};

use super::{Choice, Lookup, Scope};

type Reference = (Kind, ObjectKey);

/// What was read for a function.
#[derive(Debug, Default)]
pub struct Reads {
    found: HashMap<Reference, Option<Value>>,
    missing: RefCell<Vec<Reference>>,
}

impl Reads {
    fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Value> {
        // Others have no object, and are no part of a path.
        if !is_dns_subdomain(name) || !(namespace.is_empty() || is_dns_subdomain(namespace)) {
            return None;
        }
        let reference = (kind, ObjectKey::new(namespace, name));
        let Some(found) = self.found.get(&reference) else {
            self.missing.borrow_mut().push(reference);
            return None;
        };
        found.as_ref()
    }

    /// The labels of a PersistentVolumeClaim, if there is one.
    pub fn labels(&self, namespace: &str, claim: &str) -> Option<BTreeMap<String, String>> {
        let claim = self.get(Kind::CLAIM, namespace, claim)?;
        let labels = claim.pointer("/metadata/labels").cloned();
        Some(labels.and_then(|labels| serde_json::from_value(labels).ok()).unwrap_or_default())
    }
}

impl Lookup for Reads {
    fn revision(&self, namespace: &str, name: &str) -> Option<Value> {
        self.get(Kind::CONTROLLER_REVISION, namespace, name)?.get("data").cloned()
    }

    fn object(&self, choice: Choice, scope: Scope, namespace: &str, name: &str) -> Option<Value> {
        self.get(choice.resource(scope), namespace, name).cloned()
    }
}

/// Calls a function until everything that it looks up was read. Its last result counts.
///
/// # Errors
/// As the API server answers, and when it does not.
pub async fn read_for<T: Send>(
    client: &Client,
    function: impl Fn(&Reads) -> T + Send,
) -> Result<T, kube::Error> {
    let mut reads = Reads::default();
    loop {
        let result = function(&reads);
        let missing = reads.missing.take();
        if missing.is_empty() {
            return Ok(result);
        }
        for (kind, key) in missing {
            let api = match key.namespace.as_str() {
                "" => kind.all(client),
                namespace => kind.namespaced(client, namespace),
            };
            let found = api.get_opt(&key.name).await?.map(serde_json::to_value).transpose();
            reads.found.insert((kind, key), found.map_err(kube::Error::SerdeError)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_not_read() {
        let reads = Reads::default();
        for name in ["", "..", "a/b", "a?b", "A", "../../secrets/x"] {
            assert_eq!(reads.object(Choice::Instancetype, Scope::Namespaced, "n", name), None);
            assert_eq!(reads.revision("n", name), None);
            assert_eq!(reads.labels("n", name), None);
        }
        assert_eq!(reads.missing.borrow().as_slice(), []);
        assert_eq!(reads.revision("n", "a.b"), None);
        assert_eq!(*reads.missing.borrow(), [(Kind::CONTROLLER_REVISION, ObjectKey::new("n", "a.b"))]);
    }
}
