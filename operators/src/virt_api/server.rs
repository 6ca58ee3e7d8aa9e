//! virt-api as a server of a cluster: the aggregated API, and the webhooks.

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Json, Router};
use kube::Client;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use vireo_client::metrics::{self, Metric, RequestCounter, gauge};
use vireo_client::tls::ClientCertificate;

use super::created::CreatedVms;
use super::front_proxy::{FrontProxy, authorize};
use super::{ApiError, VirtApi};
use crate::admission::Admission;
use crate::webhooks::{self, Webhook};

const READY: Metric = gauge("kubevirt_virt_api_ready_status", "Whether this virt-api answers requests.");
/// The largest AdmissionReview: two objects as large as they may be.
const LARGEST_REVIEW: usize = 7 << 20;

/// What requests need.
#[derive(Clone)]
struct Api {
    client: Client,
    virt_api: VirtApi,
    proxy: FrontProxy,
}

/// The routes of virt-api.
pub fn router(
    client: &Client,
    requests: &RequestCounter,
    virt_api: VirtApi,
    proxy: FrontProxy,
    admission: Admission,
) -> Router {
    let api = Api { client: client.clone(), virt_api, proxy };
    let created = CreatedVms::default();
    let webhook = |webhook: Webhook| {
        let (admission, created) = (admission.clone(), created.clone());
        post(move |Json(review): Json<Value>| async move {
            let answer = webhooks::answer(&admission, webhook, &review).await;
            if webhook == Webhook::Validate {
                created.observe(&review, &answer);
            }
            Json(answer)
        })
        .layer(DefaultBodyLimit::max(LARGEST_REVIEW))
    };
    let all = [
        Webhook::Mutate,
        Webhook::Validate,
        Webhook::ValidatePod,
        Webhook::Evict,
        Webhook::ValidateInstallation,
        Webhook::Uninstall,
    ];
    let webhooks = all.into_iter().fold(Router::new(), |router, one| router.route(one.path(), webhook(one)));
    let monitoring = metrics::router(requests, move |set| {
        set.add(&READY, Vec::new(), Some(1.into()));
        created.add(set);
    });
    webhooks
        .merge(monitoring)
        // Aggregating servers merge it.
        .route("/openapi/v2", get(async || Json(openapi())))
        .route("/apis/{*path}", any(aggregated))
        .fallback(async || ApiError::path_not_found())
        .with_state(api)
}

fn openapi() -> Value {
    json!({"swagger": "2.0", "info": {"title": "virt-api", "version": env!("CARGO_PKG_VERSION")}, "paths": {}})
}

/// Answers a request that the API server passes on.
async fn aggregated(
    State(api): State<Api>,
    Extension(certificate): Extension<ClientCertificate>,
    request: Request,
) -> Response {
    let Some(caller) = api.proxy.caller(&certificate, request.headers()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let path = request.uri().path().to_owned();
    if let Err(error) = authorize(&api.client, &caller, request.method(), &path).await {
        return error.into_response();
    }
    match api.virt_api.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
