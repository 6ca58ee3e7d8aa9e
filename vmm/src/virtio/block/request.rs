//! Parses a driver's request, whole, before anything is done (section 5.2.6).

use super::super::{Chain, GuestMemory, Segments};
use crate::block::{MAX_RANGE_SECTORS, MAX_RANGES, MAX_ZEROED_SECTORS, SECTOR};

const HEADER: u64 = 16;
const RANGE: u64 = 16;
const UNMAP: u32 = 1;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// What a request with ranges may have.
struct Allowed {
    ranges: u32,
    /// Of each range.
    sectors: u32,
    flags: u32,
}

const DISCARDED: Allowed = Allowed { ranges: MAX_RANGES, sectors: MAX_RANGE_SECTORS, flags: 0 };
const ZEROED: Allowed = Allowed { ranges: 1, sectors: MAX_ZEROED_SECTORS, flags: UNMAP };

/// What requests are held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) sectors: u64,
    pub(super) read_only: bool,
    /// Bytes of a logical block, a power of two.
    pub(super) block: u32,
}

/// Bytes of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) unmap: bool,
}

/// A request that makes sense: within the disk, in whole sectors, and allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read { offset: u64, to: Segments },
    Write { offset: u64, from: Segments },
    Flush,
    Id { to: Segments },
    Discard(Vec<Range>),
    WriteZeroes(Vec<Range>),
}

/// The status byte of a request that is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InvalidRequest {
    IoError,
    Unsupported,
}

/// One request of a driver.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The last writable byte, which takes the outcome.
    pub(super) status: Segments,
    /// How many writable bytes there are before it.
    pub(super) data: u64,
    pub(super) operation: Result<Operation, InvalidRequest>,
}

impl Request {
    /// `None` if there is no byte to put a status into.
    pub(super) fn parse(memory: &GuestMemory, mut chain: Chain, limits: Limits) -> Option<Self> {
        let status = chain.writable.take_back(1)?;
        let data = chain.writable.len();
        let operation = parse_operation(memory, chain, limits);
        Some(Self { status, data, operation })
    }
}

fn parse_operation(
    memory: &GuestMemory,
    mut chain: Chain,
    limits: Limits,
) -> Result<Operation, InvalidRequest> {
    let header = chain.readable.take_front(HEADER).ok_or(InvalidRequest::IoError)?;
    let mut bytes = [0; 16];
    header.read(memory, &mut bytes).map_err(|_| InvalidRequest::IoError)?;
    let [kind, _, low, high] = words(bytes);
    let sector = u64::from(high) << 32 | u64::from(low);
    let Chain { readable, writable } = chain;
    match kind {
        IN => Ok(Operation::Read { offset: limits.check(sector, writable.len())?, to: writable }),
        OUT | DISCARD | WRITE_ZEROES if limits.read_only => Err(InvalidRequest::IoError),
        OUT => Ok(Operation::Write { offset: limits.check(sector, readable.len())?, from: readable }),
        FLUSH => Ok(Operation::Flush),
        GET_ID => Ok(Operation::Id { to: writable }),
        DISCARD => parse_ranges(memory, &readable, limits, &DISCARDED).map(Operation::Discard),
        WRITE_ZEROES => parse_ranges(memory, &readable, limits, &ZEROED).map(Operation::WriteZeroes),
        _ => Err(InvalidRequest::Unsupported),
    }
}

fn parse_ranges(
    memory: &GuestMemory,
    segments: &Segments,
    limits: Limits,
    allowed: &Allowed,
) -> Result<Vec<Range>, InvalidRequest> {
    let len = segments.len();
    if len == 0 || !len.is_multiple_of(RANGE) || len > RANGE * u64::from(allowed.ranges) {
        return Err(InvalidRequest::IoError);
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| InvalidRequest::IoError)?];
    segments.read(memory, &mut bytes).map_err(|_| InvalidRequest::IoError)?;
    let (ranges, _) = bytes.as_chunks::<16>();
    ranges
        .iter()
        .map(|&range| {
            let [low, high, count, flags] = words(range);
            if flags & !allowed.flags != 0 {
                return Err(InvalidRequest::Unsupported);
            }
            if count > allowed.sectors {
                return Err(InvalidRequest::IoError);
            }
            let len = u64::from(count) * SECTOR;
            let offset = limits.check(u64::from(high) << 32 | u64::from(low), len)?;
            Ok(Range { offset, len, unmap: flags & UNMAP != 0 })
        })
        .collect()
}

impl Limits {
    /// The byte offset of `sector`, if `len` bytes from there are whole blocks of the disk.
    fn check(self, sector: u64, len: u64) -> Result<u64, InvalidRequest> {
        let end = sector.checked_add(len / SECTOR).filter(|_| len.is_multiple_of(SECTOR));
        let offset = sector.checked_mul(SECTOR).ok_or(InvalidRequest::IoError)?;
        let is_whole = |bytes: u64| bytes.is_multiple_of(self.block.into());
        match end {
            Some(end) if end <= self.sectors && is_whole(offset) && is_whole(len) => Ok(offset),
            Some(_) | None => Err(InvalidRequest::IoError),
        }
    }
}

fn words(bytes: [u8; 16]) -> [u32; 4] {
    let (words, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|at| words.get(at).copied().map_or(0, u32::from_le_bytes))
}
