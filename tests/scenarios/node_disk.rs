//! VMIs whose only description of software is a disk: the same on native (in a nested host) and on QEMU (here).

use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Monitor;
use vireo_tests::installed::{self, Login};
use vireo_tests::{Host, HostBuilder, HostError, scenario};

use crate::scenarios::node::{Node, host_with_programs};

const LONG: Duration = Duration::from_secs(240);
const UUID: &str = "5d307ca9-b3ef-428c-8861-06e72d69f223";
pub(crate) const VARIABLE: &str = "/sys/firmware/efi/efivars/Vireo-6a3c1f0e-52c4-4f0e-9b0e-4e6f3d2a1b00";

fn host_with_a_disk() -> Result<HostBuilder, HostError> {
    let images = installed::images("disk").map_err(HostError::Start)?;
    host_with_programs().tree(images.join("disk-oci"), "disk-oci")
}

/// In a nested host on native, with the same node on QEMU there as the control.
fn in_a_host(name: &str, load: impl Fn(&Host, &'static str) -> Result<(), HostError>) {
    scenario::run(
        name,
        || Ok(host_with_a_disk()?.memory_mib(3072)),
        |host, monitor| {
            installed::keep_ticks_apart(host)?;
            load(host, if monitor == Monitor::Vmm { "native" } else { "qemu" })
        },
    );
}

/// A VM with two lines of the manifest to choose: what starts it, and the volume of its only disk.
fn manifest(name: &str, bootloader: &str, volume: &str) -> String {
    format!(
        r#"apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 60
  domain:
    memory:
      guest: 256Mi
    firmware:
      uuid: {UUID}
      serial: S-4711
      bootloader: {bootloader}
    devices:
      autoattachGraphicsDevice: false
      disks:
      - name: root
        disk:
          bus: virtio
  volumes:
  - name: root
    {volume}
"#
    )
}

fn container_disk(host: &Host) -> String {
    format!("containerDisk: {{image: 'oci:{}'}}", host.input("disk-oci"))
}

impl<'h> Node<'h> {
    /// Starts a VM from the container disk and logs in.
    fn boot(
        &self,
        host: &Host,
        (name, bootloader): (&str, &str),
        hypervisor: &str,
    ) -> Result<Login<'h>, HostError> {
        self.apply("disk.yaml", &manifest(name, bootloader, &container_disk(host)))?;
        let vmi = self.wait_for_phase(name, "Running", LONG)?;
        assert_eq!(self.condition(name, "vireo.io/hypervisor")?.as_deref(), Some(hypervisor), "{vmi:#}");
        let mut guest = Login::over(self.attach(name)?);
        guest.log_in()?;
        Ok(guest)
    }

    /// The reason of a condition, if it holds.
    fn condition(&self, name: &str, kind: &str) -> Result<Option<String>, HostError> {
        let vmi = self.vmi(name)?.unwrap_or_default();
        let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|one| one["type"] == kind && one["status"] == "True");
        Ok(found.map(|one| one["reason"].as_str().map_or_else(|| Value::Null.to_string(), str::to_owned)))
    }

    /// Deletes the manifest, `disk.yaml`: the power button is pressed, and nothing of the VMI stays but what it keeps.
    pub(crate) fn end(&self, name: &str) -> Result<(), HostError> {
        self.delete("disk.yaml")?;
        eventually("the VMI is gone", LONG, || Ok(self.vmi(name)?.is_none()))
    }
}

fn by_bios(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let node = Node::start(host, hypervisor)?;
    let mut guest = node.boot(host, ("bios", "{bios: {useSerial: true}}"), hypervisor)?;
    assert!(guest.monitor().stdout().contains("SeaBIOS"), "{}", guest.monitor().stdout());
    for (field, value) in [("product_uuid", UUID), ("product_serial", "S-4711"), ("sys_vendor", "KubeVirt")] {
        assert_eq!(guest.run(&format!("cat /sys/class/dmi/id/{field}"))?.trim(), value, "{field}");
    }
    node.end("bios")
}

/// A VM keeps its variables when its VMI is deleted and made again, if it is to.
fn by_efi(host: &Host, hypervisor: &'static str, persistent: bool) -> Result<(), HostError> {
    let node = Node::start(host, hypervisor)?;
    let bootloader = format!("{{efi: {{secureBoot: false, persistent: {persistent}}}}}");
    let mut guest = node.boot(host, ("efi", &bootloader), hypervisor)?;
    assert_eq!(guest.run("cat /sys/class/dmi/id/product_uuid")?.trim(), UUID);
    guest.run(&format!("printf '\\7\\0\\0\\0kept' >{VARIABLE}"))?;
    drop(guest);
    node.end("efi")?;
    let mut guest = node.boot(host, ("efi", &bootloader), hypervisor)?;
    let there = guest.run(&format!("if [ -e {VARIABLE} ]; then tail -c 4 {VARIABLE}; fi"))?;
    assert_eq!(there, if persistent { "kept" } else { "" });
    drop(guest);
    node.end("efi")
}

/// What has nothing to start says so, and does not fail.
fn nothing_to_start(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let node = Node::start(host, hypervisor)?;
    for (name, bootloader) in [("bios", "{bios: {}}"), ("efi", "{efi: {secureBoot: false}}")] {
        // Nothing there handles the power button.
        let manifest = manifest(name, bootloader, "emptyDisk: {capacity: 16Mi}");
        node.apply("disk.yaml", &manifest.replace("PeriodSeconds: 60", "PeriodSeconds: 0"))?;
        eventually(&format!("{name} has nothing to start"), LONG, || {
            let reason = node.condition(name, "vireo.io/no-bootable-device")?;
            Ok(reason.as_deref() == Some("NoBootableDevice"))
        })?;
        assert_eq!(node.vmi(name)?.unwrap_or_default()["status"]["phase"], "Running");
        node.end(name)?;
    }
    Ok(())
}

#[test]
fn nested_a_container_disk_starts_by_bios_on_native() {
    in_a_host("a container disk by BIOS", by_bios);
}

#[test]
fn a_container_disk_starts_by_bios_on_qemu_here() -> Result<(), HostError> {
    by_bios(&host_with_a_disk()?.here()?, "qemu")
}

#[test]
fn nested_efi_variables_are_kept_on_native() {
    in_a_host("EFI variables that are kept", |host, hypervisor| by_efi(host, hypervisor, true));
}

#[test]
fn nested_efi_variables_are_forgotten_on_native() {
    in_a_host("EFI variables that are forgotten", |host, hypervisor| by_efi(host, hypervisor, false));
}

#[test]
fn efi_variables_are_kept_on_qemu_here() -> Result<(), HostError> {
    by_efi(&host_with_a_disk()?.here()?, "qemu", true)
}

#[test]
fn efi_variables_are_forgotten_on_qemu_here() -> Result<(), HostError> {
    by_efi(&host_with_a_disk()?.here()?, "qemu", false)
}

#[test]
fn nested_an_unbootable_disk_is_reported_on_native() {
    in_a_host("nothing to start", nothing_to_start);
}

#[test]
fn an_unbootable_disk_is_reported_on_qemu_here() -> Result<(), HostError> {
    nothing_to_start(&host_with_a_disk()?.here()?, "qemu")
}
