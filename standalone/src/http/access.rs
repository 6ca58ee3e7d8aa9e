//! Whether a request may be made: what it wants to do, who makes it, and for whom.

mod impersonate;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::Method;

use super::query::Query;
use super::target::{PORT_FORWARD, segments};
use super::{Refusal, Server};
use crate::auth::User;
use crate::rbac::action::{Access, Action};
use crate::rbac::roles::{Decision, Roles};

/// Who makes a request that they may make.
#[derive(Debug, Clone)]
pub(super) struct Asker {
    pub(super) user: User,
    /// As they are when the request comes.
    pub(super) roles: Arc<Roles>,
}

impl Asker {
    /// Whether they may also do this.
    pub(super) fn check(&self, action: &Action) -> Result<(), Refusal> {
        // Reasons are for who asks for them, and for those who are refused.
        if self.roles.may(&self.user, action) {
            return Ok(());
        }
        let why = match self.roles.decide(&self.user, action) {
            Decision::Denied(why) => why,
            Decision::Allowed(_) => String::new(),
        };
        Err(Refusal::denied(action, &self.user.name, &why))
    }
}

/// Who makes a request that was let in.
pub(super) fn asker(request: &Request) -> Result<&Asker, Refusal> {
    request.extensions().get().ok_or_else(|| Refusal::internal("nobody looked who makes the request"))
}

/// Lets a request in, which from then on has an [`Asker`].
pub(super) fn check(server: &Server, query: &Query, request: &mut Request) -> Result<(), Refusal> {
    let user = request.extensions().get::<User>().cloned().unwrap_or_else(User::anonymous);
    let mut asker = Asker { user, roles: server.roles.now(&server.store) };
    if let Some(wished) = impersonate::wished(request.headers())? {
        for action in impersonate::actions(&wished) {
            asker.check(&action)?;
        }
        asker.user = wished.who;
    }
    asker.check(&action(request.method(), request.uri().path(), query)?)?;
    request.extensions_mut().insert(asker);
    Ok(())
}

/// What a request wants to do, by its path as [`super::target`] reads it, also where nothing is.
fn action(method: &Method, path: &str, query: &Query) -> Result<Action, Refusal> {
    let segments = segments(path)?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (group, rest) = match segments.as_slice() {
        ["api", _, rest @ ..] if !rest.is_empty() => ("", rest),
        ["apis", group, _, rest @ ..] if !rest.is_empty() => (*group, rest),
        _ => {
            let verb = if method == Method::HEAD { "get".to_owned() } else { method.as_str().to_lowercase() };
            return Ok(Action::Path { verb, path: path.to_owned() });
        }
    };
    let (namespace, parts) = match rest {
        // A namespace is in itself.
        ["namespaces", name] | ["namespaces", name, "status"] if group.is_empty() => (*name, rest),
        ["namespaces", namespace, parts @ ..] if !parts.is_empty() => (*namespace, parts),
        _ => ("", rest),
    };
    let (resource, name, part) = match parts {
        [resource] => (*resource, "", String::new()),
        // Which port, no rule says.
        [resource, name, PORT_FORWARD, ..] => (*resource, *name, PORT_FORWARD.to_owned()),
        [resource, name, part @ ..] => (*resource, *name, part.join("/")),
        [] => return Err(Refusal::nowhere()),
    };
    let many = name.is_empty();
    let watched = query.watch && (many || (part.is_empty() && method == Method::GET));
    let verb = match *method {
        Method::GET | Method::HEAD if watched => "watch".to_owned(),
        Method::GET | Method::HEAD if many => "list".to_owned(),
        Method::GET | Method::HEAD => "get".to_owned(),
        Method::POST => "create".to_owned(),
        Method::PUT => "update".to_owned(),
        Method::DELETE if many => "deletecollection".to_owned(),
        _ => method.as_str().to_lowercase(),
    };
    let one = selected(&query.fields).filter(|_| many && matches!(verb.as_str(), "list" | "watch"));
    Ok(Action::Object(Access {
        verb,
        group: group.to_owned(),
        resource: resource.to_owned(),
        subresource: part,
        namespace: namespace.to_owned(),
        name: one.unwrap_or(name).to_owned(),
    }))
}

/// The one object that a field selector leaves, if it says so.
fn selected(fields: &str) -> Option<&str> {
    let mut names = fields.split(',').filter_map(|term| {
        let value = term.strip_prefix("metadata.name=")?;
        Some(value.strip_prefix('=').unwrap_or(value))
    });
    names.next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(method: Method, uri: &str) -> String {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        match action(&method, path, &Query::parse(query).unwrap()).unwrap() {
            Action::Path { verb, path } => format!("{verb} {path}"),
            Action::Object(access) => {
                let whole = access.whole();
                let Access { verb, group, namespace, name, .. } = access;
                format!("{verb} {group:?} {whole} in {namespace:?} {name:?}")
            }
        }
    }

    #[test]
    fn a_request_wants_what_its_path_and_method_say() {
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
            assert_eq!(told(method.clone(), &path), expected, "{method} {path}");
        }
        assert!(action(&Method::GET, "/api/v1/namespaces//x", &Query::default()).is_err());
    }
}
