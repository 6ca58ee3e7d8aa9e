//! Authorization of a request: the action and the user, who may impersonate another one.

mod impersonate;

use std::sync::Arc;

use axum::extract::Request;

use super::request_info::RequestInfo;
use super::{ApiError, Server};
use crate::auth::User;
use crate::rbac::action::Action;
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
    pub(super) fn check(&self, action: &Action) -> Result<(), ApiError> {
        // Reasons are for who asks for them, and for those who are refused.
        if self.roles.may(&self.user, action) {
            return Ok(());
        }
        let why = match self.roles.decide(&self.user, action) {
            Decision::Denied(why) => why,
            Decision::Allowed(_) => String::new(),
        };
        Err(ApiError::denied(action, &self.user.name, &why))
    }
}

/// Who makes a request that was let in.
pub(super) fn asker(request: &Request) -> Result<&Asker, ApiError> {
    request.extensions().get().ok_or_else(|| ApiError::internal("the request is not authenticated"))
}

/// Lets a request in, which from then on has an [`Asker`].
pub(super) fn check(
    server: &Server,
    user: User,
    info: &RequestInfo,
    request: &mut Request,
) -> Result<(), ApiError> {
    let mut asker = Asker { user, roles: server.roles.now(&server.store) };
    if let Some(requested) = impersonate::requested(request.headers())? {
        for action in impersonate::actions(&requested) {
            asker.check(&action)?;
        }
        asker.user = requested.who;
    }
    asker.check(&info.action())?;
    request.extensions_mut().insert(asker);
    Ok(())
}
