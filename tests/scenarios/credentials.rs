//! Keys and passwords of Secrets: in the metadata for cloud-init and on a config drive, and by a guest agent while the guest runs.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::probes::condition;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// Until the agent is heard: it is asked less and less often.
const HEARD: Duration = Duration::from_secs(120);

const SECRETS: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: boot}
stringData: {one: 'ssh-ed25519 BOOT ada@home'}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {one: 'ssh-ed25519 FIRST ada@home'}
---
apiVersion: v1
kind: Secret
metadata: {name: passwords}
stringData: {ada: secret}
";

/// The commands that print the metadata on a disk of cloud-init.
const METADATA: &str = "echo 3 >/proc/sys/vm/drop_caches; mount -t iso9660 -o ro /dev/vdb /mnt && cat /mnt/meta-data /mnt/openstack/latest/meta_data.json 2>/dev/null; umount /mnt";

const CREDENTIALS: &str = "  accessCredentials:
  - sshPublicKey: {source: {secret: {secretName: boot}}, propagationMethod: {noCloud: {}}}
  - sshPublicKey: {source: {secret: {secretName: keys}}, propagationMethod: {qemuGuestAgent: {users: [ada]}}}
  - userPassword: {source: {secret: {secretName: passwords}}, propagationMethod: {qemuGuestAgent: {}}}
";

/// The same key by a config drive.
const ON_A_CONFIG_DRIVE: &str = "  accessCredentials:
  - sshPublicKey: {source: {secret: {secretName: boot}}, propagationMethod: {configDrive: {}}}
";

/// Answers as QEMU's agent does, with one file of keys, and keeps what it is asked.
const AGENT: &str = r#"#!/bin/sh
while read -r line; do
  case $line in
  *guest-sync-delimited*)
    id=${line#*'"id":'}
    printf '\377{"return": %s}\n' "${id%%[!0-9]*}";;
  *guest-info*) echo '{"return": {"version": "9", "supported_commands": []}}';;
  *guest-ssh-get-authorized-keys*)
    echo "{\"return\": {\"keys\": [$(cat /tmp/keys)]}}";;
  *guest-ssh-*|*guest-set-user-password*)
    echo "$line" >>/tmp/asked
    echo '{"return": {}}';;
  *) echo '{"error": {"class": "CommandNotFound", "desc": "no such command"}}';;
  esac
done
"#;

#[test]
fn keys_and_passwords_reach_a_guest_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    reach_a_guest(&host, "qemu")
}

#[test]
fn nested_keys_and_passwords_reach_a_guest_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "access credentials under vireo",
        || host_with_vireo(scratch.path()),
        |host, monitor| reach_a_guest(host, monitor.hypervisor()),
    );
}

fn reach_a_guest(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, hypervisor)?;
    standalone.kubectl("apply -f -", Some(SECRETS))?.ok();
    let vmi = with_a_seed(host, "one", "cloudInitNoCloud") + CREDENTIALS;
    standalone.kubectl("apply -f -", Some(&vmi))?.ok();
    standalone.becomes_ready("vmi/one")?;
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    let meta = guest.run(METADATA, SOON)?;
    assert!(meta.contains(r#""public-keys":{"0":"ssh-ed25519 BOOT ada@home"}"#), "{meta}");
    let offline = "Guest agent is offline";
    eventually("the agent is missed", SOON, || {
        Ok(condition(&standalone.json("get vmi one")?, "AccessCredentialsSynchronized")["message"] == offline)
    })?;

    starts_an_agent(&mut guest)?;
    standalone
        .kubectl("wait --for=condition=AccessCredentialsSynchronized --timeout=120s vmi/one", None)?
        .ok();
    let asked = guest.run("cat /tmp/asked", SOON)?;
    let ours = |key: &str| format!("ssh-ed25519 {key} ada@home kubevirt.io/access-credential");
    let add = |key: &str| {
        let arguments = format!(r#"{{"keys":["{}"],"username":"ada"}}"#, ours(key));
        format!(r#"{{"arguments":{arguments},"execute":"guest-ssh-add-authorized-keys"}}"#)
    };
    let password = r#"{"arguments":{"crypted":false,"password":"c2VjcmV0","username":"ada"},"execute":"guest-set-user-password"}"#;
    assert!(asked.contains(&add("FIRST")) && asked.contains(password), "{asked}");
    assert!(!asked.contains("remove"), "the key of the guest is kept: {asked}");
    let events = standalone.items("events")?;
    assert!(events.iter().any(|event| event["reason"] == "AccessCredentialsSyncSuccess"), "{events:#?}");

    // The Secret is followed; the key that it has no more is removed.
    guest.run(&format!("echo '\"ssh-rsa MINE\", \"{}\"' >/tmp/keys; rm /tmp/asked", ours("FIRST")), SOON)?;
    change(&standalone, "keys")?;
    let mut asked = String::new();
    let follows = eventually("the agent gets the other key", HEARD, || {
        asked = guest.run("cat /tmp/asked 2>/dev/null || true", SOON)?;
        Ok(asked.contains("remove"))
    });
    assert!(follows.is_ok(), "{asked}");
    let remove = add("FIRST").replace("guest-ssh-add", "guest-ssh-remove");
    assert!(asked.contains(&add("SECOND")) && asked.contains(&remove), "{asked}");
    assert!(!asked.contains("MINE"), "{asked}");
    is_followed_after_it_was_deleted(&standalone, &mut guest)?;
    is_on_a_config_drive(host, &standalone, &mut guest)?;
    standalone.kubectl("delete vmi one two --timeout=90s", None)?.ok();
    Ok(())
}

/// An instance with a disk of cloud-init.
fn with_a_seed(host: &Host, name: &str, kind: &str) -> String {
    manifest(host, name)
        .replace("      interfaces:\n", "      - {name: seed, disk: {bus: virtio}}\n      interfaces:\n")
        + &format!("  - {{name: seed, {kind}: {{userData: '#!/bin/sh'}}}}\n")
}

/// A Secret has the key SECOND.
fn change(standalone: &Standalone<'_>, secret: &str) -> Result<(), HostError> {
    let other = "c3NoLWVkMjU1MTkgU0VDT05EIGFkYUBob21l";
    let changed = format!("patch secret {secret} --type=merge -p '{{\"data\":{{\"one\":\"{other}\"}}}}'");
    standalone.kubectl(&changed, None)?.ok();
    Ok(())
}

/// A Secret that is deleted changes nothing in the guest; one of its name that comes later is followed.
fn is_followed_after_it_was_deleted(
    standalone: &Standalone<'_>,
    guest: &mut Guest<'_>,
) -> Result<(), HostError> {
    guest.run("rm /tmp/asked", SOON)?;
    standalone.kubectl("delete secret passwords", None)?.ok();
    standalone.kubectl("create secret generic passwords --from-literal=ada=other", None)?.ok();
    let password = r#""guest-set-user-password"}"#;
    let mut asked = String::new();
    let follows = eventually("the agent gets the other password", HEARD, || {
        asked = guest.run("cat /tmp/asked 2>/dev/null || true", SOON)?;
        Ok(asked.contains(password))
    });
    assert!(follows.is_ok(), "{asked}");
    // The same in base64.
    assert!(asked.contains(r#""password":"b3RoZXI=""#), "{asked}");
    let vmi = standalone.json("get vmi one")?;
    assert_eq!(condition(&vmi, "AccessCredentialsSynchronized")["status"], "True", "{:#}", vmi["status"]);
    Ok(())
}

/// A config drive has the key that the Secret has when its guest starts. The disk of a guest that runs stays as it is.
fn is_on_a_config_drive(
    host: &Host,
    standalone: &Standalone<'_>,
    first: &mut Guest<'_>,
) -> Result<(), HostError> {
    change(standalone, "boot")?;
    let vmi = with_a_seed(host, "two", "cloudInitConfigDrive") + ON_A_CONFIG_DRIVE;
    standalone.kubectl("apply -f -", Some(&vmi))?.ok();
    standalone.becomes_ready("vmi/two")?;
    let mut guest = standalone.console("two")?;
    guest.ready()?;
    let meta = guest.run(METADATA, SOON)?;
    assert!(meta.contains(r#""public_keys":{"0":"ssh-ed25519 SECOND ada@home"}"#), "{meta}");
    let meta = first.run(METADATA, SOON)?;
    assert!(meta.contains(r#""public-keys":{"0":"ssh-ed25519 BOOT ada@home"}"#), "{meta}");
    Ok(())
}

/// A program of the guest that opens the port of the agent.
fn starts_an_agent(guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.run("modprobe virtio_console; echo '\"ssh-rsa MINE\"' >/tmp/keys", SOON)?;
    for line in AGENT.lines() {
        let quoted = line.replace('\'', r"'\''");
        guest.run(&format!("printf '%s\\n' '{quoted}' >>/tmp/agent"), SOON)?;
    }
    let find = "port=$(grep -lx org.qemu.guest_agent.0 /sys/class/virtio-ports/*/name | cut -d/ -f5)";
    guest.run(
        &format!("{find}; test -n \"$port\" && (sh /tmp/agent <>/dev/$port >&0 2>/tmp/error &)"),
        SOON,
    )?;
    Ok(())
}
