//! IDENTIFY data of drives (ACS-2, sections 7.12 and 7.13), SMART and logs.

use super::drive::TRIM_BLOCKS;
use super::fis::Shadow;
use crate::config::DiskSerial;

type Sector = [u8; 512];

/// Words that a drive sets one by one.
struct Words(Sector);

impl Words {
    fn set(&mut self, word: usize, value: u16) {
        if let Some(bytes) = self.0.get_mut(2 * word..2 * word + 2) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Text, padded with spaces, each two characters swapped.
    fn text(&mut self, word: usize, words: usize, text: &[u8]) {
        let mut text = text.iter().copied().chain(std::iter::repeat(b' '));
        for at in word..word + words {
            let (first, second) = (text.next().unwrap_or(b' '), text.next().unwrap_or(b' '));
            self.set(at, u16::from_be_bytes([first, second]));
        }
    }

    fn number(&mut self, word: usize, words: usize, value: u64) {
        for (at, part) in (word..word + words).zip(value.to_le_bytes().as_chunks::<2>().0) {
            self.set(at, u16::from_le_bytes(*part));
        }
    }

    fn common(&mut self, serial: &DiskSerial, model: &str) {
        let serial = serial.as_bytes().split(|byte| *byte == 0).next().unwrap_or_default();
        self.text(10, 10, serial);
        self.text(23, 4, b"1");
        self.text(27, 20, model.as_bytes());
        // DMA, LBA and IORDY.
        self.set(49, 0x0f00);
        self.set(50, 0x4000);
        // Words 64 to 70 and 88 mean something.
        self.set(53, 0x0006);
        // Multi-word DMA and PIO modes, and their cycle times.
        self.set(63, 0x0007);
        self.set(64, 0x0003);
        (65..=68).for_each(|word| self.set(word, 120));
        // ATA-4 to ATA8-ACS.
        self.set(80, 0x01f0);
        // Ultra DMA modes to 5, which is the one in use.
        self.set(88, 0x203f);
        // A serial transport: SATA 3.0.
        self.set(222, 0x107f);
    }

    /// With the checksum (word 255).
    fn finish(mut self) -> Sector {
        self.0[510] = 0xa5;
        self.0[511] = checksum(&self.0);
        self.0
    }
}

/// What makes all bytes sum up to zero.
fn checksum(sector: &Sector) -> u8 {
    let sum = sector.iter().take(511).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    sum.wrapping_neg()
}

/// A disk.
pub(super) fn disk(sectors: u64, serial: &DiskSerial, cached: bool, read_only: bool) -> Sector {
    let mut words = Words([0; 512]);
    words.common(serial, "VIREO DISK");
    words.set(0, 0x0040);
    // The largest geometry; drivers use LBA.
    words.set(1, 16383);
    words.set(3, 16);
    words.set(6, 63);
    // Up to 16 sectors per interrupt, which are set.
    words.set(47, 0x8010);
    words.set(59, 0x0110);
    words.number(60, 2, sectors.min(0x0fff_ffff));
    // 32 queued commands; all three speeds and NCQ.
    words.set(75, 31);
    words.set(76, 0x010e);
    // NOP, look-ahead, write cache, power management and SMART; 48 bits, and both flushes; writes past the cache.
    words.set(82, 0x4069);
    words.set(83, 0x7400);
    words.set(84, 0x4040);
    words.set(85, 0x4049 | u16::from(cached) << 5);
    words.set(86, 0x3400);
    words.set(87, 0x4040);
    words.number(100, 4, sectors);
    // Physical sectors of 4 KiB.
    words.set(106, 0x6003);
    if !read_only {
        words.set(105, TRIM_BLOCKS);
        words.set(169, 1);
    }
    // Nothing rotates.
    words.set(217, 1);
    words.finish()
}

/// A CD/DVD drive.
pub(super) fn cdrom(serial: &DiskSerial) -> Sector {
    let mut words = Words([0; 512]);
    words.common(serial, "VIREO CD-ROM");
    // ATAPI, a CD/DVD drive, removable, answers soon, packets of 12 bytes.
    words.set(0, 0x85c0);
    words.set(76, 0x000e);
    // NOP, device reset and packets.
    words.set(82, 0x4210);
    words.set(83, 0x4000);
    words.set(84, 0x4000);
    words.set(85, 0x4210);
    words.set(87, 0x4000);
    words.finish()
}

/// SMART data without attributes, or their thresholds.
pub(super) fn smart() -> Sector {
    let mut sector = [0; 512];
    sector[0] = 0x10;
    sector[511] = checksum(&sector);
    sector
}

/// The logs there are: this directory, and one more of one page.
pub(super) fn log_directory(log: u8) -> Sector {
    let mut words = Words([0; 512]);
    words.set(0, 1);
    words.set(log.into(), 1);
    words.0
}

/// The NCQ command error log (ACS-2, section A.7): which queued command failed, and how.
pub(super) fn ncq_error(failed: Option<(u8, Shadow)>) -> Sector {
    const NOT_QUEUED: u8 = 1 << 7;
    let mut sector = [0; 512];
    match failed {
        None => sector[0] = NOT_QUEUED,
        Some((tag, shadow)) => {
            let [a, b, c, d, e, f, ..] = shadow.lba.to_le_bytes();
            let [low, high] = shadow.count.to_le_bytes();
            let report = [tag, 0, shadow.status, shadow.error, a, b, c, shadow.device, d, e, f, 0, low, high];
            sector.iter_mut().zip(report).for_each(|(to, from)| *to = from);
        }
    }
    sector[511] = checksum(&sector);
    sector
}
