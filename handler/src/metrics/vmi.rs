//! The resource usage of one VM.

use std::borrow::Cow;
use std::collections::BTreeMap;

use vireo_api::v1::VirtualMachineInstance;
use vireo_client::metrics::{Labels, Metric, MetricSet, Value, counter, gauge, seconds};
use vireo_proto::launcher::{
    BalloonStatistics, DiskStatistics, GuestFilesystem, GuestLoad, InterfaceStatistics, Statistics,
    VcpuStatistics,
};

use super::collect::VmiSample;

/// A metric, and how to get its value.
type Line<T> = (Metric, fn(&T) -> Option<Value>);

const VM: &[Line<Statistics>] = &[
    (counter("kubevirt_vmi_cpu_usage_seconds_total", "CPU time of the VM's process, in all modes."), |of| {
        Some(seconds(of.user_nanoseconds?.saturating_add(of.system_nanoseconds?)))
    }),
    (
        counter(
            "kubevirt_vmi_cpu_user_usage_seconds_total",
            "CPU time of the VM's process in user mode, the guest's included.",
        ),
        |of| of.user_nanoseconds.map(seconds),
    ),
    (
        counter(
            "kubevirt_vmi_cpu_system_usage_seconds_total",
            "CPU time of the VM's process in the host's kernel.",
        ),
        |of| of.system_nanoseconds.map(seconds),
    ),
    (gauge("kubevirt_vmi_memory_resident_bytes", "Memory of the VM's process that is in RAM."), |of| {
        of.resident_bytes.map(Value::Whole)
    }),
    (gauge("kubevirt_vmi_memory_domain_bytes", "Memory that the guest was given."), |of| {
        Some(of.domain_bytes.into())
    }),
    (
        gauge("kubevirt_vmi_node_cpu_affinity", "The CPUs of the node on which each vCPU may run, in sum."),
        |of| {
            let cpus: Option<Vec<u64>> = of.vcpus.iter().map(|vcpu| vcpu.host_cpus.map(u64::from)).collect();
            cpus.filter(|cpus| !cpus.is_empty()).map(|cpus| Value::Whole(cpus.iter().sum()))
        },
    ),
];

const BALLOON: &[Line<BalloonStatistics>] = &[
    (
        gauge("kubevirt_vmi_memory_actual_balloon_bytes", "Memory that the balloon leaves to the guest."),
        |of| of.actual_bytes.map(Value::Whole),
    ),
    (gauge("kubevirt_vmi_memory_available_bytes", "Memory that the guest's kernel has."), |of| {
        of.available_bytes.map(Value::Whole)
    }),
    (gauge("kubevirt_vmi_memory_unused_bytes", "Memory that the guest uses for nothing."), |of| {
        of.unused_bytes.map(Value::Whole)
    }),
    (gauge("kubevirt_vmi_memory_usable_bytes", "Memory that the guest could have without swapping."), |of| {
        of.usable_bytes.map(Value::Whole)
    }),
    (gauge("kubevirt_vmi_memory_cached_bytes", "Memory in which the guest caches its disks."), |of| {
        of.cached_bytes.map(Value::Whole)
    }),
    (gauge("kubevirt_vmi_memory_swap_in_traffic_bytes", "What the guest has swapped in."), |of| {
        of.swap_in_bytes.map(Value::Whole)
    }),
    (gauge("kubevirt_vmi_memory_swap_out_traffic_bytes", "What the guest has swapped out."), |of| {
        of.swap_out_bytes.map(Value::Whole)
    }),
    (
        counter("kubevirt_vmi_memory_pgmajfault_total", "Page faults of the guest that waited for a disk."),
        |of| of.major_faults.map(Value::Whole),
    ),
    (counter("kubevirt_vmi_memory_pgminfault_total", "Page faults of the guest that did not."), |of| {
        of.minor_faults.map(Value::Whole)
    }),
];

const VCPU: &[Line<VcpuStatistics>] = &[
    (
        counter("kubevirt_vmi_vcpu_delay_seconds_total", "How long a vCPU waited for a CPU of the host."),
        |of| of.delay_nanoseconds.map(seconds),
    ),
    (
        counter(
            "kubevirt_vmi_vcpu_wait_seconds_total",
            "How long a vCPU was ready and did not run, where the host's kernel.sched_schedstats is 1.",
        ),
        |of| of.wait_nanoseconds.map(seconds),
    ),
];
/// Has one more label.
const VCPU_SECONDS: Metric = counter("kubevirt_vmi_vcpu_seconds_total", "CPU time of a vCPU.");

const DISK: &[Line<DiskStatistics>] = &[
    (counter("kubevirt_vmi_storage_iops_read_total", "Reads of a disk."), |of| {
        Some(of.reads?.requests.into())
    }),
    (counter("kubevirt_vmi_storage_iops_write_total", "Writes to a disk."), |of| {
        Some(of.writes?.requests.into())
    }),
    (counter("kubevirt_vmi_storage_read_traffic_bytes_total", "What was read from a disk."), |of| {
        Some(of.reads?.bytes.into())
    }),
    (counter("kubevirt_vmi_storage_write_traffic_bytes_total", "What was written to a disk."), |of| {
        Some(of.writes?.bytes.into())
    }),
    (counter("kubevirt_vmi_storage_read_times_seconds_total", "How long reads took together."), |of| {
        Some(seconds(of.reads?.nanoseconds))
    }),
    (counter("kubevirt_vmi_storage_write_times_seconds_total", "How long writes took together."), |of| {
        Some(seconds(of.writes?.nanoseconds))
    }),
    (counter("kubevirt_vmi_storage_flush_requests_total", "Flushes of a disk's cache."), |of| {
        Some(of.flushes?.requests.into())
    }),
    (counter("kubevirt_vmi_storage_flush_times_seconds_total", "How long flushes took together."), |of| {
        Some(seconds(of.flushes?.nanoseconds))
    }),
];

const INTERFACE: &[Line<InterfaceStatistics>] = &[
    (counter("kubevirt_vmi_network_receive_bytes_total", "What the guest received."), |of| {
        Some(of.received?.bytes.into())
    }),
    (counter("kubevirt_vmi_network_transmit_bytes_total", "What the guest sent."), |of| {
        Some(of.transmitted?.bytes.into())
    }),
    (counter("kubevirt_vmi_network_receive_packets_total", "Packets that the guest received."), |of| {
        Some(of.received?.packets.into())
    }),
    (counter("kubevirt_vmi_network_transmit_packets_total", "Packets that the guest sent."), |of| {
        Some(of.transmitted?.packets.into())
    }),
    (counter("kubevirt_vmi_network_receive_errors_total", "Packets for the guest that were bad."), |of| {
        Some(of.received?.errors.into())
    }),
    (counter("kubevirt_vmi_network_transmit_errors_total", "Packets of the guest that were bad."), |of| {
        Some(of.transmitted?.errors.into())
    }),
    (
        counter(
            "kubevirt_vmi_network_receive_packets_dropped_total",
            "Packets for the guest that were dropped.",
        ),
        |of| Some(of.received?.dropped.into()),
    ),
    (
        counter(
            "kubevirt_vmi_network_transmit_packets_dropped_total",
            "Packets of the guest that were dropped.",
        ),
        |of| Some(of.transmitted?.dropped.into()),
    ),
];
/// As `_receive_bytes_total` and `_transmit_bytes_total`, for dashboards that ask for it.
const TRAFFIC: Metric =
    counter("kubevirt_vmi_network_traffic_bytes_total", "What the guest received (rx) and sent (tx).");

const FILESYSTEM: &[Line<GuestFilesystem>] = &[
    (gauge("kubevirt_vmi_filesystem_capacity_bytes", "The size of a filesystem of the guest."), |of| {
        Some(of.total_bytes.into())
    }),
    (gauge("kubevirt_vmi_filesystem_used_bytes", "What is used of a filesystem of the guest."), |of| {
        Some(of.used_bytes.into())
    }),
];

const LOAD: &[Line<GuestLoad>] = &[
    (gauge("kubevirt_vmi_guest_load_1m", "Load of the guest, on average over one minute."), |of| {
        Some(Value::Part(of.one))
    }),
    (gauge("kubevirt_vmi_guest_load_5m", "Load of the guest, on average over five minutes."), |of| {
        Some(Value::Part(of.five))
    }),
    (gauge("kubevirt_vmi_guest_load_15m", "Load of the guest, on average over fifteen minutes."), |of| {
        Some(Value::Part(of.fifteen))
    }),
];

/// Adds the metrics of one VM.
pub(super) fn add(metric_set: &mut MetricSet, node: &str, sample: &VmiSample) {
    let Some(statistics) = &sample.statistics else { return };
    let labels = labels(node, &sample.vmi);
    let with = |more: &[(&'static str, &str)]| {
        let more = more.iter().map(|(name, value)| (Cow::Borrowed(*name), (*value).to_owned()));
        labels.iter().cloned().chain(more).collect::<Labels>()
    };
    lines(metric_set, VM, statistics, &with(&[]));
    if let Some(balloon) = &statistics.balloon {
        lines(metric_set, BALLOON, balloon, &with(&[]));
    }
    if let Some(load) = &sample.load {
        lines(metric_set, LOAD, load, &with(&[]));
    }
    for vcpu in &statistics.vcpus {
        let number = vcpu.number.to_string();
        lines(metric_set, VCPU, vcpu, &with(&[("id", &number)]));
        // The state that libvirt reports for every online vCPU.
        metric_set.add(
            &VCPU_SECONDS,
            with(&[("id", &number), ("state", "running")]),
            vcpu.nanoseconds.map(seconds),
        );
    }
    for disk in &statistics.disks {
        lines(metric_set, DISK, disk, &with(&[("drive", &disk.name)]));
    }
    for interface in &statistics.interfaces {
        let name = ("interface", interface.name.as_str());
        lines(metric_set, INTERFACE, interface, &with(&[name]));
        for (kind, traffic) in [("rx", interface.received), ("tx", interface.transmitted)] {
            metric_set.add(
                &TRAFFIC,
                with(&[name, ("type", kind)]),
                traffic.map(|traffic| traffic.bytes.into()),
            );
        }
    }
    for filesystem in &sample.filesystems {
        let labels = with(&[
            ("disk_name", &filesystem.name),
            ("mount_point", &filesystem.mount_point),
            ("file_system_type", &filesystem.kind),
        ]);
        lines(metric_set, FILESYSTEM, filesystem, &labels);
    }
}

fn lines<T>(metric_set: &mut MetricSet, lines: &[Line<T>], of: &T, labels: &Labels) {
    for (metric, value) in lines {
        metric_set.add(metric, labels.clone(), value(of));
    }
}

/// Node, namespace and name, and the VMI's own labels under names that Prometheus accepts.
fn labels(node: &str, vmi: &VirtualMachineInstance) -> Labels {
    let metadata = &vmi.metadata;
    let mut labels: Labels = vec![
        ("node".into(), node.to_owned()),
        ("namespace".into(), metadata.namespace.clone()),
        ("name".into(), metadata.name.clone()),
    ];
    // Several labels may map to the same name; the first one wins.
    let mut own = BTreeMap::new();
    for (name, value) in &metadata.labels {
        let plain: String =
            name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
        own.entry(format!("kubernetes_vmi_label_{plain}")).or_insert_with(|| value.clone());
    }
    labels.extend(own.into_iter().map(|(name, value)| (Cow::Owned(name), value)));
    labels
}
