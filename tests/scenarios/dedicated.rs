//! Guests whose vCPUs have CPUs of the host for themselves.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// A guest under emulation.
const BOOT: Duration = Duration::from_secs(240);

fn vmi(host: &Host, name: &str, more: &str) -> String {
    let cpu = format!("    cpu: {{cores: 1, dedicatedCpuPlacement: true{more}}}\n    memory:\n");
    manifest(host, name).replace("    memory:\n", &cpu)
}

#[test]
fn vcpus_have_cpus_for_themselves_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.deadline(BOOT).here()?;
    pinned(&host, "qemu")
}

#[test]
fn nested_vcpus_have_cpus_for_themselves_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "dedicated CPUs under vireo",
        || Ok(host_with_vireo(scratch.path())?.cpus(2)),
        |host, monitor| pinned(host, monitor.hypervisor()),
    );
}

/// The CPUs that threads of these names may run on, of the launcher of a VM and its QEMU.
fn cpus(standalone: &Standalone<'_>, uid: &str, names: &str) -> Result<Vec<String>, HostError> {
    let line = format!(
        "for process in /proc/[0-9]*; do \
         grep -qE '^(virt-launcher|qemu-system-x86)' $process/comm 2>/dev/null || continue; \
         grep -qF {uid} $process/cgroup 2>/dev/null || continue; \
         for task in $process/task/*; do \
         if grep -qE '{names}' $task/comm 2>/dev/null; then \
         sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' $task/status; fi; done; done | sort -u"
    );
    Ok(standalone.shell(&line)?.split_whitespace().map(str::to_owned).collect())
}

fn pinned(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    const VCPUS: &str = "^(vcpu|CPU )[0-9]";
    let standalone = Standalone::start_on(host, hypervisor)?;
    let mut own = Vec::new();
    for name in ["one", "two"] {
        standalone.kubectl("apply -f -", Some(&vmi(host, name, "")))?.ok();
        let mut guest = standalone.console(name)?;
        guest.ready()?;
        assert_eq!(guest.run("nproc", SOON)?.trim(), "1");
        let uid = standalone.uid(name)?;
        let vcpus = cpus(&standalone, &uid, VCPUS)?;
        assert_eq!(vcpus.len(), 1, "{vcpus:?}");
        assert_eq!(cpus(&standalone, &uid, "")?, vcpus, "all threads are on the VM's one CPU");
        own.extend(vcpus);
    }
    assert_ne!(own[0], own[1], "each has its own");
    let all: usize = standalone.shell("nproc --all")?.trim().parse().expect("a number");
    // One more than are left, with that of the hypervisor's threads.
    let cores = all.saturating_sub(2).max(1);
    let three = vmi(host, "three", ", isolateEmulatorThread: true");
    let three = three.replace("cores: 1", &format!("cores: {cores}"));
    standalone.kubectl("apply -f -", Some(&three))?.ok();
    let needed = format!("{} CPUs are needed", cores + 1);
    eventually("its status has the reason", SOON, || {
        let status = standalone.json("get vmi three")?["status"].to_string();
        Ok(status.contains("Insufficient cpu") || status.contains(&needed))
    })?;
    standalone.kubectl("delete vmi one two --grace-period=0 --timeout=90s", None)?.ok();
    let mut guest = standalone.console("three")?;
    guest.ready()?;
    let uid = standalone.uid("three")?;
    let (vcpus, rest) =
        (cpus(&standalone, &uid, VCPUS)?, cpus(&standalone, &uid, "^(qemu-system-x86|virt-launcher)")?);
    assert_eq!((vcpus.len(), rest.len()), (cores, 1), "{vcpus:?} {rest:?}");
    assert!(!vcpus.contains(&rest[0]), "the hypervisor's threads have their own");
    Ok(())
}
