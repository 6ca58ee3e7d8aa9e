//! Metrics of the host and of a VMI that its guest reads, in the format of vhostmd: an XML document, on a disk of 256 KiB that
//! begins with its length and checksum. The names of the metrics are those of KubeVirt.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::OFlags;
use vireo_proto::launcher::Statistics;

/// The size of the disk.
pub(crate) const DISK_SIZE: u64 = 256 << 10;
/// Its header: a signature, whether it is being written, the sum of the document's bytes, and its length.
const HEADER: usize = 16;
const SIGNATURE: &[u8; 4] = b"mvbd";
/// The longest document; vhostmd's.
const LONGEST: usize = (256 << 10) - 24;
/// The unit of times in /proc/stat, per second.
const TICKS: f64 = 100.0;

/// What the kernel shows of the host.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct HostMetrics {
    packages: usize,
    cpu_seconds: f64,
    memory: Memory,
    /// Pages that were read from swap and written to it.
    swapped: (u64, u64),
    seconds: i64,
}

/// In KiB.
#[derive(Debug, Default, PartialEq)]
struct Memory {
    total: u64,
    free: u64,
    buffers: u64,
    cached: u64,
    swap_total: u64,
    swap_free: u64,
    swap_cached: u64,
}

impl HostMetrics {
    /// Reads what is there now. Blocks.
    pub(crate) fn read() -> io::Result<Self> {
        let package = |entry: &fs::DirEntry| {
            let path = entry.path().join("topology/physical_package_id");
            Some(fs::read_to_string(path).ok()?.trim().to_owned())
        };
        let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
        let packages: BTreeSet<String> = cpus.filter_map(|entry| package(&entry)).collect();
        let vmstat = fs::read_to_string("/proc/vmstat")?;
        Ok(Self {
            packages: packages.len(),
            cpu_seconds: cpu_seconds(&fs::read_to_string("/proc/stat")?),
            memory: Memory::parse(&fs::read_to_string("/proc/meminfo")?),
            swapped: (number(&vmstat, "pswpin"), number(&vmstat, "pswpout")),
            seconds: Timestamp::now().as_second(),
        })
    }
}

impl Memory {
    fn parse(text: &str) -> Self {
        Self {
            total: number(text, "MemTotal:"),
            free: number(text, "MemFree:"),
            buffers: number(text, "Buffers:"),
            cached: number(text, "Cached:"),
            swap_total: number(text, "SwapTotal:"),
            swap_free: number(text, "SwapFree:"),
            swap_cached: number(text, "SwapCached:"),
        }
    }
}

/// The number after a name at the beginning of a line; 0 where there is none.
fn number(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().map(str::split_whitespace);
    let found = lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?);
    found.unwrap_or_default()
}

/// The time of all CPUs for users, low priorities and the kernel.
fn cpu_seconds(stat: &str) -> f64 {
    let words = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).take(3);
    words.filter_map(|word| word.parse::<f64>().ok()).sum::<f64>() / TICKS
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
    let HostMetrics { memory: of_host, swapped, .. } = host;
    let used = of_host.total.saturating_sub(of_host.free + of_host.buffers + of_host.cached);
    let swap = of_host.swap_total.saturating_sub(of_host.swap_cached);
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
    add("host", "FreePhysicalMemory", kib, of_host.free.to_string());
    add("host", "FreeVirtualMemory", kib, (of_host.free + of_host.swap_free).to_string());
    add("host", "MemoryAllocatedToVirtualServers", kib, used.to_string());
    add("host", "UsedVirtualMemory", kib, (used + swap).to_string());
    add("host", "PagedInMemory", kib, (swapped.0 * page).to_string());
    add("host", "PagedOutMemory", kib, (swapped.1 * page).to_string());
    add("host", "Time", ("int64", "s"), host.seconds.to_string());
    text.push_str("</metrics>\n");
    text
}

/// A document without metrics, until there are some.
pub(crate) const EMPTY: &str =
    "<metrics><!-- host metrics not available --><!-- VM metrics not available --></metrics>\n";

/// Creates the disk, unless it is there. Blocks.
pub(crate) fn create(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(no_links());
    let file = options.open(path)?;
    if file.metadata()?.len() != DISK_SIZE {
        file.set_len(DISK_SIZE)?;
        write(&file, EMPTY)?;
    }
    Ok(())
}

/// Writes a document to the disk of this path. Blocks.
pub(crate) fn update(path: &Path, document: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(no_links()).open(path)?;
    match file.metadata()?.is_file() {
        true => write(&file, document),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn no_links() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

/// Readers look at the header before and after, so that they see whether the document changes meanwhile.
fn write(file: &File, document: &str) -> io::Result<()> {
    let bytes = document.as_bytes();
    if bytes.len() > LONGEST {
        return Err(io::Error::other("the document is too long"));
    }
    file.write_all_at(&header(bytes, true), 0)?;
    file.write_all_at(bytes, u64::try_from(HEADER).unwrap_or_default())?;
    file.write_all_at(&header(bytes, false), 0)
}

fn header(document: &[u8], is_locked: bool) -> [u8; HEADER] {
    let sum = document.iter().fold(0_u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    let length = u32::try_from(document.len()).unwrap_or_default();
    let mut header = [0; HEADER];
    let words = [u32::from_be_bytes(*SIGNATURE), u32::from(is_locked), sum, length];
    for (bytes, word) in header.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use vireo_proto::launcher::{BalloonStatistics, VcpuStatistics};

    use super::*;

    #[test]
    fn the_document_has_the_metrics_of_kubevirt() {
        let meminfo = "MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 50 kB\nCached: 100 kB\nSwapCached: 5 kB\nSwapTotal: 200 kB\nSwapFree: 150 kB\n";
        let host = HostMetrics {
            packages: 2,
            cpu_seconds: cpu_seconds("cpu  100 20 30 4000 5\ncpu0 1 2 3 4\n"),
            memory: Memory::parse(meminfo),
            swapped: (number("pgpgin 5\npswpin 3\n", "pswpin"), 0),
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
            ("host\" unit=\"s", "Time", "1234"),
        ] {
            let line = format!(
                "context=\"{context}\">\n    <name>{name}</name>\n    <value><![CDATA[{value}]]></value>"
            );
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        assert!(HostMetrics::read().unwrap().memory.total > 0);
    }

    #[test]
    fn the_disk_begins_with_length_and_sum() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        assert!(update(&path, "x").is_err(), "it is made at the start");
        create(&path).unwrap();
        update(&path, "ab").unwrap();
        create(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(u64::try_from(bytes.len()).unwrap(), DISK_SIZE);
        assert_eq!(bytes[..18], *b"mvbd\0\0\0\0\0\0\0\xc3\0\0\0\x02ab");
        assert!(update(&path, &"x".repeat(LONGEST + 1)).is_err());
        std::os::unix::fs::symlink(&path, directory.path().join("link")).unwrap();
        assert!(update(&directory.path().join("link"), "x").is_err());
    }
}
