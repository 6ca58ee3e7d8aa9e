//! A real Debian from a disk, set up by cloud-init: the same on native (in a nested host) and on QEMU (here). It starts by EFI, with
//! a config drive; the one of `everything.rs` by BIOS, with NoCloud.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::installed::{self, Firmware};
use vireo_tests::{Host, HostBuilder, HostError, Status, scenario};

use crate::SOON;
use crate::scenarios::node::{Node, host_with_programs};
use crate::scenarios::probes::condition;

/// systemd and cloud-init take minutes on an emulated CPU.
pub(crate) const BOOT: Duration = Duration::from_secs(600);
pub(crate) const UUID: &str = "5d307ca9-b3ef-428c-8861-06e72d69f223";
/// Of the guest that starts by EFI, in a network that its manifest chooses.
const ADDRESS: &str = "10.9.8.2";
pub(crate) const MAC: &str = "52:54:00:4d:7a:01";

pub(crate) fn host_with_debian() -> Result<HostBuilder, HostError> {
    let images = installed::images("debian-disk").map_err(HostError::Start)?;
    Ok(host_with_programs().tree(images.join("debian/disk-oci"), "disk-oci")?.deadline(2 * BOOT))
}

/// cloud-init's disk, whose data are in base64.
fn seed(key: &str) -> String {
    let user = format!(
        r#"#cloud-config
users:
- name: ada
  sudo: ALL=(ALL) NOPASSWD:ALL
  shell: /bin/bash
  ssh_authorized_keys: ["{key}"]
write_files:
- path: /etc/written
  content: by cloud-init
"#
    );
    let network = format!(
        r#"{{"links": [{{"id": "a", "type": "phy", "ethernet_mac_address": "{MAC}", "mtu": 1404}}],
"networks": [{{"id": "b", "link": "a", "type": "ipv4", "ip_address": "{ADDRESS}", "netmask": "255.255.255.0",
  "routes": [{{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.9.8.1"}}]}}],
"services": []}}"#
    );
    let [user, network] = [user, network].map(|text| STANDARD.encode(text));
    format!("cloudInitConfigDrive:\n      userDataBase64: {user}\n      networkDataBase64: {network}")
}

fn manifest(host: &Host, key: &str) -> String {
    format!(
        r#"apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: debian
spec:
  hostname: analyst
  terminationGracePeriodSeconds: 300
  readinessProbe:
    exec: {{command: [test, -e, /etc/written]}}
    periodSeconds: 5
    timeoutSeconds: 5
  domain:
    clock: {{timezone: Europe/Berlin}}
    memory:
      guest: 512Mi
    firmware:
      uuid: {UUID}
      serial: S-4711
      bootloader: {{efi: {{secureBoot: false}}}}
    chassis:
      manufacturer: Cases & Sons
      version: V-2
      serial: C-12
      asset: A-9
      sku: K-3
    devices:
      autoattachGraphicsDevice: false
      rng: {{}}
      disks:
      - name: root
        disk:
          bus: virtio
      - name: seed
        disk:
          bus: virtio
        serial: S-SEED
        tag: seed
      interfaces:
      - name: default
        macAddress: "{MAC}"
        tag: uplink
        masquerade: {{}}
  networks:
  - name: default
    pod: {{vmNetworkCIDR: 10.9.8.0/24}}
  volumes:
  - name: root
    containerDisk:
      image: oci:{}
  - name: seed
    {}
"#,
        host.input("disk-oci"),
        seed(key)
    )
}

/// Debian's SSH client, into the guest.
pub(crate) struct Shell<'h> {
    host: &'h Host,
    address: String,
    /// The name of the key's file.
    key: String,
}

impl<'h> Shell<'h> {
    pub(crate) fn new(host: &'h Host, address: String, key: &str) -> Self {
        Self { host, address, key: key.to_owned() }
    }

    /// Makes a key; its public half.
    pub(crate) fn make_key(host: &Host, name: &str) -> Result<String, HostError> {
        let key = host.work(name);
        let line =
            format!("rm -f {key} {key}.pub; ssh-keygen -q -t ed25519 -N '' -C ada -f {key}; cat {key}.pub");
        Ok(host.shell(&line).run()?.ok().trim().to_owned())
    }

    /// The same guest, by a key that was made.
    pub(crate) fn by(&self, key: &str) -> Self {
        Self::new(self.host, self.address.clone(), key)
    }

    /// A connection of its own.
    pub(crate) fn connect(&self, line: &str) -> vireo_tests::Invocation<'h> {
        self.client(&["ControlPath=none"], line)
    }

    /// One key exchange for all commands: it takes seconds on an emulated CPU.
    pub(crate) fn ssh(&self, line: &str) -> vireo_tests::Invocation<'h> {
        let path = format!("ControlPath={}.ssh", self.host.work(&self.key));
        self.client(&["ControlMaster=auto", "ControlPersist=60", &path], line)
    }

    fn client(&self, connection: &[&str], line: &str) -> vireo_tests::Invocation<'h> {
        let ssh = self.host.command("ssh").args(["-i", &self.host.work(&self.key), "-l", "ada"]);
        let options = [
            "BatchMode=yes",
            "ConnectTimeout=20",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
        ];
        let ssh = options.iter().chain(connection).fold(ssh, |ssh, option| ssh.args(["-o", option]));
        ssh.args([&self.address, line]).deadline(BOOT)
    }

    /// Runs a line in the guest that must succeed; what it printed, without white space around.
    pub(crate) fn run(&self, line: &str) -> Result<String, HostError> {
        Ok(self.ssh(line).run()?.ok().trim().to_owned())
    }

    pub(crate) fn ready(&self) -> Result<(), HostError> {
        eventually("the guest lets ada in", BOOT, || Ok(self.ssh("true").run()?.status == Status::Code(0)))
    }
}

fn a_debian(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let node = Node::start(host, hypervisor)?;
    let key = Shell::make_key(host, "key")?;
    node.apply("debian.yaml", &manifest(host, &key))?;
    let vmi = node.wait_for_phase("debian", "Running", BOOT)?;
    assert!(vmi.to_string().contains(&format!("\"{hypervisor}\"")), "not on {hypervisor}: {vmi:#}");
    let address = vmi["status"]["interfaces"][0]["ipAddress"].as_str().unwrap_or_default().to_owned();
    assert!(!address.is_empty(), "no address in {vmi:#}");

    let mut console = node.attach("debian")?;
    // A line of the kernel's log, which the prompt cannot break; until then such lines break the prompt.
    console.wait_for(" finished at ", BOOT)?;
    let guest = Shell::new(host, address, "key");
    guest.ready()?;
    cloud_init_did_all(&guest, Firmware::Efi)?;
    finds_its_devices_by_tag(&guest)?;
    has_the_clock_of_its_zone(host, &guest)?;
    console.write(b"\r")?;
    // Its name is what the prompt begins with.
    console.wait_for("analyst login: ", BOOT)?;
    identity(&guest)?;
    by_virtctl(host)?;
    by_its_agent(&node)?;
    is_frozen_by_its_agent(&node, &guest)?;
    eprintln!("debian on {hypervisor}: {}", guest.run("systemd-analyze time")?);

    freeze_request(host, "freeze", r#"{"unfreezeTimeout": "0s"}"#)?;
    becomes_frozen(&node, &"frozen".into())?;
    // Deleting the manifest thaws the guest and presses the power button, which systemd hears.
    node.delete("debian.yaml")?;
    console.wait_for("reboot: Power down", BOOT)?;
    eventually("the VMI is gone", SOON, || Ok(node.vmi("debian")?.is_none()))
}

pub(crate) fn cloud_init_did_all(guest: &Shell<'_>, firmware: Firmware) -> Result<(), HostError> {
    let status = guest.run("cloud-init status --wait --format json")?;
    let status: serde_json::Value =
        serde_json::from_str(&status).unwrap_or_else(|error| panic!("{error}: {status}"));
    assert_eq!(
        (&status["status"], &status["errors"]),
        (&"done".into(), &serde_json::json!([])),
        "{status:#}"
    );
    assert_eq!(guest.run("hostname")?, "analyst");
    assert_eq!(guest.run("cat /etc/written")?, "by cloud-init");
    assert_eq!(guest.run("cat /var/lib/cloud/data/instance-id")?, UUID);
    assert_eq!(guest.run("sudo id -u")?, "0");
    let failed = guest.run("systemctl list-units --failed --no-legend")?;
    assert_eq!(failed, "", "units that failed");
    let (source, address) = match firmware {
        Firmware::Bios => ("nocloud", "ip -4 -o address show lan7"),
        Firmware::Efi => {
            ("configdrive", "ip -4 -o address show scope global | grep -v dynamic; cat /sys/class/net/e*/mtu")
        }
    };
    assert_eq!(status["datasource"], source, "{status:#}");
    let address = guest.run(address)?;
    let expected = if firmware == Firmware::Efi { ADDRESS } else { "10.0.2.2" };
    assert!(address.contains(&format!("inet {expected}/24")), "{address}");
    if firmware == Firmware::Efi {
        assert!(address.ends_with("\n1404"), "{address}");
        guest.run("test -d /sys/firmware/efi/efivars")?;
    }
    Ok(())
}

/// The config drive has the addresses of devices by their tags.
fn finds_its_devices_by_tag(guest: &Shell<'_>) -> Result<(), HostError> {
    let read = "sudo mount -o ro LABEL=config-2 /mnt && cat /mnt/openstack/latest/meta_data.json && sudo umount /mnt";
    let meta = guest.run(read)?;
    let meta: Value = serde_json::from_str(&meta).unwrap_or_else(|error| panic!("{error}: {meta}"));
    let nic = serde_json::json!({"type": "nic", "bus": "pci", "mac": MAC, "tags": ["uplink"]});
    let disk = serde_json::json!({"type": "disk", "bus": "pci", "serial": "S-SEED", "tags": ["seed"]});
    assert_eq!(meta["devices"], serde_json::json!([nic, disk]), "{meta:#}");
    guest.run(
        "test \"$(lsblk --noheadings --nodeps --output LABEL /dev/disk/by-id/virtio-S-SEED)\" = config-2",
    )?;
    Ok(())
}

/// The real-time clock shows the time of Berlin, one hour ahead of UTC or two.
fn has_the_clock_of_its_zone(host: &Host, guest: &Shell<'_>) -> Result<(), HostError> {
    let seconds = |text: String| text.trim().parse::<i64>().expect("seconds");
    let shown = seconds(guest.run("cat /sys/class/rtc/rtc0/since_epoch")?);
    let ahead = shown - seconds(host.shell("date +%s").run()?.ok());
    // Asking takes a while on an emulated CPU.
    assert!([3600, 7200].iter().any(|zone| (ahead - zone).abs() < 300), "the clock is {ahead} s ahead");
    Ok(())
}

/// `virtctl ssh` and `virtctl scp`, which find the guest by its name.
fn by_virtctl(host: &Host) -> Result<(), HostError> {
    let options = format!(
        "-i {} --known-hosts '{}' -t='-o StrictHostKeyChecking=accept-new' -t='-o BatchMode=yes' --state-dir '{}'",
        host.work("key"),
        host.work("known hosts"),
        host.work("state")
    );
    let virtctl = host.input("virtctl");
    let run = |line: String| host.shell(&line).deadline(BOOT).run();
    let work = host.work("copied");
    run(format!("mkdir -p {work}/in; head -c 3000000 /dev/urandom >{work}/in/file"))?.ok();
    run(format!("{virtctl} scp -r {options} {work}/in ada@vmi/debian:there"))?.ok();
    run(format!("{virtctl} scp --recursive {options} -l ada vmi/debian/default:there {work}/out"))?.ok();
    run(format!("cmp {work}/in/file {work}/out/file"))?.ok();
    let reported = run(format!("{virtctl} ssh {options} ada@vmi/debian -c 'wc -c <there/file; exit 3'"))?;
    assert_eq!(
        (reported.status, reported.stdout.trim()),
        (Status::Code(3), "3000000"),
        "{}",
        reported.stderr
    );
    run(format!("ssh-keygen -F vmi.debian.default -f '{}'", host.work("known hosts")))?.ok();
    Ok(())
}

/// Information of QEMU's guest agent: in the status, and by subresource.
fn by_its_agent(node: &Node<'_>) -> Result<(), HostError> {
    let mut status = Value::Null;
    let reported = eventually("the agent is heard", BOOT, || {
        status = node.vmi("debian")?.unwrap_or_default()["status"].clone();
        Ok(status["interfaces"][0]["infoSource"] == "domain, guest-agent")
    });
    assert!(reported.is_ok(), "{status:#}");
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    assert!(
        conditions.iter().any(|one| one["type"] == "AgentConnected" && one["status"] == "True"),
        "{status:#}"
    );
    let mut ready = Value::Null;
    let reported = eventually("a program of the guest says that it is ready", BOOT, || {
        ready = condition(&node.vmi("debian")?.unwrap_or_default(), "Ready");
        Ok(ready["status"] == "True")
    });
    assert!(reported.is_ok(), "{ready:#}");
    assert_eq!(status["guestOSInfo"]["id"], "debian", "{status:#}");
    assert_ne!(status["interfaces"][0]["interfaceName"], Value::Null, "{status:#}");
    assert!(
        status["interfaces"][0]["ipAddress"].as_str().is_some_and(|address| address.starts_with("10.201."))
    );
    let ask = |line: &str| -> Result<Value, HostError> {
        let reported = node.virtctl(line)?.ok();
        Ok(serde_json::from_str(&reported).unwrap_or_else(|error| panic!("{error} in:\n{reported}")))
    };
    let info = ask("guestosinfo debian")?;
    assert_eq!((&info["hostname"], &info["os"]["id"]), (&"analyst".into(), &"debian".into()), "{info:#}");
    let commands = info["supportedCommands"].as_array().cloned().unwrap_or_default();
    assert!(commands.iter().any(|one| one["name"] == "guest-ping" && one["enabled"] == true), "{info:#}");
    let disks = ask("fslist debian")?["items"].as_array().cloned().unwrap_or_default();
    let root = disks.iter().find(|disk| disk["mountPoint"] == "/").cloned().unwrap_or_default();
    assert!(root["totalBytes"].as_u64() > root["usedBytes"].as_u64(), "{disks:#?}");
    assert!(ask("userlist debian")?["items"].is_array());
    Ok(())
}

/// Frozen by request, the guest writes to no disk until it is thawed: by request, or because the time is over.
fn is_frozen_by_its_agent(node: &Node<'_>, guest: &Shell<'_>) -> Result<(), HostError> {
    let host = guest.host;
    let incomplete = freeze_request_fails(host, "{}")?;
    assert!(incomplete.contains("400") && incomplete.contains("unfreezeTimeout"), "{incomplete}");
    freeze_request(host, "freeze", r#"{"unfreezeTimeout": "10m0s"}"#)?;
    becomes_frozen(node, &"frozen".into())?;
    let info = node.virtctl("guestosinfo debian")?.ok();
    assert!(info.contains("\"fsFreezeStatus\": \"frozen\""), "{info}");
    // In memory, it can be seen whether the disk was written to.
    guest.run("(echo late >probe; echo done >/dev/shm/written) </dev/null >/dev/null 2>&1 &")?;
    assert_eq!(guest.run("cat /dev/shm/written 2>/dev/null || echo waits")?, "waits");
    freeze_request(host, "unfreeze", "")?;
    eventually("the guest writes again", BOOT, || {
        Ok(guest.run("cat /dev/shm/written 2>/dev/null || echo waits")? == "done")
    })?;
    assert_eq!(guest.run("cat probe")?, "late");
    becomes_frozen(node, &Value::Null)?;

    freeze_request(host, "freeze", r#"{"unfreezeTimeout": "5s"}"#)?;
    becomes_frozen(node, &"frozen".into())?;
    becomes_frozen(node, &Value::Null)
}

/// `freeze` or `unfreeze`, at the node agent's endpoint.
fn freeze_request(host: &Host, what: &str, body: &str) -> Result<(), HostError> {
    host.shell(&freeze_line(host, what, body)).deadline(BOOT).run()?.ok();
    Ok(())
}

/// The answer to a `freeze` that is refused.
fn freeze_request_fails(host: &Host, body: &str) -> Result<String, HostError> {
    let line = freeze_line(host, "freeze", body).replace("--fail-with-body", "");
    Ok(host.shell(&line).run()?.ok())
}

fn freeze_line(host: &Host, what: &str, body: &str) -> String {
    let url = format!("http://node/v1/namespaces/default/virtualmachineinstances/debian/{what}");
    let socket = host.work("state/handler.sock");
    format!("curl -sS --fail-with-body -X PUT -d '{body}' --unix-socket {socket} {url}")
}

/// Waits for this `fsFreezeStatus`.
fn becomes_frozen(node: &Node<'_>, expected: &Value) -> Result<(), HostError> {
    eventually("the status says whether file systems are frozen", BOOT, || {
        Ok(node.vmi("debian")?.unwrap_or_default()["status"]["fsFreezeStatus"] == *expected)
    })
}

/// By `dmidecode`, as people and tools read it.
pub(crate) fn identity(guest: &Shell<'_>) -> Result<(), HostError> {
    for (keyword, value) in [
        ("system-uuid", UUID),
        ("system-serial-number", "S-4711"),
        ("system-manufacturer", "KubeVirt"),
        ("system-product-name", "None"),
        ("system-family", "KubeVirt"),
        ("chassis-manufacturer", "Cases & Sons"),
        ("chassis-version", "V-2"),
        ("chassis-serial-number", "C-12"),
        ("chassis-asset-tag", "A-9"),
    ] {
        assert_eq!(guest.run(&format!("sudo dmidecode -s {keyword}"))?, value, "{keyword}");
    }
    let chassis = guest.run("sudo dmidecode -t chassis")?;
    assert!(chassis.contains("SKU Number: K-3"), "{chassis}");
    Ok(())
}

#[test]
fn nested_a_debian_starts_by_efi_with_a_config_drive_on_native() {
    scenario::run(
        "a Debian by EFI, config drive",
        || Ok(host_with_debian()?.memory_mib(4096)),
        |host, monitor| {
            installed::keep_ticks_apart(host)?;
            a_debian(host, monitor.hypervisor())
        },
    );
}

#[test]
fn a_debian_starts_by_efi_with_a_config_drive_on_qemu_here() -> Result<(), HostError> {
    a_debian(&host_with_debian()?.here()?, "qemu")
}
