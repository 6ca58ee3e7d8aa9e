//! Of which NUMA node of the host memory is.

use std::io;

use vm_memory::MmapRegion;

/// Bits of a mask's word.
const WORD: u32 = u64::BITS;
/// The most nodes that a kernel has (`MAX_NUMNODES`).
const MOST: u32 = 1024;

/// Has a part of a mapping be of one node of the host, for good: of no other where that has too little.
pub(crate) fn bind(mapping: &MmapRegion, start: usize, len: usize, node: u32) -> io::Result<()> {
    let is_inside = start.checked_add(len).is_some_and(|end| end <= mapping.size());
    if !is_inside || node >= MOST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut mask = [0_u64; (MOST / WORD) as usize];
    if let Some(word) = usize::try_from(node / WORD).ok().and_then(|index| mask.get_mut(index)) {
        *word = 1 << (node % WORD);
    }
    let address = mapping.as_ptr().wrapping_add(start);
    // The kernel takes one bit off the number of them.
    let bits = u64::from(MOST) + 1;
    #[expect(unsafe_code, reason = "no library has mbind")]
    // SAFETY: the range is inside of the mapping, which is alive; the call reads `mask`, which outlives it, and changes no
    // content of memory.
    let result =
        unsafe { libc::syscall(libc::SYS_mbind, address, len, libc::MPOL_BIND, mask.as_ptr(), bits, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
