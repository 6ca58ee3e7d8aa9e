//! The part of the QEMU Machine Protocol (QMP) that is needed for one VM: JSON, one message per line.

use serde_json::{Value, json};

/// A line from QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The first one.
    Greeting,
    /// A command worked.
    Return { id: String, value: Value },
    /// A command failed.
    Error { id: String, reason: String },
    /// Something happened.
    Event(Event),
}

/// Something that happened to the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It ends, for this reason.
    Shutdown { reason: String },
    /// It was reset, by the guest or by a command.
    Reset { by_guest: bool },
    /// The guest's kernel reported a panic.
    Panicked { info: String },
    /// The guest's watchdog expired, with this action.
    Watchdog { action: String },
    /// CPUs stopped.
    Stop,
    /// vCPUs resumed.
    Resume,
    /// A request of a disk failed.
    DiskError { node: String, no_space: bool, reason: String, action: DiskAction },
    /// A program of the guest has opened a port, or closed it.
    Port { id: String, open: bool },
    /// A device is gone.
    DeviceDeleted { device: String },
    /// The guest does not let go of a device.
    DeviceUnplugError { device: String },
    /// The memory dump is written, or why it is not.
    DumpCompleted { failure: Option<String> },
    /// Something that changes nothing for us.
    Other(String),
}

/// What QEMU does about a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskAction {
    /// It stops the guest and holds the request.
    Stop,
    /// The guest gets an error.
    Report,
    /// The guest gets success.
    Ignore,
}

/// A line that is none of the above.
#[derive(Debug, thiserror::Error)]
pub(super) enum QmpError {
    #[error("QEMU's monitor sent invalid JSON")]
    Syntax(#[from] serde_json::Error),
    #[error("QEMU's monitor sent an unknown message: {0}")]
    Shape(String),
}

/// A command as a line. Its name is its id: none is ever outstanding twice in a way that matters.
pub(super) fn command(name: &str) -> String {
    format!("{}\n", json!({ "execute": name, "id": name }))
}

/// The id of commands that switch links.
pub(super) const SET_LINK: &str = "set_link";

/// Switches the link of a NIC.
pub(super) fn set_link(nic: &str, up: bool) -> String {
    set_link_as(SET_LINK, nic, up)
}

/// The same with another id.
pub(super) fn set_link_as(id: &str, nic: &str, up: bool) -> String {
    format!("{}\n", json!({ "execute": "set_link", "id": id, "arguments": { "name": nic, "up": up } }))
}

/// The image of a block node has so many bytes now.
pub(super) fn block_resize(node: &str, bytes: u64) -> String {
    let arguments = json!({ "node-name": node, "size": bytes });
    format!("{}\n", json!({ "execute": "block_resize", "id": "block_resize", "arguments": arguments }))
}

/// The id of the command that begins a memory dump.
pub(super) const DUMP: &str = "dump-guest-memory";
/// How QEMU calls the descriptor of its file.
const DUMP_FILE: &str = "dump";

/// Hands the file of a memory dump to QEMU, which closes it.
pub(super) fn take_dump_file() -> String {
    format!("{}\n", json!({ "execute": "getfd", "id": "getfd", "arguments": { "fdname": DUMP_FILE } }))
}

/// Begins to write the memory to that file, in ELF format. [`Event::DumpCompleted`] follows.
pub(super) fn dump_memory() -> String {
    let arguments = json!({ "paging": false, "protocol": format!("fd:{DUMP_FILE}"), "detach": true });
    format!("{}\n", json!({ "execute": DUMP, "id": DUMP, "arguments": arguments }))
}

/// What QEMU does when the guest switches itself off: end, or wait for a reset.
pub(super) fn set_shutdown_action(wait: bool) -> String {
    let action = if wait { "pause" } else { "poweroff" };
    format!(
        "{}\n",
        json!({ "execute": "set-action", "id": "set-action", "arguments": { "shutdown": action } })
    )
}

/// Reads one line.
pub(super) fn parse(line: &str) -> Result<Message, QmpError> {
    let value: Value = serde_json::from_str(line)?;
    let id = || text(&value, "/id");
    if let Some(event) = value.pointer("/event").and_then(Value::as_str) {
        return Ok(Message::Event(event_of(event, &value)));
    }
    if value.pointer("/QMP").is_some() {
        return Ok(Message::Greeting);
    }
    if let Some(result) = value.get("return") {
        return Ok(Message::Return { id: id(), value: result.clone() });
    }
    if value.pointer("/error").is_some() {
        return Ok(Message::Error { id: id(), reason: text(&value, "/error/desc") });
    }
    Err(QmpError::Shape(line.chars().take(200).collect()))
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn event_of(name: &str, value: &Value) -> Event {
    match name {
        "SHUTDOWN" => Event::Shutdown { reason: text(value, "/data/reason") },
        "RESET" => {
            Event::Reset { by_guest: value.pointer("/data/guest").and_then(Value::as_bool) == Some(true) }
        }
        "GUEST_PANICKED" => {
            let info = value.pointer("/data/info").map(Value::to_string);
            Event::Panicked { info: info.unwrap_or_default() }
        }
        "WATCHDOG" => Event::Watchdog { action: text(value, "/data/action") },
        "STOP" => Event::Stop,
        "RESUME" => Event::Resume,
        "BLOCK_IO_ERROR" => Event::DiskError {
            node: text(value, "/data/node-name"),
            no_space: value.pointer("/data/nospace").and_then(Value::as_bool) == Some(true),
            reason: text(value, "/data/reason"),
            action: match text(value, "/data/action").as_str() {
                "stop" => DiskAction::Stop,
                "ignore" => DiskAction::Ignore,
                _ => DiskAction::Report,
            },
        },
        "VSERPORT_CHANGE" => Event::Port {
            id: text(value, "/data/id"),
            open: value.pointer("/data/open").and_then(Value::as_bool) == Some(true),
        },
        "DEVICE_DELETED" => Event::DeviceDeleted { device: text(value, "/data/device") },
        "DEVICE_UNPLUG_GUEST_ERROR" => Event::DeviceUnplugError { device: text(value, "/data/device") },
        "DUMP_COMPLETED" => {
            let completed = text(value, "/data/result/status") == "completed";
            let failure = match text(value, "/data/error") {
                why if why.is_empty() => "QEMU does not say why".to_owned(),
                why => why,
            };
            Event::DumpCompleted { failure: (!completed).then_some(failure) }
        }
        other => Event::Other(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_what_qemu_sends() {
        let table = [
            (r#"{"QMP": {"version": {}, "capabilities": []}}"#, Message::Greeting),
            (r#"{"return": {}, "id": "quit"}"#, Message::Return { id: "quit".into(), value: json!({}) }),
            (
                r#"{"id": "quit", "error": {"class": "GenericError", "desc": "no"}}"#,
                Message::Error { id: "quit".into(), reason: "no".into() },
            ),
            (
                r#"{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}"#,
                Message::Event(Event::Shutdown { reason: "guest-shutdown".into() }),
            ),
            (
                r#"{"event": "RESET", "data": {"guest": true, "reason": "guest-reset"}}"#,
                Message::Event(Event::Reset { by_guest: true }),
            ),
            (
                r#"{"event": "RESET", "data": {"guest": false, "reason": "host-qmp-system-reset"}}"#,
                Message::Event(Event::Reset { by_guest: false }),
            ),
            (
                r#"{"event": "GUEST_PANICKED", "data": {"action": "shutdown"}}"#,
                Message::Event(Event::Panicked { info: String::new() }),
            ),
            (
                r#"{"event": "WATCHDOG", "data": {"action": "poweroff"}}"#,
                Message::Event(Event::Watchdog { action: "poweroff".into() }),
            ),
            (r#"{"event": "STOP"}"#, Message::Event(Event::Stop)),
            (r#"{"event": "RESUME"}"#, Message::Event(Event::Resume)),
            (
                r#"{"event": "BLOCK_IO_ERROR", "data": {"device": "", "nospace": true, "node-name": "disk0", "reason": "No space left on device", "operation": "write", "action": "stop"}}"#,
                Message::Event(Event::DiskError {
                    node: "disk0".into(),
                    no_space: true,
                    reason: "No space left on device".into(),
                    action: DiskAction::Stop,
                }),
            ),
            (
                r#"{"event": "BLOCK_IO_ERROR", "data": {"device": "", "reason": "Input/output error", "operation": "read", "action": "report"}}"#,
                Message::Event(Event::DiskError {
                    node: String::new(),
                    no_space: false,
                    reason: "Input/output error".into(),
                    action: DiskAction::Report,
                }),
            ),
            (
                r#"{"event": "VSERPORT_CHANGE", "data": {"open": true, "id": "agent"}}"#,
                Message::Event(Event::Port { id: "agent".into(), open: true }),
            ),
            (
                r#"{"event": "DEVICE_DELETED", "data": {"device": "d", "path": "/machine/d"}}"#,
                Message::Event(Event::DeviceDeleted { device: "d".into() }),
            ),
            (
                r#"{"event": "DEVICE_UNPLUG_GUEST_ERROR", "data": {"device": "d", "path": "/machine/d"}}"#,
                Message::Event(Event::DeviceUnplugError { device: "d".into() }),
            ),
            (
                r#"{"event": "DUMP_COMPLETED", "data": {"result": {"total": 9, "status": "completed", "completed": 9}}}"#,
                Message::Event(Event::DumpCompleted { failure: None }),
            ),
            (
                r#"{"event": "DUMP_COMPLETED", "data": {"result": {"total": 9, "status": "failed", "completed": 1}, "error": "No space left on device"}}"#,
                Message::Event(Event::DumpCompleted { failure: Some("No space left on device".into()) }),
            ),
            (r#"{"event": "RTC_CHANGE"}"#, Message::Event(Event::Other("RTC_CHANGE".into()))),
        ];
        for (line, message) in table {
            assert_eq!(parse(line).unwrap(), message, "{line}");
        }
        assert!(matches!(parse("{"), Err(QmpError::Syntax(_))));
        assert!(matches!(parse("{}"), Err(QmpError::Shape(_))));
        assert_eq!(command("quit"), "{\"execute\":\"quit\",\"id\":\"quit\"}\n");
        assert!(set_shutdown_action(true).contains(r#"{"shutdown":"pause"}"#));
    }

    proptest! {
        #[test]
        fn no_line_panics(line in ".*") {
            let _ = parse(&line);
        }
    }
}
