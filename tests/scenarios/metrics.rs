//! What a VM has used, as Prometheus reads it: it moves when the guest works, and a launcher that hangs is missed.

use std::time::{Duration, Instant};

use vireo_tests::eventually::eventually;
use vireo_tests::metrics::{Sample, parse};
use vireo_tests::{Host, HostError};

use crate::SOON;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// Counters that a guest moves which computes, reads, writes and sends.
const MOVED: [(&str, &[(&str, &str)]); 11] = [
    ("kubevirt_vmi_cpu_usage_seconds_total", &[]),
    ("kubevirt_vmi_cpu_user_usage_seconds_total", &[]),
    ("kubevirt_vmi_vcpu_seconds_total", &[("id", "0"), ("state", "running")]),
    ("kubevirt_vmi_storage_iops_read_total", &[("drive", "scratch")]),
    ("kubevirt_vmi_storage_iops_write_total", &[("drive", "scratch")]),
    ("kubevirt_vmi_storage_read_traffic_bytes_total", &[("drive", "scratch")]),
    ("kubevirt_vmi_storage_write_traffic_bytes_total", &[("drive", "scratch")]),
    ("kubevirt_vmi_storage_write_times_seconds_total", &[("drive", "scratch")]),
    ("kubevirt_vmi_storage_flush_requests_total", &[("drive", "scratch")]),
    ("kubevirt_vmi_network_receive_packets_total", &[("interface", "default")]),
    ("kubevirt_vmi_network_transmit_bytes_total", &[("interface", "default")]),
];
/// Writes and reads 4 MiB, pings its gateway, and computes: the kernel divides the time of a process by what its ticks met, so that
/// little work in user space may count as none.
const WORK: &str = "udhcpc -i eth0 -n -q -f && dd if=/dev/zero of=/dev/vda bs=64k count=64 conv=fsync && echo 3 >/proc/sys/vm/drop_caches && \
    dd if=/dev/vda of=/dev/null bs=64k count=64 && ping -c 3 -w 10 10.0.2.1 && dd if=/dev/zero bs=1M count=32 | md5sum";
const MIB: f64 = 1_048_576.0;

pub(crate) struct Scrape(Vec<Sample>);

impl Scrape {
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(label, value)| sample.labels.get(*label).is_some_and(|have| have == value))
        };
        self.0.iter().find(fits).map(|sample| sample.value)
    }

    #[track_caller]
    pub(crate) fn known(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let names = || self.0.iter().map(|sample| sample.name.as_str()).collect::<Vec<_>>();
        self.value(name, labels).unwrap_or_else(|| panic!("no {name} {labels:?} among {:?}", names()))
    }
}

pub(crate) fn scrape(standalone: &Standalone<'_>) -> Result<Scrape, HostError> {
    let text = standalone.kubectl("get --raw /metrics", None)?.ok();
    Ok(Scrape(parse(&text).unwrap_or_else(|error| panic!("{error}"))))
}

#[test]
fn prometheus_reads_what_a_guest_uses() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let (standalone, mut guest) = Standalone::with_a_guest(&host)?;

    let before = scrape(&standalone)?;
    guest.run(WORK, SOON * 2)?;
    let after = scrape(&standalone)?;
    for (name, labels) in MOVED {
        let (was, is) = (before.known(name, labels), after.known(name, labels));
        assert!(is > was, "{name} was {was} and is {is}");
    }
    let written = "kubevirt_vmi_storage_write_traffic_bytes_total";
    let drive = [("drive", "scratch")];
    assert!(after.known(written, &drive) - before.known(written, &drive) >= 4.0 * MIB);
    assert!((after.known("kubevirt_vmi_memory_domain_bytes", &[("name", "one")]) - 256.0 * MIB).abs() < 1.0);
    assert!(after.known("kubevirt_vmi_memory_resident_bytes", &[("namespace", "default")]) > 16.0 * MIB);
    // What the guest says of itself.
    let unused = after.known("kubevirt_vmi_memory_unused_bytes", &[("name", "one")]);
    assert!(unused > 16.0 * MIB && unused < 256.0 * MIB, "{unused}");
    assert!(
        after.known("kubevirt_vmi_info", &[("name", "one"), ("phase", "running"), ("node", "here")]) > 0.0
    );
    assert!(after.known("kubevirt_vmi_phase_count", &[("phase", "running")]) > 0.0);
    assert!(after.known("apiserver_request_total", &[("verb", "GET"), ("code", "200")]) > 0.0);
    assert!(after.known("apiserver_storage_objects", &[("resource", "namespaces")]) >= 1.0);
    assert!(after.known("process_resident_memory_bytes", &[]) > MIB);
    let took = "kubevirt_vmi_phase_transition_time_from_creation_seconds";
    assert!(after.known(&format!("{took}_count"), &[("phase", "Running")]) > 0.0);
    let whole = after.known(&format!("{took}_sum"), &[("phase", "Running")]).fract();
    assert!(whole > 0.0, "finer than seconds");

    let nic = [("name", "one"), ("vnic_name", "default"), ("binding_name", "masquerade")];
    assert!(after.known("kubevirt_vmi_vnic_info", &nic) > 0.0);
    knows_vms(&standalone)?;

    misses_who_hangs(&host, &standalone)?;
    standalone.kubectl("delete vmi one --timeout=90s", None)?.ok();
    assert_eq!(scrape(&standalone)?.value("kubevirt_vmi_info", &[("name", "one")]), None);
    Ok(())
}

/// VMs, whether they run or not.
fn knows_vms(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: halted}\nspec:\n  runStrategy: Halted\n  template: {spec: {domain: {memory: {guest: 64Mi}}}}\n";
    standalone.kubectl("apply -f -", Some(vm))?.ok();
    let of_vm = ("name", "halted");
    eventually("its status is in the metrics", SOON, || {
        let status = [of_vm, ("status", "stopped"), ("status_group", "non_running")];
        Ok(scrape(standalone)?.value("kubevirt_vm_info", &status).is_some())
    })?;
    let seen = scrape(standalone)?;
    let memory = [of_vm, ("resource", "memory"), ("source", "guest")];
    assert!((seen.known("kubevirt_vm_resource_requests", &memory) - 64.0 * MIB).abs() < 1.0);
    assert!(seen.known("kubevirt_vm_create_date_timestamp_seconds", &[of_vm]) > 1e9);
    standalone.kubectl("delete vm halted --timeout=30s", None)?.ok();
    Ok(())
}

/// First QEMU hangs, then its launcher: each time the answer comes in time, and says that one is missing.
fn misses_who_hangs(host: &Host, standalone: &Standalone<'_>) -> Result<(), HostError> {
    let socket = host.work("state/handler.sock");
    let curl = format!("curl --silent --fail --unix-socket {socket} http://node/metrics");
    let state = host.work("state");
    let files = "grep -lz '^/[^ ]*virt-launcher$' /proc/[0-9]*/cmdline 2>/dev/null";
    let launcher = format!("( ({files} || true) | xargs grep -l '{state}/' | cut -d/ -f3)");
    for (program, pids) in [
        ("QEMU", format!("$(cat /proc/${launcher}/task/*/children)")),
        ("the launcher", format!("${launcher}")),
    ] {
        let send = |signal: &str| {
            let line = format!("kill -{signal} {pids}");
            host.shell(&line).run().map(|reported| reported.ok())
        };
        send("STOP")?;
        let begin = Instant::now();
        let text = host.shell(&curl).run()?.ok();
        send("CONT")?;
        assert!(begin.elapsed() < Duration::from_secs(9), "{program}: {:?}", begin.elapsed());
        let reported = Scrape(parse(&text).unwrap_or_else(|error| panic!("{error}")));
        assert!((reported.known("vireo_metrics_vmis_missing", &[]) - 1.0).abs() < 0.1, "{program}:\n{text}");
        assert_eq!(reported.value("kubevirt_vmi_cpu_usage_seconds_total", &[]), None, "{program}");
        eventually("it is there again", SOON, || {
            Ok(scrape(standalone)?.value("kubevirt_vmi_cpu_usage_seconds_total", &[]).is_some())
        })?;
    }
    Ok(())
}
