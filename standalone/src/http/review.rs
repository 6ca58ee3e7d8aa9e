//! Who somebody is, and what they may do: asked and answered at once, never stored.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use super::{Refusal, Server, body, json_of};
use crate::auth::{Action, User};
use crate::resource::Cause;

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// A kind of review.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Review {
    pub(super) group: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    pub(super) namespaced: bool,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Who am I?
    Me,
    /// Whose token is it?
    Token,
    /// May I?
    MyAccess,
    /// What may I?
    MyRules,
    /// May they?
    Access,
}

/// The one version of all of them.
pub(super) const VERSION: &str = "v1";

/// All of them.
pub(super) static REVIEWS: [Review; 6] = [
    review(AUTHENTICATION, "selfsubjectreviews", "SelfSubjectReview", What::Me),
    review(AUTHENTICATION, "tokenreviews", "TokenReview", What::Token),
    review(AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview", What::MyAccess),
    review(AUTHORIZATION, "selfsubjectrulesreviews", "SelfSubjectRulesReview", What::MyRules),
    review(AUTHORIZATION, "subjectaccessreviews", "SubjectAccessReview", What::Access),
    Review {
        namespaced: true,
        ..review(AUTHORIZATION, "localsubjectaccessreviews", "LocalSubjectAccessReview", What::Access)
    },
];

const fn review(group: &'static str, plural: &'static str, kind: &'static str, what: What) -> Review {
    Review { group, plural, kind, namespaced: false, what }
}

/// The review at a path.
pub(super) fn at(segments: &[&str]) -> Option<&'static Review> {
    let (group, plural, namespaced) = match segments {
        ["apis", group, VERSION, plural] => (group, plural, false),
        ["apis", group, VERSION, "namespaces", _, plural] => (group, plural, true),
        _ => return None,
    };
    REVIEWS.iter().find(|row| (&row.group, &row.plural, row.namespaced) == (group, plural, namespaced))
}

impl Review {
    fn api_version(&self) -> String {
        format!("{}/{VERSION}", self.group)
    }
}

/// Answers a review.
pub(super) async fn serve(
    server: &Server,
    review: &'static Review,
    request: Request,
) -> Result<Response, Refusal> {
    if request.method() != Method::POST {
        return Err(Refusal::method_not_allowed());
    }
    let user = request.extensions().get::<User>().cloned().unwrap_or_else(User::anonymous);
    let mut value =
        body::object(request).await?.ok_or_else(|| Refusal::bad_request("the request has no body"))?;
    for (field, expected) in [("apiVersion", review.api_version()), ("kind", review.kind.to_owned())] {
        let has = value.get(field).and_then(Value::as_str).unwrap_or(&expected);
        if has != expected {
            return Err(Refusal::bad_request(format!(
                "the {field} in the data ({has:?}) does not match the expected {field} ({expected:?})"
            )));
        }
        value[field] = json!(expected);
    }
    value["status"] = status(server, review, &user, &value)?;
    Ok(json_of(StatusCode::CREATED, &value))
}

fn status(server: &Server, review: &Review, user: &User, value: &Value) -> Result<Value, Refusal> {
    Ok(match review.what {
        What::Me => json!({ "userInfo": told(user) }),
        What::Token => {
            let token = text(value, "/spec/token");
            if token.is_empty() {
                return Err(unsound(review, "spec.token", "Required value: must not be empty"));
            }
            match server.tokens.user_of(token) {
                Some(user) => json!({"authenticated": true, "user": told(&user)}),
                None => json!({"user": {}, "error": "the token is nobody's"}),
            }
        }
        What::MyRules if text(value, "/spec/namespace").is_empty() => {
            return Err(Refusal::bad_request("no namespace on request"));
        }
        What::MyRules => rules(user),
        What::MyAccess => access(user, action(review, value)?),
        What::Access => {
            let groups = value.pointer("/spec/groups").and_then(Value::as_array).into_iter().flatten();
            let groups: Vec<String> = groups.filter_map(Value::as_str).map(str::to_owned).collect();
            let name = text(value, "/spec/user").to_owned();
            if name.is_empty() && groups.is_empty() {
                let why = "Invalid value: \"\": at least one of user or group must be specified";
                return Err(unsound(review, "spec.user", why));
            }
            access(&User { name, groups }, action(review, value)?)
        }
    })
}

fn told(user: &User) -> Value {
    json!({"username": user.name, "groups": user.groups})
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn unsound(review: &Review, field: &str, message: &str) -> Refusal {
    let cause = Cause { reason: "FieldValueInvalid", message: message.to_owned(), field: field.to_owned() };
    Refusal::unsound((review.group, review.kind), "", &[cause])
}

fn action<'a>(review: &Review, value: &'a Value) -> Result<Action<'a>, Refusal> {
    let given = |field: &str| value.pointer(&format!("/spec/{field}")).is_some_and(Value::is_object);
    match (given("resourceAttributes"), given("nonResourceAttributes")) {
        (true, false) => Ok(Action::Objects),
        (false, true) => Ok(Action::Path {
            verb: text(value, "/spec/nonResourceAttributes/verb"),
            path: text(value, "/spec/nonResourceAttributes/path"),
        }),
        _ => {
            let why =
                "Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified";
            Err(unsound(review, "spec.resourceAttributes", why))
        }
    }
}

fn access(user: &User, action: Action<'_>) -> Value {
    json!({ "allowed": user.may(action) })
}

fn rules(user: &User) -> Value {
    let mut rules = json!({"incomplete": false, "resourceRules": [], "nonResourceRules": []});
    if user.may_everything() {
        rules["resourceRules"] = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
        rules["nonResourceRules"] = json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
    } else {
        rules["nonResourceRules"] = json!([{"verbs": ["get"], "nonResourceURLs": crate::auth::PUBLIC}]);
    }
    rules
}
