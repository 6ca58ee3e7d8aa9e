//! The file of the state: a header, then a payload with the configuration and the sections.
//!
//! ```text
//! 0   magic, 8 bytes
//! 8   format version, 4 bytes, little-endian
//! 12  length of the payload, 8 bytes
//! 20  SHA-256 of the payload, 32 bytes
//! 52  the payload, a `Payload` in postcard's encoding
//! ```

use std::fs::File;
use std::io::{Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::description::{Description, describe, first_difference};
use super::{AnySection, LoadError, SectionError};
use crate::config::VmConfig;

const MAGIC: [u8; 8] = *b"VIREOVM\n";
/// Changes whenever this page does.
const FORMAT: u32 = 1;
const HEADER: usize = 52;
/// Of the payload. Devices keep no more than some KiB, but for framebuffers.
const MAX_PAYLOAD: u64 = 512 << 20;

/// Distinguishes one save from all others: it is in the state and in the file of the RAM.
pub(super) type SaveId = [u8; 16];

#[derive(Serialize, Deserialize)]
pub(super) struct Payload {
    pub(super) id: SaveId,
    pub(super) configuration: Description,
    pub(super) sections: Vec<Record>,
}

/// One encoded section.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) name: String,
    tag: String,
    version: u16,
    state: Vec<u8>,
}

impl Record {
    /// Encodes a section.
    pub(super) fn of(name: &str, section: &dyn AnySection) -> Result<Self, SectionError> {
        let (tag, version) = section.kind();
        Ok(Self { name: name.to_owned(), tag: tag.to_owned(), version, state: section.encode()? })
    }
}

/// Writes a state.
pub(super) fn write(payload: &Payload, to: &mut dyn Write) -> std::io::Result<()> {
    let bytes = postcard::to_allocvec(payload).map_err(std::io::Error::other)?;
    let length = u64::try_from(bytes.len()).map_err(std::io::Error::other)?;
    to.write_all(&MAGIC)?;
    to.write_all(&FORMAT.to_le_bytes())?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&Sha256::digest(&bytes))?;
    to.write_all(&bytes)?;
    to.flush()
}

/// A saved VM that was read and found intact, for [`crate::Vm::load`].
#[derive(Debug)]
pub struct SavedVm {
    pub(super) id: SaveId,
    configuration: Description,
    sections: Vec<Record>,
    pub(super) ram: File,
}

impl SavedVm {
    /// Reads `state`, whose VM had its RAM written to `ram`. That file has to stay as it is for as long as the loaded VM
    /// exists: the VM's RAM is a private mapping of it.
    pub fn read(state: &mut dyn Read, ram: File) -> Result<Self, LoadError> {
        let mut header = [0; HEADER];
        state.read_exact(&mut header).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => LoadError::Magic,
            _ => LoadError::Read(error),
        })?;
        let (magic, rest) = header.split_first_chunk::<8>().ok_or(LoadError::Magic)?;
        let (format, rest) = rest.split_first_chunk::<4>().ok_or(LoadError::Magic)?;
        let (length, checksum) = rest.split_first_chunk::<8>().ok_or(LoadError::Magic)?;
        if *magic != MAGIC {
            return Err(LoadError::Magic);
        }
        let found = u32::from_le_bytes(*format);
        if found != FORMAT {
            return Err(LoadError::Format { found, supported: FORMAT });
        }
        let length = u64::from_le_bytes(*length);
        if length > MAX_PAYLOAD {
            return Err(LoadError::TooLong(length));
        }
        // Grows with what is there, not with what the header announces.
        let mut payload = Vec::new();
        state.take(length).read_to_end(&mut payload).map_err(LoadError::Read)?;
        let whole = u64::try_from(payload.len()).is_ok_and(|read| read == length);
        if !whole || Sha256::digest(&payload).as_slice() != checksum {
            return Err(LoadError::Checksum);
        }
        Self::decode(&payload, ram)
    }

    /// Decodes a payload. It need not be one that a monitor has written.
    pub(crate) fn decode(payload: &[u8], ram: File) -> Result<Self, LoadError> {
        let damaged = LoadError::Damaged("list of sections");
        let Ok((payload, rest)) = postcard::take_from_bytes::<Payload>(payload) else { return Err(damaged) };
        if !rest.is_empty() {
            return Err(damaged);
        }
        let Payload { id, configuration, sections } = payload;
        Ok(Self { id, configuration, sections, ram })
    }

    /// Whether it can be loaded into a VM of this configuration.
    pub(crate) fn check(&self, config: &VmConfig) -> Result<(), LoadError> {
        if config.huge_page.is_some() {
            return Err(LoadError::HugePages);
        }
        match first_difference(&self.configuration, &describe(config)) {
            Some((name, saved, given)) => Err(LoadError::Differs {
                name: name.to_owned(),
                saved: saved.to_owned(),
                given: given.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Its sections, each to be loaded once.
    pub(crate) fn sections(&self) -> Sections<'_> {
        Sections(self.sections.iter().map(Some).collect())
    }
}

/// Sections that were not loaded yet.
pub(crate) struct Sections<'a>(Vec<Option<&'a Record>>);

impl Sections<'_> {
    /// Loads the section of that name.
    pub(crate) fn load(&mut self, name: &str, into: &dyn AnySection) -> Result<(), LoadError> {
        let named = |slot: &&mut Option<&Record>| slot.is_some_and(|record| record.name == name);
        let record = self.0.iter_mut().find(named).and_then(Option::take);
        let record = record.ok_or_else(|| LoadError::Missing(name.to_owned()))?;
        let (tag, version) = into.kind();
        if (record.tag.as_str(), record.version) != (tag, version) {
            return Err(LoadError::Kind {
                name: name.to_owned(),
                found_tag: record.tag.clone(),
                found_version: record.version,
                tag,
                version,
            });
        }
        let failed = |source| LoadError::Section { name: name.to_owned(), source };
        into.decode(&record.state).map_err(failed)
    }

    /// Whether all were loaded.
    pub(crate) fn finish(self) -> Result<(), LoadError> {
        match self.0.into_iter().flatten().next() {
            Some(record) => Err(LoadError::Unknown(record.name.clone())),
            None => Ok(()),
        }
    }
}
