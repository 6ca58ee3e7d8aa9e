//! Metrics of the host and of a VMI that its guest reads, in the format of vhostmd: an XML document, on a disk of 256 KiB that
//! begins with its length and checksum. The names of the metrics are those of KubeVirt.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::LazyLock;

use jiff::Timestamp;
use procfs::{Current as _, CurrentSI as _, KernelStats, Meminfo};
use rustix::fs::OFlags;
use vireo_proto::launcher::Statistics;
use vireo_proto::vhostmd::{self, DISK_SIZE, EMPTY};

/// The sockets of this host, which do not change while it runs.
static PACKAGES: LazyLock<usize> = LazyLock::new(packages);

/// What the kernel shows of the host; memory in KiB.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct HostMetrics {
    packages: usize,
    /// The time of all CPUs for users, low priorities and the kernel.
    cpu_seconds: f64,
    total: u64,
    free: u64,
    buffers: u64,
    cached: u64,
    swap_total: u64,
    swap_free: u64,
    swap_cached: u64,
    /// Pages that were read from swap and written to it.
    swapped: (u64, u64),
    seconds: i64,
}

impl HostMetrics {
    /// Reads what is there now. Blocks.
    pub(crate) fn read() -> io::Result<Self> {
        let memory = Meminfo::current().map_err(io::Error::other)?;
        let cpu = KernelStats::current().map_err(io::Error::other)?.total;
        let pages = procfs::vmstat().map_err(io::Error::other)?;
        // A kernel without swap has no such counters.
        let pages = |name| pages.get(name).map_or(0, |count| count.cast_unsigned());
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of years")]
        let cpu_seconds = (cpu.user_ms() + cpu.nice_ms() + cpu.system_ms()) as f64 / 1e3;
        Ok(Self {
            packages: *PACKAGES,
            cpu_seconds,
            total: memory.mem_total / 1024,
            free: memory.mem_free / 1024,
            buffers: memory.buffers / 1024,
            cached: memory.cached / 1024,
            swap_total: memory.swap_total / 1024,
            swap_free: memory.swap_free / 1024,
            swap_cached: memory.swap_cached / 1024,
            swapped: (pages("pswpin"), pages("pswpout")),
            seconds: Timestamp::now().as_second(),
        })
    }
}

fn packages() -> usize {
    let package = |entry: fs::DirEntry| {
        let path = entry.path().join("topology/physical_package_id");
        Some(fs::read_to_string(path).ok()?.trim().to_owned())
    };
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    cpus.filter_map(package).collect::<BTreeSet<String>>().len()
}

/// Who runs the guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<'a> {
    /// The node.
    pub(crate) node: &'a str,
    /// The hypervisor.
    pub(crate) product: &'a str,
}

/// The document.
pub(crate) fn document(names: Names<'_>, host: &HostMetrics, vm: &Statistics) -> String {
    let times = vm.vcpus.iter().filter_map(|vcpu| vcpu.nanoseconds);
    let vcpus = times.fold(0, u64::saturating_add);
    let balloon = vm.balloon.as_ref().and_then(|balloon| balloon.actual_bytes);
    let memory = balloon.unwrap_or(vm.domain_bytes) / 1024;
    let used = host.total.saturating_sub(host.free + host.buffers + host.cached);
    let swap = host.swap_total.saturating_sub(host.swap_cached);
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096) / 1024;
    let seconds = |value: f64| format!("{value:.6}");
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of years")]
    let vcpu_seconds = vcpus as f64 / 1e9;
    let mut text = "<metrics>\n".to_owned();
    let mut add = |context: &str, name: &str, (kind, unit): (&str, &str), value: String| {
        let unit = if unit.is_empty() { String::new() } else { format!(" unit=\"{unit}\"") };
        let value = value.replace("]]>", "");
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "  <metric type=\"{kind}\" context=\"{context}\"{unit}>\n    <name>{name}</name>\n    \
             <value><![CDATA[{value}]]></value>\n  </metric>\n"
        );
    };
    let (string, kib) = (("string", ""), ("uint64", "KiB"));
    add("host", "HostName", string, names.node.to_owned());
    add("host", "HostSystemInfo", string, "linux".to_owned());
    add("host", "VirtualizationVendor", string, "kubevirt.io".to_owned());
    add("host", "VirtProductInfo", string, names.product.to_owned());
    add("vm", "TotalCPUTime", ("real64", "s"), seconds(vcpu_seconds));
    add("vm", "ResourceProcessorLimit", ("uint64", ""), vm.vcpus.len().to_string());
    add("vm", "PhysicalMemoryAllocatedToVirtualSystem", kib, memory.to_string());
    add("vm", "ResourceMemoryLimit", kib, memory.to_string());
    add("host", "NumberOfPhysicalCPUs", ("int64", ""), host.packages.to_string());
    add("host", "TotalCPUTime", ("real64", "s"), seconds(host.cpu_seconds));
    add("host", "FreePhysicalMemory", kib, host.free.to_string());
    add("host", "FreeVirtualMemory", kib, (host.free + host.swap_free).to_string());
    add("host", "MemoryAllocatedToVirtualServers", kib, used.to_string());
    add("host", "UsedVirtualMemory", kib, (used + swap).to_string());
    add("host", "PagedInMemory", kib, (host.swapped.0 * page).to_string());
    add("host", "PagedOutMemory", kib, (host.swapped.1 * page).to_string());
    add("host", "Time", ("int64", "s"), host.seconds.to_string());
    text.push_str("</metrics>\n");
    text
}

/// Creates the disk, unless it is there. Blocks.
pub(crate) fn create(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(no_links());
    let file = options.open(path)?;
    if file.metadata()?.len() != DISK_SIZE {
        file.set_len(DISK_SIZE)?;
        vhostmd::write(&file, EMPTY)?;
    }
    Ok(())
}

/// Writes a document to the disk of this path. Blocks.
pub(crate) fn update(path: &Path, document: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(no_links()).open(path)?;
    match file.metadata()?.is_file() {
        true => vhostmd::write(&file, document),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn no_links() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

#[cfg(test)]
mod tests {
    use vireo_proto::launcher::{BalloonStatistics, VcpuStatistics};

    use super::*;

    #[test]
    fn the_document_has_the_metrics_of_kubevirt() {
        let host = HostMetrics {
            packages: 2,
            cpu_seconds: 1.5,
            total: 1000,
            free: 300,
            buffers: 50,
            cached: 100,
            swap_total: 200,
            swap_free: 150,
            swap_cached: 5,
            swapped: (3, 0),
            seconds: 1234,
        };
        let vcpu =
            |nanoseconds| VcpuStatistics { nanoseconds: Some(nanoseconds), ..VcpuStatistics::default() };
        let balloon = BalloonStatistics { actual_bytes: Some(64 << 20), ..BalloonStatistics::default() };
        let vm = Statistics {
            vcpus: vec![vcpu(1_500_000_000), vcpu(500_000_000)],
            balloon: Some(balloon),
            ..Statistics::default()
        };
        let text = document(Names { node: "one", product: "QEMU" }, &host, &vm);
        let first = "<metrics>\n  <metric type=\"string\" context=\"host\">\n    <name>HostName</name>\n    \
                     <value><![CDATA[one]]></value>\n  </metric>\n";
        assert!(text.starts_with(first) && text.ends_with("</metrics>\n"), "{text}");
        for (context, name, value) in [
            ("vm\" unit=\"s", "TotalCPUTime", "2.000000"),
            ("vm", "ResourceProcessorLimit", "2"),
            ("vm\" unit=\"KiB", "ResourceMemoryLimit", "65536"),
            ("host", "NumberOfPhysicalCPUs", "2"),
            ("host\" unit=\"s", "TotalCPUTime", "1.500000"),
            ("host\" unit=\"KiB", "FreePhysicalMemory", "300"),
            ("host\" unit=\"KiB", "FreeVirtualMemory", "450"),
            ("host\" unit=\"KiB", "MemoryAllocatedToVirtualServers", "550"),
            ("host\" unit=\"KiB", "UsedVirtualMemory", "745"),
            ("host\" unit=\"KiB", "PagedInMemory", "12"),
            ("host\" unit=\"KiB", "PagedOutMemory", "0"),
            ("host\" unit=\"s", "Time", "1234"),
        ] {
            let line = format!(
                "context=\"{context}\">\n    <name>{name}</name>\n    <value><![CDATA[{value}]]></value>"
            );
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        let read = HostMetrics::read().unwrap();
        let information = rustix::system::sysinfo();
        assert_eq!(
            u128::from(read.total),
            u128::from(information.totalram) * u128::from(information.mem_unit) / 1024
        );
        assert!(read.packages > 0 && read.cpu_seconds > 0.0, "{read:?}");
    }

    #[test]
    fn the_disk_is_made_once_and_has_the_last_document() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        assert!(update(&path, "x").is_err(), "it is made at the start");
        create(&path).unwrap();
        let document = || vhostmd::read(&fs::File::open(&path).unwrap());
        assert_eq!(document().as_deref(), Some(EMPTY));
        update(&path, "ab").unwrap();
        create(&path).unwrap();
        assert_eq!(document().as_deref(), Some("ab"));
        assert_eq!(fs::metadata(&path).unwrap().len(), DISK_SIZE);
        std::os::unix::fs::symlink(&path, directory.path().join("link")).unwrap();
        assert!(update(&directory.path().join("link"), "x").is_err());
    }
}
