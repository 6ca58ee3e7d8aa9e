//! The state of a TPM in one file that is kept when the VM is gone.
//!
//! swtpm replaces its own file as a whole at each change. Copies of it alternate between two slots, each with a generation
//! and a checksum: whenever the writing ends, one slot is whole.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use sha2::{Digest as _, Sha256};
use tracing::{error, info};

/// What swtpm calls its file.
const NAME: &str = "tpm2-00.permall";
const MAGIC: [u8; 8] = *b"vireotpm";
/// Bytes of a slot.
const SLOT: u64 = 1 << 20;
/// The magic, the generation, the length and the checksum.
const HEADER: usize = 8 + 8 + 8 + 32;
/// The longest state. That of swtpm has some ten thousand bytes.
const LONGEST: usize = (1 << 20) - HEADER;

/// A kept state, and what it is a copy of.
#[derive(Debug)]
pub(super) struct KeptState {
    kept: File,
    source: PathBuf,
    generation: u64,
    state: Vec<u8>,
}

impl KeptState {
    /// Gives swtpm the kept state in its directory; nothing where there is none yet.
    ///
    /// # Errors
    /// When there was one that is damaged, or the files cannot be read or written.
    pub(super) fn load(kept: File, directory: &Path) -> io::Result<Self> {
        let source = directory.join(NAME);
        let slots = [read(&kept, 0)?, read(&kept, 1)?];
        let found = slots.into_iter().flatten().max_by_key(|(generation, _)| *generation);
        let Some((generation, state)) = found else {
            // The second slot is written after the first was whole.
            if kept.metadata()?.len() > SLOT {
                return Err(io::Error::other(
                    "it is damaged: restore it, or remove it with all that the TPM protects",
                ));
            }
            return Ok(Self { kept, source, generation: 0, state: Vec::new() });
        };
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&source)?;
        file.write_all_at(&state, 0)?;
        info!(generation, "the TPM has the state that was kept");
        Ok(Self { kept, source, generation, state })
    }

    /// Copies the state, if it differs from the last copy.
    fn save(&mut self) -> io::Result<()> {
        let state = match fs::read(&self.source) {
            Ok(state) => state,
            // swtpm has not stored it yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if state == self.state {
            return Ok(());
        }
        if state.len() > LONGEST {
            return Err(io::Error::other(format!("{} bytes are more than {LONGEST}", state.len())));
        }
        let generation = self.generation + 1;
        let slot = [&header(generation, &state)[..], &state].concat();
        self.kept.write_all_at(&slot, offset(generation))?;
        self.kept.sync_data()?;
        (self.generation, self.state) = (generation, state);
        Ok(())
    }
}

/// The first generation is in the first slot.
fn offset(generation: u64) -> u64 {
    (generation + 1) % 2 * SLOT
}

fn header(generation: u64, state: &[u8]) -> [u8; HEADER] {
    let (generation, length) = (generation.to_le_bytes(), (state.len() as u64).to_le_bytes());
    let sum = Sha256::new().chain_update(generation).chain_update(length).chain_update(state).finalize();
    let mut header = [0; HEADER];
    let parts = MAGIC.iter().chain(&generation).chain(&length).chain(sum.iter());
    header.iter_mut().zip(parts).for_each(|(byte, part)| *byte = *part);
    header
}

/// The generation and the state of a slot; none of one that is not whole.
fn read(kept: &File, slot: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
    let mut found = [0; HEADER];
    match kept.read_exact_at(&mut found, slot * SLOT) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let number = |at: usize| {
        let bytes = found.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let (generation, length) = (number(8), number(16));
    let Some(length) = usize::try_from(length).ok().filter(|length| *length <= LONGEST) else {
        return Ok(None);
    };
    let mut state = vec![0; length];
    match kept.read_exact_at(&mut state, slot * SLOT + HEADER as u64) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    Ok((header(generation, &state) == found).then_some((generation, state)))
}

/// Copies the state now.
pub(super) fn save(kept: &Mutex<KeptState>) {
    if let Err(error) = kept.lock().unwrap_or_else(PoisonError::into_inner).save() {
        error!(%error, "the state of the TPM cannot be kept");
    }
}

/// Copies the state at each change, on a thread of its own, until the process ends.
///
/// # Errors
/// When the directory cannot be watched.
pub(super) fn follow(kept: KeptState, directory: &Path) -> io::Result<Arc<Mutex<KeptState>>> {
    let watch = inotify::init(CreateFlags::CLOEXEC)?;
    inotify::add_watch(&watch, directory, WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE)?;
    let kept = Arc::new(Mutex::new(kept));
    let shared = Arc::clone(&kept);
    let copy = move || {
        let mut watch = File::from(watch);
        let mut buffer = [0; 4096];
        loop {
            match watch.read(&mut buffer) {
                Ok(1..) => save(&shared),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("tpm-state".to_owned()).spawn(copy)?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(path: &Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    /// What a VM finds after another one.
    fn loaded(path: &Path) -> io::Result<(u64, Option<Vec<u8>>)> {
        let directory = tempfile::tempdir().unwrap();
        let state = KeptState::load(kept(path), directory.path())?;
        Ok((state.generation, fs::read(directory.path().join(NAME)).ok()))
    }

    #[test]
    fn the_last_whole_state_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, source) = (scratch.path().join("kept"), scratch.path().join(NAME));
        assert_eq!(loaded(&path).unwrap(), (0, None));
        let mut state = KeptState::load(kept(&path), scratch.path()).unwrap();
        state.save().unwrap();
        assert_eq!(loaded(&path).unwrap(), (0, None), "swtpm has stored nothing");
        for (generation, text) in [(1, "one"), (2, "another"), (3, "third")] {
            fs::write(&source, text).unwrap();
            state.save().unwrap();
            state.save().unwrap();
            assert_eq!(loaded(&path).unwrap(), (generation, Some(text.as_bytes().to_vec())));
        }
        // The writing of the fourth ended early.
        kept(&path).write_all_at(b"torn", SLOT + HEADER as u64).unwrap();
        assert_eq!(loaded(&path).unwrap(), (3, Some(b"third".to_vec())));
        kept(&path).write_all_at(b"torn", HEADER as u64).unwrap();
        let error = loaded(&path).unwrap_err().to_string();
        assert!(error.contains("it is damaged"), "{error}");
    }

    #[test]
    fn a_first_writing_that_ended_early_is_none() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("kept");
        fs::write(&path, &header(1, b"state")[..20]).unwrap();
        assert_eq!(loaded(&path).unwrap(), (0, None));
        fs::write(&path, header(1, b"state")).unwrap();
        assert_eq!(loaded(&path).unwrap(), (0, None));
        fs::write(&path, [&header(1, b"state")[..], b"state"].concat()).unwrap();
        assert_eq!(loaded(&path).unwrap(), (1, Some(b"state".to_vec())));
    }
}
