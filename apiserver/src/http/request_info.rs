//! What a request is about, read once from its method, path and query. Authorization and dispatch use the same answer, so
//! that no request is authorized as one thing and served as another.

use axum::http::Method;
use percent_encoding::percent_decode_str;

use super::ApiError;
use super::query::Query;
use crate::rbac::action::{Access, Action};

/// A subresource whose argument, the port, is not part of its name.
const PORT_FORWARD: &str = "portforward";

/// A request, before anything is known of what is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create` and so on; the method in lower case where the path names no resource.
    verb: String,
    /// The path as it was sent.
    path: String,
    /// Its segments, decoded.
    segments: Vec<String>,
    /// The resource that the path names.
    resource: Option<ResourcePath>,
    /// The one object that a field selector leaves of a list or a watch.
    selected: Option<String>,
}

/// A path below `/api/VERSION` or `/apis/GROUP/VERSION`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourcePath {
    /// Empty for the core group.
    pub group: String,
    /// Its version.
    pub version: String,
    /// Absent for cluster-scoped resources, and for objects of all namespaces.
    pub namespace: Option<String>,
    /// Its plural.
    pub resource: String,
    /// The name of one object.
    pub name: Option<String>,
    /// What stands behind the name: a subresource and its arguments.
    pub subresource: Vec<String>,
}

impl RequestInfo {
    /// A GET of a path without a query.
    ///
    /// # Errors
    /// When a segment is empty, or names a directory when decoded.
    pub fn of_path(path: &str) -> Result<Self, ApiError> {
        Self::parse(&Method::GET, path, &Query::default())
    }

    /// Reads a request. A segment that is empty, or that names a directory when decoded, is refused.
    pub(super) fn parse(method: &Method, path: &str, query: &Query) -> Result<Self, ApiError> {
        let segments = segments(path)?;
        let resource = ResourcePath::parse(&segments);
        let verb = match &resource {
            Some(resource) => verb(method, query, resource),
            None if method == Method::HEAD => "get".to_owned(),
            None => method.as_str().to_lowercase(),
        };
        let lists = matches!(verb.as_str(), "list" | "watch");
        let selected = selected(&query.fields)
            .filter(|_| lists && resource.as_ref().is_some_and(|resource| resource.name.is_none()))
            .map(str::to_owned);
        Ok(Self { verb, path: path.to_owned(), segments, resource, selected })
    }

    /// The path's segments, decoded.
    pub(super) fn segments(&self) -> Vec<&str> {
        self.segments.iter().map(String::as_str).collect()
    }

    /// The resource that the path names; absent for discovery, health and other documents.
    pub fn resource(&self) -> Option<&ResourcePath> {
        self.resource.as_ref()
    }

    /// What has to be allowed for the request to be served.
    pub(super) fn action(&self) -> Action {
        let verb = self.verb.clone();
        let Some(path) = &self.resource else { return Action::Path { verb, path: self.path.clone() } };
        Action::Object(Access {
            verb,
            group: path.group.clone(),
            resource: path.resource.clone(),
            subresource: path.authorized_subresource(),
            namespace: path.authorized_namespace().to_owned(),
            name: path.name.as_ref().or(self.selected.as_ref()).cloned().unwrap_or_default(),
        })
    }
}

impl ResourcePath {
    fn parse(segments: &[String]) -> Option<Self> {
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", _] => (None, rest),
            // A namespace itself, and not objects of the kind "status" in it.
            ["namespaces", _, "status"] if group.is_empty() => (None, rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let [resource, rest @ ..] = rest else { return None };
        let owned = |text: &&str| (*text).to_owned();
        Some(Self {
            group: group.to_owned(),
            version: (*version).to_owned(),
            namespace: namespace.map(str::to_owned),
            resource: (*resource).to_owned(),
            name: rest.first().map(owned),
            subresource: rest.iter().skip(1).map(owned).collect(),
        })
    }

    /// What stands behind the name, to match against a list of words.
    pub fn subresource(&self) -> Vec<&str> {
        self.subresource.iter().map(String::as_str).collect()
    }

    /// The subresource as rules name it. No rule names a forwarded port.
    fn authorized_subresource(&self) -> String {
        match self.subresource.first() {
            Some(first) if first == PORT_FORWARD => PORT_FORWARD.to_owned(),
            _ => self.subresource.join("/"),
        }
    }

    /// The namespace in which a rule has to hold. A Namespace counts as an object in itself.
    fn authorized_namespace(&self) -> &str {
        let is_namespace = self.group.is_empty() && self.resource == "namespaces";
        let namespace = if is_namespace { &self.name } else { &self.namespace };
        namespace.as_deref().unwrap_or_default()
    }
}

fn verb(method: &Method, query: &Query, path: &ResourcePath) -> String {
    let collection = path.name.is_none();
    let watches = query.watch && (collection || (path.subresource.is_empty() && method == Method::GET));
    match *method {
        Method::GET | Method::HEAD if watches => "watch".to_owned(),
        Method::GET | Method::HEAD if collection => "list".to_owned(),
        Method::GET | Method::HEAD => "get".to_owned(),
        Method::POST => "create".to_owned(),
        Method::PUT => "update".to_owned(),
        Method::DELETE if collection => "deletecollection".to_owned(),
        _ => method.as_str().to_lowercase(),
    }
}

/// The one object that a field selector leaves, if it names one.
fn selected(fields: &str) -> Option<&str> {
    let mut names = fields.split(',').filter_map(|term| {
        let value = term.strip_prefix("metadata.name=")?;
        Some(value.strip_prefix('=').unwrap_or(value))
    });
    names.next().filter(|name| !name.is_empty())
}

fn segments(path: &str) -> Result<Vec<String>, ApiError> {
    let path = path.strip_prefix('/').ok_or_else(ApiError::path_not_found)?;
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Vec::new());
    }
    path.split('/').map(segment).collect::<Option<_>>().ok_or_else(ApiError::path_not_found)
}

fn segment(text: &str) -> Option<String> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    let odd = text.is_empty() || text == "." || text == ".." || text.contains(['/', '\\', '\0']);
    (!odd).then(|| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(method: Method, uri: &str) -> String {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        match RequestInfo::parse(&method, path, &Query::parse(query).unwrap()).unwrap().action() {
            Action::Path { verb, path } => format!("{verb} {path}"),
            Action::Object(access) => {
                let whole = access.whole();
                let Access { verb, group, namespace, name, .. } = access;
                format!("{verb} {group:?} {whole} in {namespace:?} {name:?}")
            }
        }
    }

    #[test]
    fn actions_follow_from_path_and_method() {
        const VMS: &str = "/apis/kubevirt.io/v1/namespaces/a/virtualmachines";
        const PARTS: &str = "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/v";
        for (method, path, expected) in [
            (Method::GET, "/version".to_owned(), "get /version"),
            (Method::HEAD, "/apis/kubevirt.io/v1".to_owned(), "get /apis/kubevirt.io/v1"),
            (Method::POST, "/".to_owned(), "post /"),
            (Method::GET, "/api/v1/configmaps".to_owned(), r#"list "" configmaps in "" """#),
            (Method::GET, "/api/v1/namespaces".to_owned(), r#"list "" namespaces in "" """#),
            (Method::GET, "/api/v1/namespaces/a".to_owned(), r#"get "" namespaces in "a" "a""#),
            (
                Method::PUT,
                "/api/v1/namespaces/a/status".to_owned(),
                r#"update "" namespaces/status in "a" "a""#,
            ),
            (Method::GET, "/apis/x.y/v1/namespaces/a/status".to_owned(), r#"list "x.y" status in "a" """#),
            (Method::GET, VMS.to_owned(), r#"list "kubevirt.io" virtualmachines in "a" """#),
            (Method::GET, format!("{VMS}?watch=1"), r#"watch "kubevirt.io" virtualmachines in "a" """#),
            (Method::GET, format!("{VMS}/v?watch=1"), r#"watch "kubevirt.io" virtualmachines in "a" "v""#),
            (
                Method::GET,
                format!("{VMS}?fieldSelector=metadata.name%3Dv"),
                r#"list "kubevirt.io" virtualmachines in "a" "v""#,
            ),
            (
                Method::DELETE,
                format!("{VMS}?fieldSelector=metadata.name%3Dv"),
                r#"deletecollection "kubevirt.io" virtualmachines in "a" """#,
            ),
            (Method::DELETE, format!("{VMS}/v"), r#"delete "kubevirt.io" virtualmachines in "a" "v""#),
            (
                Method::PATCH,
                format!("{VMS}/v/status"),
                r#"patch "kubevirt.io" virtualmachines/status in "a" "v""#,
            ),
            (Method::GET, format!("{VMS}/v/"), r#"get "kubevirt.io" virtualmachines in "a" "v""#),
            (Method::POST, VMS.to_owned(), r#"create "kubevirt.io" virtualmachines in "a" """#),
            (Method::POST, "/api/v1/nothing".to_owned(), r#"create "" nothing in "" """#),
            (
                Method::GET,
                format!("{PARTS}/portforward/22/tcp?watch=1"),
                r#"get "subresources.kubevirt.io" virtualmachineinstances/portforward in "a" "v""#,
            ),
            (
                Method::GET,
                format!("{PARTS}/vnc/screenshot"),
                r#"get "subresources.kubevirt.io" virtualmachineinstances/vnc/screenshot in "a" "v""#,
            ),
            (
                Method::PUT,
                "/apis/subresources.kubevirt.io/v1/namespaces/a/expand-vm-spec".to_owned(),
                r#"update "subresources.kubevirt.io" expand-vm-spec in "a" """#,
            ),
        ] {
            assert_eq!(action(method.clone(), &path), expected, "{method} {path}");
        }
        assert!(RequestInfo::parse(&Method::GET, "/api/v1/namespaces//x", &Query::default()).is_err());
    }
}
