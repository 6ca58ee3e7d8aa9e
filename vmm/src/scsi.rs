//! The SCSI commands of disks and CD-ROMs (SPC-4, SBC-3, MMC-6), whatever carries them: ATAPI packets or virtio-scsi
//! requests.
//!
//! A command block is parsed once into a [`command::Command`]; a [`Unit`] carries it out against its image and the
//! buffers that came with it. Both are the guest's: lengths and addresses are held against the medium and the buffers,
//! and what makes no sense is answered with sense data.

mod cdrom;
mod command;
mod disk;
mod inquiry;
mod sense;
#[cfg(test)]
mod tests;
mod unit;

pub(crate) use sense::Sense;
pub(crate) use unit::{Buffers, Located, Reply, Transfer, Unit, UnitState};

/// The longest command block that is understood; shorter ones are padded with zeros.
pub(crate) type Cdb = [u8; 16];

/// Parts of a reply, big-endian as all of SCSI.
fn put(reply: &mut Vec<u8>, bytes: &[u8]) {
    reply.extend_from_slice(bytes);
}

/// Text in a field of fixed length, padded with spaces.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    field.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    field
}
