use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, duplex, split,
};
use tokio::task::JoinHandle;
use vireo_proto::launcher::SetCredentialsRequest;

use super::transport::MAX_LINE;
use super::*;

/// Of the port.
const BUFFER: usize = 64 << 10;

/// How a guest answers a command: these bytes, or nothing.
type Manner = fn(&str) -> Option<Vec<u8>>;

/// An agent under test, in paused time, and a guest of the test's own.
struct Scene {
    client: AgentClient,
    open: watch::Sender<bool>,
    known: Arc<Mutex<Vec<Option<Known>>>>,
    guest: JoinHandle<()>,
    task: JoinHandle<()>,
}

fn scene(manner: Manner) -> Scene {
    let (port, theirs) = duplex(BUFFER);
    let (client, requests) = requests();
    let open = watch::Sender::new(false);
    let known: Arc<Mutex<Vec<_>>> = Arc::default();
    let agent = Agent { port: Box::new(port), open: open.subscribe(), requests };
    let publish = {
        let known = Arc::clone(&known);
        move |now| known.lock().unwrap().push(now)
    };
    let task = tokio::spawn(agent.run(publish));
    Scene { client, open, known, guest: tokio::spawn(play(theirs, manner)), task }
}

/// Follows the protocol as QEMU's agent does, except for what it says.
async fn play(port: DuplexStream, manner: Manner) {
    let (from, mut to) = split(port);
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).await.unwrap() > 0 {
        let text = String::from_utf8_lossy(&line).into_owned();
        let command: Value = serde_json::from_str(text.trim_start_matches('\u{fffd}')).unwrap();
        line.clear();
        let execute = command["execute"].as_str().unwrap();
        let answer = if execute == "guest-sync-delimited" {
            assert!(text.starts_with('\u{fffd}'), "it begins with what no JSON contains");
            let answer = json!({"return": command["arguments"]["id"]});
            Some([&b"rubbish\n\xff"[..], format!("{answer}\n").as_bytes()].concat())
        } else {
            manner(execute)
        };
        match answer {
            // The other side may have had enough.
            Some(bytes) => drop(to.write_all(&bytes).await),
            None => std::future::pending().await,
        }
    }
}

fn returned(value: &Value) -> Option<Vec<u8>> {
    Some(format!("{}\n", json!({ "return": value })).into_bytes())
}

fn well(command: &str) -> Option<Vec<u8>> {
    returned(&match command {
        "guest-info" => {
            json!({"version": "7.2", "supported_commands": [{"name": "guest-ping", "enabled": true}]})
        }
        "guest-get-osinfo" => {
            json!({"id": "debian", "pretty-name": "Debian\u{1b}[2J", "name": "x".repeat(500)})
        }
        "guest-get-host-name" => json!({"host-name": "analyst"}),
        "guest-network-get-interfaces" => json!([{
            "name": "lan7", "hardware-address": "52:54:00:4D:7A:01",
            "ip-addresses": [{"ip-address": "10.0.2.2", "ip-address-type": "ipv4", "prefix": 24},
                             {"ip-address": "no address", "ip-address-type": "ipv4", "prefix": 24}],
        }]),
        "guest-get-users" => json!(vec![json!({"user": "ada", "login-time": 1.5, "domain": ""}); 1000]),
        "guest-get-load" => json!({"load1m": 0.5, "load5m": 0.25, "load15m": 0.0}),
        "guest-get-fsinfo" => json!([{"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 1,
                                      "total-bytes": 2, "disk": [{"serial": "s", "bus-type": "virtio"}]}]),
        // Older agents do not know every command.
        _ => return Some(b"{\"error\": {\"class\": \"CommandNotFound\", \"desc\": \"no\"}}\n".to_vec()),
    })
}

#[tokio::test(start_paused = true)]
async fn agent_information_is_kept_while_its_port_is_open() {
    let scene = scene(well);
    let result = scene.client.ask(AgentQuestion::Users).await.unwrap_err();
    assert_eq!(
        (result.code(), result.detail.as_str()),
        (Code::Conflict, "VMI does not have guest agent connected")
    );

    scene.open.send_replace(true);
    let info = scene.client.ask(AgentQuestion::Info).await.unwrap();
    let agent = info.agent.unwrap();
    let os = agent.os.unwrap();
    assert_eq!((os.id.as_str(), os.pretty_name.as_str(), os.name.len()), ("debian", "Debian[2J", 128));
    assert_eq!(
        (agent.hostname.as_str(), agent.timezone.as_str(), agent.version.as_str()),
        ("analyst", "", "7.2")
    );
    assert_eq!(
        (agent.interfaces[0].mac.as_str(), agent.interfaces[0].addresses.len()),
        ("52:54:00:4d:7a:01", 1)
    );
    assert_eq!((info.users.len(), info.users[0].name.as_str()), (64, "ada"));
    assert_eq!(info.filesystems[0].mount_point, "/");
    let usage = scene.client.ask(AgentQuestion::Filesystems).await.unwrap();
    assert_eq!(usage.load.map(|load| (load.one, load.fifteen)), Some((0.5, 0.0)));

    tokio::time::sleep(FIRST_POLL).await;
    scene.open.send_replace(false);
    tokio::time::sleep(FIRST_POLL).await;
    let known = scene.known.lock().unwrap().clone();
    let there: Vec<bool> = known.iter().map(Option::is_some).collect();
    assert_eq!((there.first(), there.last()), (Some(&false), Some(&false)), "{there:?}");
    assert!(there.contains(&true));
    assert!(scene.client.ask(AgentQuestion::Info).await.is_err());
    scene.guest.abort();
    drop(scene.open);
    scene.task.await.unwrap();
}

/// Whatever a guest does, every request has an answer in time, and the next question is answered again.
#[tokio::test(start_paused = true)]
async fn a_hostile_guest_blocks_no_other_client() {
    let endless: Manner = |_| Some(vec![b'['; 2 * MAX_LINE]);
    let deep: Manner = |_| Some([vec![b'['; MAX_LINE - 1], vec![b'\n']].concat());
    let silent: Manner = |_| None;
    let wrong: Manner = |_| returned(&json!({"version": 7, "supported_commands": {}}));
    let binary: Manner = |_| Some(b"\x00\xfe\xff\n\n".to_vec());
    for (manner, response) in [
        (endless, "has no end"),
        (deep, "cannot be read"),
        (silent, "does not answer"),
        (wrong, "cannot be read"),
        (binary, "cannot be read"),
    ] {
        let scene = scene(manner);
        scene.open.send_replace(true);
        for request in [AgentQuestion::Info, AgentQuestion::Users] {
            let result =
                timeout(4 * REQUEST_TIMEOUT, scene.client.ask(request)).await.expect("an answer in time");
            let detail = result.unwrap_err().detail;
            assert!(detail.contains(response) || detail.contains("does not answer"), "{response}: {detail}");
        }
        assert!(scene.known.lock().unwrap().iter().all(Option::is_none), "{response}");
        scene.guest.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_is_run_and_its_exit_reported() {
    let ends: [(Manner, &str); 6] = [
        (|command| runs(command, json!({"exited": true, "exitcode": 0})), "Ok(Code(0))"),
        (|command| runs(command, json!({"exited": true, "exitcode": 3})), "Ok(Code(3))"),
        (|command| runs(command, json!({"exited": true, "signal": 9})), "Ok(Signal(9))"),
        (|_| Some(b"{\"error\": {\"desc\": \"no \\u001b such file\"}}\n".to_vec()), "no  such file"),
        (|_| returned(&json!({"pid": "seven"})), "cannot be read"),
        (|command| runs(command, json!({"exited": false})), "nothing in time"),
    ];
    for (manner, result) in ends {
        let scene = scene(manner);
        let ping = scene.client.ping().await.unwrap_err();
        assert_eq!(ping.detail, "VMI does not have guest agent connected");
        scene.open.send_replace(true);
        let command = vec!["test".to_owned(), "-e".to_owned(), "/file".to_owned()];
        let ended = match timeout(Duration::from_secs(60), scene.client.exec(command)).await {
            Ok(ended) => format!("{:?}", ended.map_err(|fault| fault.detail)),
            Err(_) => "nothing in time".to_owned(),
        };
        assert!(ended.contains(result), "{ended}, not {result}");
        // Who waits for a program delays no other request.
        let ping = timeout(REQUEST_TIMEOUT, scene.client.ping()).await.expect("an answer in time");
        assert_eq!(ping.is_ok(), !ended.contains("such file"), "{ping:?}");
        scene.guest.abort();
    }
}

fn runs(command: &str, ended: Value) -> Option<Vec<u8>> {
    returned(&match command {
        "guest-exec" => json!({"pid": 7}),
        "guest-exec-status" => ended,
        _ => json!({}),
    })
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_refuses_for_one_user_is_set_for_the_next() {
    let keys = |user: &str| AuthorizedKeys { user: user.to_owned(), keys: vec!["ssh-rsa A".to_owned()] };
    let password = UserPassword { user: "bob".to_owned(), password: b"x".to_vec() };
    let request = || SetCredentialsRequest {
        authorized_keys: vec![keys("ada"), keys("bob")],
        passwords: vec![password.clone()],
    };
    let done: Manner = |_| returned(&json!({"keys": ["ssh-rsa B"]}));
    let old: Manner = |command| match command {
        "guest-set-user-password" => returned(&json!({})),
        _ => Some(b"{\"error\": {\"desc\": \"no such\\u001b user\"}}\n".to_vec()),
    };
    let wrong: Manner = |_| returned(&json!({"keys": 7}));
    let why = "the guest agent returned an error: no such user";
    let refused = |user: &str| format!("cannot set the SSH keys of the user {user:?}: {why}");
    let unread = "cannot set the SSH keys of the user \"ada\": the guest agent's answer cannot be read";
    for (manner, expected) in [
        (done, None),
        (old, Some(format!("{}; {}", refused("ada"), refused("bob")))),
        (wrong, Some(format!("{unread}; {}", unread.replace("ada", "bob")))),
    ] {
        let scene = scene(manner);
        let offline = scene.client.set_credentials(request()).await.unwrap_err();
        assert_eq!(offline.detail, "VMI does not have guest agent connected");
        scene.open.send_replace(true);
        let set = scene.client.set_credentials(request()).await;
        assert_eq!(set.err().map(|fault| fault.detail), expected);
        scene.guest.abort();
    }
    let scene = scene(|_| None);
    scene.open.send_replace(true);
    let set = timeout(REQUEST_TIMEOUT * 3 / 2, scene.client.set_credentials(request())).await;
    assert!(set.expect("an agent that is silent is not asked again").is_err());
    scene.guest.abort();
}

/// Those who have left are not answered, so that the next in the queue need not wait for an agent that is slow.
#[tokio::test(start_paused = true)]
async fn abandoned_requests_delay_no_other() {
    let scene = scene(|command| if command == "guest-ping" { None } else { well(command) });
    scene.open.send_replace(true);
    scene.client.ask(AgentQuestion::Users).await.unwrap();
    for _ in 0..4 * MAX_QUEUED {
        let soon = timeout(Duration::from_millis(100), scene.client.ping()).await;
        assert!(soon.is_err(), "no answer, and never that too many ask: {soon:?}");
    }
    scene.guest.abort();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_answers_nothing_else() {
    let (port, mut guest) = duplex(BUFFER);
    let mut transport = Transport::new(Box::new(port));
    assert!(matches!(transport.ask::<u64>("first").await, Err(AgentError::Timeout(_))));
    let (result, ()) = tokio::join!(transport.ask::<u64>("second"), async {
        let mut seen = Vec::new();
        while seen.iter().filter(|byte| **byte == b'\n').count() < 2 {
            seen.push(guest.read_u8().await.unwrap());
        }
        // To both attempts to meet, the older first, and to the first question in between.
        guest.write_all(b"\xff{\"return\": 1}\n{\"return\": 11}\n\xff{\"return\": 2}\n").await.unwrap();
        while !seen.ends_with(b"\"second\"}\n") {
            seen.push(guest.read_u8().await.unwrap());
        }
        guest.write_all(b"{\"return\": 22}\n").await.unwrap();
    });
    assert_eq!(result.unwrap(), 22);
}

/// A guest whose file systems are frozen as its agent says, where that answers few other questions.
fn freezes(frozen: &AtomicBool, command: &str) -> Option<Vec<u8>> {
    let state = if frozen.load(Ordering::Relaxed) { "frozen" } else { "thawed" };
    match command {
        "guest-fsfreeze-status" => returned(&json!(state)),
        "guest-fsfreeze-freeze" => {
            frozen.store(true, Ordering::Relaxed);
            returned(&json!(2))
        }
        "guest-fsfreeze-thaw" => {
            let was_frozen = frozen.swap(false, Ordering::Relaxed);
            returned(&json!(if was_frozen { 2 } else { 0 }))
        }
        "guest-info" => returned(&json!({"version": "7.2"})),
        _ if state == "frozen" => Some(b"{\"error\": {\"desc\": \"disabled while frozen\"}}\n".to_vec()),
        other => well(other),
    }
}

/// Waits until the agent says this of the file systems, and returns what else it says.
async fn freeze_status(scene: &Scene, expected: &str) -> Known {
    loop {
        let last = scene.known.lock().unwrap().last().cloned().flatten();
        match last {
            Some(known) if known.freeze_status == expected => return known,
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn frozen_file_systems_are_thawed_in_time() {
    static STATE: AtomicBool = AtomicBool::new(false);
    let frozen = || STATE.load(Ordering::Relaxed);
    let scene = scene(|command| freezes(&STATE, command));
    let offline = scene.client.freeze(Duration::ZERO).await.unwrap_err();
    assert_eq!(offline.detail, "VMI does not have guest agent connected");
    scene.open.send_replace(true);
    freeze_status(&scene, "thawed").await;

    let begin = Instant::now();
    scene.client.freeze(Duration::from_secs(600)).await.unwrap();
    let known = freeze_status(&scene, "frozen").await;
    assert!(frozen() && begin.elapsed() < FIRST_POLL, "{:?}", begin.elapsed());
    assert_eq!(
        (known.hostname.as_str(), known.interfaces.len()),
        ("analyst", 1),
        "what was known stays known"
    );
    let info = scene.client.ask(AgentQuestion::Info).await.unwrap();
    let agent = info.agent.unwrap();
    assert_eq!((agent.hostname.as_str(), agent.freeze_status.as_str()), ("analyst", "frozen"));
    assert!(info.users.is_empty() && scene.client.ask(AgentQuestion::Users).await.is_err());
    // Frozen as they are, another freeze changes nothing.
    scene.client.freeze(Duration::ZERO).await.unwrap();
    freeze_status(&scene, "thawed").await;
    let elapsed = begin.elapsed().as_secs();
    assert!(!frozen() && (600..606).contains(&elapsed), "after {elapsed} s");

    // An agent that is restarted is still thawed, no matter how often; without a limit, file systems stay frozen.
    let begin = Instant::now();
    scene.client.freeze(Duration::from_secs(600)).await.unwrap();
    scene.open.send_replace(false);
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert!(frozen());
    scene.open.send_replace(true);
    freeze_status(&scene, "thawed").await;
    assert!(!frozen() && begin.elapsed().as_secs() < 706);
    scene.client.freeze(Duration::ZERO).await.unwrap();
    freeze_status(&scene, "frozen").await;
    tokio::time::sleep(Duration::from_secs(7200)).await;
    assert!(frozen());
    scene.client.thaw().await.unwrap();
    assert!(!frozen());
    freeze_status(&scene, "thawed").await;
    scene.client.thaw().await.unwrap();
    scene.guest.abort();
}

#[tokio::test(start_paused = true)]
async fn what_may_be_frozen_after_a_failure_is_thawed() {
    static STATE: AtomicBool = AtomicBool::new(false);
    static THAWS: AtomicBool = AtomicBool::new(false);
    let scene = scene(|command| match command {
        "guest-fsfreeze-freeze" => {
            freezes(&STATE, command);
            Some(b"{\"error\": {\"desc\": \"busy\"}}\n".to_vec())
        }
        "guest-fsfreeze-thaw" if !THAWS.load(Ordering::Relaxed) => {
            Some(b"{\"error\": {\"desc\": \"stuck\"}}\n".to_vec())
        }
        other => freezes(&STATE, other),
    });
    scene.open.send_replace(true);
    freeze_status(&scene, "thawed").await;
    let failed = scene.client.freeze(Duration::ZERO).await.unwrap_err();
    assert_eq!(failed.detail, "the guest agent returned an error: busy");
    assert!(STATE.load(Ordering::Relaxed));
    freeze_status(&scene, "frozen").await;
    let stuck = scene.client.thaw().await.unwrap_err();
    assert_eq!(stuck.detail, "the guest agent returned an error: stuck");
    let again = scene.client.freeze(Duration::ZERO).await.unwrap_err();
    assert_eq!(again.detail, stuck.detail, "it is frozen, and a thaw is to come");
    tokio::time::sleep(Duration::from_secs(600)).await;
    THAWS.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    freeze_status(&scene, "thawed").await;
    assert!(begin.elapsed() <= Duration::from_secs(66), "tried again: {:?}", begin.elapsed());
    scene.guest.abort();
}

/// A guest that does not answer: the request ends, and others are answered.
#[tokio::test(start_paused = true)]
async fn a_freeze_that_hangs_ends() {
    let silent: Manner = |command| match command {
        "guest-fsfreeze-freeze" => None,
        "guest-fsfreeze-status" => returned(&json!("thawed")),
        other => well(other),
    };
    let scene = scene(silent);
    scene.open.send_replace(true);
    let begin = Instant::now();
    let hung = scene.client.freeze(Duration::ZERO).await.unwrap_err();
    assert!(hung.detail.contains("does not answer within"), "{}", hung.detail);
    assert!(begin.elapsed() <= freeze::FREEZE_TIMEOUT + REQUEST_TIMEOUT);
    scene.guest.abort();
}
