//! Impersonation: `kubectl --as` and `--as-group`.

use axum::http::{HeaderMap, HeaderName};

use crate::auth::{KNOWN, User};
use crate::http::ApiError;
use crate::rbac::action::{Access, Action};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
/// What is known of users beside name and groups is in this group.
const KNOWLEDGE: &str = "authentication.k8s.io";

/// The user that a client wants to impersonate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Impersonation {
    /// The user as whom the request goes on.
    pub(super) who: User,
    /// Groups that were asked for; others follow from the name.
    groups: Vec<String>,
}

/// Whom the headers ask for.
pub(super) fn requested(headers: &HeaderMap) -> Result<Option<Impersonation>, ApiError> {
    let unreadable = |name: &str| ApiError::bad_request(format!("the header {name} is not valid text"));
    let all = |name: &str| -> Result<Vec<String>, ApiError> {
        let texts = headers.get_all(name).iter().map(|value| value.to_str().map(str::to_owned));
        texts.collect::<Result<_, _>>().map_err(|_| unreadable(name))
    };
    let first = |name: &str| Ok::<_, ApiError>(all(name)?.into_iter().next().unwrap_or_default());
    let (name, groups, uid) = (first(USER)?, all(GROUP)?, first(UID)?);
    let mut who = User { name, groups: groups.clone(), uid, ..User::default() };
    for key in headers.keys().map(HeaderName::as_str) {
        if let Some(field) = key.strip_prefix(EXTRA) {
            let field = percent_encoding::percent_decode_str(field).decode_utf8();
            let field = field.map_err(|_| unreadable(key))?.into_owned();
            who.extra.insert(field, all(key)?);
        }
    }
    if who.name.is_empty() {
        let alone = !groups.is_empty() || !who.uid.is_empty() || !who.extra.is_empty();
        return if alone {
            Err(ApiError::bad_request(format!("requested {groups:?} without impersonating a user")))
        } else {
            Ok(None)
        };
    }
    if groups.is_empty()
        && let Some((namespace, name)) = account(&who.name)
    {
        who.groups = User::service_account(namespace, name).groups;
    }
    let anonymous = User::anonymous();
    let implied = if who.name == anonymous.name { anonymous.groups } else { vec![KNOWN.to_owned()] };
    for group in implied {
        if !who.groups.contains(&group) {
            who.groups.push(group);
        }
    }
    Ok(Some(Impersonation { who, groups }))
}

/// What one must be allowed for it.
pub(super) fn actions(requested: &Impersonation) -> Vec<Action> {
    let act = |group: &str, resource: &str, part: &str, namespace: &str, name: &str| {
        Action::Object(Access {
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: part.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    };
    let mut actions = vec![match account(&requested.who.name) {
        Some((namespace, name)) => act("", "serviceaccounts", "", namespace, name),
        None => act("", "users", "", "", &requested.who.name),
    }];
    actions.extend(requested.groups.iter().map(|group| act("", "groups", "", "", group)));
    if !requested.who.uid.is_empty() {
        actions.push(act(KNOWLEDGE, "uids", "", "", &requested.who.uid));
    }
    for (field, values) in &requested.who.extra {
        actions.extend(values.iter().map(|value| act(KNOWLEDGE, "userextras", field, "", value)));
    }
    actions
}

/// Namespace and name of the account that a user is.
fn account(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix(crate::auth::ACCOUNT)?.split_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> Result<Option<Impersonation>, ApiError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        requested(&map)
    }

    fn needed(headers: &[(&str, &str)]) -> Vec<String> {
        let requested = read(headers).unwrap().unwrap();
        let name = |action: Action| match action {
            Action::Object(access) => format!("{} {} {}", access.whole(), access.namespace, access.name),
            Action::Path { path, .. } => path,
        };
        actions(&requested).into_iter().map(name).collect()
    }

    #[test]
    fn impersonated_users_have_implied_groups() {
        assert_eq!(read(&[]).unwrap(), None);
        let groups = |headers: &[(&str, &str)]| read(headers).unwrap().unwrap().who.groups;
        assert_eq!(groups(&[("Impersonate-User", "ada")]), [KNOWN]);
        assert_eq!(
            groups(&[("Impersonate-User", "ada"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b")]),
            ["a", "b", KNOWN]
        );
        assert_eq!(
            groups(&[("Impersonate-User", "system:serviceaccount:n:x")]),
            ["system:serviceaccounts", "system:serviceaccounts:n", KNOWN]
        );
        assert_eq!(groups(&[("Impersonate-User", "system:anonymous")]), ["system:unauthenticated"]);
        for alone in ["Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-x"] {
            assert!(read(&[(alone, "x")]).is_err(), "{alone}");
        }
    }

    #[test]
    fn everything_that_is_asked_for_needs_a_right() {
        assert_eq!(
            needed(&[
                ("Impersonate-User", "ada"),
                ("Impersonate-Group", "a"),
                ("Impersonate-Uid", "u"),
                ("Impersonate-Extra-Some%2fscope", "s"),
            ]),
            ["users  ada", "groups  a", "uids  u", "userextras/some/scope  s"]
        );
        assert_eq!(needed(&[("Impersonate-User", "system:serviceaccount:n:x")]), ["serviceaccounts n x"]);
        assert_eq!(needed(&[("Impersonate-User", "system:serviceaccount:x")]).len(), 1);
    }
}
