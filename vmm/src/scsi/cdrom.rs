//! What only CD/DVD drives do (MMC-6): one session with one data track, and a tray.

use super::command::Command;
use super::disk::with_mode_header;
use super::unit::{Unit, answer};
use super::{Sense, put};
use crate::memory::{GuestMemory, Segments};

const LEAD_OUT: u8 = 0xaa;
/// ADR 1, and control: a data track that must not be copied.
const DATA_TRACK: u8 = 0x14;
/// More than a CD holds: it is a DVD.
const CD_BLOCKS: u64 = 450_000;
const PROFILE_CD: u16 = 0x0008;
const PROFILE_DVD: u16 = 0x0010;
/// GET EVENT STATUS: the media class.
const MEDIA_CLASS: u8 = 4;

/// Whether the medium is in.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Tray {
    open: bool,
    locked: bool,
    event: Event,
}

/// Media events since the last query (MMC-6, table 348).
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
enum Event {
    #[default]
    Nothing = 0,
    NewMedium = 2,
    Removed = 3,
    /// The host would like the medium back.
    EjectRequested = 1,
}

impl Tray {
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn is_locked(&self) -> bool {
        self.locked
    }

    pub(super) fn set_locked(&mut self, locked: bool) {
        self.locked = locked;
    }

    /// The host has taken the medium out, or inserted one.
    pub(super) fn changed(&mut self, inserted: bool) {
        self.open = false;
        self.event = if inserted { Event::NewMedium } else { Event::Removed };
    }
}

pub(super) fn perform(
    unit: &mut Unit,
    memory: &GuestMemory,
    command: Command,
    to: &Segments,
) -> Result<u64, Sense> {
    match command {
        Command::StartStop { start, eject: true } => start_stop(unit, start).map(|()| 0),
        Command::PreventRemoval(locked) => {
            unit.set_locked(locked);
            Ok(0)
        }
        Command::ModeSense { page, control, ten, len } => {
            let reply = mode_sense(unit, page, control, ten).ok_or(Sense::INVALID_FIELD)?;
            answer(memory, to, &reply, len)
        }
        Command::ReadToc { format, msf, start, len } => {
            unit.ready()?;
            let reply = toc(unit.blocks(), format, msf, start).ok_or(Sense::INVALID_FIELD)?;
            answer(memory, to, &reply, len)
        }
        Command::GetConfiguration { kind, start, len } => {
            answer(memory, to, &configuration(unit, kind, start), len)
        }
        Command::EventStatus { polled: true, classes, len } => answer(memory, to, &event(unit, classes), len),
        // Only a drive that queues commands has events to wait for.
        Command::EventStatus { polled: false, .. } => Err(Sense::INVALID_FIELD),
        Command::DiscInformation { len } => {
            unit.ready()?;
            answer(memory, to, &disc_information(), len)
        }
        Command::MechanismStatus { len } => {
            let open = u8::from(unit.tray.open) << 4;
            answer(memory, to, &[0, open, 0, 0, 0, 0, 0, 0], len)
        }
        Command::StartStop { eject: false, .. } | Command::Synchronize | Command::SetSpeed => Ok(0),
        Command::Write { .. } => Err(Sense::WRITE_PROTECTED),
        _ => Err(Sense::INVALID_OPCODE),
    }
}

fn start_stop(unit: &mut Unit, load: bool) -> Result<(), Sense> {
    match (load, unit.tray.open) {
        (false, false) if unit.tray.locked => return Err(Sense::REMOVAL_PREVENTED),
        (false, false) => {
            unit.tray.open = true;
            unit.tray.event = Event::Removed;
        }
        (true, true) => {
            unit.tray.open = false;
            // No unit attention: it is the medium of before, and Linux rejects to read after one until it opens the
            // drive again.
            unit.tray.event = Event::NewMedium;
        }
        (false, true) | (true, false) => {}
    }
    Ok(())
}

/// READ TOC/PMA/ATIP in the formats of a disc with one track: 0 (tracks) and 1 (sessions).
fn toc(blocks: u64, format: u8, msf: bool, start: u8) -> Option<Vec<u8>> {
    let address = |lba: u64| match msf {
        false => u32::try_from(lba).unwrap_or(u32::MAX).to_be_bytes(),
        true => minutes(lba),
    };
    let mut tracks = Vec::new();
    match format {
        0 if start > 1 && start != LEAD_OUT => return None,
        0 => {
            if start <= 1 {
                put(&mut tracks, &[0, DATA_TRACK, 1, 0]);
                put(&mut tracks, &address(0));
            }
            put(&mut tracks, &[0, DATA_TRACK, LEAD_OUT, 0]);
            put(&mut tracks, &address(blocks));
        }
        1 => {
            put(&mut tracks, &[0, DATA_TRACK, 1, 0]);
            put(&mut tracks, &address(0));
        }
        _ => return None,
    }
    let [high, low] = u16::try_from(tracks.len() + 2).unwrap_or(0).to_be_bytes();
    Some([&[high, low, 1, 1][..], &tracks].concat())
}

/// Minutes, seconds and frames, which count from two seconds before the first block.
fn minutes(lba: u64) -> [u8; 4] {
    let frames = lba.saturating_add(150);
    let part = |value: u64| u8::try_from(value).unwrap_or(u8::MAX);
    [0, part(frames / (75 * 60)), part(frames / 75 % 60), part(frames % 75)]
}

/// GET CONFIGURATION (MMC-6, section 6.5): `kind` 0 asks for all features from `start`, 1 for the current ones, 2 for
/// one.
fn configuration(unit: &Unit, kind: u8, start: u16) -> Vec<u8> {
    let profile = match unit.ready() {
        Err(_) => 0,
        Ok(()) if unit.blocks() > CD_BLOCKS => PROFILE_DVD,
        Ok(()) => PROFILE_CD,
    };
    let mut profiles = Vec::new();
    for known in [PROFILE_DVD, PROFILE_CD] {
        let [high, low] = known.to_be_bytes();
        put(&mut profiles, &[high, low, u8::from(known == profile), 0]);
    }
    let medium = profile != 0;
    // Number, version, whether it persists, whether it is current now, data.
    let features: [(u16, u8, bool, bool, &[u8]); 6] = [
        (0x0000, 0, true, true, &profiles),
        // Core over ATAPI or SCSI; morphing; a tray that can be locked and ejects.
        (0x0001, 2, true, true, &[0, 0, 0, 1, 0, 0, 0, 0]),
        (0x0002, 1, true, true, &[2, 0, 0, 0]),
        (0x0003, 0, true, true, &[0x29, 0, 0, 0]),
        // Random reads of 2048 bytes, one block at a time.
        (0x0010, 0, false, medium, &[0, 0, 8, 0, 0, 1, 0, 0]),
        (0x001e, 2, false, profile == PROFILE_CD, &[0, 0, 0, 0]),
    ];
    let mut body = Vec::new();
    for (number, version, persistent, current, data) in features {
        let wanted = match kind {
            0 => number >= start,
            1 => number >= start && current,
            _ => number == start,
        };
        if wanted {
            put(&mut body, &number.to_be_bytes());
            let flags = version << 2 | u8::from(persistent) << 1 | u8::from(current);
            put(&mut body, &[flags, u8::try_from(data.len()).unwrap_or(0)]);
            put(&mut body, data);
        }
    }
    let len = u32::try_from(body.len() + 4).unwrap_or(0).to_be_bytes();
    [&len[..], &[0, 0], &profile.to_be_bytes(), &body].concat()
}

/// GET EVENT STATUS NOTIFICATION (MMC-6, section 6.6). Reporting an event takes it away.
fn event(unit: &mut Unit, classes: u8) -> Vec<u8> {
    if classes & 1 << MEDIA_CLASS == 0 {
        // No event available.
        return vec![0, 2, 0x80, 1 << MEDIA_CLASS];
    }
    let event = match std::mem::take(&mut unit.tray.event) {
        Event::Nothing if unit.take_eject_request() => Event::EjectRequested,
        event => event,
    };
    // Bit 0: the tray is open. Bit 1: there is a medium.
    let status = if unit.tray.open { 1 } else { u8::from(unit.has_medium()) << 1 };
    vec![0, 6, MEDIA_CLASS, 1 << MEDIA_CLASS, event as u8, status, 0, 0]
}

/// READ DISC INFORMATION: a finished disc with one session and one track.
fn disc_information() -> [u8; 34] {
    let mut reply = [0; 34];
    reply[1] = 32;
    reply[2] = 0x0e;
    reply[3..7].copy_from_slice(&[1, 1, 1, 1]);
    reply[7] = 0x20;
    reply
}

/// Mode parameters: error recovery and what the drive is able to do (MMC-6, sections 7.3 and E.3).
fn mode_sense(unit: &Unit, page: u8, control: u8, ten: bool) -> Option<Vec<u8>> {
    let mut recovery = [0; 12];
    recovery[..2].copy_from_slice(&[0x01, 10]);
    let mut able = [0; 20];
    able[..2].copy_from_slice(&[0x2a, 18]);
    // Changeable values are all zeros.
    if control != 1 {
        // Reads DVD-ROM; multi-session and mode 2; a tray that ejects and locks.
        able[2] = 0x08;
        able[4] = 0x70;
        able[6] = 0x29 | u8::from(unit.tray.locked) << 1;
        able[8..10].copy_from_slice(&0x1b90_u16.to_be_bytes());
        able[14..16].copy_from_slice(&0x1b90_u16.to_be_bytes());
    }
    let pages = match page {
        0x01 => recovery.to_vec(),
        0x2a => able.to_vec(),
        0x3f => [&recovery[..], &able].concat(),
        _ => return None,
    };
    Some(with_mode_header(0, ten, &pages))
}
