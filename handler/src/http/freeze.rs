//! `freeze` and `unfreeze`: the guest agent freezes the file systems of the guest, and thaws them.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path as Segments, State};
use jiff::SignedDuration;
use serde::Deserialize;
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::events::Reason;
use vireo_proto::launcher::fault::Code;

use super::error::ApiError;
use super::find;
use super::lifecycle::is_paused;
use crate::launcher::link::{self, LinkError};
use crate::node::Node;
use crate::reconcile::status::Phase;

type VmiPath = Segments<(String, String)>;

/// KubeVirt's `FreezeUnfreezeTimeout`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Options {
    unfreeze_timeout: Option<String>,
}

/// `freeze`; responds when the file systems are frozen.
pub(super) async fn freeze(
    State(node): State<Arc<Node>>,
    path: VmiPath,
    body: Bytes,
) -> Result<(), ApiError> {
    let thaw_after_seconds = unfreeze_timeout(&body)?;
    let (vmi, socket) = launcher(&node, path)?;
    let Err(error) = link::freeze(&socket, thaw_after_seconds).await else { return Ok(()) };
    let why = match &error {
        LinkError::Fault(fault) => fault.detail.clone(),
        error => link::chain(error),
    };
    let text = format!("The file systems of the guest cannot be frozen: {why}");
    node.publish(&vmi, Reason::FreezeError, text).await;
    Err(match error {
        LinkError::Fault(fault) if fault.code() == Code::Conflict => {
            ApiError::not_now(&vmi.metadata.name, &fault.detail)
        }
        // KubeVirt's code for what the agent does not do.
        LinkError::Fault(fault) => ApiError::bad_request(fault.detail),
        _ => ApiError::internal(why),
    })
}

/// `unfreeze`; responds when the file systems are thawed.
pub(super) async fn unfreeze(State(node): State<Arc<Node>>, path: VmiPath) -> Result<(), ApiError> {
    let (vmi, socket) = launcher(&node, path)?;
    link::thaw(&socket).await.map_err(|error| match error {
        LinkError::Fault(fault) if fault.code() == Code::Conflict => {
            ApiError::not_now(&vmi.metadata.name, &fault.detail)
        }
        error => ApiError::internal(link::chain(&error)),
    })
}

/// A VMI and the socket of its launcher.
fn launcher(
    node: &Node,
    Segments((namespace, name)): VmiPath,
) -> Result<(Arc<VirtualMachineInstance>, PathBuf), ApiError> {
    let vmi = find(node, namespace, name)?;
    check(&vmi)?;
    let uid = vmi.metadata.uid.parse().map_err(|_| ApiError::internal("the VMI has no UID"))?;
    Ok((vmi, node.state.vmi_dir(uid).launcher_socket()))
}

/// Checks that the agent of a VMI can answer.
fn check(vmi: &VirtualMachineInstance) -> Result<(), ApiError> {
    let name = &vmi.metadata.name;
    match Phase::parse(&vmi.status.phase) {
        Phase::Running if is_paused(vmi) => Err(ApiError::not_now(name, "VMI is paused")),
        Phase::Running => Ok(()),
        _ => Err(ApiError::not_now(name, "VMI is not running")),
    }
}

/// The seconds after which the file systems are thawed; 0: they are not.
fn unfreeze_timeout(body: &[u8]) -> Result<u64, ApiError> {
    let options: Options = match body.trim_ascii() {
        [] => Options::default(),
        body => serde_json::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("the options cannot be read: {error}")))?,
    };
    let Some(text) = options.unfreeze_timeout else {
        return Err(ApiError::bad_request("unfreezeTimeout: Required value"));
    };
    let seconds = text.parse::<SignedDuration>().ok().and_then(|time| {
        // A part of a second counts as one, as 0 is no limit.
        u64::try_from(time.as_millis()).ok().map(|milliseconds| milliseconds.div_ceil(1000))
    });
    seconds.ok_or_else(|| {
        let message = format!("unfreezeTimeout: Invalid value: {text:?}: must be a duration, as \"5m0s\"");
        ApiError::bad_request(message)
    })
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, Response, StatusCode};
    use kube::Client;
    use tokio::sync::{mpsc, watch};
    use vireo_api::v1::Condition;
    use vireo_client::events::EventRecorder;

    use super::*;
    use crate::launcher::fake::FakeLauncher;
    use crate::manifests::Key;

    /// A recorder whose API server stores every event. Gets the events.
    fn recorder() -> (EventRecorder, mpsc::UnboundedReceiver<serde_json::Value>) {
        let (events, received) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let events = events.clone();
            async move {
                let body = request.into_body().collect_bytes().await.unwrap();
                events.send(serde_json::from_slice(&body).unwrap()).unwrap();
                let answer = Response::builder().status(StatusCode::CREATED);
                Ok::<_, std::convert::Infallible>(answer.body(axum::body::Body::from(body)).unwrap())
            }
        });
        (EventRecorder::new(Client::new(service, "default"), "virt-handler", Some("node1")), received)
    }

    #[tokio::test]
    async fn a_guest_that_cannot_be_frozen_is_an_event() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::of_a_test(dir.path());
        let (recorder, mut events) = recorder();
        node.set_recorder(Arc::new(recorder));
        let uid = uuid::Uuid::new_v4();
        let mut vmi = VirtualMachineInstance::default();
        vmi.metadata.name = "web".to_owned();
        vmi.metadata.namespace = "default".to_owned();
        vmi.metadata.uid = uid.to_string();
        vmi.status.phase = "Running".to_owned();
        node.show(&Key { namespace: "default".to_owned(), name: "web".to_owned() }, Some(vmi));
        let socket = node.state.vmi_dir(uid).launcher_socket();
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let (_state, states) = watch::channel(vireo_proto::launcher::State::default());
        let server = FakeLauncher::with_state(states).serve(&socket);

        let path = Segments(("default".to_owned(), "web".to_owned()));
        let body = Bytes::from_static(br#"{"unfreezeTimeout": "5s"}"#);
        let refused = freeze(State(node), path, body).await.unwrap_err();
        assert_eq!((refused.code.as_u16(), refused.message.as_str()), (400, "thawed after 5 s"));
        let event = events.recv().await.unwrap();
        assert_eq!((&event["reason"], &event["type"]), (&"FreezeError".into(), &"Warning".into()));
        assert_eq!(event["message"], "The file systems of the guest cannot be frozen: thawed after 5 s");
        assert_eq!(event["involvedObject"]["uid"], uid.to_string());
        server.abort();
    }

    #[test]
    fn the_timeout_is_a_duration() {
        for (body, expected) in [
            (r#"{"unfreezeTimeout": "5m0s"}"#, Ok(300)),
            (r#"{"unfreezeTimeout": "0s"}"#, Ok(0)),
            (r#"{"unfreezeTimeout": "1h2m3s"}"#, Ok(3723)),
            (r#"{"unfreezeTimeout": "200ms"}"#, Ok(1)),
            (r#"{"unfreezeTimeout": "-1s"}"#, Err("must be a duration")),
            (r#"{"unfreezeTimeout": "soon"}"#, Err("must be a duration")),
            (r#"{"unfreezeTimeout": 5}"#, Err("cannot be read")),
            ("{}", Err("Required value")),
            (" ", Err("Required value")),
        ] {
            let seconds =
                unfreeze_timeout(body.as_bytes()).map_err(|error| (error.code.as_u16(), error.message));
            match expected {
                Ok(expected) => assert_eq!(seconds, Ok(expected), "{body}"),
                Err(text) => {
                    assert!(
                        seconds.as_ref().is_err_and(|(code, why)| *code == 400 && why.contains(text)),
                        "{body}: {seconds:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_guest_whose_agent_cannot_answer_is_not_frozen() {
        let mut vmi = VirtualMachineInstance::default();
        assert!(check(&vmi).is_err_and(|error| error.message.ends_with("VMI is not running")));
        vmi.status.phase = "Running".to_owned();
        assert_eq!(check(&vmi), Ok(()));
        let paused = Condition { r#type: "Paused".into(), status: "True".into(), ..Condition::default() };
        vmi.status.conditions.push(paused);
        assert!(check(&vmi).is_err_and(|error| error.message.ends_with("VMI is paused")));
    }
}
