//! What a process holds in memory of its guest's RAM, and beside it.

use std::io;

/// How the guest's RAM is identified in `/proc/PID/smaps`.
#[derive(Clone, Copy, Debug)]
pub enum Ram {
    /// Anonymous mappings advised for huge pages: nothing else in our programs is.
    Ours,
    /// None: the process has no guest.
    None,
    /// An anonymous mapping of exactly this size.
    Anonymous {
        /// The guest's RAM.
        bytes: u64,
    },
}

/// KiB that are resident in the mappings of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Those of the guest's RAM; nothing if no mapping is that.
    pub ram: Option<u64>,
    /// All others.
    pub beside: u64,
}

impl Resident {
    /// That of `pid`.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn of(pid: u32, ram: Ram) -> io::Result<Self> {
        parse(&std::fs::read_to_string(format!("/proc/{pid}/smaps"))?, ram).map_err(io::Error::other)
    }
}

/// KiB resident in all mappings of `pid` but the guest's RAM.
///
/// # Errors
/// If the process is gone, or has no mapping that is the RAM it should have.
pub fn beside(pid: u32, ram: Ram) -> io::Result<u64> {
    beside_ram(Resident::of(pid, ram)?, ram).map_err(io::Error::other)
}

fn beside_ram(resident: Resident, ram: Ram) -> Result<u64, String> {
    match (resident.ram, ram) {
        (None, Ram::Ours | Ram::Anonymous { .. }) => Err(format!("no mapping is the guest's RAM ({ram:?})")),
        _ => Ok(resident.beside),
    }
}

fn parse(smaps: &str, ram: Ram) -> Result<Resident, String> {
    let mut sum = Resident { ram: None, beside: 0 };
    let mut current = None;
    let mut resident = 0;
    for line in smaps.lines() {
        if let Some(start) = mapping(line) {
            current = Some(start);
        } else if let Some(size) = line.strip_prefix("Rss:") {
            let kib = size.trim().trim_end_matches("kB").trim().parse::<u64>();
            resident = kib.map_err(|error| format!("{line:?}: {error}"))?;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            // The last line of a mapping.
            let (start, end, name) = current.take().ok_or("flags of no mapping")?;
            let is_ram = match ram {
                Ram::Ours => name.is_empty() && flags.split_whitespace().any(|flag| flag == "hg"),
                Ram::None => false,
                Ram::Anonymous { bytes } => name.is_empty() && end - start == bytes,
            };
            match is_ram {
                true => sum.ram = Some(sum.ram.unwrap_or_default() + resident),
                false => sum.beside += resident,
            }
        }
    }
    Ok(sum)
}

/// Start, end and name of a mapping, if the line begins one.
fn mapping(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    // Permissions, offset, device, inode; then blanks and the name.
    let name = rest.splitn(5, ' ').nth(4).unwrap_or_default().trim_start();
    Some((start, end, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00400000-00500000 r-xp 00000000 fd:00 123        /in/vmm
Size:               1024 kB
Rss:                 100 kB
Pss:                  50 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0010000000 rw-p 00000000 00:00 0
Rss:               90000 kB
VmFlags: rd wr mr mw me nr hg
7f1000000000-7f1020000000 rw-p 00000000 00:00 0
Rss:               80000 kB
VmFlags: rd wr mr mw me nr
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0          [stack]
Rss:                  12 kB
VmFlags: rd wr mr mw me gd ac
";

    fn beside_in(smaps: &str, ram: Ram) -> Result<u64, String> {
        beside_ram(parse(smaps, ram)?, ram)
    }

    #[test]
    fn only_the_advised_or_sized_mapping_is_ram() {
        let resident = |ram, beside| Ok(Resident { ram, beside });
        assert_eq!(parse(SMAPS, Ram::Ours), resident(Some(90000), 100 + 80000 + 12));
        let sized = Ram::Anonymous { bytes: 512 << 20 };
        assert_eq!(parse(SMAPS, sized), resident(Some(80000), 100 + 90000 + 12));
        assert_eq!(beside_in(SMAPS, sized), Ok(100 + 90000 + 12));
        assert_eq!(parse(SMAPS, Ram::None), resident(None, 100 + 90000 + 80000 + 12));
    }

    #[test]
    fn a_process_without_the_guests_ram_is_no_result() {
        assert!(beside_in(SMAPS, Ram::Anonymous { bytes: 128 << 20 }).is_err());
        assert!(beside_in("", Ram::Ours).is_err());
    }
}
