use std::io;

use crate::kvm::KvmError;

/// Why one section cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SectionError {
    /// There is state that no section has.
    #[error("it cannot be saved: {0}")]
    Unsavable(&'static str),
    /// The bytes are no such state.
    #[error("the state cannot be decoded")]
    Encoding(#[source] postcard::Error),
    /// A value that the guest could not have made, or that this VM does not have.
    #[error("{0}")]
    Invalid(&'static str),
    /// The kernel rejected a step.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The host reported an error.
    #[error("the host's part of it cannot be set")]
    Host(#[source] io::Error),
}

/// Why a VM cannot be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The VM has ended.
    #[error("the VM has ended")]
    Over,
    /// A device still works for the guest: the host does not answer its requests.
    #[error("{0} does not pause: the host does not answer its requests")]
    Busy(String),
    /// A part of the VM cannot be saved. Nothing was written.
    #[error("cannot save {name}")]
    Section {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: SectionError,
    },
    /// The RAM cannot be written.
    #[error("cannot write the RAM")]
    Ram(#[source] io::Error),
    /// The state cannot be written.
    #[error("cannot write the state")]
    State(#[source] io::Error),
}

/// Why a saved VM cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the state")]
    Read(#[source] io::Error),
    /// Another kind of file.
    #[error("the state is not one of a VM of this monitor")]
    Magic,
    /// Another version of the file's format.
    #[error("the state has format version {found}: supported version: {supported}")]
    Format {
        /// That of the file.
        found: u32,
        /// The one that can be read.
        supported: u32,
    },
    /// More than a state can have.
    #[error("the state has {0} bytes, which is too long")]
    TooLong(u64),
    /// The bytes are not those that were written.
    #[error("the state is damaged: its checksum is wrong")]
    Checksum,
    /// The list of sections makes no sense.
    #[error("the state is damaged: its {0} cannot be decoded")]
    Damaged(&'static str),
    /// The VM has another configuration than the saved one.
    #[error("{name} differs: the saved VM has {saved:?}, this one has {given:?}")]
    Differs {
        /// Which part of the configuration.
        name: String,
        /// As it was saved; empty where the saved VM has no such part.
        saved: String,
        /// As it is now; empty where this VM has no such part.
        given: String,
    },
    /// A part of the VM is not in the state.
    #[error("the state has no section {0:?}")]
    Missing(String),
    /// The state has a part that the VM does not have.
    #[error("the state has the section {0:?}, which this VM does not have")]
    Unknown(String),
    /// A section of another kind or version.
    #[error(
        "section {name:?} is {found_tag:?} version {found_version}: supported: {tag:?} version {version}"
    )]
    Kind {
        /// The section's name.
        name: String,
        /// Its tag in the file.
        found_tag: String,
        /// Its version in the file.
        found_version: u16,
        /// The tag that can be loaded.
        tag: &'static str,
        /// The version that can be loaded.
        version: u16,
    },
    /// A section's state is rejected.
    #[error("cannot load section {name:?}")]
    Section {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: SectionError,
    },
    /// The RAM's file cannot be used.
    #[error("cannot use the file of the RAM")]
    Ram(#[source] io::Error),
    /// The RAM's file has another size than the VM's RAM.
    #[error("the file of the RAM has {found} bytes: expected {expected}")]
    RamSize {
        /// Of the file.
        found: u64,
        /// With this VM's RAM.
        expected: u64,
    },
    /// The VM is to have huge pages.
    #[error("the RAM of a saved VM is mapped from its file, and cannot be of huge pages")]
    HugePages,
    /// The RAM was saved with another state.
    #[error("the file of the RAM does not belong to the state")]
    OtherRam,
}
