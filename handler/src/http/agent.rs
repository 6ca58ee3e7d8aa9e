//! The guest agent subresources, with KubeVirt's responses.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path as Segments, State};
use serde_json::{Value, json};
use vireo_api::v1::API_VERSION;
use vireo_proto::launcher::{
    AgentCommand, AgentQuestion, AskAgentResponse, GuestDisk, GuestFilesystem, GuestOs, GuestUser,
    fault::Code,
};

use super::console::running;
use super::error::ApiError;
use super::find;
use crate::launcher::link::{self, LinkError};
use crate::node::Node;

type VmiPath = Segments<(String, String)>;

/// `guestosinfo`
pub(super) async fn info(State(node): State<Arc<Node>>, path: VmiPath) -> Result<Json<Value>, ApiError> {
    Ok(guest_info(ask(&node, path, AgentQuestion::Info).await?))
}

fn guest_info(response: AskAgentResponse) -> Json<Value> {
    let agent = response.agent.unwrap_or_default();
    let commands: Vec<Value> = agent.commands.iter().map(command).collect();
    Json(json!({
        "apiVersion": API_VERSION,
        "kind": "VirtualMachineInstanceGuestAgentInfo",
        "guestAgentVersion": agent.version,
        "supportedCommands": commands,
        "hostname": agent.hostname,
        "os": os(&agent.os.unwrap_or_default()),
        "timezone": agent.timezone,
        "userList": response.users.iter().map(user).collect::<Vec<_>>(),
        "fsInfo": {"disks": response.filesystems.iter().map(filesystem).collect::<Vec<_>>()},
        "fsFreezeStatus": agent.freeze_status,
    }))
}

/// What users are shown of an answer.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(response: AskAgentResponse) {
    let _ = guest_info(response).to_string();
}

/// `userlist`
pub(super) async fn users(State(node): State<Arc<Node>>, path: VmiPath) -> Result<Json<Value>, ApiError> {
    let response = ask(&node, path, AgentQuestion::Users).await?;
    Ok(list("VirtualMachineInstanceGuestOSUserList", response.users.iter().map(user)))
}

/// `filesystemlist`
pub(super) async fn filesystems(
    State(node): State<Arc<Node>>,
    path: VmiPath,
) -> Result<Json<Value>, ApiError> {
    let response = ask(&node, path, AgentQuestion::Filesystems).await?;
    Ok(list("VirtualMachineInstanceFileSystemList", response.filesystems.iter().map(filesystem)))
}

async fn ask(
    node: &Node,
    Segments((namespace, name)): VmiPath,
    question: AgentQuestion,
) -> Result<AskAgentResponse, ApiError> {
    let vmi = find(node, namespace, name)?;
    running(&vmi)?;
    let uid = vmi.metadata.uid.parse().map_err(|_| ApiError::internal("the VMI has no UID"))?;
    // The launcher knows whether the agent is connected; the status may be older.
    let response = link::ask_agent(&node.state.vmi_dir(uid).launcher_socket(), question).await;
    response.map_err(|error| match &error {
        LinkError::Fault(fault) if fault.code() == Code::Conflict => {
            ApiError::not_now(&vmi.metadata.name, &fault.detail)
        }
        error => ApiError::internal(link::chain(error)),
    })
}

fn list(kind: &str, items: impl Iterator<Item = Value>) -> Json<Value> {
    let items: Vec<Value> = items.collect();
    Json(json!({"apiVersion": API_VERSION, "kind": kind, "metadata": {}, "items": items}))
}

fn command(command: &AgentCommand) -> Value {
    json!({"name": command.name, "enabled": command.enabled})
}

fn os(os: &GuestOs) -> Value {
    json!({
        "name": os.name, "kernelRelease": os.kernel_release, "version": os.version, "prettyName": os.pretty_name,
        "versionId": os.version_id, "kernelVersion": os.kernel_version, "machine": os.machine, "id": os.id,
    })
}

fn user(user: &GuestUser) -> Value {
    json!({"userName": user.name, "domain": user.domain, "loginTime": user.login_time})
}

fn filesystem(filesystem: &GuestFilesystem) -> Value {
    let disk = |disk: &GuestDisk| json!({"serial": disk.serial, "busType": disk.bus});
    json!({
        "diskName": filesystem.name, "mountPoint": filesystem.mount_point, "fileSystemType": filesystem.kind,
        "usedBytes": filesystem.used_bytes, "totalBytes": filesystem.total_bytes,
        "disk": filesystem.disks.iter().map(disk).collect::<Vec<_>>(),
    })
}
