//! What there is: for clients that ask before they speak.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::review::{self, REVIEWS, Review};
use super::service::ApiService;
use super::write::{binding, eviction};
use super::{ApiError, json_of, token};
use crate::openapi;
use crate::resource::{PODS, Resource, SERVICE_ACCOUNTS};
use crate::served_resources::ServedResources;

/// The Kubernetes API that this is like.
const MINOR: &str = "32";
/// Clients ask for it by two spellings; `@` may not stand in an answer.
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const PROTOBUF_ASKED: [&str; 2] = [PROTOBUF, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"];
const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];
/// What is served at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served<'a> {
    pub(super) resources: &'a ServedResources,
    pub(super) services: &'a [Arc<dyn ApiService>],
}

/// `/version`
pub fn version() -> Value {
    json!({
        "major": "1", "minor": MINOR,
        "gitVersion": format!("v1.{MINOR}.0+vireo-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "rustc",
        "platform": platform(),
    })
}

/// What this was built for, as Go names it.
pub fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{architecture}", std::env::consts::OS)
}

/// `/`
pub(super) fn paths(served: &Served<'_>) -> Value {
    let documents = [
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ];
    let groups = groups(served).into_iter().flat_map(|(group, versions)| {
        let versions: Vec<String> =
            versions.iter().map(|version| format!("/apis/{group}/{version}")).collect();
        std::iter::once(format!("/apis/{group}")).chain(versions)
    });
    let of_services = served.services.iter().flat_map(|service| service.paths());
    let documents = documents.iter().map(|path| (*path).to_owned());
    let paths: Vec<String> = documents.chain(groups).chain(of_services).collect();
    json!({ "paths": paths })
}

/// Groups beside the core's, with their versions, the preferred one first.
fn groups<'a>(served: &Served<'a>) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut groups: Vec<(&'a str, Vec<&'a str>)> = Vec::new();
    for row in served.resources.all().filter(|row| !row.group.is_empty()) {
        match groups.iter_mut().find(|(group, _)| *group == row.group) {
            Some((_, versions)) if versions.contains(&&*row.version) => {}
            Some((_, versions)) => versions.push(&row.version),
            None => groups.push((&row.group, vec![&row.version])),
        }
    }
    groups.extend(served.services.iter().flat_map(|service| service.groups()));
    for row in &REVIEWS {
        if !groups.iter().any(|(group, _)| *group == row.group) {
            groups.push((row.group, vec![review::VERSION]));
        }
    }
    groups
}

fn group_of(name: &str, versions: &[&str]) -> Value {
    let version = |version: &&str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

/// `/apis/group`
pub(super) fn group(served: &Served<'_>, name: &str) -> Result<Value, ApiError> {
    let (_, versions) =
        groups(served).into_iter().find(|(group, _)| *group == name).ok_or_else(ApiError::path_not_found)?;
    let mut group = group_of(name, &versions);
    group["kind"] = json!("APIGroup");
    group["apiVersion"] = json!("v1");
    Ok(group)
}

/// `/apis/group/version`, or `/api/version`
pub(super) fn resources(served: &Served<'_>, group: &str, version: &str) -> Result<Value, ApiError> {
    let resources = api_resources(served, group, version);
    if resources.is_empty() {
        return Err(ApiError::path_not_found());
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}),
    )
}

/// The resources of a group and version with their subresources, each as an `APIResource`.
fn api_resources(served: &Served<'_>, group: &str, version: &str) -> Vec<Value> {
    let of_services = served.services.iter().flat_map(|service| service.resources(group, version));
    let mut resources: Vec<Value> = of_services.collect();
    for row in reviews(group, version) {
        resources.push(json!({
            "name": row.plural, "singularName": singular(row), "namespaced": row.namespaced, "kind": row.kind,
            "verbs": ["create"],
        }));
    }
    for row in served.resources.all().filter(|row| row.group == group && row.version == version) {
        resources.push(json!({
            "name": row.plural, "singularName": row.singular, "namespaced": row.namespaced, "kind": row.kind,
            "verbs": VERBS, "shortNames": row.short_names, "categories": row.categories,
        }));
        resources.extend(subresources(row));
        if row.is(&PODS) {
            resources.push(json!({
                "name": "bindings", "singularName": "binding", "namespaced": true, "kind": binding::KIND,
                "verbs": ["create"],
            }));
        }
    }
    resources
}

fn subresources(row: &Resource) -> Vec<Value> {
    let subresource = |name: &str, (group, version, kind): (&str, &str, &str), verbs: &[&str]| {
        let mut resource = json!({
            "name": format!("{}/{name}", row.plural), "singularName": "", "namespaced": row.namespaced,
            "kind": kind, "verbs": verbs,
        });
        if !group.is_empty() {
            resource["group"] = json!(group);
            resource["version"] = json!(version);
        }
        resource
    };
    let mut found = Vec::new();
    if row.status {
        found.push(subresource("status", ("", "", &row.kind), &STATUS_VERBS));
    }
    if row.is(&SERVICE_ACCOUNTS) {
        found.push(subresource("token", (token::KIND.0, token::VERSION, token::KIND.1), &["create"]));
    }
    if row.is(&PODS) {
        found.push(subresource("binding", ("", "", binding::KIND), &["create"]));
        // By its group kubectl decides to evict pods.
        let kind = (eviction::GROUP, eviction::VERSIONS[0], eviction::KIND);
        found.push(subresource("eviction", kind, &["create"]));
    }
    if row.scale.is_some() {
        found.push(subresource("scale", ("autoscaling", "v1", "Scale"), &STATUS_VERBS));
    }
    found
}

/// `/api` and `/apis`: everything at once for clients that know how, else the old way.
pub(super) fn legacy_or_aggregated(served: &Served<'_>, accept: &str, core: bool) -> Response {
    for kind in accept.split(',').map(str::trim) {
        let asked = kind.contains("g=apidiscovery.k8s.io") && kind.contains("as=APIGroupDiscoveryList");
        let version = ["v2", "v2beta1"]
            .into_iter()
            .find(|version| kind.split(';').any(|part| part.trim() == format!("v={version}")));
        if let Some(version) = version.filter(|_| asked) {
            let media =
                format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
            let body = aggregated(served, version, core).to_string();
            return ([(header::CONTENT_TYPE, media)], body).into_response();
        }
    }
    let answer = if core {
        json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
    } else {
        let groups: Vec<Value> =
            groups(served).iter().map(|(name, versions)| group_of(name, versions)).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    };
    json_of(StatusCode::OK, &answer)
}

fn aggregated(served: &Served<'_>, version: &str, core: bool) -> Value {
    let groups = if core { vec![("", vec!["v1"])] } else { groups(served) };
    let items: Vec<Value> = groups
        .iter()
        .map(|(group, versions)| {
            let version = |version: &&str| {
                let resources = described(group, version, &api_resources(served, group, version));
                json!({"version": version, "resources": resources, "freshness": "Current"})
            };
            let versions: Vec<Value> = versions.iter().map(version).collect();
            json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {}, "items": items,
    })
}

fn reviews(group: &str, version: &str) -> impl Iterator<Item = &'static Review> {
    REVIEWS.iter().filter(move |row| row.group == group && version == review::VERSION)
}

fn singular(row: &Review) -> String {
    row.kind.to_lowercase()
}

/// `APIResource`s of a group and version, each as an `APIResourceDiscovery` with its subresources.
fn described(group: &str, version: &str, resources: &[Value]) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    for resource in resources {
        let name = resource["name"].as_str().unwrap_or_default();
        let (name, subresource) = name.split_once('/').map_or((name, None), |(name, sub)| (name, Some(sub)));
        let scope = if resource["namespaced"] == true { "Namespaced" } else { "Cluster" };
        let of = |field: &str, default: &str| resource.get(field).cloned().unwrap_or_else(|| json!(default));
        let kind =
            json!({"group": of("group", group), "version": of("version", version), "kind": resource["kind"]});
        let index = found.iter().position(|one| one["resource"] == name).unwrap_or_else(|| {
            // What a service serves of it may be subresources alone.
            found.push(json!({"resource": name, "scope": scope, "responseKind": {}, "verbs": []}));
            found.len() - 1
        });
        let Some(one) = found.get_mut(index) else { continue };
        match subresource {
            Some(subresource) => {
                let subresource =
                    json!({"subresource": subresource, "responseKind": kind, "verbs": resource["verbs"]});
                match one.get_mut("subresources").and_then(Value::as_array_mut) {
                    Some(subresources) => subresources.push(subresource),
                    None => one["subresources"] = json!([subresource]),
                }
            }
            None => {
                one["responseKind"] = kind;
                one["singularResource"] = resource["singularName"].clone();
                for field in ["verbs", "shortNames", "categories"] {
                    one[field] = resource.get(field).cloned().unwrap_or_else(|| json!([]));
                }
            }
        }
    }
    found
}

/// `/openapi/v2`
pub(super) fn openapi_v2(served: &ServedResources, accept: &str) -> Response {
    let wanted =
        accept.split(',').any(|kind| PROTOBUF_ASKED.iter().any(|asked| kind.trim().starts_with(asked)));
    if wanted {
        return ([(header::CONTENT_TYPE, PROTOBUF)], Body::from(openapi::v2_protobuf(served)))
            .into_response();
    }
    json_of(StatusCode::OK, &openapi::v2(served))
}
