//! The compressions that Linux uses for its image (scripts/Makefile.lib), as streams with bounded memory.

use std::fmt;
use std::io::{self, BufRead, Read};

use super::error::LoadError;

/// What a stream is handed on in.
const CHUNK: usize = 128 << 10;
/// What xz and lzma may allocate: the kernel build uses dictionaries of up to 64 MiB.
const LZMA_MEMORY: u64 = 96 << 20;
/// The window the kernel build's `zstd -22 --ultra` uses.
const ZSTD_WINDOW_LOG: u32 = 27;
/// A block of the legacy lz4 frame, decompressed.
const LZ4_BLOCK: usize = 8 << 20;
/// The worst that such a block compresses to.
const LZ4_BLOCK_COMPRESSED: usize = LZ4_BLOCK + LZ4_BLOCK / 255 + 16;
const LZ4_MAGIC: u32 = 0x184c_2102;
/// The largest block an lzop file may have.
const LZO_BLOCK: u32 = 64 << 20;

/// How a kernel is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all: an ELF file.
    None,
    /// RFC 1952.
    Gzip,
    /// The xz container, usually with the x86 filter.
    Xz,
    /// The older container of LZMA.
    Lzma,
    /// bzip2.
    Bzip2,
    /// The legacy frame of lz4.
    Lz4,
    /// What `lzop` writes.
    Lzo,
    /// RFC 8878.
    Zstd,
}

#[cfg(any(test, fuzzing))]
impl Compression {
    /// Each of them.
    pub(super) const ALL: [Self; 8] =
        [Self::None, Self::Gzip, Self::Xz, Self::Lzma, Self::Bzip2, Self::Lz4, Self::Lzo, Self::Zstd];
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "uncompressed",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Lzma => "lzma",
            Self::Bzip2 => "bzip2",
            Self::Lz4 => "lz4",
            Self::Lzo => "lzo",
            Self::Zstd => "zstd",
        })
    }
}

impl Compression {
    /// How many bytes [`Self::detect`] wants.
    pub(super) const MAGIC_LEN: usize = 6;

    /// Detects the format by the first bytes.
    pub(super) fn detect(head: &[u8; Self::MAGIC_LEN]) -> Option<Self> {
        match head {
            [0x7f, b'E', b'L', b'F', ..] => Some(Self::None),
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0] => Some(Self::Xz),
            [0x5d, 0, 0, ..] => Some(Self::Lzma),
            [b'B', b'Z', b'h', ..] => Some(Self::Bzip2),
            [0x02, 0x21, 0x4c, 0x18, ..] => Some(Self::Lz4),
            [0x89, b'L', b'Z', b'O', ..] => Some(Self::Lzo),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Takes decompressed bytes in order; an error ends the stream.
pub(super) type Sink<'a> = dyn FnMut(&[u8]) -> Result<(), LoadError> + 'a;

/// Decompresses `input` to its end into `sink`. What is allocated is bounded by the kind of compression; how much
/// comes out is for the sink to bound.
pub(super) fn decompress(
    compression: Compression,
    input: impl BufRead,
    sink: &mut Sink<'_>,
) -> Result<(), LoadError> {
    let damaged = |source| LoadError::Payload { compression, source };
    match compression {
        Compression::None => copy(input, sink, damaged),
        Compression::Gzip => copy(flate2::bufread::GzDecoder::new(input), sink, damaged),
        Compression::Bzip2 => copy(bzip2::bufread::BzDecoder::new(input), sink, damaged),
        Compression::Xz => {
            let stream = liblzma::stream::Stream::new_stream_decoder(LZMA_MEMORY, 0);
            let stream = stream.map_err(|err| damaged(err.into()))?;
            copy(liblzma::bufread::XzDecoder::new_stream(input, stream), sink, damaged)
        }
        Compression::Lzma => {
            let stream = liblzma::stream::Stream::new_lzma_decoder(LZMA_MEMORY);
            let stream = stream.map_err(|err| damaged(err.into()))?;
            copy(liblzma::bufread::XzDecoder::new_stream(input, stream), sink, damaged)
        }
        Compression::Zstd => {
            let mut decoder =
                zstd::stream::read::Decoder::with_buffer(input).map_err(damaged)?.single_frame();
            decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(damaged)?;
            copy(decoder, sink, damaged)
        }
        Compression::Lz4 => lz4(input, sink, damaged),
        Compression::Lzo => lzo(input, sink, damaged),
    }
}

fn copy(
    mut from: impl Read,
    sink: &mut Sink<'_>,
    damaged: impl Fn(io::Error) -> LoadError,
) -> Result<(), LoadError> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let got = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(got) => got,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(damaged(err)),
        };
        sink(buffer.get(..got).unwrap_or_default())?;
    }
}

/// Blocks of a length and a raw lz4 block each, to the end of the input. The magic may come again, where files were
/// concatenated.
fn lz4(
    mut input: impl BufRead,
    sink: &mut Sink<'_>,
    damaged: impl Fn(io::Error) -> LoadError,
) -> Result<(), LoadError> {
    let mut compressed = Vec::new();
    let mut plain = Vec::new();
    while !input.fill_buf().map_err(&damaged)?.is_empty() {
        let size = u32::from_le_bytes(read_array(&mut input).map_err(&damaged)?);
        if size == LZ4_MAGIC {
            continue;
        }
        let size = usize::try_from(size).ok().filter(|size| *size <= LZ4_BLOCK_COMPRESSED);
        let size = size.ok_or_else(|| damaged(invalid("a block is larger than any can be")))?;
        read_vec(&mut input, &mut compressed, size).map_err(&damaged)?;
        plain.resize(LZ4_BLOCK, 0);
        let got = lz4_flex::block::decompress_into(&compressed, &mut plain)
            .map_err(|err| damaged(io::Error::new(io::ErrorKind::InvalidData, err)))?;
        sink(plain.get(..got).unwrap_or_default())?;
    }
    Ok(())
}

/// Blocks of two lengths, check sums and an LZO1X block each, to a length of zero.
fn lzo(
    mut input: impl BufRead,
    sink: &mut Sink<'_>,
    damaged: impl Fn(io::Error) -> LoadError,
) -> Result<(), LoadError> {
    let sums = lzop_header(&mut input).map_err(&damaged)?;
    let mut compressed = Vec::new();
    let mut plain = Vec::new();
    loop {
        let plain_size = u32::from_be_bytes(read_array(&mut input).map_err(&damaged)?);
        if plain_size == 0 {
            return Ok(());
        }
        let size = u32::from_be_bytes(read_array(&mut input).map_err(&damaged)?);
        if plain_size > LZO_BLOCK || size > plain_size {
            return Err(damaged(invalid("a block has an impossible length")));
        }
        let skip = sums.plain + if size < plain_size { sums.compressed } else { 0 };
        for _ in 0..skip {
            read_array::<4>(&mut input).map_err(&damaged)?;
        }
        read_vec(&mut input, &mut compressed, size as usize).map_err(&damaged)?;
        if size == plain_size {
            sink(&compressed)?;
            continue;
        }
        plain.resize(plain_size as usize, 0);
        let got = lzokay::decompress::decompress(&compressed, &mut plain)
            .map_err(|err| damaged(io::Error::new(io::ErrorKind::InvalidData, err.to_string())))?;
        if got != plain.len() {
            return Err(damaged(invalid("a block's length differs from its header")));
        }
        sink(&plain)?;
    }
}

/// How many check sums of four bytes stand before each block.
struct LzopSums {
    plain: usize,
    compressed: usize,
}

/// The file header of lzop 1.x (its `conf.h` and the kernel's `decompress_unlzo.c` name the fields).
fn lzop_header(input: &mut impl BufRead) -> io::Result<LzopSums> {
    const WITH_LEVEL: u16 = 0x0940;
    const ADLER_PLAIN: u32 = 1 << 0;
    const ADLER_COMPRESSED: u32 = 1 << 1;
    const EXTRA_FIELD: u32 = 1 << 6;
    const CRC_PLAIN: u32 = 1 << 8;
    const CRC_COMPRESSED: u32 = 1 << 9;
    const FILTER: u32 = 1 << 11;
    const METHOD_LAST: u8 = 3;

    if read_array(input)? != *b"\x89LZO\0\r\n\x1a\n" {
        return Err(invalid("the file header is not lzop's"));
    }
    let version = u16::from_be_bytes(read_array(input)?);
    read_array::<2>(input)?; // the library's version
    if version >= WITH_LEVEL {
        read_array::<2>(input)?; // the version needed to extract
    }
    let [method] = read_array(input)?;
    if !(1..=METHOD_LAST).contains(&method) {
        return Err(invalid("the method is not LZO1X"));
    }
    if version >= WITH_LEVEL {
        read_array::<1>(input)?; // the level
    }
    let flags = u32::from_be_bytes(read_array(input)?);
    if flags & (FILTER | EXTRA_FIELD) != 0 {
        return Err(invalid("a filter or an extra field is used"));
    }
    read_array::<8>(input)?; // mode, low word of the time
    if version >= WITH_LEVEL {
        read_array::<4>(input)?; // high word of the time
    }
    let [name] = read_array(input)?;
    for _ in 0..name {
        read_array::<1>(input)?;
    }
    read_array::<4>(input)?; // the header's check sum
    let count = |bits: [u32; 2]| bits.iter().filter(|bit| flags & **bit != 0).count();
    Ok(LzopSums {
        plain: count([ADLER_PLAIN, CRC_PLAIN]),
        compressed: count([ADLER_COMPRESSED, CRC_COMPRESSED]),
    })
}

fn read_array<const N: usize>(input: &mut impl BufRead) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads `size` bytes, allocating no more than there are.
fn read_vec(input: &mut impl BufRead, buffer: &mut Vec<u8>, size: usize) -> io::Result<()> {
    buffer.clear();
    input.take(size as u64).read_to_end(buffer)?;
    if buffer.len() == size { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
