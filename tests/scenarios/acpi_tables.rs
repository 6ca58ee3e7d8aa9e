//! ACPI tables of Secrets, read by a guest's kernel.

use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::probes::condition;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

#[test]
fn a_guest_has_the_tables_of_a_secret_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    has_the_tables(&host, "qemu")
}

#[test]
fn nested_a_guest_has_the_tables_of_a_secret_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "ACPI tables under vireo",
        || host_with_vireo(scratch.path()),
        |host, monitor| has_the_tables(host, monitor.hypervisor()),
    );
}

/// The printf format of a table of 36 bytes and the text, of a board of MAKER.
fn table(signature: &str, text: &str) -> String {
    let length = u8::try_from(36 + text.len()).expect("a short table");
    let mut bytes = signature.as_bytes().to_vec();
    bytes.extend([length, 0, 0, 0, 1, 0]);
    bytes.extend(b"MAKER THEBOARD");
    bytes.resize(36, 0);
    bytes.extend(text.bytes());
    let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[9] = sum.wrapping_neg();
    bytes.iter().map(|byte| format!("\\{byte:03o}")).collect()
}

fn has_the_tables(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, hypervisor)?;
    let files = host.work("tables");
    let write = |name: &str, table: &str| {
        host.shell(&format!("mkdir -p {files}; printf '{table}' >{files}/{name}")).run().map(|done| done.ok())
    };
    write("slic.bin", &table("SLIC", "license"))?;
    write("msdm.bin", &table("SLIC", "a license, too"))?;
    let create = |name: &str| format!("create secret generic {name} --from-file={files}");
    standalone.kubectl(&create("wrong"), None)?.ok();
    write("msdm.bin", &table("MSDM", "product key"))?;
    standalone.kubectl(&create("license"), None)?.ok();
    let vmi = |secret: &str| {
        let firmware = "    firmware:\n      acpi: {slicNameRef: tables, msdmNameRef: tables}\n";
        manifest(host, "one").replace("    firmware:\n", firmware)
            + &format!("  - {{name: tables, secret: {{secretName: {secret}}}}}\n")
    };
    standalone.kubectl("apply -f -", Some(&vmi("wrong")))?.ok();
    standalone.kubectl("wait --for=condition=Synchronized=false --timeout=60s vmi/one", None)?.ok();
    let why = condition(&standalone.json("get vmi one")?, "Synchronized")["message"].clone();
    let parts = ["spec.domain.firmware.acpi.msdmNameRef", "of the kind \"SLIC\" and not \"MSDM\""];
    assert!(why.as_str().is_some_and(|why| parts.iter().all(|part| why.contains(part))), "{why}");
    standalone.kubectl("delete vmi one --timeout=90s", None)?.ok();

    standalone.kubectl("apply -f -", Some(&vmi("license")))?.ok();
    standalone.becomes_ready("vmi/one")?;
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    for (name, text) in [("SLIC", "license"), ("MSDM", "product key")] {
        let read = format!("tail -c +37 /sys/firmware/acpi/tables/{name}");
        assert_eq!(guest.run(&read, SOON)?.trim(), text, "{name}");
    }
    let maker = guest.run("dd if=/sys/firmware/acpi/tables/FACP bs=1 skip=10 count=14 2>/dev/null", SOON)?;
    assert_eq!(maker.trim(), "MAKER THEBOARD", "as Windows compares it with the license");
    standalone.kubectl("delete vmi one --timeout=90s", None)?.ok();
    Ok(())
}
