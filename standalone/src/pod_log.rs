//! `kubectl logs` of a launcher Pod: asked of the node agent, as of a kubelet.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::response::Response;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use vireo_api::names::{COMPUTE, CREATED_BY_LABEL, DOMAIN_ANNOTATION};
use vireo_apiserver::http::{Answer, ApiError, ApiService, Endpoint, ResourcePath};
use vireo_apiserver::meta::{self, is_dns_name};
use vireo_apiserver::resource::PODS;
use vireo_apiserver::store::Store;

use vireo_install::resource::kubevirt::VMIS;

/// Serves the logs of Pods.
#[derive(Debug)]
pub(crate) struct PodLog {
    /// The objects.
    pub(crate) store: Arc<Store>,
    /// The node agent's endpoint.
    pub(crate) node: Router,
}

impl ApiService for PodLog {
    fn resources(&self, group: &str, version: &str) -> Vec<Value> {
        if (group, version) != ("", "v1") {
            return Vec::new();
        }
        vec![
            json!({"name": "pods/log", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["get"]}),
        ]
    }

    fn endpoint(&self, path: &ResourcePath) -> Option<Result<Endpoint, ApiError>> {
        // One that follows the log goes on for as long as its client wants.
        pod(path).map(|_| Ok(Endpoint::Connection))
    }

    fn serve(self: Arc<Self>, path: ResourcePath, request: Request) -> Answer<Result<Response, ApiError>> {
        Box::pin(async move {
            let (namespace, name) = pod(&path).ok_or_else(ApiError::path_not_found)?;
            if request.method() != Method::GET {
                return Err(ApiError::method_not_allowed());
            }
            let found = self.store.get(&PODS.key(namespace, name));
            let found = found.ok_or_else(|| ApiError::not_found(&PODS, name))?;
            let uid = |vmi: &str| {
                self.store
                    .get(&VMIS.key(namespace, vmi))
                    .map(|vmi| meta::text(&vmi.value(), "uid").to_owned())
            };
            let path = log_of(&found.value(), (namespace, name), request.uri().query(), uid)?;
            self.ask(request, &path).await
        })
    }
}

impl PodLog {
    async fn ask(&self, mut request: Request, path: &str) -> Result<Response, ApiError> {
        let uri: Uri = path.parse().map_err(|_| ApiError::bad_request("the query cannot be passed on"))?;
        *request.uri_mut() = uri;
        match self.node.clone().oneshot(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }
}

/// Namespace and name of the Pod whose log is at a path.
fn pod(path: &ResourcePath) -> Option<(&str, &str)> {
    let is_log = (path.group.as_str(), path.version.as_str(), path.resource.as_str()) == ("", "v1", "pods")
        && path.subresource() == ["log"];
    Some((path.namespace.as_deref()?, path.name.as_deref()?)).filter(|_| is_log)
}

/// Where the node agent has the log of a Pod, with kube-apiserver's answers where it has none.
/// `uid` returns the UID of a VMI.
fn log_of(
    pod: &Value,
    (namespace, name): (&str, &str),
    query: Option<&str>,
    uid: impl Fn(&str) -> Option<String>,
) -> Result<String, ApiError> {
    let containers = query.into_iter().flat_map(|query| query.split('&'));
    let container = containers.filter_map(|pair| pair.strip_prefix("container=")).next_back();
    if let Some(container) = container.filter(|container| ![COMPUTE, ""].contains(container)) {
        return Err(ApiError::bad_request(format!("container {container} is not valid for pod {name}")));
    }
    if pod.pointer("/spec/nodeName").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let vmi = pod.pointer("/metadata/annotations").and_then(|all| all.get(DOMAIN_ANNOTATION)?.as_str());
    // Then they need no escape in a path.
    let vmi = vmi.filter(|vmi| is_dns_name(namespace) && is_dns_name(vmi));
    let vmi = vmi.ok_or_else(|| ApiError::bad_request(format!("pod {name} is not a launcher pod")))?;
    let created_by = pod.pointer("/metadata/labels").and_then(|all| all.get(CREATED_BY_LABEL)?.as_str());
    // The node agent finds guests by name, and another one may have it by now.
    if created_by.is_none() || uid(vmi).as_deref() != created_by {
        return Err(ApiError::bad_request(format!("the guest of pod {name} is gone, and its log with it")));
    }
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    Ok(format!("/v1/namespaces/{namespace}/virtualmachineinstances/{vmi}/log{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_the_console_of_the_guest() {
        let pod = |node: &str, vmi: &str| {
            json!({"metadata": {"annotations": {DOMAIN_ANNOTATION: vmi}, "labels": {CREATED_BY_LABEL: "u"}},
                "spec": {"nodeName": node}})
        };
        let uid = |vmi: &str| match vmi {
            "web" => Some("u".to_owned()),
            "again" => Some("v".to_owned()),
            _ => None,
        };
        let asked = |pod: Value, query: &str| {
            log_of(&pod, ("n", "p"), Some(query), uid).map_err(|error| error.to_value()["message"].clone())
        };
        let path =
            "/v1/namespaces/n/virtualmachineinstances/web/log?container=compute&follow=true".to_owned();
        assert_eq!(asked(pod("node1", "web"), "container=compute&follow=true"), Ok(path));
        for (pod, query, message) in [
            (pod("node1", "web"), "container=other", "container other is not valid for pod p"),
            (pod("", "web"), "", "pod p does not have a host assigned"),
            (pod("node1", "../x"), "", "pod p is not a launcher pod"),
            (json!({"spec": {"nodeName": "node1"}}), "", "pod p is not a launcher pod"),
            (pod("node1", "again"), "", "the guest of pod p is gone, and its log with it"),
            (pod("node1", "gone"), "", "the guest of pod p is gone, and its log with it"),
        ] {
            assert_eq!(asked(pod, query), Err(json!(message)));
        }
    }
}
