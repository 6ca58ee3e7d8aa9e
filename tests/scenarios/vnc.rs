//! `virtctl vnc`: a VNC client of others sees GRUB's menu and the login on a VMI's screen, and types into its text
//! console, while another viewer never reads. How native shows screens is in `cdrom.rs`.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostBuilder, HostError, installed};

use crate::scenarios::looking::{Looker, Screen};
use crate::scenarios::node::{Node, host_with_programs};

const LONG: Duration = Duration::from_secs(240);
const NAME: &str = "bios";

fn host_with_a_disk() -> Result<HostBuilder, HostError> {
    // The cloud kernel does not draw where a BIOS started it without VGA.
    let images = installed::images("full-disk").map_err(HostError::Start)?;
    Ok(host_with_programs()
        .tree(images.join("full/disk-oci"), "disk-oci")?
        .deadline(Duration::from_secs(500)))
}

fn manifest(host: &Host) -> String {
    let image = host.input("disk-oci");
    format!(
        r#"apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: {NAME}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory:
      guest: 256Mi
    firmware:
      bootloader: {{bios: {{}}}}
    devices:
      autoattachPodInterface: false
      disks:
      - name: root
        disk:
          bus: virtio
  volumes:
  - name: root
    containerDisk: {{image: 'oci:{image}'}}
"#
    )
}

fn on_the_screen(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let keep = |what: &str| format!("{what}-{NAME}-{hypervisor}");
    let looker = Looker::new()?;
    let node = Node::start(host, hypervisor)?;
    node.apply("disk.yaml", &manifest(host))?;
    node.wait_for_phase(NAME, "Running", LONG)?;
    let mut serial = node.attach(NAME)?;
    serial.wait_for("GNU GRUB", LONG)?;
    // The first key ends the countdown.
    serial.write(b" ")?;
    let screen = Screen::open(&looker, host, NAME)?;
    screen.shows(&keep("grub"), &["GNU GRUB", "Vireo guest", "Use the"])?;
    screen.act(&["key", "enter"])?;

    screen.shows(&keep("login"), &["on /dev/tty1", "vireo login:"])?;
    let _deaf = screen.deaf_viewer()?;
    screen.act(&["type", "vireo", "key", "enter"])?;
    screen.shows(&keep("password"), &["Password:"])?;
    screen.act(&["type", "vireo", "key", "enter"])?;
    screen.shows(&keep("shell"), &["vireo@vireo"])?;
    screen.act(&["type", "expr 54321 - 12345", "key", "enter"])?;
    eventually("the client sees the answer", LONG, || {
        let seen = screen.seen_by_client(&keep("typed"))?;
        Ok(seen.contains("# expr 54321 - 12345\n41976\n"))
    })?;
    node.end(NAME)
}

#[test]
fn a_screen_by_bios_on_qemu_here() -> Result<(), HostError> {
    on_the_screen(&host_with_a_disk()?.here()?, "qemu")
}
