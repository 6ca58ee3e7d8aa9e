//! `virtctl memory-dump`: the guest's memory as a file in a claim.

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, Status, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo, vm_of};

#[test]
fn memory_is_dumped_to_a_claim_by_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    is_dumped(&host, "qemu")
}

#[test]
fn nested_memory_is_dumped_to_a_claim_by_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "memory dumps under vireo",
        || host_with_vireo(scratch.path()),
        |host, monitor| is_dumped(host, monitor.hypervisor()),
    );
}

fn is_dumped(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, hypervisor)?;
    for (name, size) in [("dumps", "400Mi"), ("small", "8Mi")] {
        standalone.provide(name, size)?;
    }
    standalone.kubectl("apply -f -", Some(&vm_of(&manifest(host, "web"), "web", "Always")))?.ok();
    standalone.becomes_ready("vm/web")?;
    standalone.runs_on("web", hypervisor)?;
    let mut guest = Guest::over(standalone.console_process("web")?);
    guest.ready()?;
    // What is typed has no 42 in it.
    guest.run("echo in-the-memory-$((6 * 7)) >/tmp/marker", SOON)?;
    for (line, why) in [
        ("memory-dump get web", "claimName: Required value"),
        ("memory-dump get web --claim-name=none", "\"none\" not found"),
        ("memory-dump get web --claim-name=small", "pvc size [8Mi] should be bigger"),
        ("memory-dump get none --claim-name=dumps", "\"none\" not found"),
        ("memory-dump remove web", "no association found"),
        ("memory-dump download web --output=/tmp/x", "needs a VirtualMachineExport"),
    ] {
        let reported = standalone.virtctl(line)?;
        assert!(reported.status != Status::Code(0) && reported.stderr.contains(why), "{line}: {reported:?}");
    }

    let reported = standalone.virtctl("memory-dump get web --claim-name=dumps")?.ok();
    assert_eq!(reported, "Successfully submitted memory dump request of VMI web\n");
    let first = completes(&standalone, "")?;
    has_the_memory(&standalone, &first)?;
    // The guest goes on, and is not shown as paused.
    assert_eq!(guest.run("cat /tmp/marker", SOON)?.trim(), "in-the-memory-42");
    let vmi = standalone.json("get vmi web")?;
    let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
    assert!(conditions.iter().all(|one| one["type"] != "Paused"), "{conditions:#?}");
    let volumes = vmi["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    assert!(volumes.iter().all(|volume| volume["name"] != "dumps"), "{volumes:#?}");

    // Again, to the same claim: the earlier file is replaced.
    standalone.virtctl("memory-dump get web")?.ok();
    let second = completes(&standalone, &first)?;
    has_the_memory(&standalone, &second)?;
    let vm = standalone.json("get vm web")?;
    let conditions = vm["status"]["conditions"].as_array().cloned().unwrap_or_default();
    assert!(conditions.iter().all(|one| one["type"] != "RestartRequired"), "{conditions:#?}");

    let reported = standalone.virtctl("memory-dump remove web")?.ok();
    assert_eq!(reported, "Successfully submitted remove memory dump association of VMI web\n");
    let mut vm = Value::Null;
    let removed = eventually("the VM is rid of the claim", SOON, || {
        vm = standalone.json("get vm web")?;
        Ok(vm["status"]["memoryDumpRequest"].is_null()
            && !vm["spec"]["template"]["spec"]["volumes"].to_string().contains("dumps"))
    });
    assert!(removed.is_ok(), "{vm:#}");
    standalone.virtctl("stop web --grace-period 0 --force")?.ok();
    standalone.kubectl("delete pvc dumps --timeout=60s", None)?.ok();
    let left = standalone.shell(&format!("ls {} || true", standalone.file("claims/default")))?;
    assert!(!left.contains("dumps"), "{left}");
    Ok(())
}

/// Waits until a memory dump other than an earlier one is complete; its file's name.
fn completes(standalone: &Standalone<'_>, earlier: &str) -> Result<String, HostError> {
    let mut request = Value::Null;
    let completed = eventually("the memory is dumped", 3 * SOON, || {
        request = standalone.json("get vm web")?["status"]["memoryDumpRequest"].clone();
        Ok(request["phase"] == "Completed" && request["fileName"] != earlier || request["phase"] == "Failed")
    });
    assert!(completed.is_ok() && request["phase"] == "Completed", "{request:#}");
    for time in ["startTimestamp", "endTimestamp"] {
        assert!(request[time].is_string(), "{request:#}");
    }
    Ok(request["fileName"].as_str().unwrap_or_default().to_owned())
}

/// The only dump in the claim is an ELF core file with what the guest has in its memory.
fn has_the_memory(standalone: &Standalone<'_>, name: &str) -> Result<(), HostError> {
    let directory = standalone.file("claims/default/dumps");
    assert_eq!(standalone.shell(&format!("ls {directory} | grep dump$"))?.trim(), name);
    // Type 4, a core file, of x86-64.
    let header = standalone.shell(&format!("head -c 20 {directory}/{name} | od -An -v -tx1"))?;
    let header: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(
        (header.first_chunk(), header.last_chunk()),
        (Some(&["7f", "45", "4c", "46"]), Some(&["04", "00", "3e", "00"]))
    );
    // Without zeros, of which most of the memory is, the grep of a nested host reads it in time and to the ends of its lines.
    let marked = standalone
        .shell(&format!("tr -d '\\0' <{directory}/{name} | grep -c -a -F in-the-memory-42 || true"))?;
    assert_ne!(marked.trim(), "0");
    Ok(())
}
