//! Scenarios through the real parts. The `nested` ones need QEMU 10 and mmdebstrap (`hack/setup test`).

mod scenarios {
    mod acpi_tables;
    mod api;
    mod balloon;
    pub(crate) mod boot;
    pub(crate) mod broken;
    mod cdrom;
    pub(crate) mod client;
    mod cluster;
    mod cpu_models;
    mod credentials;
    mod deaf;
    mod debian;
    mod dedicated;
    mod disk;
    mod display;
    mod downward_metrics;
    mod drivers;
    mod drives;
    mod enlightened;
    mod ephemeral;
    mod everything;
    mod examples;
    mod exit;
    mod filesystems;
    mod firmware;
    mod full;
    mod hang;
    mod here;
    mod hostile;
    mod hostile_driver;
    mod hostile_registry;
    mod hotplug;
    mod huge_pages;
    mod images;
    mod isolation;
    mod kills;
    mod limits;
    pub(crate) mod looking;
    mod many_disks;
    pub(crate) mod media;
    mod memory_dump;
    mod metrics;
    mod native;
    mod net;
    pub(crate) mod node;
    mod node_disk;
    mod numa;
    mod panic;
    mod passt;
    mod pc;
    mod placing;
    mod platform;
    mod pods;
    mod probes;
    mod projected;
    pub(crate) mod registry;
    mod roles;
    mod saved;
    mod secure_boot;
    mod shareable;
    pub(crate) mod standalone;
    mod stop_early;
    mod systemd;
    mod tpm;
    mod upload;
    mod usbredir;
    mod vanishing;
    mod vnc;
    pub(crate) mod volume_kinds;
    mod vsock;
    mod watchdog;
}

use std::path::Path;
use std::time::Duration;

use vireo_tests::guest::{self, Guest};
use vireo_tests::{HostBuilder, HostError, programs};

/// Long enough for anything that a guest does at once.
const SOON: Duration = Duration::from_secs(30);

/// A host that has `vmm` and the kernels for guests.
fn host_for_guests(scratch: &Path) -> Result<HostBuilder, HostError> {
    let nested = env!("CARGO_BIN_EXE_nested");
    let builder = HostBuilder::new(nested).file(programs::directory(nested).join("vmm"));
    Ok(guest::provide(builder, scratch, &[Path::new(env!("CARGO_BIN_EXE_poke"))])?)
}

/// Switches the guest off from inside and sees its monitor end as it should.
fn power_off(mut guest: Guest<'_>) -> Result<(), HostError> {
    guest.send("poweroff -f")?;
    let output = guest.wait(SOON)?;
    assert_eq!(output.status, vireo_tests::Status::Code(0), "{}\n{}", output.stdout, output.stderr);
    Ok(())
}
