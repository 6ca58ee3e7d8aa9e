//! The resources of KubeVirt and of storage, which this server has beside Kubernetes' own: what completes and validates
//! their objects, and what their fields are.

pub(crate) mod claim;
pub mod crd;
pub mod kubevirt;
pub mod schema;
pub(crate) mod volume;

use vireo_apiserver::resource::Cause;
use vireo_operators::Problem;

pub use volume::describe_class;

/// Problems as the API server answers them.
pub(crate) fn causes(problems: Vec<Problem>) -> Vec<Cause> {
    let cause = |Problem { cause, field, message }| Cause { reason: cause.as_str(), message, field };
    problems.into_iter().map(cause).collect()
}
