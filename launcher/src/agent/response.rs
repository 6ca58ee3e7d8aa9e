//! Responses of the agent, truncated to bounds.

use std::net::IpAddr;

use serde::Deserialize;
use vireo_proto::launcher::{
    Agent, AgentCommand, AgentQuestion, AskAgentResponse, GuestDisk, GuestFilesystem, GuestInterface,
    GuestLoad, GuestOs, GuestUser,
};

use super::freeze::{self, FROZEN};
use super::transport::{AgentError, Transport};

/// Letters of a name.
const MAX_NAME: usize = 128;
/// Letters of a path.
const MAX_PATH: usize = 1024;
/// Of anything there may be several of.
const MAX_ITEMS: usize = 64;
/// Commands of an agent; QEMU's has about fifty.
const MAX_COMMANDS: usize = 256;

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    version: String,
    #[serde(default)]
    supported_commands: Vec<Command>,
}

#[derive(Deserialize)]
struct Command {
    name: String,
    #[serde(default)]
    enabled: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Os {
    name: String,
    kernel_release: String,
    version: String,
    pretty_name: String,
    version_id: String,
    kernel_version: String,
    machine: String,
    id: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct HostName {
    host_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Zone {
    zone: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Interface {
    name: String,
    #[serde(default)]
    hardware_address: String,
    #[serde(default)]
    ip_addresses: Vec<Address>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Address {
    ip_address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    user: String,
    #[serde(default)]
    domain: String,
    #[serde(default)]
    login_time: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Filesystem {
    name: String,
    mountpoint: String,
    r#type: String,
    #[serde(default)]
    used_bytes: u64,
    #[serde(default)]
    total_bytes: u64,
    #[serde(default)]
    disk: Vec<Disk>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Disk {
    #[serde(default)]
    serial: String,
    #[serde(default)]
    bus_type: String,
}

/// Agents know it since QEMU 10.
#[derive(Deserialize)]
struct Load {
    load1m: f64,
    load5m: f64,
    load15m: f64,
}

/// What is known of a guest by its agent, which had this to say before. An agent whose file systems are frozen answers
/// few other questions, so that its earlier answers stay.
pub(super) async fn poll(transport: &mut Transport, last: Option<&Agent>) -> Result<Agent, AgentError> {
    if let Some(last) = last {
        let freeze_status = cut(&or_default(freeze::status(transport).await)?, MAX_NAME);
        if freeze_status == FROZEN {
            return Ok(Agent { freeze_status, ..last.clone() });
        }
    }
    known(transport).await
}

/// What is known of a guest by its agent. Only what it is and does is needed; the rest may be missing, as agents differ.
pub(super) async fn known(transport: &mut Transport) -> Result<Agent, AgentError> {
    let info: Info = transport.ask("guest-info").await?;
    let os: Os = or_default(transport.ask("guest-get-osinfo").await)?;
    let host: HostName = or_default(transport.ask("guest-get-host-name").await)?;
    let zone: Zone = or_default(transport.ask("guest-get-timezone").await)?;
    let interfaces: Vec<Interface> = or_default(transport.ask("guest-network-get-interfaces").await)?;
    let freeze: String = or_default(freeze::status(transport).await)?;
    let command =
        |command: Command| AgentCommand { name: cut(&command.name, MAX_NAME), enabled: command.enabled };
    Ok(Agent {
        version: cut(&info.version, MAX_NAME),
        commands: info.supported_commands.into_iter().take(MAX_COMMANDS).map(command).collect(),
        os: Some(GuestOs {
            name: cut(&os.name, MAX_NAME),
            kernel_release: cut(&os.kernel_release, MAX_NAME),
            version: cut(&os.version, MAX_NAME),
            pretty_name: cut(&os.pretty_name, MAX_NAME),
            version_id: cut(&os.version_id, MAX_NAME),
            kernel_version: cut(&os.kernel_version, MAX_NAME),
            machine: cut(&os.machine, MAX_NAME),
            id: cut(&os.id, MAX_NAME),
        }),
        hostname: cut(&host.host_name, MAX_NAME),
        timezone: cut(&zone.zone, MAX_NAME),
        interfaces: interfaces.into_iter().take(MAX_ITEMS).map(interface).collect(),
        freeze_status: cut(&freeze, MAX_NAME),
    })
}

/// Answers a query from the agent's current data, and from the last where file systems are frozen. Of all there is, some may be
/// missing.
pub(super) async fn query(
    transport: &mut Transport,
    what: AgentQuestion,
    last: Option<&Agent>,
) -> Result<AskAgentResponse, AgentError> {
    let mut answer = AskAgentResponse::default();
    let all = what == AgentQuestion::Info;
    if all {
        answer.agent = Some(poll(transport, last).await?);
    }
    if all || what == AgentQuestion::Users {
        let users = transport.ask("guest-get-users").await;
        let users: Vec<User> = if all { or_default(users)? } else { users? };
        answer.users = users.into_iter().take(MAX_ITEMS).map(user).collect();
    }
    // It is asked for with what else is measured.
    if what == AgentQuestion::Filesystems {
        let load: Option<Load> = or_default(transport.ask("guest-get-load").await)?;
        answer.load = load.and_then(guest_load);
    }
    if all || what == AgentQuestion::Filesystems {
        let filesystems = transport.ask("guest-get-fsinfo").await;
        let filesystems: Vec<Filesystem> = if all { or_default(filesystems)? } else { filesystems? };
        answer.filesystems = filesystems.into_iter().take(MAX_ITEMS).map(filesystem).collect();
    }
    Ok(answer)
}

/// The default where the agent rejects a command or its response cannot be parsed; transport errors are kept.
fn or_default<T: Default>(result: Result<T, AgentError>) -> Result<T, AgentError> {
    match result {
        Err(AgentError::Refused(_) | AgentError::Answer(_)) => Ok(T::default()),
        result => result,
    }
}

fn interface(interface: Interface) -> GuestInterface {
    let addresses = interface.ip_addresses.iter().filter_map(|one| one.ip_address.parse::<IpAddr>().ok());
    GuestInterface {
        name: cut(&interface.name, MAX_NAME),
        mac: cut(&interface.hardware_address, MAX_NAME).to_lowercase(),
        addresses: addresses.take(MAX_ITEMS).map(|address| address.to_string()).collect(),
    }
}

fn guest_load(load: Load) -> Option<GuestLoad> {
    let is_known =
        [load.load1m, load.load5m, load.load15m].iter().all(|load| load.is_finite() && *load >= 0.0);
    is_known.then_some(GuestLoad { one: load.load1m, five: load.load5m, fifteen: load.load15m })
}

fn user(user: User) -> GuestUser {
    let login_time = if user.login_time.is_finite() { user.login_time } else { 0.0 };
    GuestUser { name: cut(&user.user, MAX_NAME), domain: cut(&user.domain, MAX_NAME), login_time }
}

fn filesystem(filesystem: Filesystem) -> GuestFilesystem {
    let disk =
        |disk: Disk| GuestDisk { serial: cut(&disk.serial, MAX_NAME), bus: cut(&disk.bus_type, MAX_NAME) };
    GuestFilesystem {
        name: cut(&filesystem.name, MAX_NAME),
        mount_point: cut(&filesystem.mountpoint, MAX_PATH),
        kind: cut(&filesystem.r#type, MAX_NAME),
        used_bytes: filesystem.used_bytes,
        total_bytes: filesystem.total_bytes,
        disks: filesystem.disk.into_iter().take(MAX_ITEMS).map(disk).collect(),
    }
}

/// Truncated, without control characters.
pub(super) fn cut(text: &str, letters: usize) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(letters).collect()
}
