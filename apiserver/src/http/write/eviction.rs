//! `pods/NAME/eviction`: a deletion that policy may refuse.

use axum::http::{Method, StatusCode};
use axum::response::Response;

use super::delete::Options;
use super::validate::is_kind;
use super::{WriteRequest, Writer, given};
use crate::admission::Operation;
use crate::http::blocking::run_blocking;
use crate::http::{ApiError, created, json_of};
use crate::meta;

/// Its group, kind and versions, the preferred one first.
pub(in crate::http) const GROUP: &str = "policy";
pub(in crate::http) const KIND: &str = "Eviction";
pub(in crate::http) const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// POST of an Eviction.
pub(in crate::http) async fn evict(request: WriteRequest) -> Result<Response, ApiError> {
    if request.request.method() != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let query = request.query.clone();
    let (writer, _, request) = request.split()?;
    let eviction = given(request).await?;
    let is_version = |has: &str| VERSIONS.iter().any(|version| has == format!("{GROUP}/{version}"));
    is_kind(&eviction, KIND, is_version)?;
    if meta::text(&eviction, "name") != writer.name() {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let options = eviction.get("deleteOptions").filter(|options| options.is_object()).cloned();
    let mut options = Options::read(&query, options)?;
    options.evicts = true;
    run_blocking(move || writer.evict(options)).await?;
    Ok(json_of(StatusCode::CREATED, &created()))
}

impl Writer {
    fn evict(&self, mut options: Options) -> Result<(), ApiError> {
        let pod = self.store.get(&self.object.key(self.name())).ok_or_else(|| self.absent())?;
        self.check_preconditions(&pod, &options)?;
        let pod = pod.value();
        self.admission.evict(&self.attributes(Operation::Delete, Some(&pod)), options.dry)?;
        // Another pod of this name was not asked about.
        meta::text(&pod, "uid").clone_into(&mut options.uid);
        self.remove(self.name(), &options).map(drop)
    }
}
