//! The resources of KubeVirt: what completes and validates their objects, and what their fields are.

pub mod crd;
pub mod kubevirt;
pub mod schema;

use vireo_apiserver::resource::Cause;
use vireo_operators::Problem;

/// Problems as the API server answers them.
pub fn causes(problems: Vec<Problem>) -> Vec<Cause> {
    let cause = |Problem { cause, field, message }| Cause { reason: cause.as_str(), message, field };
    problems.into_iter().map(cause).collect()
}
