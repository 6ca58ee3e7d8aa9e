//! TokenReview and the access reviews, which are answered and never stored.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use super::access::{Asker, asker};
use super::request_info::ResourcePath;
use super::{ApiError, Server, body, json_of};
use crate::auth::account::ISSUER;
use crate::auth::{Bearer, User};
use crate::rbac::action::{Access, Action};
use crate::rbac::roles::Decision;
use crate::rbac::rule::Rule;
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
pub(super) fn at(path: &ResourcePath) -> Option<&'static Review> {
    if path.version != VERSION || path.name.is_some() {
        return None;
    }
    let at = (path.group.as_str(), path.resource.as_str(), path.namespace.is_some());
    REVIEWS.iter().find(|row| (row.group, row.plural, row.namespaced) == at)
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
    namespace: Option<String>,
    request: Request,
) -> Result<Response, ApiError> {
    if request.method() != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let asker = asker(&request)?.clone();
    let mut value =
        body::object(request).await?.ok_or_else(|| ApiError::bad_request("the request has no body"))?;
    for (field, expected) in [("apiVersion", review.api_version()), ("kind", review.kind.to_owned())] {
        let has = value.get(field).and_then(Value::as_str).unwrap_or(&expected);
        if has != expected {
            return Err(ApiError::bad_request(format!(
                "the {field} in the data ({has:?}) does not match the expected {field} ({expected:?})"
            )));
        }
        value[field] = json!(expected);
    }
    let request = ReviewRequest { review, asker, value: &value, namespace };
    value["status"] = request.status(server)?;
    Ok(json_of(StatusCode::CREATED, &value))
}

/// A review that is to be answered.
struct ReviewRequest<'a> {
    review: &'static Review,
    asker: Asker,
    value: &'a Value,
    /// The namespace of the path.
    namespace: Option<String>,
}

impl ReviewRequest<'_> {
    fn text(&self, path: &str) -> &str {
        self.value.pointer(path).and_then(Value::as_str).unwrap_or_default()
    }

    fn texts(&self, path: &str) -> Vec<String> {
        let list = self.value.pointer(path).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn unsound(&self, field: &str, message: &str) -> ApiError {
        let cause =
            Cause { reason: "FieldValueInvalid", message: message.to_owned(), field: field.to_owned() };
        ApiError::unsound((self.review.group, self.review.kind), "", &[cause])
    }

    fn status(&self, server: &Server) -> Result<Value, ApiError> {
        Ok(match self.review.what {
            What::Me => json!({ "userInfo": user_info(&self.asker.user) }),
            What::Token => {
                let token = self.text("/spec/token");
                if token.is_empty() {
                    return Err(self.unsound("spec.token", "Required value: must not be empty"));
                }
                self.token(server, token)
            }
            What::MyRules => self.rules()?,
            What::MyAccess => self.access(&self.asker.user)?,
            What::Access => {
                let (name, groups) = (self.text("/spec/user").to_owned(), self.texts("/spec/groups"));
                if name.is_empty() && groups.is_empty() {
                    let why = "Invalid value: \"\": at least one of user or group must be specified";
                    return Err(self.unsound("spec.user", why));
                }
                self.access(&User { name, groups, ..User::default() })?
            }
        })
    }

    /// The user of a token for one of these audiences, by default this server's.
    fn token(&self, server: &Server, token: &str) -> Value {
        let mut wanted = self.texts("/spec/audiences");
        if wanted.is_empty() {
            wanted.push(ISSUER.to_owned());
        }
        let Some(Bearer { user, audiences }) = server.tokens.bearer(token) else {
            return json!({"user": {}, "error": "the token is not valid"});
        };
        let audiences: Vec<String> = audiences.into_iter().filter(|one| wanted.contains(one)).collect();
        if audiences.is_empty() {
            return json!({"user": {}, "error": format!("token audiences is invalid for the target audiences {wanted:?}")});
        }
        json!({"authenticated": true, "user": user_info(&user), "audiences": audiences})
    }

    fn action(&self) -> Result<Action, ApiError> {
        let given = |field: &str| self.value.pointer(&format!("/spec/{field}")).is_some_and(Value::is_object);
        let attribute = |field: &str| self.text(&format!("/spec/resourceAttributes/{field}")).to_owned();
        match (given("resourceAttributes"), given("nonResourceAttributes"), &self.namespace) {
            (true, false, Some(namespace)) if *namespace != attribute("namespace") => {
                let field = "spec.resourceAttributes.namespace";
                let why =
                    format!("Invalid value: {:?}: must match metadata.namespace", attribute("namespace"));
                Err(self.unsound(field, &why))
            }
            (true, false, _) => Ok(Action::Object(Access {
                verb: attribute("verb"),
                group: attribute("group"),
                resource: attribute("resource"),
                subresource: attribute("subresource"),
                namespace: attribute("namespace"),
                name: attribute("name"),
            })),
            (false, true, Some(_)) => {
                let field = "spec.nonResourceAttributes";
                Err(self.unsound(field, "Invalid value: disallowed on this kind of request"))
            }
            (false, true, None) => Ok(Action::Path {
                verb: self.text("/spec/nonResourceAttributes/verb").to_owned(),
                path: self.text("/spec/nonResourceAttributes/path").to_owned(),
            }),
            _ => {
                let why = "Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified";
                Err(self.unsound("spec.resourceAttributes", why))
            }
        }
    }

    fn access(&self, user: &User) -> Result<Value, ApiError> {
        let decision = self.asker.roles.decide(user, &self.action()?);
        let mut status = json!({ "allowed": decision.is_allowed() });
        let (Decision::Allowed(reason) | Decision::Denied(reason)) = decision;
        if !reason.is_empty() {
            status["reason"] = json!(reason);
        }
        Ok(status)
    }

    fn rules(&self) -> Result<Value, ApiError> {
        let namespace = self.text("/spec/namespace");
        if namespace.is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let Asker { user, roles } = &self.asker;
        let everything = Rule::everything();
        let all = everything.iter().filter(|_| user.may_everything());
        let (of_paths, of_objects): (Vec<&Rule>, Vec<&Rule>) =
            all.chain(roles.rules_of(user, namespace)).partition(|rule| !rule.paths.is_empty());
        Ok(json!({"incomplete": false, "resourceRules": of_objects, "nonResourceRules": of_paths}))
    }
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}
