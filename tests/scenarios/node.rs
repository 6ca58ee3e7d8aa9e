//! One node, from manifest to guest: the same test on native (in a nested host) and on QEMU (here).

use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::{self, Guest, Ready};
use vireo_tests::terminal::{LEAVE, Terminal};
use vireo_tests::{
    Host, HostBuilder, HostError, Image, Kernel, Output, Process, Status, installed, oci, programs, scenario,
};

use crate::SOON;
use crate::scenarios::broken;

const BOOT: Duration = Duration::from_secs(120);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A host with our programs and firmware.
pub(crate) fn host_with_programs() -> HostBuilder {
    let nested = env!("CARGO_BIN_EXE_nested");
    let mut builder = installed::provide_firmware(HostBuilder::new(nested));
    for program in ["virt-handler", "virt-importer", "virt-launcher", "virtctl"] {
        builder = builder.file(programs::directory(nested).join(program));
    }
    builder
}

/// A host with a kernel in an OCI image beside them.
pub(crate) fn host_for_a_node(scratch: &Path) -> Result<HostBuilder, HostError> {
    host_for_a_node_with(scratch, &[])
}

/// The same, with programs for guests.
pub(crate) fn host_for_a_node_with(scratch: &Path, programs: &[&Path]) -> Result<HostBuilder, HostError> {
    host_with_a_kernel(scratch, Image::cloud_kernel, programs)
}

/// The same, with that kernel.
pub(crate) fn host_with_a_kernel(
    scratch: &Path,
    kernel: fn(&Image) -> io::Result<Kernel>,
    programs: &[&Path],
) -> Result<HostBuilder, HostError> {
    let builder = host_with_programs();
    let image = Image::get()?;
    let kernel = kernel(&image).map_err(HostError::Start)?;
    let (initrd, layout) = (scratch.join("initrd"), scratch.join("kernel-oci"));
    guest::write_initrd(&image, &kernel, programs, &initrd).map_err(HostError::Start)?;
    let files = [("boot/vmlinuz", kernel.image.as_path()), ("boot/initrd", initrd.as_path())];
    oci::write_layout(&layout, &files).map_err(HostError::Start)?;
    builder.tree(&layout, "kernel-oci")
}

#[test]
fn nested_one_manifest_one_guest_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "one manifest, one guest";
    // The control is the same node with the hypervisor forced to QEMU, which uses the host's KVM.
    scenario::run(
        name,
        || Ok(host_for_a_node(scratch.path())?.memory_mib(2048)),
        |host, monitor| one_guest(host, monitor.hypervisor()),
    );
}

#[test]
fn one_manifest_one_guest_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_for_a_node(scratch.path())?.here()?;
    one_guest(&host, "qemu")
}

/// A running `virt-handler` and where it looks.
pub(crate) struct Node<'h> {
    host: &'h Host,
    handler: Process<'h>,
    hypervisor: &'static str,
}

/// How the handler separates launchers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// As by default.
    Full,
    /// Not at all.
    None,
}

fn handler<'h>(host: &'h Host, hypervisor: &str, isolation: Isolation) -> Result<Process<'h>, HostError> {
    let handler = host
        .command(&host.input("virt-handler"))
        .args(["--manifests", &host.work("manifests"), "--state-dir", &host.work("state")])
        .args(["--hypervisor", if hypervisor == "qemu" { "qemu" } else { "auto" }])
        .args(["--launcher-isolation", if isolation == Isolation::Full { "full" } else { "none" }])
        .env("VIREO_BIOS", &host.input("bios"))
        .env("VIREO_EFI_CODE", &host.input("efi-code"))
        .env("VIREO_EFI_VARIABLES", &host.input("efi-variables"))
        .spawn()?;
    eventually("the handler listens", SOON, || {
        if let Some(status) = handler.ended()? {
            panic!("virt-handler ended with {status:?}:\n{}", handler.stderr());
        }
        // The socket of a handler that was killed is still there.
        Ok(handler.stderr().contains("virt-handler runs"))
    })?;
    Ok(handler)
}

impl<'h> Node<'h> {
    pub(crate) fn start(host: &'h Host, hypervisor: &'static str) -> Result<Self, HostError> {
        Self::start_with(host, hypervisor, Isolation::Full)
    }

    pub(crate) fn start_with(
        host: &'h Host,
        hypervisor: &'static str,
        isolation: Isolation,
    ) -> Result<Self, HostError> {
        let fresh = format!("rm -rf {0} {1}; mkdir -p {0} {1}", host.work("state"), host.work("manifests"));
        host.shell(&fresh).run()?.ok();
        Ok(Self { host, handler: handler(host, hypervisor, isolation)?, hypervisor })
    }

    /// Puts a manifest in place in one step, as a handler that reads while it is written must not be what is tested.
    pub(crate) fn apply(&self, file: &str, manifest: &str) -> Result<(), HostError> {
        let line = format!("cat >{0}.new && mv {0}.new {0}", self.host.work(&format!("manifests/{file}")));
        let mut write = self.host.shell(&line).spawn()?;
        write.write(manifest.as_bytes())?;
        write.close_stdin()?;
        write.wait(SOON)?.ok();
        Ok(())
    }

    pub(crate) fn delete(&self, file: &str) -> Result<(), HostError> {
        self.host.command("rm").arg(self.host.work(&format!("manifests/{file}"))).run()?.ok();
        Ok(())
    }

    /// Runs `virtctl` against this node.
    pub(crate) fn virtctl(&self, line: &str) -> Result<Output, HostError> {
        let virtctl = self.host.command(&self.host.input("virtctl"));
        virtctl.args(line.split(' ')).args(["--state-dir", &self.host.work("state")]).run()
    }

    /// The output of `virt-handler status`.
    fn status(&self) -> Result<Value, HostError> {
        let command = self.host.command(&self.host.input("virt-handler"));
        let reported =
            command.args(["status", "-o", "json", "--state-dir", &self.host.work("state")]).run()?.ok();
        Ok(serde_json::from_str(&reported).unwrap_or_else(|error| panic!("{error} in:\n{reported}")))
    }

    pub(crate) fn vmi(&self, name: &str) -> Result<Option<Value>, HostError> {
        let mut status = self.status()?;
        let items = status["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        Ok(items.into_iter().find(|vmi| vmi["metadata"]["name"] == name))
    }

    pub(crate) fn wait_for_phase(
        &self,
        name: &str,
        wanted: &str,
        deadline: Duration,
    ) -> Result<Value, HostError> {
        let mut last = None;
        let reached = eventually(&format!("{name} is {wanted}"), deadline, || {
            last = self.vmi(name)?;
            let phase = last.as_ref().and_then(|vmi| vmi["status"]["phase"].as_str()).unwrap_or("absent");
            if phase != wanted && (phase == "Failed" || last.as_ref().is_some_and(lacks_storage)) {
                let vmi = last.clone().unwrap_or_default();
                panic!("{name} cannot be {wanted}: {vmi:#}\n{}", self.logs(name)?);
            }
            Ok(phase == wanted)
        });
        if let Err(error) = reached {
            eprintln!(
                "{name} as last seen: {:#}\n{}\n{}",
                last.unwrap_or_default(),
                self.handler.stderr(),
                self.logs(name)?
            );
            return Err(error);
        }
        Ok(last.unwrap_or_default())
    }

    fn logs(&self, name: &str) -> Result<String, HostError> {
        let uid = match self.vmi(name)? {
            Some(vmi) => vmi["metadata"]["uid"].as_str().unwrap_or("*").to_owned(),
            None => "*".to_owned(),
        };
        let files = self.host.work(&format!("state/vmis/{uid}/launcher.log"));
        Ok(self.host.shell(&format!("tail -n 50 {files} 2>&1 || true")).run()?.stdout)
    }

    fn console(&self, name: &str) -> Result<Guest<'h>, HostError> {
        self.attach(name).map(Guest::over)
    }

    /// `virtctl console`, connected.
    pub(crate) fn attach(&self, name: &str) -> Result<Process<'h>, HostError> {
        let virtctl = self.host.command(&self.host.input("virtctl"));
        let state = self.host.work("state");
        let process = virtctl.args(["console", name, "--history", "--state-dir", &state]).spawn()?;
        eventually("virtctl is connected", BOOT, || {
            if let Some(status) = process.ended()? {
                panic!("virtctl ended with {status:?}:\n{}", process.stderr());
            }
            Ok(process.stderr().contains("Successfully connected"))
        })?;
        Ok(process)
    }

    /// What the handler has logged.
    pub(crate) fn log(&self) -> String {
        self.handler.stderr()
    }

    /// Waits until nothing is left of a VMI.
    pub(crate) fn wait_until_gone(&self, name: &str) -> Result<(), HostError> {
        eventually(&format!("{name} is gone"), BOOT, || Ok(self.vmi(name)?.is_none()))
    }

    /// The handler is killed, and another is started.
    pub(crate) fn lose_handler(&mut self, isolation: Isolation) -> Result<(), HostError> {
        self.handler.signal(SIGKILL)?;
        assert_eq!(self.handler.wait(SOON)?.status, Status::Signal(SIGKILL));
        self.handler = handler(self.host, self.hypervisor, isolation)?;
        Ok(())
    }
}

/// Waiting longer does not bring what a disk is made of.
fn lacks_storage(vmi: &Value) -> bool {
    let conditions = vmi["status"]["conditions"].as_array();
    let reasons = ["FailedStorage", "ErrImagePull", "ImagePullBackOff"];
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["reason"].as_str().is_some_and(|one| reasons.contains(&one)))
}

pub(crate) fn manifest(host: &Host, name: &str) -> String {
    let image = host.input("kernel-oci");
    format!(
        r#"apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 60
  domain:
    cpu:
      cores: 1
    memory:
      guest: 256Mi
    firmware:
      kernelBoot:
        kernelArgs: console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests
        container:
          image: oci:{image}
          kernelPath: /boot/vmlinuz
          initrdPath: /boot/initrd
    devices:
      autoattachGraphicsDevice: false
      rng: {{}}
      disks:
      - name: scratch
        disk:
          bus: virtio
      - name: second
        serial: S3R1AL
        disk:
          bus: scsi
      interfaces:
      - name: default
        masquerade: {{}}
  networks:
  - name: default
    pod: {{}}
  volumes:
  - name: scratch
    emptyDisk:
      capacity: 64Mi
  - name: second
    emptyDisk:
      capacity: 32Mi
"#
    )
}

fn one_guest(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let mut node = Node::start(host, hypervisor)?;
    node.apply("one.yaml", &manifest(host, "one"))?;
    let vmi = node.wait_for_phase("one", "Running", BOOT)?;
    assert!(vmi.to_string().contains(&format!("\"{hypervisor}\"")), "not on {hypervisor}: {vmi}");

    let mut guest = node.console("one")?;
    let ready = guest.ready()?;
    in_the_guest(&mut guest)?;
    let seen = node.vmi("one")?.unwrap_or_default();
    let address = seen["status"]["interfaces"][0]["ipAddress"].as_str().unwrap_or_default().to_owned();
    assert!(!address.is_empty(), "no address in {seen}");
    // What a terminal would answer if it were replayed.
    guest.run(r"printf 'asks \033[6n\033[c\033]0;title\007\n'", SOON)?;
    drop(guest);
    at_a_terminal(&node, &ready)?;
    for_a_program(&node)?;

    // The handler goes and comes back; the guest does not notice.
    node.lose_handler(Isolation::Full)?;
    let again = node.wait_for_phase("one", "Running", SOON)?;
    assert_eq!(again["metadata"]["uid"], vmi["metadata"]["uid"]);
    let mut guest = node.console("one")?;
    assert_eq!(guest.ready()?.boot_id, ready.boot_id, "the console's history");
    let boot_id = guest.run("cat /proc/sys/kernel/random/boot_id", SOON)?;
    assert_eq!(boot_id.trim(), ready.boot_id, "the guest was started again");

    is_steered(&node, &mut guest)?;
    refuses_what_is_broken(&node)?;
    let boot_id = guest.run("cat /proc/sys/kernel/random/boot_id", SOON)?;
    assert_eq!(boot_id.trim(), ready.boot_id, "a broken manifest disturbed the guest");

    // The port that reaches the guest from the host.
    guest.run("mkdir -p /tmp/www; echo from the guest >/tmp/www/file; httpd -p 80 -h /tmp/www", SOON)?;
    let fetched = host.shell(&format!("curl -sS --fail --max-time 20 http://{address}/file")).run()?.ok();
    assert_eq!(fetched, "from the guest\n");
    forwards_a_port(host)?;

    // Deleting the manifest presses the power button.
    node.delete("one.yaml")?;
    eventually("the VMI is gone", BOOT, || Ok(node.vmi("one")?.is_none()))?;
    eventually("its launcher is gone", SOON, || {
        Ok(host.shell("pidof virt-launcher").run()?.stdout.is_empty())
    })?;
    node.handler.signal(SIGTERM)?;
    let ended = node.handler.wait(SOON)?;
    assert_eq!(ended.status, Status::Code(0), "{}", ended.stderr);
    Ok(())
}

/// The same by `virtctl port-forward`.
fn forwards_a_port(host: &Host) -> Result<(), HostError> {
    let virtctl = host.command(&host.input("virtctl"));
    let words = ["port-forward", "vmi/one", "0:80", "0:81", "--state-dir", &host.work("state")];
    let mut virtctl = virtctl.args(words).spawn()?;
    let reported = virtctl.wait_for(" to 81\n", SOON)?;
    let address = |port: &str| {
        let line = reported.lines().find(|line| line.ends_with(&format!(" to {port}")));
        line.and_then(|line| line.split(' ').nth(2)).unwrap_or_default().to_owned()
    };
    for _ in 0..2 {
        let line = format!("curl -sS --fail --max-time 20 http://{}/file", address("80"));
        assert_eq!(host.shell(&line).run()?.ok(), "from the guest\n");
    }
    let unreachable = host.shell(&format!("curl -sS --max-time 20 http://{}/file", address("81"))).run()?;
    assert_ne!(unreachable.status, Status::Code(0));
    eventually("virtctl says why", SOON, || {
        assert_eq!(virtctl.ended()?, None, "virtctl goes on: {}", virtctl.stderr());
        Ok(virtctl.stderr().contains("cannot connect to the guest"))
    })?;
    virtctl.signal(SIGTERM)?;
    virtctl.wait(SOON).map(drop)
}

/// A pause stops the guest and loses nothing, not even what is typed meanwhile.
fn is_steered(node: &Node<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    let paused = |wanted: bool| {
        let what = if wanted { "the VMI is paused" } else { "the VMI goes on" };
        eventually(what, SOON, || {
            let vmi = node.vmi("one")?.unwrap_or_default();
            let conditions = vmi["status"]["conditions"].as_array();
            Ok(conditions.into_iter().flatten().any(|one| one["type"] == "Paused") == wanted)
        })
    };
    node.virtctl("pause vmi one")?.ok();
    paused(true)?;
    let refused = node.virtctl("pause vmi one")?;
    assert!(refused.stderr.contains("VMI is already paused"), "{}", refused.stderr);
    guest.monitor().write(b"0 echo typed while it was paused >/tmp/typed\n")?;
    node.virtctl("unpause vmi one")?.ok();
    paused(false)?;
    assert_eq!(guest.run("cat /tmp/typed", SOON)?.trim(), "typed while it was paused");
    Ok(())
}

/// As a person has it: the console's history and where it ends, a raw terminal while it lasts, and Ctrl+] to leave.
fn at_a_terminal(node: &Node<'_>, before: &Ready) -> Result<(), HostError> {
    let terminal = Terminal::new(node.host, "terminal");
    let virtctl = node.host.input("virtctl");
    let line = format!("{virtctl} console one --state-dir {}", node.host.work("state"));
    let mut guest = Guest::over(terminal.shell(&line).spawn()?);
    let history = guest.monitor().wait_for("the history of this console ends here", BOOT)?;
    assert!(history.contains(&format!("GUEST READY {}", before.boot_id)), "{history}");
    assert!(history.contains("asks \n"), "{history:?}");
    assert!(!history.contains("\x1b[6n") && !history.contains("title\x07"), "{history:?}");
    guest.run("true", SOON)?;
    let settings = terminal.settings("virtctl")?;
    assert!(settings.contains("-isig") && settings.contains("-icanon"), "not raw: {settings}");
    guest.monitor().write(LEAVE)?;
    let output = guest.wait(SOON)?;
    assert_eq!(output.status, Status::Code(0), "{}", output.stdout);
    terminal.assert_restored()
}

/// As a program has it: what the guest says from then on, to the byte.
fn for_a_program(node: &Node<'_>) -> Result<(), HostError> {
    let virtctl = node.host.command(&node.host.input("virtctl"));
    let virtctl = virtctl.args(["console", "one", "--state-dir", &node.host.work("state")]).spawn()?;
    let mut guest = Guest::over(virtctl);
    eventually("virtctl is connected", BOOT, || {
        assert_eq!(guest.monitor().ended()?, None, "virtctl goes on");
        Ok(guest.monitor().stderr().contains("Successfully connected"))
    })?;
    let said = guest.run(r"printf 'now \033[6n'", SOON)?;
    assert!(said.contains("now \x1b[6n"), "{said:?}");
    let all = guest.monitor().stdout();
    assert!(!all.contains("GUEST READY"), "history was not asked for: {all}");
    Ok(())
}

/// What the guest has: a disk that holds, and the network that KubeVirt's masquerade gives.
fn in_the_guest(guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.run("udhcpc -i eth0 -n -q -f >/tmp/udhcpc 2>&1 || { cat /tmp/udhcpc; false; }", SOON)?;
    let lease = guest.run("cat /tmp/lease", SOON)?;
    assert!(lease.contains("ip=10.0.2.2/24 router=10.0.2.1"), "{lease}");
    guest.run("ping -c 2 -w 10 10.0.2.1", SOON)?;
    does_not_spoof(guest)?;
    guest.run("mke2fs /dev/vda >/dev/null 2>&1 && mount -t ext4 /dev/vda /mnt", SOON)?;
    guest.run("head -c 4000000 /dev/urandom >/mnt/f; sha256sum /mnt/f >/tmp/sum; umount /mnt", SOON)?;
    guest.run("mount -t ext4 /dev/vda /mnt && sha256sum -c /tmp/sum && umount /mnt", SOON)?;
    let modules = "scsi_common scsi_mod sd_mod virtio_scsi";
    guest.run(&format!("for module in {modules}; do modprobe $module || exit 1; done"), SOON)?;
    guest.run("for i in $(seq 100); do test -b /dev/sda && break; sleep 0.1; done", SOON)?;
    assert_eq!(guest.run("cat /sys/block/sda/size", SOON)?.trim(), (32 * 2048).to_string(), "sectors");
    let serial = guest.run("tail -c +5 /sys/block/sda/device/vpd_pg80", SOON)?;
    assert_eq!(serial.trim(), "S3R1AL");
    guest.run("mke2fs /dev/sda >/dev/null 2>&1 && mount -t ext4 /dev/sda /mnt", SOON)?;
    guest.run("head -c 4000000 /dev/urandom >/mnt/f; sha256sum /mnt/f >/tmp/sum; umount /mnt", SOON)?;
    guest.run("mount -t ext4 /dev/sda /mnt && sha256sum -c /tmp/sum && umount /mnt", SOON)?;
    Ok(())
}

/// With an address that is not its own, the guest is alone.
fn does_not_spoof(guest: &mut Guest<'_>) -> Result<(), HostError> {
    let address = "ip addr add 10.0.2.77/24 dev eth0 && ! ping -c 1 -W 3 -I 10.0.2.77 10.0.2.1";
    guest.run(&format!("{address} && ip addr del 10.0.2.77/24 dev eth0"), SOON)?;
    guest.run("cat /sys/class/net/eth0/address >/tmp/mac", SOON)?;
    let take =
        |mac: &str| format!("ip link set eth0 down; ip link set eth0 address {mac}; ip link set eth0 up");
    guest.run(&format!("{}; ! ping -c 1 -W 3 10.0.2.1", take("02:00:00:00:00:99")), SOON)?;
    guest.run(&format!("{}; ip route add default via 10.0.2.1", take("$(cat /tmp/mac)")), SOON)?;
    guest.run("ping -c 1 -w 10 10.0.2.1", SOON)?;
    Ok(())
}

/// Every broken manifest is refused by the names of its fields, all of them, and nothing starts.
fn refuses_what_is_broken(node: &Node<'_>) -> Result<(), HostError> {
    for case in broken::CASES {
        node.apply(&format!("{}.yaml", case.name), &case.manifest(&node.host.input("kernel-oci")))?;
    }
    for case in broken::CASES {
        let mut reported = String::new();
        let named = eventually(&format!("{} is refused", case.name), SOON, || {
            let status = node.status()?;
            let refused = status["refused"].as_array().into_iter().flatten();
            let mine = refused.filter(|rejection| rejection["file"] == format!("{}.yaml", case.name));
            reported = mine.map(Value::to_string).collect();
            reported.push_str(&node.vmi(case.name)?.map(|vmi| vmi["status"].to_string()).unwrap_or_default());
            Ok(case.fields.iter().all(|field| reported.contains(field)))
        });
        assert!(named.is_ok(), "{}: {:?} are not all named in: {reported}", case.name, case.fields);
    }
    for case in broken::CASES {
        let phase = node.vmi(case.name)?.map(|vmi| vmi["status"]["phase"].clone());
        assert!(phase.as_ref().is_none_or(|phase| phase != "Running"), "{} runs", case.name);
        node.delete(&format!("{}.yaml", case.name))?;
    }
    Ok(())
}
