//! The memory of this program's own file. Its pages count beside the guest, and most of them are of the start alone.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::time::Duration;

use libc::{PF_W, PT_LOAD, dl_phdr_info, size_t};
use rustix::mm::Advice;

/// Bytes of a page of x86-64.
const PAGE: usize = 4096;
/// When firmware and kernel of a guest have found their devices.
const SETTLED: Duration = Duration::from_secs(60);

/// Releases pages of the program now, when the guest has started, and once more when it has found its devices.
pub(crate) async fn release_what_starts_need() {
    release();
    tokio::time::sleep(SETTLED).await;
    release();
}

/// Unmaps the pages of the program's file, code and constants: those that are needed again come back from the page cache.
fn release() {
    for range in unwritable() {
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(range.start);
        #[expect(unsafe_code, reason = "rustix has no safe madvise")]
        // SAFETY: whole pages of a mapping of the program's file that is never written to: the file still has their content.
        let advised = unsafe { rustix::mm::madvise(address, range.len(), Advice::LinuxDontNeed) };
        if let Err(errno) = advised {
            tracing::debug!(%errno, "pages of the program stay");
        }
    }
}

/// Whole pages of the segments of the program that are not written to, not even by relocations.
fn unwritable() -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    #[expect(unsafe_code, reason = "nothing else names the segments where there is no /proc")]
    // SAFETY: the callback takes what it is called with for what it is, and the vector outlives the call.
    unsafe {
        libc::dl_iterate_phdr(Some(add_segments), (&raw mut found).cast());
    }
    found
}

/// A callback of `dl_iterate_phdr`: adds the ranges of the first object, the program, to the vector at `data`.
#[expect(unsafe_code, reason = "its arguments are pointers")]
unsafe extern "C" fn add_segments(info: *mut dl_phdr_info, _size: size_t, data: *mut c_void) -> c_int {
    // SAFETY: libc calls this with a valid description, which nothing else writes to meanwhile.
    let info = unsafe { &*info };
    // SAFETY: this is what `unwritable` passes.
    let found = unsafe { &mut *data.cast::<Vec<Range<usize>>>() };
    // SAFETY: the headers of a loaded object stay where they are, and there are as many.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers.iter().filter(|header| header.p_type == PT_LOAD && header.p_flags & PF_W == 0) {
        let begin = usize::try_from(info.dlpi_addr + header.p_vaddr).unwrap_or(usize::MAX);
        let bytes = usize::try_from(header.p_filesz).unwrap_or_default();
        let range = begin.next_multiple_of(PAGE)..begin.saturating_add(bytes) / PAGE * PAGE;
        if !range.is_empty() {
            found.push(range);
        }
    }
    // Others, such as the kernel's vDSO, are not asked for.
    1
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// KiB that are resident of the mappings in `ranges`.
    fn resident(ranges: &[Range<usize>]) -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut counts = false;
        let mut sum = 0;
        for line in smaps.lines() {
            let begin = line.split_once('-').and_then(|(begin, _)| usize::from_str_radix(begin, 16).ok());
            if let Some(begin) = begin {
                counts = ranges.iter().any(|range| (begin..=begin + PAGE).contains(&range.start));
            } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| counts) {
                sum += size.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            }
        }
        sum
    }

    #[test]
    fn pages_of_the_program_are_unmapped_and_come_back() {
        let ranges = unwritable();
        assert!(ranges.len() > 1, "code and constants are in segments of their own: {ranges:x?}");
        let here = (pages_of_the_program_are_unmapped_and_come_back as *const ()).addr();
        assert!(ranges.iter().any(|range| range.contains(&here)), "{here:x} is not in {ranges:x?}");
        let before = resident(&ranges);
        release();
        let after = resident(&ranges);
        assert!(after < before / 2, "{before} KiB before, {after} KiB after");
    }
}
