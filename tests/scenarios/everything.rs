//! A Debian that has everything: all kinds of volumes that a VM of a single host can have at once, and all devices, each used
//! from inside. The same on native (in a nested host) and on QEMU (here), as far as each has them.
//!
//! Debian's kernel for clouds has no driver of USB, SATA, sound, watchdogs and displays: of these the guest sees the PCI function
//! alone. `drivers.rs` uses the first two, and others the rest.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Monitor;
use vireo_tests::installed::Firmware;
use vireo_tests::registry::PASSWORD;
use vireo_tests::{Host, HostBuilder, HostError, Process, Status, programs, scenario};

use crate::SOON;
use crate::scenarios::debian::{BOOT, MAC, Shell, UUID, cloud_init_did_all, host_with_debian, identity};
use crate::scenarios::filesystems::{VIRTIOFSD, install_virtiofsd};
use crate::scenarios::probes::condition;
use crate::scenarios::registry;
use crate::scenarios::standalone::Standalone;

/// What has no driver in the guest, or needs a program or a module of the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On native, in a nested host, which has the module for VSOCK and no `swtpm`.
    Native,
    /// On QEMU in such a host.
    NestedQemu,
    /// On QEMU here.
    Here,
}

impl Place {
    fn vcpus(self) -> &'static str {
        if self == Self::Native { "1" } else { "2" }
    }

    fn hypervisor(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::NestedQemu | Self::Here => "qemu",
        }
    }

    /// What the guest does not use, and why.
    fn unused(self) -> &'static [&'static str] {
        const KERNEL: &str = "USB, SATA, sound, watchdog and displays are PCI functions that the guest's kernel has no driver of";
        match self {
            Self::Native => &[
                KERNEL,
                "TPM, USB, sound, Cirrus display, named CPU models, the port of downward metrics: native has none",
                "a disk of a registry, the cache mode none: the nested host has no registry and no direct I/O",
            ],
            Self::NestedQemu => &[
                KERNEL,
                "TPM, a disk of a registry, the cache mode none: the nested host has no swtpm, no registry and no direct I/O",
            ],
            Self::Here => &[KERNEL, "VSOCK: the host may lack its module"],
        }
    }
}

/// The claims, the last three of which come while the guest runs.
const CLAIMS: [&str; 7] = ["data", "base", "filled", "sealed", "plugged", "late", "medium"];

/// Where the manifest puts a disk on `qemu`.
const SLOT: &str = "0000:00:1c.0";

/// The volume whose image is in a registry.
const PULLED: &str = "pulled";

/// The cache modes of disks. The state directory of a nested host is in memory, which has no direct I/O.
fn caches(place: Place) -> [(&'static str, &'static str); 3] {
    let direct = if place == Place::Here { "none" } else { "writeback" };
    [("data", direct), ("there", "writethrough"), ("filled", "writeback")]
}

/// The volumes of the VM: name, bus, source. Each disk has its name as serial number, in capital letters. A VM has one volume with
/// the files of a ServiceAccount, which is a disk on native and a file system on QEMU.
fn volumes(host: &Host, place: Place) -> Vec<(&'static str, &'static str, Value)> {
    let image = format!("oci:{}", host.input("disk-oci"));
    let file = |name: &str| format!("{}/{name}.img", host.work("data"));
    let claim = |name: &str| json!({"claimName": name});
    let facts = json!([
        {"path": "all/labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "tier", "fieldRef": {"fieldPath": "metadata.labels['tier']"}},
    ]);
    let mut volumes = vec![
        ("root", "virtio", json!({"containerDisk": {"image": image}})),
        (
            "seed",
            "virtio",
            json!({"cloudInitNoCloud": {"secretRef": {"name": "user"}, "networkDataSecretRef": {"name": "network"}}}),
        ),
        ("map", "virtio", json!({"configMap": {"name": "app", "volumeLabel": "APP"}})),
        ("key", "scsi", json!({"secret": {"secretName": "key", "volumeLabel": "KEYS"}})),
        (
            "robot",
            if place == Place::Native { "virtio" } else { "virtiofs" },
            json!({"serviceAccount": {"serviceAccountName": "robot"}}),
        ),
        ("facts", "virtio", json!({"downwardAPI": {"fields": facts, "volumeLabel": "FACTS"}})),
        ("answers", "cdrom", json!({"sysprep": {"secret": {"name": "answers"}}})),
        ("scratch", "virtio", json!({"emptyDisk": {"capacity": "64Mi"}})),
        ("spare", "sata", json!({"emptyDisk": {"capacity": "1Mi"}})),
        ("data", "virtio", json!({"persistentVolumeClaim": claim("data")})),
        ("sealed", "scsi", json!({"persistentVolumeClaim": {"claimName": "sealed", "readOnly": true}})),
        ("layer", "scsi", json!({"ephemeral": {"persistentVolumeClaim": claim("base")}})),
        ("there", "virtio", json!({"hostDisk": {"path": file("there"), "type": "Disk"}})),
        (
            "made",
            "scsi",
            json!({"hostDisk": {"path": file("made"), "type": "DiskOrCreate", "capacity": "2Mi"}}),
        ),
        ("filled", "virtio", json!({"dataVolume": {"name": "filled"}})),
        ("metrics", "virtio", json!({"downwardMetrics": {}})),
        ("map-fs", "virtiofs", json!({"configMap": {"name": "app"}})),
        ("key-fs", "virtiofs", json!({"secret": {"secretName": "key"}})),
        ("facts-fs", "virtiofs", json!({"downwardAPI": {"fields": facts}})),
    ];
    if place.hypervisor() == "qemu" {
        volumes.push(("stick", "usb", json!({"emptyDisk": {"capacity": "1Mi"}})));
    }
    if place == Place::Here {
        let image = format!("localhost:{}/disk", registry::PORT);
        volumes.push((
            PULLED,
            "virtio",
            json!({"containerDisk": {"image": image, "imagePullSecret": "puller"}}),
        ));
    }
    volumes
}

/// The disk devices of these volumes.
fn disks(volumes: &[(&str, &str, Value)], place: Place) -> Vec<Value> {
    let disk = |(name, bus, _): &(&str, &str, Value)| match *bus {
        "virtiofs" => None,
        "cdrom" => Some(json!({"name": name, "cdrom": {"bus": "scsi"}})),
        bus => Some(json!({"name": name, "serial": name.to_uppercase(), "disk": {"bus": bus}})),
    };
    let mut disks: Vec<Value> = volumes.iter().filter_map(disk).collect();
    disks[0]["bootOrder"] = 1.into();
    for (name, cache) in caches(place) {
        let named = disks.iter_mut().filter(|disk| disk["name"] == name);
        named.for_each(|disk| disk["cache"] = cache.into());
    }
    for disk in &mut disks {
        if disk["name"] == "scratch" {
            disk["blockSize"] = json!({"custom": {"logical": 4096, "physical": 8192}});
        } else if disk["name"] == "there" && place.hypervisor() == "qemu" {
            disk["disk"]["pciAddress"] = SLOT.into();
        }
    }
    // A drive without a medium.
    disks.push(json!({"name": "drive", "cdrom": {"bus": "scsi"}}));
    disks
}

fn devices(volumes: &[(&str, &str, Value)], place: Place) -> Value {
    let filesystems: Vec<Value> = volumes
        .iter()
        .filter(|(_, bus, _)| *bus == "virtiofs")
        .map(|(name, ..)| json!({"name": name, "virtiofs": {}}))
        .collect();
    let dhcp = json!({"ntpServers": ["192.0.2.123"], "privateOptions": [{"option": 240, "value": "vireo"}]});
    let mut devices = json!({
        "blockMultiQueue": true,
        "networkInterfaceMultiqueue": true,
        "rng": {},
        "video": {"type": "virtio"},
        "inputs": [{"name": "tablet", "type": "tablet", "bus": "virtio"}],
        "panicDevices": [{"model": "isa"}],
        "watchdog": {"name": "dog", "i6300esb": {"action": "reset"}},
        "disks": disks(volumes, place),
        "filesystems": filesystems,
        "interfaces": [{"name": "default", "macAddress": MAC, "dhcpOptions": dhcp, "masquerade": {}}],
    });
    if place != Place::Here {
        devices["autoattachVSOCK"] = true.into();
    }
    if place.hypervisor() == "qemu" {
        devices["video"]["type"] = "cirrus".into();
        devices["downwardMetrics"] = json!({});
        devices["sound"] = json!({"name": "card", "model": "ich9"});
        let inputs = devices["inputs"].as_array_mut();
        inputs.into_iter().for_each(|all| all.push(json!({"name": "usb", "type": "tablet", "bus": "usb"})));
    }
    if place == Place::Here {
        devices["tpm"] = json!({});
        let disks = devices["disks"].as_array_mut().into_iter().flatten();
        disks.filter(|disk| disk["name"] == "data").for_each(|disk| disk["io"] = "native".into());
    }
    devices
}

fn vm(host: &Host, place: Place) -> String {
    let volumes = volumes(host, place);
    let devices = devices(&volumes, place);
    let cpu = match place {
        // The nested host has one CPU.
        Place::Native => json!({"sockets": 1}),
        Place::NestedQemu => json!({"cores": 2}),
        Place::Here => json!({
            "cores": 2,
            "model": "Westmere",
            "features": [{"name": "aes", "policy": "disable"}, {"name": "rdrand", "policy": "require"}],
        }),
    };
    let named = |(name, _, mut source): (&str, &str, Value)| {
        source["name"] = name.into();
        source
    };
    let key = |secret: &str, method: Value| json!({"sshPublicKey": {"source": {"secret": {"secretName": secret}}, "propagationMethod": method}});
    let template = json!({
        "metadata": {"labels": {"tier": "web"}},
        "spec": {
            "hostname": "analyst",
            "terminationGracePeriodSeconds": 300,
            "readinessProbe": {"guestAgentPing": {}, "periodSeconds": 5, "timeoutSeconds": 5},
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["vms.example.com"]},
            "domain": {
                "cpu": cpu,
                "memory": {"guest": "512Mi"},
                "firmware": {"uuid": UUID, "serial": "S-4711", "bootloader": {"bios": {}}},
                "chassis": {"manufacturer": "Cases & Sons", "version": "V-2", "serial": "C-12", "asset": "A-9", "sku": "K-3"},
                "devices": devices,
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": volumes.into_iter().map(named).collect::<Vec<_>>(),
            "accessCredentials": [
                key("boot", json!({"noCloud": {}})),
                key("keys", json!({"qemuGuestAgent": {"users": ["ada"]}})),
                {"userPassword": {"source": {"secret": {"secretName": "passwords"}}, "propagationMethod": {"qemuGuestAgent": {}}}},
            ],
        },
    });
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "debian"},
        "spec": {"runStrategy": "RerunOnFailure", "template": template},
    })
    .to_string()
}

/// The objects that the VM names, the one with the user's key apart.
fn objects() -> String {
    let user_data = "#cloud-config
users:
- default
- name: ada
  sudo: ALL=(ALL) NOPASSWD:ALL
  shell: /bin/bash
write_files:
- path: /etc/written
  content: by cloud-init
";
    let network = format!(
        "version: 2\nethernets:\n  uplink:\n    match: {{macaddress: \"{MAC}\"}}\n    set-name: lan7\n    dhcp4: true\n    dhcp6: true\n"
    );
    let secret = |name: &str, data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data});
    let claim = |name: &str| {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})
    };
    let mut items = vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"colour": "blue"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}),
        secret("key", json!({"password": "hunter2"})),
        secret("user", json!({"userdata": user_data})),
        secret("network", json!({"networkdata": network})),
        secret("answers", json!({"Autounattend.xml": "<unattend/>"})),
        secret("boot", json!({"one": "ssh-ed25519 BOOT boot@home"})),
        secret("passwords", json!({"ada": "of ada"})),
    ];
    items.extend(CLAIMS.map(claim));
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// A Secret with a key for the user, made or changed.
fn set_key(standalone: &Standalone<'_>, key: &str) -> Result<(), HostError> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"ada": key}});
    standalone.kubectl("apply -f -", Some(&secret.to_string()))?.ok();
    Ok(())
}

/// Where the host has the disks that both read and write.
fn files(standalone: &Standalone<'_>) -> Vec<(&'static str, String)> {
    let data = standalone.host().work("data");
    let claim = |name: &str| standalone.file(&format!("claims/default/{name}/disk.img"));
    vec![
        ("data", claim("data")),
        ("layer", claim("base")),
        ("there", format!("{data}/there.img")),
        ("made", format!("{data}/made.img")),
        ("filled", claim("filled")),
    ]
}

/// Makes what the VM names, with few clients: each takes seconds on an emulated CPU.
fn prepare(standalone: &Standalone<'_>) -> Result<(), HostError> {
    standalone.kubectl("apply -f -", Some(&objects()))?.ok();
    standalone.kubectl("wait pvc --all --for=jsonpath={.status.phase}=Bound --timeout=60s", None)?.ok();
    let data = standalone.host().work("data");
    let files = CLAIMS.map(|name| standalone.file(&format!("claims/default/{name}/disk.img"))).join(" ");
    standalone.shell(&format!(
        "mkdir -p {data}; rm -f {data}/made.img; truncate -s 1M {data}/there.img; \
         for file in {data}/there.img {files}; do printf host | dd of=$file conv=notrunc 2>&1; done"
    ))?;
    Ok(())
}

/// Runs lines in the guest, in one session, and compares what they print.
fn compare(guest: &Shell<'_>, expected: &[(String, String)]) -> Result<(), HostError> {
    const END: &str = "-- end of an answer --";
    let script = expected.iter().fold(String::new(), |mut script, (line, _)| {
        // A string takes no error.
        let _ = writeln!(script, "{{ {line}\n}} 2>&1; echo; echo '{END}'");
        script
    });
    let mut ssh = guest.ssh("bash -s").spawn()?;
    ssh.write(script.as_bytes())?;
    ssh.close_stdin()?;
    let printed = ssh.wait(BOOT)?.ok();
    let answers: Vec<&str> = printed.split(END).map(str::trim).collect();
    let wrong = |((line, expected), answer): (&(String, String), &&str)| {
        (*answer != expected).then(|| format!("{line}\n  expected: {expected:?}\n  printed:  {answer:?}\n"))
    };
    let wrong: String = expected.iter().zip(&answers).filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(answers.len(), expected.len() + 1, "{printed}");
    Ok(())
}

/// Lines for [`compare`].
#[derive(Default)]
struct Lines(Vec<(String, String)>);

impl Lines {
    fn add(&mut self, line: impl Into<String>, expected: impl Into<String>) {
        self.0.push((line.into(), expected.into()));
    }

    /// So many PCI functions are this model.
    fn pci(&mut self, (vendor, device): (u16, u16), count: u32) {
        let line = format!(
            "for at in /sys/bus/pci/devices/*; do paste -d: $at/vendor $at/device; done | grep -cx 0x{vendor:04x}:0x{device:04x}"
        );
        self.add(line, count.to_string());
    }

    fn python(&mut self, program: &str, expected: &str) {
        self.add(format!("sudo python3 -c \"{program}\""), expected);
    }
}

/// The disk of a volume, as the guest's shell finds it.
fn disk(name: &str) -> String {
    let serial = name.to_uppercase();
    format!(
        "$(grep -sl '{serial}$' /sys/block/vd*/serial /sys/block/sd*/device/vpd_pg80 | sed 's,^/sys/block/\\([a-z]*\\)/.*,/dev/\\1,')"
    )
}

fn volumes_are_used(guest: &Shell<'_>, standalone: &Standalone<'_>, place: Place) -> Result<(), HostError> {
    let mut lines = Lines::default();
    let mounted = |disk: &str, line: &str| {
        format!(
            "sudo mount -o ro {disk} /mnt && (cd /mnt; {line}); findmnt -no FSTYPE /mnt; sudo umount /mnt"
        )
    };
    lines.add(mounted("/dev/disk/by-label/APP", "cat colour; echo"), "blue\niso9660");
    lines.add(mounted("/dev/disk/by-label/KEYS", "sudo cat password; echo"), "hunter2\niso9660");
    let account = "cat namespace; echo; grep -c BEGIN ca.crt; head -c 3 token; echo";
    let shared = "sudo mount -t virtiofs robot /mnt && (cd /mnt; sudo cat namespace; echo; sudo grep -c BEGIN ca.crt; sudo head -c 3 token; echo; findmnt -no FSTYPE /mnt); sudo umount /mnt";
    match place {
        Place::Native => lines.add(mounted(&disk("robot"), account), "default\n1\neyJ\niso9660"),
        Place::NestedQemu | Place::Here => lines.add(shared, "default\n1\neyJ\nvirtiofs"),
    }
    lines.add(
        mounted("/dev/disk/by-label/FACTS", "cat tier; echo; grep ^tier all/labels"),
        "web\ntier=\"web\"\niso9660",
    );
    lines.add(mounted("/dev/sr0", "cat Autounattend.xml; echo"), "<unattend/>\niso9660");
    for (name, file, expected) in
        [("map-fs", "colour", "blue"), ("key-fs", "password", "hunter2"), ("facts-fs", "tier", "web")]
    {
        lines.add(
            format!("sudo mount -t virtiofs {name} /mnt && sudo cat /mnt/{file} && echo && findmnt -no FSTYPE,SOURCE /mnt | xargs; sudo touch /mnt/more 2>/dev/null; ls /mnt/more 2>/dev/null; sudo umount /mnt"),
            format!("{expected}\nvirtiofs {name}"),
        );
    }
    let scratch = disk("scratch");
    lines.add(
        format!("sudo mkfs.ext4 -q {scratch} && sudo mount {scratch} /mnt && sudo dd if=/dev/zero of=/mnt/file bs=1M count=8 conv=fsync status=none && stat -c %s /mnt/file; sudo umount /mnt"),
        "8388608",
    );
    for (name, _) in files(standalone) {
        let (disk, was) = (disk(name), if name == "made" { "" } else { "host" });
        lines.add(format!("sudo head -c 4 {disk} | tr -d '\\0'"), was);
        lines.add(format!("printf guest-{name} | sudo dd of={disk} seek=1 conv=sync,fsync status=none"), "");
        lines.add(
            format!("sudo dd if={disk} skip=1 count=1 iflag=direct status=none | tr -d '\\0'"),
            format!("guest-{name}"),
        );
    }
    if place.hypervisor() == "qemu" {
        let slot = format!("readlink -f /sys/block/$(basename {})/device | cut -d/ -f5", disk("there"));
        lines.add(slot, SLOT);
    }
    if place == Place::Here {
        let pulled = disk(PULLED);
        lines.add(
            format!(
                "sudo head -c 4 {pulled}; printf guest | sudo dd of={pulled} conv=notrunc,fsync status=none"
            ),
            "host",
        );
        lines
            .add(format!("sudo dd if={pulled} bs=512 count=1 iflag=direct status=none | head -c 5"), "guest");
    }
    let made = format!("sudo blockdev --getsize64 {}", disk("made"));
    lines.add(made, (2 << 20).to_string());
    lines.add(
        format!("sudo blockdev --getro {} {} {}", disk("metrics"), disk("map"), disk("sealed")),
        "1\n1\n1",
    );
    lines.add(
        format!(
            "sudo head -c 4 {0}; printf x | sudo dd of={0} 2>/dev/null || echo ' is kept'",
            disk("sealed")
        ),
        "host is kept",
    );
    let blocks = format!("cat /sys/block/$(basename {scratch})/queue/{{logical,physical}}_block_size");
    lines.add(blocks, "4096\n8192");
    lines.add(
        format!(
            "sudo head -c 8192 {} | tail -c +17 | tr -d '\\0' | grep -c '<name>HostName</name>'",
            disk("metrics")
        ),
        "1",
    );
    for (name, cache) in caches(place) {
        let expected = if cache == "writethrough" { "write through" } else { "write back" };
        lines.add(format!("cat /sys/block/$(basename {})/queue/write_cache", disk(name)), expected);
    }
    lines.add(format!("ls /sys/block/$(basename {})/mq | wc -l", disk("data")), place.vcpus());
    compare(guest, &lines.0)?;
    for (name, file) in files(standalone) {
        let written = standalone.shell(&format!("dd if={file} skip=1 count=1 2>/dev/null | tr -d '\\0'"))?;
        let expected = if name == "layer" { String::new() } else { format!("guest-{name}") };
        assert_eq!(written, expected, "{name} on the host");
    }
    Ok(())
}

fn devices_are_used(guest: &Shell<'_>, place: Place) -> Result<(), HostError> {
    let mut lines = Lines::default();
    lines.add("cat /sys/class/misc/hw_random/rng_current", "virtio_rng.0");
    lines.add("sudo head -c 16 /dev/hwrng | wc -c", "16");
    lines.add("ls /sys/bus/virtio/drivers/virtio_balloon | grep -c ^virtio", "1");
    lines
        .add("sudo modprobe pvpanic-mmio && cat /sys/bus/*/drivers/pvpanic*/*/events | grep -c '[1-9]'", "1");
    lines.add("grep -ci '^N: Name=.*tablet' /proc/bus/input/devices", "1");
    lines.add("ls -d /sys/class/net/lan7/queues/rx-* | wc -l", place.vcpus());
    lines.add(
        "grep -hE '^(DNS|NTP|DOMAIN_SEARCH_LIST|OPTION_240)=' /run/systemd/netif/leases/* | sort",
        "DNS=192.0.2.53\nDOMAIN_SEARCH_LIST=vms.example.com\nNTP=192.0.2.123\nOPTION_240=766972656f",
    );
    lines.add("for try in $(seq 60); do ip -6 -o address show lan7 | grep -q fd10:0:2::2/ && break; sleep 1; done; ip -6 -o address show lan7 | grep -o fd10:0:2::2", "fd10:0:2::2");
    lines.add(
        "sudo ping -c 1 -W 10 -q 10.0.2.1 >/dev/null && sudo ping -6 -c 1 -W 10 -q fd10:0:2::1 >/dev/null && echo both",
        "both",
    );
    let topology = if place == Place::Native { "0,0,0" } else { "0,0,0\n1,1,0" };
    lines.add("lscpu -p=CPU,CORE,SOCKET | grep -v '#'", topology);
    // Watchdog, SATA controller; the displays are virtio-gpu and Cirrus Logic's.
    lines.pci((0x8086, 0x25ab), 1);
    lines.pci((0x8086, 0x2922), 1);
    if place == Place::Native {
        lines.pci((0x1af4, 0x1050), 1);
    } else {
        lines.pci((0x1013, 0x00b8), 1);
        // USB, for the disk and for the tablet; sound.
        lines.pci((0x1b36, 0x000d), 2);
        lines.pci((0x8086, 0x293e), 1);
        let metrics = "import os
port = os.open('/dev/virtio-ports/org.github.vhostmd.1', os.O_RDWR)
os.write(port, b'GET /metrics/XML' + bytes([10, 10]))
got = b''
while b'</metrics>' not in got: got += os.read(port, 4096)
print(got.count(b'<name>HostName</name>'))";
        lines.python(metrics, "1");
    }
    if place != Place::Here {
        let vsock = "import socket
peer = socket.socket(socket.AF_VSOCK)
peer.connect((2, 7000))
peer.sendall(b'from a guest')
peer.shutdown(socket.SHUT_WR)
print(peer.recv(64).decode())";
        lines.python(vsock, "FROM A GUEST");
    } else {
        lines.add("grep -c 'model name.*Westmere' /proc/cpuinfo", "2");
        lines.add("grep -cw aes /proc/cpuinfo; grep -cw rdrand /proc/cpuinfo", "0\n2");
        lines.add("cat /sys/class/tpm/tpm0/tpm_version_major", "2");
        // TPM2_GetCapability of the first fixed property, which is the family; TPM2_GetRandom of 8 bytes, after a header of 12.
        let tpm = "import os
tpm = os.open('/dev/tpm0', os.O_RDWR)
os.write(tpm, bytes.fromhex('8001000000160000017a000000060000010000000001'))
print(os.read(tpm, 4096)[-4:-1].decode())
os.write(tpm, bytes.fromhex('80010000000c0000017b0008'))
print(len(os.read(tpm, 4096)) - 12)";
        lines.python(tpm, "2.0\n8");
    }
    compare(guest, &lines.0)
}

/// A registry with an image for nodes of this host: what a node is given to find it, and its process.
fn serves_an_image(host: &Host) -> Result<(Vec<String>, Process<'_>), HostError> {
    let mut disk = vec![0; 1 << 20];
    disk[..4].copy_from_slice(b"host");
    let directory = host.work("");
    let registry = registry::with_a_disk(Path::new(&directory), &disk).map_err(HostError::Start)?;
    let options = vec!["--registries".to_owned(), host.work("registries.yaml")];
    Ok((options, registry::serve(host, &registry)?))
}

/// The host's end of VSOCK.
fn listens(host: &Host) -> Result<Process<'_>, HostError> {
    host.shell("modprobe vhost_vsock").run()?.ok();
    let mut server = host.command(&host.input("vsock")).args(["listen", "7000"]).spawn()?;
    server.wait_for("listening", SOON)?;
    Ok(server)
}

/// A claim and a DataVolume are plugged in, used and unplugged, and a medium is inserted and ejected.
fn volumes_come_and_go(guest: &Shell<'_>, standalone: &Standalone<'_>) -> Result<(), HostError> {
    standalone.virtctl("addvolume debian --volume-name=plugged --serial=PLUGGED")?.ok();
    let late = json!([
        {"op": "add", "path": "/spec/template/spec/volumes/-",
            "value": {"name": "late", "dataVolume": {"name": "late", "hotpluggable": true}}},
        {"op": "add", "path": "/spec/template/spec/domain/devices/disks/-",
            "value": {"name": "late", "serial": "LATE", "disk": {"bus": "virtio"}}},
        {"op": "add", "path": "/spec/template/spec/volumes/-",
            "value": {"name": "drive", "persistentVolumeClaim": {"claimName": "medium", "hotpluggable": true}}},
    ]);
    standalone.kubectl(&format!("patch vm debian --type=json -p '{late}'"), None)?.ok();
    let names = ["plugged", "late"];
    for name in names {
        let disk = disk(name);
        eventually("the guest has the disk", BOOT, || {
            Ok(guest.ssh(&format!("test -b \"{disk}\"")).run()?.status == Status::Code(0))
        })?;
        assert_eq!(guest.run(&format!("sudo head -c 4 {disk}"))?, "host", "{name}");
        guest.run(&format!("printf guest | sudo dd of={disk} conv=notrunc,fsync status=none"))?;
        let file = standalone.file(&format!("claims/default/{name}/disk.img"));
        assert_eq!(standalone.shell(&format!("head -c 5 {file}"))?, "guest", "{name}");
    }
    let medium = "sudo head -c 4 /dev/sr1 2>/dev/null";
    eventually("the guest reads the medium", BOOT, || Ok(guest.ssh(medium).run()?.stdout == "host"))?;
    for name in names.into_iter().chain(["drive"]) {
        standalone.virtctl(&format!("removevolume debian --volume-name={name}"))?.ok();
    }
    let disks = names.map(disk).join(" ");
    eventually("the guest has the disks no more", BOOT, || {
        Ok(guest.run(&format!("echo {disks}"))?.is_empty())
    })?;
    eventually("the medium is ejected", BOOT, || Ok(guest.ssh(medium).run()?.stdout.is_empty()))
}

/// The agent has set the key of the Secret and the password, and follows the Secret.
fn credentials_are_set(guest: &Shell<'_>, standalone: &Standalone<'_>) -> Result<(), HostError> {
    let password =
        "import crypt, spwd; kept = spwd.getspnam('ada').sp_pwdp; print(crypt.crypt('of ada', kept) == kept)";
    let mut lines = Lines::default();
    lines.add("sudo cat /home/debian/.ssh/authorized_keys", "ssh-ed25519 BOOT boot@home");
    lines.add(format!("sudo python3 -W ignore -c \"{password}\""), "True");
    compare(guest, &lines.0)?;
    set_key(standalone, &Shell::make_key(standalone.host(), "other")?)?;
    guest.by("other").ready()?;
    eventually("the former key is not accepted", BOOT, || {
        Ok(guest.connect("true").run()?.stderr.contains("Permission denied"))
    })
}

fn has_everything(host: &Host, place: Place) -> Result<(), HostError> {
    let begin = Instant::now();
    let hypervisor = place.hypervisor();
    let step = |what: &str| eprintln!("everything on {hypervisor}: {what} after {:?}", begin.elapsed());
    for unused in place.unused() {
        eprintln!("everything on {hypervisor}: not used: {unused}");
    }
    let (options, server) =
        if place == Place::Here { serves_an_image(host)? } else { (Vec::new(), listens(host)?) };
    let standalone = Standalone::start_with(host, hypervisor, options)?;
    prepare(&standalone)?;
    if place == Place::Here {
        registry::secret(&standalone, "puller", PASSWORD)?;
    }
    standalone.apply_without_warnings(&vm(host, place))?;
    let key = Shell::make_key(host, "key")?;
    set_key(&standalone, &key)?;
    eventually("the VM runs", BOOT, || {
        Ok(standalone.json("get vm debian")?["status"]["printableStatus"] == "Running")
    })?;
    standalone.runs_on("debian", hypervisor)?;
    step("it runs");
    let vmi = standalone.json("get vmi debian")?;
    let address = vmi["status"]["interfaces"][0]["ipAddress"].as_str().unwrap_or_default().to_owned();
    assert!(!address.is_empty(), "no address in {vmi:#}");
    // Its agent does not answer yet.
    assert_eq!(condition(&vmi, "Ready")["status"], "False", "{:#}", vmi["status"]);

    let mut console = standalone.console_process("debian")?;
    // A line of the kernel's log.
    console.wait_for(" finished at ", BOOT)?;
    step("cloud-init has finished");
    let guest = Shell::new(host, address, "key");
    // The agent has brought the only key of this user.
    guest.ready()?;
    step("the agent has brought the key");
    cloud_init_did_all(&guest, Firmware::Bios)?;
    identity(&guest)?;
    step("the guest is as cloud-init and the firmware make it");
    volumes_are_used(&guest, &standalone, place)?;
    step("volumes are used");
    devices_are_used(&guest, place)?;
    step("devices are used");
    volumes_come_and_go(&guest, &standalone)?;
    step("a claim and a DataVolume came and went");
    let synchronized = "wait --for=condition=AccessCredentialsSynchronized --timeout=60s vmi/debian";
    standalone.kubectl(synchronized, None)?.ok();
    // The agent answers its probe.
    standalone.becomes_ready("vmi/debian")?;
    eprintln!("everything on {hypervisor}: {}", guest.run("systemd-analyze time")?);
    credentials_are_set(&guest, &standalone)?;
    step("credentials follow their Secret");
    let conditions = standalone.json("get vmi debian")?;
    assert_eq!(condition(&conditions, "AgentConnected")["status"], "True", "{conditions:#}");

    standalone.kubectl("delete vm debian --wait=false", None)?.ok();
    console.wait_for("reboot: Power down", BOOT)?;
    eventually("the VMI is gone", SOON, || Ok(standalone.items("vmi")?.is_empty()))?;
    assert_eq!(standalone.launchers()?, "0");
    step("it is gone");
    drop(server);
    Ok(())
}

fn host_with_everything() -> Result<HostBuilder, HostError> {
    let vireo = programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
    Ok(host_with_debian()?.file(vireo))
}

#[test]
fn nested_a_debian_starts_with_every_volume_and_device_on_native() {
    let host = || {
        let host = host_with_everything()?.memory_mib(4096).file(VIRTIOFSD);
        Ok(host.file(env!("CARGO_BIN_EXE_vsock")))
    };
    scenario::run("a Debian that has everything", host, |host, monitor| {
        install_virtiofsd(host)?;
        has_everything(host, if monitor == Monitor::Vmm { Place::Native } else { Place::NestedQemu })
    });
}

#[test]
fn a_debian_starts_with_every_volume_and_device_on_qemu_here() -> Result<(), HostError> {
    has_everything(&host_with_everything()?.here()?, Place::Here)
}
