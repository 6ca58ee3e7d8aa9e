//! `vireo` as a service of a host: what its units do at start, restart, reboot and power-off.

use std::path::Path;
use std::time::{Duration, Instant};

use vireo_tests::guest::Guest;
use vireo_tests::systemd::{Disk, Down, SystemdHost};
use vireo_tests::{Host, HostBuilder, HostError};

use crate::SOON;
use crate::scenarios::client::Client;
use crate::scenarios::standalone::{CLAIM, DATA, host_with_vireo, vm_with_a_claim};

const BOOT: Duration = Duration::from_secs(120);
/// The grace period of the guest at first, and when it ignores its power button.
const GRACE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(12);
/// What everything takes on the way down beside a guest's grace period.
const REST: Duration = Duration::from_secs(14);
const HALTED: &str = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: halted}\nspec:\n  runStrategy: Halted\n  template:\n    spec:\n      domain: {memory: {guest: 64Mi}, devices: {}}\n";
const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: words}\ndata: {a: one}\n";
const STATE: &str = "var/lib/vireo";
/// All that the user made.
const OBJECTS: &str = "get vm,cm,pvc,clusterrole,ns -A -o name";

fn host(scratch: &Path) -> Result<HostBuilder, HostError> {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../standalone/systemd");
    Ok(host_with_vireo(scratch)?
        .file(units.join("vireo.service"))
        .file(units.join("vireo-guests.service"))
        .deadline(Duration::from_secs(600)))
}

/// As its comment says.
fn install(host: &Host) -> Result<Disk<'_>, HostError> {
    let disk = Disk::new(host)?;
    let line = format!(
        "cd {}; ln vireo virt-launcher virt-importer {}; cp vireo.service vireo-guests.service {}; mkdir -p {var_lib}; ln -s /srv {var_lib}/images",
        host.input(""),
        disk.file("local/bin"),
        disk.file("etc/systemd/system"),
        var_lib = disk.file("var/lib")
    );
    host.shell(&line).run()?.ok();
    Ok(disk)
}

/// A host that is up, with `vireo` in it.
struct Up<'h> {
    booted: SystemdHost<'h>,
    client: Client<'h>,
}

impl<'h> Up<'h> {
    fn boot(host: &'h Host, disk: &Disk<'h>) -> Result<Self, HostError> {
        let booted = disk.boot()?;
        let client = Client::beside(host, disk.file(STATE), booted.pid());
        booted.is_up()?;
        Ok(Self { booted, client })
    }

    fn run(&self, line: &str) -> Result<String, HostError> {
        Ok(self.booted.shell(line).run()?.ok())
    }

    /// The guest of the VM `two`, started.
    fn guest(&self, not: &str) -> Result<Guest<'h>, HostError> {
        self.client.another_runs("two", not)?;
        let mut guest = self.client.console("two")?;
        guest.ready()?;
        Ok(guest)
    }

    fn launcher(&self) -> Result<String, HostError> {
        self.run("pidof virt-launcher || true")
    }

    /// How long it takes to go down.
    fn down(self, how: Down) -> Result<Duration, HostError> {
        let begin = Instant::now();
        self.booted.down(how, GRACE + BOOT)?;
        eprintln!("{how:?} took {:.1} s", begin.elapsed().as_secs_f32());
        Ok(begin.elapsed())
    }
}

#[test]
fn guests_stop_and_start_with_their_host() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host(scratch.path())?.here()?;
    let disk = install(&host)?;
    let (uid, objects) = a_guest_heeds_its_button(&host, &disk)?;
    let uid = a_guest_does_not(&host, &disk, (&uid, &objects))?;
    starts_are_interrupted(&host, &disk, &uid)
}

/// From the first start to a reboot. The instance's UID, and all objects.
fn a_guest_heeds_its_button(host: &Host, disk: &Disk<'_>) -> Result<(String, String), HostError> {
    let up = Up::boot(host, disk)?;
    up.run("systemctl enable vireo; systemctl start vireo")?;
    // Who asks at once is answered.
    assert!(up.client.kubectl("get nodes", None)?.ok().contains("machine"));
    let two = vm_with_a_claim(host).replace(&host.input(""), "/var/lib/images/").replace("Halted", "Always");
    for object in [CLAIM, HALTED, MAP, &two] {
        up.client.kubectl("apply -f -", Some(object))?.ok();
    }
    let mut guest = up.guest("none")?;
    let (launcher, uid) = (up.launcher()?, up.client.uid("two")?);
    assert_eq!(launcher.split_whitespace().count(), 1, "{launcher:?}");

    guest.run("echo kept >/tmp/kept", SOON)?;
    up.run("systemctl restart vireo")?;
    assert_eq!((up.launcher()?, up.client.uid("two")?), (launcher, uid.clone()), "it goes on");
    let mut guest = up.client.console("two")?;
    assert_eq!(guest.run("cat /tmp/kept", SOON)?.trim(), "kept");

    // The next instance has less time.
    let shorter = format!(
        r#"patch vm two --type=merge -p '{{"spec":{{"template":{{"spec":{{"terminationGracePeriodSeconds":{}}}}}}}}}'"#,
        SHORT.as_secs()
    );
    up.client.kubectl(&shorter, None)?.ok();
    on_the_button(&mut guest, "echo went down in order >$data; sync; exec poweroff -f")?;
    let objects = up.client.kubectl(OBJECTS, None)?.ok();
    let took = up.down(Down::Reboot)?;
    assert!(took < GRACE / 2, "{took:?}: ended processes are not waited for");
    on_the_way_down(disk)?;
    Ok((uid, objects))
}

/// What a guest does when its power button is pressed.
fn on_the_button(guest: &mut Guest<'_>, script: &str) -> Result<(), HostError> {
    let line = format!(
        "printf '#!/bin/sh\\n%s\\n' '{DATA}; {script}' >/etc/acpi/PWRF/00000080; cat /etc/acpi/PWRF/*"
    );
    guest.run(&line, SOON).map(drop)
}

/// The first bytes of the guest's disk.
fn written(host: &Host, disk: &Disk<'_>) -> Result<String, HostError> {
    let file = disk.file(&format!("{STATE}/claims/default/data/disk.img"));
    Ok(host.shell(&format!("head -c 64 {file} | tr -d '\\0'")).run()?.ok())
}

/// The units did what they are there for, and nothing was ended by force.
fn on_the_way_down(disk: &Disk<'_>) -> Result<(), HostError> {
    let guests = disk.journal("vireo-guests")?;
    assert!(guests.contains("1 guests stopped") && guests.contains("Deactivated successfully"), "{guests}");
    let vireo = disk.journal("vireo")?;
    assert!(vireo.contains("its guests go on") && vireo.contains("Deactivated successfully"), "{vireo}");
    for reported in [guests, vireo] {
        for bad in ["Killing", "timed out", "Failed with result", "panicked"] {
            assert!(!reported.contains(bad), "{bad} in:\n{reported}");
        }
    }
    Ok(())
}

/// From the reboot to a power-off. The instance's UID.
fn a_guest_does_not(
    host: &Host,
    disk: &Disk<'_>,
    (before, objects): (&str, &str),
) -> Result<String, HostError> {
    assert_eq!(written(host, disk)?, "went down in order\n");
    let up = Up::boot(host, disk)?;
    let mut guest = up.guest(before)?;
    assert_eq!(guest.run(&format!("{DATA}; head -n1 $data"), SOON)?.trim(), "went down in order");
    assert_eq!(up.client.kubectl(OBJECTS, None)?.ok(), objects);
    assert_eq!(up.client.json("get cm words")?["data"]["a"], "one");
    assert_eq!(up.client.json("get vm halted")?["status"]["printableStatus"], "Stopped");
    assert_eq!(up.client.items("vmi")?.len(), 1);
    let uid = up.client.uid("two")?;
    let reported = disk.journal("vireo")?;
    assert!(reported.contains("NodeShutdown") && !reported.contains("LauncherLost"), "{reported}");

    // It counts the seconds that it has from the button on. Each is on the disk once the shell closes it: to start one more
    // program takes seconds where the machine is busy.
    let count = "read -r a b </proc/uptime; while :; do read -r i b </proc/uptime; \
         printf %03d $((${i%.*} - ${a%.*})) 1<>$data; sleep 1; done";
    on_the_button(&mut guest, count)?;
    let took = up.down(Down::PowerOff)?;
    assert!((SHORT..SHORT + REST).contains(&took), "{took:?}");
    on_the_way_down(disk)?;
    let counted = written(host, disk)?;
    let seconds = counted.get(..3).and_then(|digits| digits.parse::<u64>().ok());
    let enough = SHORT.as_secs() - 3..=SHORT.as_secs();
    assert!(seconds.is_some_and(|seconds| enough.contains(&seconds)), "it had {counted:?}");
    Ok(uid)
}

/// A reboot while the guest starts, and what comes after it.
fn starts_are_interrupted(host: &Host, disk: &Disk<'_>, before: &str) -> Result<(), HostError> {
    let up = Up::boot(host, disk)?;
    // Its firmware and its kernel do not hear the button.
    up.client.another_runs("two", before)?;
    let interrupted = up.client.uid("two")?;
    let took = up.down(Down::Reboot)?;
    assert!(took < SHORT + REST, "{took:?}");
    on_the_way_down(disk)?;

    // It may be shown as running until the node agent has seen that it does not.
    let up = Up::boot(host, disk)?;
    up.guest(&interrupted)?;
    assert_eq!(up.client.items("vmi")?.len(), 1);
    assert_eq!(up.launcher()?.split_whitespace().count(), 1);
    up.run("systemctl is-active vireo vireo-guests")?;

    // A stop alone is not the end of the guests, nor of what will end them.
    up.run("systemctl stop vireo")?;
    assert_ne!(up.launcher()?, "");
    assert_eq!(up.run("systemctl is-active vireo-guests")?, "active\n");
    up.down(Down::PowerOff).map(drop)
}
