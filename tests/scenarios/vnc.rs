//! `virtctl vnc`: a VNC client of others sees GRUB's menu and the login on a VMI's display, and types into its text
//! console, while another viewer never reads. The same on native (in a nested host) and on QEMU (here).

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::guest::Monitor;
use vireo_tests::{Host, HostBuilder, HostError, installed, scenario};

use crate::scenarios::looking::{Looker, VmiDisplay};
use crate::scenarios::node::{Node, host_with_programs};

const LONG: Duration = Duration::from_secs(240);
const BIOS: (&str, &str) = ("bios", "{bios: {}}");
const EFI: (&str, &str) = ("efi", "{efi: {secureBoot: false}}");

fn host_with_a_disk() -> Result<HostBuilder, HostError> {
    // The cloud kernel does not draw where a BIOS started it without VGA.
    let images = installed::images("full-disk").map_err(HostError::Start)?;
    Ok(host_with_programs()
        .tree(images.join("full/disk-oci"), "disk-oci")?
        .deadline(Duration::from_secs(500)))
}

/// In 256 MiB, GRUB by EFI has no room for a display and this kernel.
fn manifest(host: &Host, (name, bootloader): (&str, &str)) -> String {
    let image = host.input("disk-oci");
    format!(
        r#"apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory:
      guest: 512Mi
    firmware:
      bootloader: {bootloader}
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

fn on_the_display(host: &Host, hypervisor: &'static str, firmware: (&str, &str)) -> Result<(), HostError> {
    let keep = |what: &str| format!("{what}-{}-{hypervisor}", firmware.0);
    let looker = Looker::new()?;
    let node = Node::start(host, hypervisor)?;
    node.apply("disk.yaml", &manifest(host, firmware))?;
    node.wait_for_phase(firmware.0, "Running", LONG)?;
    let mut serial = node.attach(firmware.0)?;
    serial.wait_for("GNU GRUB", LONG)?;
    // The first key ends the countdown.
    serial.write(b" ")?;
    let display = VmiDisplay::open(&looker, host, firmware.0)?;
    display.shows(&keep("grub"), &["GNU GRUB", "Vireo guest", "Use the"])?;
    display.act(&["key", "enter"])?;

    display.shows(&keep("login"), &["on /dev/tty1", "vireo login:"])?;
    let _deaf = display.deaf_viewer()?;
    display.act(&["type", "vireo", "key", "enter"])?;
    display.shows(&keep("password"), &["Password:"])?;
    display.act(&["type", "vireo", "key", "enter"])?;
    display.shows(&keep("shell"), &["vireo@vireo"])?;
    display.act(&["type", "expr 54321 - 12345", "key", "enter"])?;
    eventually("the client sees the answer", LONG, || {
        let seen = display.seen_by_client(&keep("typed"))?;
        Ok(seen.contains("# expr 54321 - 12345\n41976\n"))
    })?;
    node.end(firmware.0)
}

fn in_a_host(name: &str, firmware: (&str, &str)) {
    let host = || Ok(host_with_a_disk()?.memory_mib(2048));
    scenario::run(name, host, |host, monitor| {
        installed::keep_ticks_apart(host)?;
        on_the_display(host, if monitor == Monitor::Vmm { "native" } else { "qemu" }, firmware)
    });
}

#[test]
fn nested_a_display_by_bios_on_native() {
    in_a_host("a display by BIOS", BIOS);
}

#[test]
fn nested_a_display_by_efi_on_native() {
    in_a_host("a display by EFI", EFI);
}

#[test]
fn a_display_by_bios_on_qemu_here() -> Result<(), HostError> {
    on_the_display(&host_with_a_disk()?.here()?, "qemu", BIOS)
}

#[test]
fn a_display_by_efi_on_qemu_here() -> Result<(), HostError> {
    on_the_display(&host_with_a_disk()?.here()?, "qemu", EFI)
}
