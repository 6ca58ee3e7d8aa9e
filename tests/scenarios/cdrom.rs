//! ISO images in CD-ROM drives and on disks, started by BIOS and EFI: a rescue disk, the memory test on it, and Debian's
//! installer. The same on native (in a nested host) and on QEMU (here).

use std::path::Path;
use std::time::Duration;

use vireo_tests::guest::Monitor;
use vireo_tests::{Host, HostBuilder, HostError, installed, oci, scenario};

use crate::scenarios::looking::{Looker, VmiDisplay};
use crate::scenarios::node::{Node, host_with_programs};

const LONG: Duration = Duration::from_secs(300);

/// What starts, from where.
struct Case {
    name: &'static str,
    bootloader: &'static str,
    drive: &'static str,
    bus: &'static str,
}

const BIOS: &str = "{bios: {}}";
const EFI: &str = "{efi: {secureBoot: false}}";

/// A host with an ISO image in an OCI image.
fn host_with(iso: &str, scratch: &Path) -> Result<HostBuilder, HostError> {
    let file = installed::images(iso).map_err(HostError::Start)?.join(format!("{iso}.iso"));
    let layout = scratch.join("oci");
    oci::write_layout(&layout, &[("disk/image.iso", &file)]).map_err(HostError::Start)?;
    Ok(host_with_programs().tree(&layout, "iso-oci")?.deadline(Duration::from_secs(550)))
}

/// A disk with nothing on it comes first in the list, the image first in the order.
fn manifest(host: &Host, case: &Case, memory: &str) -> String {
    let (Case { name, bootloader, drive, bus }, image) = (case, host.input("iso-oci"));
    format!(
        r#"apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory:
      guest: {memory}
    firmware:
      bootloader: {bootloader}
    devices:
      autoattachPodInterface: false
      disks:
      - name: empty
        bootOrder: 2
        disk:
          bus: virtio
      - name: image
        bootOrder: 1
        {drive}:
          bus: {bus}
  volumes:
  - name: empty
    emptyDisk: {{capacity: 16Mi}}
  - name: image
    containerDisk: {{image: 'oci:{image}'}}
"#
    )
}

/// Its menu, and what is typed at its prompt.
fn rescue(host: &Host, hypervisor: &'static str, cases: &[Case]) -> Result<(), HostError> {
    let looker = Looker::new()?;
    let node = Node::start(host, hypervisor)?;
    for case in cases {
        let keep = |what: &str| format!("{what}-{}-{hypervisor}", case.name);
        node.apply("disk.yaml", &manifest(host, case, "128Mi"))?;
        node.wait_for_phase(case.name, "Running", LONG)?;
        let display = VmiDisplay::open(&looker, host, case.name)?;
        display.shows(&keep("rescue"), &["GNU GRUB", "Memory test", "command-line"])?;
        display.act(&["type", "c"])?;
        display.shows(&keep("prompt"), &["grub>"])?;
        display.act(&["type", "echo seen and heard", "key", "enter"])?;
        display.shows(&keep("answer"), &["grub> echo seen and heard\n seen and heard\n"])?;
        if case.drive == "disk" {
            display.act(&["key", "esc"])?;
            display.shows(&keep("menu"), &["Memory test"])?;
            display.act(&["key", "enter"])?;
            display.shows(&keep("memtest"), &["Memtest86+ v", "Status: Testing", "Errors: 0"])?;
        }
        node.end(case.name)?;
    }
    Ok(())
}

const SATA: Case = Case { name: "bios-sata", bootloader: BIOS, drive: "cdrom", bus: "sata" };
const DISK: Case = Case { name: "bios-disk", bootloader: BIOS, drive: "disk", bus: "virtio" };
const SCSI: Case = Case { name: "efi-scsi", bootloader: EFI, drive: "cdrom", bus: "scsi" };

/// Up to its first question, on the serial line.
fn installer(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let case = Case { name: "installer", bootloader: BIOS, drive: "cdrom", bus: "sata" };
    let node = Node::start(host, hypervisor)?;
    // With less it asks first whether that is meant.
    node.apply("disk.yaml", &manifest(host, &case, "1Gi"))?;
    node.wait_for_phase(case.name, "Running", LONG)?;
    let mut serial = node.attach(case.name)?;
    serial.wait_for("Select a language", LONG)?;
    serial.wait_for("English", LONG)?;
    drop(serial);
    node.end(case.name)
}

type Load = dyn Fn(&Host, &'static str) -> Result<(), HostError>;

fn in_a_host(name: &str, iso: &str, load: &Load) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = || Ok(host_with(iso, scratch.path())?.memory_mib(2048));
    scenario::run(name, host, |host, monitor| {
        installed::keep_ticks_apart(host)?;
        load(host, if monitor == Monitor::Vmm { "native" } else { "qemu" })
    });
}

fn here(iso: &str, load: &Load) -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    load(&host_with(iso, scratch.path())?.here()?, "qemu")
}

#[test]
fn nested_a_rescue_iso_by_bios_on_native() {
    in_a_host("a rescue ISO by BIOS", "rescue", &|host, hypervisor| rescue(host, hypervisor, &[SATA, DISK]));
}

#[test]
fn nested_a_rescue_iso_by_efi_on_native() {
    in_a_host("a rescue ISO by EFI", "rescue", &|host, hypervisor| rescue(host, hypervisor, &[SCSI]));
}

#[test]
fn a_rescue_iso_on_qemu_here() -> Result<(), HostError> {
    here("rescue", &|host, hypervisor| rescue(host, hypervisor, &[SATA, DISK, SCSI]))
}

#[test]
fn nested_the_installer_on_native() {
    in_a_host("Debian's installer", "installer", &installer);
}

#[test]
fn the_installer_on_qemu_here() -> Result<(), HostError> {
    here("installer", &installer)
}
