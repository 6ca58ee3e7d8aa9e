//! Entry point for what a guest's agent answers.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::{io, str};

use prost::Message as _;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use vireo_proto::launcher::{Agent as Known, AgentQuestion, AskAgentResponse};

use super::freeze::Freezer;
use super::transport::Transport;
use super::{exec, response};
use crate::fuzzing::block_on;

/// What a node agent takes in one message.
const MESSAGE: usize = 4 << 20;

/// An agent that answers each command with the next line of a script, and nothing after its end.
struct Guest {
    script: Vec<u8>,
    at: usize,
    /// What was sent to it of a command.
    command: Vec<u8>,
    /// What it is about to answer.
    answer: Vec<u8>,
    /// It answers what synchronizes the two as it should.
    answers_sync: bool,
}

impl Guest {
    fn next_line(&mut self) {
        let rest = self.script.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        self.answer.extend(rest.get(..len).unwrap_or_default());
        self.at += len;
    }

    fn execute(&mut self, command: &[u8]) {
        let text =
            str::from_utf8(command.strip_prefix(&[0xff]).unwrap_or(command)).expect("a command is text");
        let command: Value = serde_json::from_str(text).expect("a command is JSON");
        let name = command.get("execute").and_then(Value::as_str).expect("a command has a name");
        if self.answers_sync && name == "guest-sync-delimited" {
            let answer = json!({ "return": command.pointer("/arguments/id") });
            self.answer.push(0xff);
            self.answer.extend(format!("{answer}\n").bytes());
        } else {
            self.next_line();
        }
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len = self.answer.len().min(into.remaining());
        let answer: Vec<u8> = self.answer.drain(..len).collect();
        into.put_slice(&answer);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guest {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.command.extend(bytes);
        while let Some(end) = self.command.iter().position(|byte| *byte == b'\n') {
            let command: Vec<u8> = self.command.drain(..=end).collect();
            self.execute(&command);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What an agent answers, a line to each command. With an even first byte, also to those that synchronize the two.
pub fn guest_agent(script: &[u8]) {
    let Some((kind, script)) = script.split_first() else { return };
    let guest = Guest {
        script: script.to_vec(),
        at: 0,
        command: Vec::new(),
        answer: Vec::new(),
        answers_sync: kind & 1 == 1,
    };
    let mut transport = Transport::new(Box::new(guest));
    block_on(async {
        let mut last: Option<Known> = None;
        for question in [AgentQuestion::Info, AgentQuestion::Filesystems, AgentQuestion::Users] {
            let Ok(answer) = response::query(&mut transport, question, last.as_ref()).await else { continue };
            check(&answer);
            last = answer.agent.or(last);
        }
        let mut freezer = Freezer::default();
        let _ = freezer.freeze(&mut transport, std::time::Duration::ZERO).await;
        let _ = freezer.thaw(&mut transport).await;
        if let Ok(program) = exec::start(&mut transport, &["true".to_owned()]).await {
            let _ = exec::ended(&mut transport, program).await.map(|end| end.map(|end| end.to_string()));
        }
    });
}

fn check(answer: &AskAgentResponse) {
    assert!(answer.encoded_len() < MESSAGE, "{} bytes", answer.encoded_len());
    assert!(answer.users.iter().all(|user| user.login_time.is_finite()));
    assert!(answer.users.len() <= 64 && answer.filesystems.len() <= 64, "more than are shown");
    let Some(agent) = &answer.agent else { return };
    assert!(agent.interfaces.len() <= 64 && agent.commands.len() <= 256, "more than are shown");
    let names = [&agent.version, &agent.hostname, &agent.timezone, &agent.freeze_status];
    assert!(names.iter().all(|name| name.chars().count() <= 128 && !name.contains(char::is_control)));
}

/// Answers of QEMU's agent.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let info = concat!(
        r#"{"return": {"version": "9", "supported_commands": [{"name": "guest-ping", "enabled": true}]}}"#,
        "\n",
        r#"{"return": {"id": "debian", "pretty-name": "Debian", "kernel-release": "6.1"}}"#,
        "\n",
        r#"{"return": {"host-name": "web"}}"#,
        "\n",
        r#"{"return": {"zone": "UTC", "offset": 0}}"#,
        "\n",
        r#"{"return": [{"name": "eth0", "hardware-address": "52:54:00:00:00:01", "ip-addresses": [{"ip-address": "10.0.2.2", "prefix": 24}]}]}"#,
        "\n",
        r#"{"return": "thawed"}"#,
        "\n",
        r#"{"return": [{"user": "root", "login-time": 1e9}]}"#,
        "\n",
        r#"{"return": [{"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 1, "total-bytes": 2, "disk": [{"serial": "s", "bus-type": "virtio"}]}]}"#,
        "\n",
        r#"{"return": {"load1m": 0.1, "load5m": 0.2, "load15m": 0.3}}"#,
        "\n",
        r#"{"error": {"class": "CommandNotFound", "desc": "no"}}"#,
        "\n",
    );
    let last = concat!(
        r#"{"return": []}"#,
        "\n",
        r#"{"return": "frozen"}"#,
        "\n",
        r#"{"return": 3}"#,
        "\n",
        r#"{"return": {"pid": 7}}"#,
        "\n",
        r#"{"return": {"exited": true, "exitcode": 0}}"#,
        "\n",
    );
    vec![
        [b"\x01", info.as_bytes(), last.as_bytes()].concat(),
        [b"\x01", last.as_bytes()].concat(),
        [&b"\0rubbish\xff{\"return\": 1}\n"[..], info.as_bytes()].concat(),
    ]
}
