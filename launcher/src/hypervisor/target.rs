//! Names of attached disks, as Linux gives them to those that it finds.

use vireo_vmconfig::{DiskBus, DiskSource};

use crate::launch::{Disk, Launch};

/// How many disks a guest has from the start: those that Linux calls vd, and the others. CD drives have names of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedDisks {
    virtio: usize,
    others: usize,
}

impl FixedDisks {
    pub(super) fn of(launch: &Launch) -> Self {
        let virtio = launch.disks.iter().filter(|disk| disk.bus == DiskBus::Virtio).count();
        let others = launch.disks.iter().filter(|disk| disk.bus != DiskBus::Virtio && !disk.is_cdrom());
        Self { virtio, others: others.count() }
    }

    /// The name of another disk, beside those that are attached.
    pub(super) fn target(self, disk: &Disk, known: &[&str]) -> String {
        match disk.bus {
            DiskBus::Virtio => target("vd", self.virtio, known),
            DiskBus::Scsi | DiskBus::Sata | DiskBus::Usb => target("sd", self.others, known),
        }
    }
}

/// The CD-ROM drives that have no medium at the start, with their positions in the list of disks and their names.
pub(super) fn empty_drives(launch: &Launch) -> impl Iterator<Item = (usize, &Disk, String)> {
    let cdroms = launch.disks.iter().enumerate().filter(|(_, disk)| disk.is_cdrom());
    let named = cdroms.zip(0..).map(|((index, disk), number): (_, u32)| (index, disk, format!("sr{number}")));
    named.filter(|(_, disk, _)| disk.source == DiskSource::NoMedium)
}

/// The first name of a disk that is free, as Linux gives them: sda to sdz, sdaa and so on.
fn target(prefix: &str, fixed: usize, known: &[&str]) -> String {
    let mut target = (fixed..).map(|index| format!("{prefix}{}", letters(index)));
    target.find(|name| !known.contains(&name.as_str())).unwrap_or_default()
}

fn letters(index: usize) -> String {
    let last = char::from(b'a' + u8::try_from(index % 26).unwrap_or_default());
    match (index / 26).checked_sub(1) {
        Some(rest) => format!("{}{last}", letters(rest)),
        None => last.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_those_of_the_fixed_disks_and_are_used_again() {
        let table: [(usize, &[&str], &str); 5] = [
            (0, &[], "sda"),
            (2, &[], "sdc"),
            (1, &["sdb", "sdd"], "sdc"),
            (25, &["sdz"], "sdaa"),
            (702, &[], "sdaaa"),
        ];
        for (fixed, known, name) in table {
            assert_eq!(target("sd", fixed, known), name);
        }
    }
}
