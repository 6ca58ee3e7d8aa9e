//! Guests in huge pages of the host, and one that finds too few.

use std::fs::{self, File};

use vireo_tests::HostError;

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

const SETTING: &str = "/proc/sys/vm/nr_hugepages";
/// What a guest of 256 MiB takes.
const GUEST: u64 = 128;

/// Huge pages of 2 MiB that the host has beside those that it had, for one test at a time.
#[derive(Debug)]
pub(crate) struct HugePages {
    before: u64,
    _lock: File,
}

impl HugePages {
    /// None where the host does not give as many.
    pub(crate) fn reserve(count: u64) -> Option<Self> {
        let lock = File::create(std::env::temp_dir().join("vireo-huge-pages")).ok()?;
        lock.lock().ok()?;
        let before = number(SETTING)?;
        let pages = Self { before, _lock: lock };
        // A host that has run for long has the memory, but not in one piece.
        fs::write("/proc/sys/vm/compact_memory", "1").ok()?;
        fs::write(SETTING, (before + count).to_string()).ok()?;
        (number(SETTING)? == before + count).then_some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // The next test, or the host, has what it had.
        let _ = fs::write(SETTING, self.before.to_string());
    }
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Pages that no process has or has been promised.
fn free() -> u64 {
    let of = |name: &str| {
        number(&format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}")).expect("the kernel counts them")
    };
    of("free_hugepages") - of("resv_hugepages")
}

fn vmi(host: &vireo_tests::Host, name: &str) -> String {
    manifest(host, name)
        .replace("      guest: 256Mi\n", "      guest: 256Mi\n      hugepages: {pageSize: 2Mi}\n")
}

#[test]
fn a_guest_is_in_huge_pages_on_qemu_here() -> Result<(), HostError> {
    let Some(pages) = HugePages::reserve(GUEST) else {
        eprintln!("SKIPPED: the host gives no huge pages");
        return Ok(());
    };
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start(&host)?;
    let all = free();
    standalone.kubectl("apply -f -", Some(&vmi(&host, "huge")))?.ok();
    let mut guest = standalone.console("huge")?;
    guest.ready()?;
    assert_eq!(free(), all - GUEST);
    // Nor does it give any back while it runs: another guest might take them, and this one end where it needs them again.
    let reporting = "cut -c 6 /sys/bus/virtio/drivers/virtio_balloon/virtio*/features";
    assert_eq!(guest.run(reporting, SOON)?.trim(), "0", "VIRTIO_BALLOON_F_REPORTING");
    // Memory that the guest was started with, after its own reset as well.
    guest.run("dd if=/dev/zero of=/tmp/filled bs=1M count=64 2>/dev/null && sync", SOON)?;
    standalone.virtctl("reset huge")?.ok();
    guest.ready()?;
    assert_eq!(free(), all - GUEST, "after a reset");
    standalone.kubectl("delete --grace-period=0 --timeout=60s vmi/huge", None)?.ok();
    assert_eq!(free(), all, "it is gone");
    // One page too few.
    fs::write(SETTING, (pages.before + GUEST - 1).to_string()).expect("the kernel takes pages back");
    standalone.kubectl("apply -f -", Some(&vmi(&host, "more")))?.ok();
    standalone.kubectl("wait --for=jsonpath='{.status.phase}'=Failed --timeout=60s vmi/more", None)?.ok();
    let status = standalone.json("get vmi more")?["status"].to_string();
    let expected = "spec.domain.memory.hugepages.pageSize requests 128 huge pages of 2Mi, which are not free on this \
                    node: reserve more with sysctl vm.nr_hugepages";
    assert!(status.contains(expected), "{status}");
    Ok(())
}
