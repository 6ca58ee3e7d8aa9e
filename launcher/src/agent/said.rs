//! What agents say, cut to what others can bear.

use std::net::IpAddr;

use serde::Deserialize;
use vireo_proto::launcher::{
    Agent, AgentCommand, AgentQuestion, AskAgentResponse, GuestDisk, GuestFilesystem, GuestInterface,
    GuestOs, GuestUser,
};

use super::talk::{AgentError, Talk};

/// Letters of a name.
const NAME: usize = 128;
/// Letters of a path.
const PATH: usize = 1024;
/// Of anything there may be several of.
const MANY: usize = 64;
/// Commands of an agent; QEMU's has about fifty.
const COMMANDS: usize = 256;

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

/// What is known of a guest by its agent. Only what it is and does is needed; the rest may be missing, as agents differ.
pub(super) async fn known(talk: &mut Talk) -> Result<Agent, AgentError> {
    let info: Info = talk.ask("guest-info").await?;
    let os: Os = or_nothing(talk.ask("guest-get-osinfo").await)?;
    let host: HostName = or_nothing(talk.ask("guest-get-host-name").await)?;
    let zone: Zone = or_nothing(talk.ask("guest-get-timezone").await)?;
    let interfaces: Vec<Interface> = or_nothing(talk.ask("guest-network-get-interfaces").await)?;
    let freeze: String = or_nothing(talk.ask("guest-fsfreeze-status").await)?;
    let command =
        |command: Command| AgentCommand { name: cut(&command.name, NAME), enabled: command.enabled };
    Ok(Agent {
        version: cut(&info.version, NAME),
        commands: info.supported_commands.into_iter().take(COMMANDS).map(command).collect(),
        os: Some(GuestOs {
            name: cut(&os.name, NAME),
            kernel_release: cut(&os.kernel_release, NAME),
            version: cut(&os.version, NAME),
            pretty_name: cut(&os.pretty_name, NAME),
            version_id: cut(&os.version_id, NAME),
            kernel_version: cut(&os.kernel_version, NAME),
            machine: cut(&os.machine, NAME),
            id: cut(&os.id, NAME),
        }),
        hostname: cut(&host.host_name, NAME),
        timezone: cut(&zone.zone, NAME),
        interfaces: interfaces.into_iter().take(MANY).map(interface).collect(),
        freeze_status: cut(&freeze, NAME),
    })
}

/// Answers a question with what the agent says now.
pub(super) async fn to(talk: &mut Talk, what: AgentQuestion) -> Result<AskAgentResponse, AgentError> {
    let mut answer = AskAgentResponse::default();
    let all = what == AgentQuestion::Info;
    if all {
        answer.agent = Some(known(talk).await?);
    }
    if all || what == AgentQuestion::Users {
        let users: Vec<User> = talk.ask("guest-get-users").await?;
        answer.users = users.into_iter().take(MANY).map(user).collect();
    }
    if all || what == AgentQuestion::Filesystems {
        let filesystems: Vec<Filesystem> = talk.ask("guest-get-fsinfo").await?;
        answer.filesystems = filesystems.into_iter().take(MANY).map(filesystem).collect();
    }
    Ok(answer)
}

/// What an agent does not know, or says in another way, is missing. One that does not answer is not.
fn or_nothing<T: Default>(told: Result<T, AgentError>) -> Result<T, AgentError> {
    match told {
        Err(AgentError::Refused(_) | AgentError::Answer(_)) => Ok(T::default()),
        told => told,
    }
}

fn interface(interface: Interface) -> GuestInterface {
    let addresses = interface.ip_addresses.iter().filter_map(|one| one.ip_address.parse::<IpAddr>().ok());
    GuestInterface {
        name: cut(&interface.name, NAME),
        mac: cut(&interface.hardware_address, NAME).to_lowercase(),
        addresses: addresses.take(MANY).map(|address| address.to_string()).collect(),
    }
}

fn user(user: User) -> GuestUser {
    let login_time = if user.login_time.is_finite() { user.login_time } else { 0.0 };
    GuestUser { name: cut(&user.user, NAME), domain: cut(&user.domain, NAME), login_time }
}

fn filesystem(filesystem: Filesystem) -> GuestFilesystem {
    let disk = |disk: Disk| GuestDisk { serial: cut(&disk.serial, NAME), bus: cut(&disk.bus_type, NAME) };
    GuestFilesystem {
        name: cut(&filesystem.name, NAME),
        mount_point: cut(&filesystem.mountpoint, PATH),
        kind: cut(&filesystem.r#type, NAME),
        used_bytes: filesystem.used_bytes,
        total_bytes: filesystem.total_bytes,
        disks: filesystem.disk.into_iter().take(MANY).map(disk).collect(),
    }
}

/// What fits, and moves nobody's cursor.
pub(super) fn cut(text: &str, letters: usize) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(letters).collect()
}
