//! A small kernel image, in any packing.
#![expect(clippy::unwrap_used, reason = "for tests and fuzzing: what it makes does not fail")]

use std::io::Write;

use crate::boot::decompress::Compression;
use crate::boot::elf::KERNEL_MAP;

/// Where the sample is linked, physically.
pub(super) const BASE: u64 = 16 << 20;
/// Where its second segment is, from there.
pub(super) const DATA: u64 = 0x20_0000;
/// Offsets of addresses in the image, from `BASE`.
pub(super) const WIDE: u64 = 0x100;
pub(super) const NARROW: u64 = 0x200;
pub(super) const INVERSE: u64 = 0x203_000 - 0x10;
pub(super) const WIDE_VALUE: u64 = 0xffff_ffff_8100_1234;
pub(super) const NARROW_VALUE: u32 = 0x8100_4321;
pub(super) const INVERSE_VALUE: u32 = 0x7fff_0000;
/// What its header reserves.
pub(super) const INIT_SIZE: u32 = 8 << 20;
/// Where the protected-mode part begins in the file.
pub(super) const PROTECTED: usize = 1024;
/// Where the payload begins behind that.
const PAYLOAD: usize = 0x300;

pub(super) struct Sample {
    pub(super) text: Vec<u8>,
    pub(super) data: Vec<u8>,
    /// The words behind the ELF image.
    pub(super) relocations: Vec<u32>,
    pub(super) pvh_entry: Option<u32>,
}

impl Default for Sample {
    fn default() -> Self {
        let mut text: Vec<u8> =
            (0..0x1_2345_u32).map(|i| (i.wrapping_mul(i) >> 7).to_le_bytes()[0]).collect();
        text[0x3000..0x8000].fill(0);
        text[0x100..0x108].copy_from_slice(&WIDE_VALUE.to_le_bytes());
        text[0x200..0x204].copy_from_slice(&NARROW_VALUE.to_le_bytes());
        let mut data: Vec<u8> = (0..0x3000_u32).map(|i| (i >> 3).to_le_bytes()[0]).collect();
        data[0x2ff0..0x2ff4].copy_from_slice(&INVERSE_VALUE.to_le_bytes());
        let word = |offset: u64| u32::try_from((KERNEL_MAP + BASE + offset) & 0xffff_ffff).unwrap();
        Self {
            text,
            data,
            relocations: vec![0, word(WIDE), 0, word(INVERSE), 0, word(NARROW)],
            pvh_entry: None,
        }
    }
}

impl Sample {
    /// As an ELF file, without its relocations.
    pub(super) fn elf(&self) -> Vec<u8> {
        let note = self.note();
        let text_at = 0x1000_u64;
        let data_at = text_at + self.text.len() as u64;
        let note_at = data_at + self.data.len() as u64;
        let sections_at = (note_at + note.len() as u64).next_multiple_of(8);
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend([2_u16, 62].iter().flat_map(|v| v.to_le_bytes()));
        file.extend(1_u32.to_le_bytes());
        file.extend([BASE + 0x40, 64, sections_at].iter().flat_map(|v| v.to_le_bytes()));
        file.extend(0_u32.to_le_bytes());
        file.extend([64_u16, 56, 3, 64, 1, 0].iter().flat_map(|v| v.to_le_bytes()));
        let mut header = |kind: u32, offset: u64, address: u64, size: usize, memory: usize| {
            file.extend([kind, 7].iter().flat_map(|v| v.to_le_bytes()));
            let words = [offset, KERNEL_MAP + address, address, size as u64, memory as u64, 0x1000];
            file.extend(words.iter().flat_map(|v| v.to_le_bytes()));
        };
        header(1, text_at, BASE, self.text.len(), self.text.len());
        header(1, data_at, BASE + DATA, self.data.len(), self.data.len() + 0x1_0000);
        header(4, note_at, BASE, note.len(), note.len());
        file.resize(0x1000, 0);
        file.extend([&self.text[..], &self.data, &note].concat());
        file.resize(usize::try_from(sections_at).unwrap() + 64, 0);
        file
    }

    fn note(&self) -> Vec<u8> {
        let mut note = [4_u32, 4, 6].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        note.extend(b"Xen\0gest");
        if let Some(entry) = self.pvh_entry {
            note.extend([4_u32, 4, 18].iter().flat_map(|v| v.to_le_bytes()));
            note.extend(b"Xen\0");
            note.extend(entry.to_le_bytes());
        }
        note
    }

    /// As what a bzImage's payload decompresses to.
    pub(super) fn payload(&self) -> Vec<u8> {
        let mut plain = self.elf();
        plain.extend(self.relocations.iter().flat_map(|word| word.to_le_bytes()));
        plain
    }

    pub(super) fn bzimage(&self, compression: Compression) -> Vec<u8> {
        let plain = self.payload();
        let mut packed = pack(&plain, compression);
        if compression != Compression::Gzip {
            packed.extend(u32::try_from(plain.len()).unwrap().to_le_bytes());
        }
        self.wrap(&packed, packed.len())
    }

    /// Around any payload, with `length` as its length in the header.
    pub(super) fn wrap(&self, payload: &[u8], length: usize) -> Vec<u8> {
        let mut image = vec![0; PROTECTED + PAYLOAD];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x1f1, &[1]);
        put(0x1fe, &[0x55, 0xaa, 0xeb, 0x6a]);
        put(0x202, b"HdrS\x0f\x02");
        put(0x211, &[1]);
        put(0x214, &0x10_0000_u32.to_le_bytes());
        put(0x22c, &0x7fff_ffff_u32.to_le_bytes());
        put(0x230, &0x20_0000_u32.to_le_bytes());
        put(0x234, &[1, 21, 0x7f, 0]);
        put(0x238, &2047_u32.to_le_bytes());
        put(0x248, &u32::try_from(PAYLOAD).unwrap().to_le_bytes());
        put(0x24c, &u32::try_from(length).unwrap().to_le_bytes());
        put(0x258, &BASE.to_le_bytes());
        put(0x260, &INIT_SIZE.to_le_bytes());
        image.extend(payload);
        image.resize(image.len().max(PROTECTED + PAYLOAD + length), 0);
        image
    }
}

pub(super) fn pack(plain: &[u8], compression: Compression) -> Vec<u8> {
    match compression {
        Compression::None => plain.to_vec(),
        Compression::Gzip => {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            writer.write_all(plain).unwrap();
            writer.finish().unwrap()
        }
        Compression::Bzip2 => {
            let mut writer = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
            writer.write_all(plain).unwrap();
            writer.finish().unwrap()
        }
        Compression::Xz | Compression::Lzma => pack_lzma(plain, compression),
        Compression::Zstd => zstd::encode_all(plain, 19).unwrap(),
        Compression::Lz4 => {
            let mut packed = 0x184c_2102_u32.to_le_bytes().to_vec();
            for block in plain.chunks(8 << 20) {
                let block = lz4_flex::block::compress(block);
                packed.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
                packed.extend(block);
            }
            packed
        }
        Compression::Lzo => pack_lzo(plain),
    }
}

fn pack_lzma(plain: &[u8], compression: Compression) -> Vec<u8> {
    use liblzma::stream::{Check, Filters, LzmaOptions, Stream};
    let options = LzmaOptions::new_preset(6).unwrap();
    let stream = if compression == Compression::Xz {
        Stream::new_stream_encoder(Filters::new().x86().lzma2(&options), Check::Crc32).unwrap()
    } else {
        Stream::new_lzma_encoder(&options).unwrap()
    };
    let mut writer = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    writer.write_all(plain).unwrap();
    writer.finish().unwrap()
}

/// As `lzop -9` does: one header, blocks with the check sum of their plain bytes (which is not checked here).
fn pack_lzo(plain: &[u8]) -> Vec<u8> {
    let mut packed = b"\x89LZO\0\r\n\x1a\n".to_vec();
    packed.extend([0x10, 0x40, 0x20, 0xa0, 0x09, 0x40, 3, 9]);
    packed.extend(1_u32.to_be_bytes());
    packed.extend([0; 12]);
    packed.extend(b"\x02vm");
    packed.extend([0; 4]);
    for block in plain.chunks(256 << 10) {
        let small = lzokay::compress::compress(block).unwrap();
        let body = if small.len() < block.len() { &small } else { block };
        packed.extend(u32::try_from(block.len()).unwrap().to_be_bytes());
        packed.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        packed.extend([0; 4]);
        packed.extend(body);
    }
    packed.extend([0; 4]);
    packed
}
