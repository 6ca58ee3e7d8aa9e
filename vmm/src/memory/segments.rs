//! Buffers in guest memory, as drivers describe them to devices.

use std::io;

use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError, VolatileSlice};

use super::GuestMemory;
use crate::sys::vectored::IoVecs;

/// A buffer is not in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideMemory;

/// A run of bytes in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    address: GuestAddress,
    len: u32,
}

/// Buffers in a row, each non-empty and inside RAM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments(Vec<Segment>);

impl Segments {
    /// Adds a buffer behind the others, if all of it is in RAM. An empty one is dropped.
    pub fn push(
        &mut self,
        memory: &GuestMemory,
        address: GuestAddress,
        len: u32,
    ) -> Result<(), OutsideMemory> {
        let size = usize::try_from(len).map_err(|_| OutsideMemory)?;
        if size == 0 {
            return Ok(());
        }
        if !memory.check_range(address, size) {
            return Err(OutsideMemory);
        }
        self.0.push(Segment { address, len });
        Ok(())
    }

    /// Adds buffers behind the others.
    pub(crate) fn append(&mut self, others: &Self) {
        self.0.extend_from_slice(&others.0);
    }

    /// Drops them all, and keeps the room for others.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Where the byte at `offset` is.
    pub(crate) fn address_of(&self, mut offset: u64) -> Option<GuestAddress> {
        for segment in &self.0 {
            if offset < u64::from(segment.len) {
                return segment.address.checked_add(offset);
            }
            offset -= u64::from(segment.len);
        }
        None
    }

    /// The buffers: their addresses and sizes.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (GuestAddress, u32)> {
        self.0.iter().map(|segment| (segment.address, segment.len))
    }

    /// How many buffers.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many bytes.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|segment| u64::from(segment.len)).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the buffers begin at multiples of `alignment`, and have as many bytes. Regions of RAM begin at pages, so
    /// that what holds for guest addresses holds for the host's.
    pub(crate) fn are_aligned(&self, alignment: u64) -> bool {
        let is_multiple = |value: u64| value.is_multiple_of(alignment);
        self.0.iter().all(|segment| is_multiple(segment.address.0) && is_multiple(segment.len.into()))
    }

    /// The host's view of the bytes.
    pub(crate) fn slices<'a>(&self, memory: &'a GuestMemory) -> io::Result<Vec<VolatileSlice<'a>>> {
        let mut slices = Vec::with_capacity(self.0.len());
        self.for_each_slice(memory, |slice| slices.push(slice))?;
        Ok(slices)
    }

    /// Hands over the host's view of the bytes, in order.
    pub(crate) fn for_each_slice<'a>(
        &self,
        memory: &'a GuestMemory,
        mut take: impl FnMut(VolatileSlice<'a>),
    ) -> io::Result<()> {
        for segment in &self.0 {
            let len = usize::try_from(segment.len).map_err(io::Error::other)?;
            // A buffer may lie across the seam of two mappings.
            for slice in memory.get_slices(segment.address, len) {
                take(slice.map_err(io::Error::other)?);
            }
        }
        Ok(())
    }

    /// The bytes as the kernel takes them.
    pub(crate) fn io_vecs<'a>(&self, memory: &'a GuestMemory) -> io::Result<IoVecs<'a>> {
        self.slices(memory).map(IoVecs::new)
    }

    /// Takes the first `count` bytes off; `None`, and nothing taken, if there are fewer.
    pub fn take_front(&mut self, count: u64) -> Option<Self> {
        let rest = self.len().checked_sub(count)?;
        let back = self.take_back(rest)?;
        Some(std::mem::replace(self, back))
    }

    /// Takes the last `count` bytes off; `None`, and nothing taken, if there are fewer.
    pub fn take_back(&mut self, count: u64) -> Option<Self> {
        let mut keep = self.len().checked_sub(count)?;
        let mut at = 0;
        for segment in &mut self.0 {
            let len = u64::from(segment.len);
            if keep < len {
                break;
            }
            keep -= len;
            at += 1;
        }
        let mut back = self.0.split_off(at);
        if let Some(first) = back.first_mut()
            && let Ok(keep @ 1..) = u32::try_from(keep)
        {
            self.0.push(Segment { address: first.address, len: keep });
            // Inside RAM, so neither wraps.
            first.address = first.address.unchecked_add(u64::from(keep));
            first.len -= keep;
        }
        Some(Self(back))
    }

    /// Copies the first bytes out; all of `data` or an error.
    pub fn read(&self, memory: &GuestMemory, data: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.read_at(memory, 0, data)
    }

    /// Copies the bytes from `offset` out; all of `data` or an error.
    pub(crate) fn read_at(
        &self,
        memory: &GuestMemory,
        mut offset: u64,
        mut data: &mut [u8],
    ) -> Result<(), GuestMemoryError> {
        for segment in &self.0 {
            let skip = offset.min(segment.len.into());
            offset -= skip;
            let room = usize::try_from(u64::from(segment.len) - skip).unwrap_or(usize::MAX);
            let (part, rest) = data.split_at_mut(data.len().min(room));
            if !part.is_empty() {
                memory.read_slice(part, segment.address.unchecked_add(skip))?;
            }
            data = rest;
        }
        match data.len() {
            0 => Ok(()),
            expected => Err(GuestMemoryError::PartialBuffer { expected, completed: 0 }),
        }
    }

    /// Copies to the bytes from `offset`; all of `data` or an error.
    pub(crate) fn write_at(
        &self,
        memory: &GuestMemory,
        mut offset: u64,
        mut data: &[u8],
    ) -> Result<(), GuestMemoryError> {
        for segment in &self.0 {
            let skip = offset.min(segment.len.into());
            offset -= skip;
            let room = usize::try_from(u64::from(segment.len) - skip).unwrap_or(usize::MAX);
            let (part, rest) = data.split_at(data.len().min(room));
            if !part.is_empty() {
                memory.write_slice(part, segment.address.unchecked_add(skip))?;
            }
            data = rest;
        }
        match data.len() {
            0 => Ok(()),
            expected => Err(GuestMemoryError::PartialBuffer { expected, completed: 0 }),
        }
    }

    /// Copies to the first bytes; all of `data` or an error.
    pub fn write(&self, memory: &GuestMemory, data: &[u8]) -> Result<(), GuestMemoryError> {
        self.write_at(memory, 0, data)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segments(lens: &[u32]) -> Segments {
        let mut address = 0;
        let all = lens.iter().map(|&len| {
            address += 0x100;
            Segment { address: GuestAddress(address), len }
        });
        Segments(all.collect())
    }

    fn bytes(segments: &Segments) -> Vec<u64> {
        segments.0.iter().flat_map(|s| s.address.0..s.address.0 + u64::from(s.len)).collect()
    }

    #[test]
    fn more_than_there_is_takes_nothing() {
        let mut all = segments(&[3, 4]);
        assert_eq!(all.take_back(8), None);
        assert_eq!(all.take_front(8), None);
        assert_eq!(all.len(), 7);
        assert_eq!(all.take_front(7), Some(segments(&[3, 4])));
        assert!(all.is_empty());
    }

    #[test]
    fn bytes_are_read_from_any_offset() {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let mut all = segments(&[3, 1, 4]);
        let back = all.take_back(4).unwrap();
        all.append(&back);
        all.write(&memory, b"01234567").unwrap();
        for offset in 0..8 {
            let mut data = vec![0; 8 - offset];
            all.read_at(&memory, offset as u64, &mut data).unwrap();
            assert_eq!(data, b"01234567"[offset..]);
            data.push(0);
            all.read_at(&memory, offset as u64, &mut data).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn splitting_keeps_every_byte_in_order(
            lens in prop::collection::vec(1_u32..200, 0..8), count in 0_u64..1600, front in any::<bool>(),
        ) {
            let mut all = segments(&lens);
            let whole = bytes(&all);
            let count = count.min(all.len());
            let taken = if front { all.take_front(count) } else { all.take_back(count) }.unwrap();
            prop_assert_eq!(taken.len(), count);
            prop_assert!(taken.0.iter().chain(&all.0).all(|segment| segment.len > 0));
            let (first, second) = if front { (taken, all) } else { (all, taken) };
            prop_assert_eq!([bytes(&first), bytes(&second)].concat(), whole);
        }
    }
}
