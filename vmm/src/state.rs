//! The state of a paused VM, as it is saved and loaded.
//!
//! A VM's state is a list of sections, each under the stable name of its device, and its RAM in a file of its own, so
//! that it can be mapped. What devices are there, and what serves them on the host, is configuration and not state: a
//! VM is loaded into one that was built from an equal configuration (see [`description`]).
//!
//! A state file is user input: decoding is bounded by the file's length, and everything that is wrong has an error with
//! the section's name.

mod core_dump;
mod description;
mod error;
mod file;
mod ram;
mod saver;
#[cfg(test)]
mod tests;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use self::core_dump::Registers;
pub use self::error::{LoadError, SaveError, SectionError};
pub use self::file::SavedVm;
pub(crate) use self::saver::Saver;

/// A part of a VM that has state.
///
/// Saved while the VM is paused, and loaded into a part that was just built, before anything runs.
pub(crate) trait Section {
    /// What kind of state it is.
    const TAG: &'static str;
    /// Of `State`. Changes whenever its encoding does.
    const VERSION: u16;
    /// Plain data. Every value of it can be loaded, or is rejected.
    type State: Serialize + DeserializeOwned;

    /// The state now.
    fn save(&self) -> Result<Self::State, SectionError>;

    /// Takes the state over. What the guest could not have made is rejected.
    fn load(&self, state: Self::State) -> Result<(), SectionError>;

    /// Every section of the VM is loaded: what may have been on its way when the VM was saved is done again.
    fn loaded(&self) {}
}

/// A [`Section`] of any kind, encoded.
pub trait AnySection {
    /// Its tag and version.
    fn kind(&self) -> (&'static str, u16);
    /// [`Section::save`].
    fn encode(&self) -> Result<Vec<u8>, SectionError>;
    /// [`Section::load`].
    fn decode(&self, bytes: &[u8]) -> Result<(), SectionError>;
    /// [`Section::loaded`].
    fn after_load(&self);
}

impl<T: Section> AnySection for T {
    fn kind(&self) -> (&'static str, u16) {
        (T::TAG, T::VERSION)
    }

    fn encode(&self) -> Result<Vec<u8>, SectionError> {
        postcard::to_allocvec(&self.save()?).map_err(SectionError::Encoding)
    }

    fn decode(&self, bytes: &[u8]) -> Result<(), SectionError> {
        let (state, rest) = postcard::take_from_bytes(bytes).map_err(SectionError::Encoding)?;
        if !rest.is_empty() {
            return Err(SectionError::Invalid("the state is longer than it should be"));
        }
        self.load(state)
    }

    fn after_load(&self) {
        self.loaded();
    }
}

/// A section for other threads.
pub(crate) type SharedSection = std::sync::Arc<dyn AnySection + Send + Sync>;
