//! Rules of landlock, where the kernel has it: what mounts and the user's rights allow already, and nothing else, whatever
//! becomes of those.

use std::os::fd::BorrowedFd;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

/// The newest rules that are asked for.
const NEWEST: ABI = ABI::V6;

/// What may be done with files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Read files and directories.
    Read,
    /// The same, and execute programs.
    ReadAndExecute,
    /// Read, write and truncate files that exist.
    ReadAndWrite,
    /// Use devices.
    Device,
    /// Everything but execute programs.
    All,
}

impl Rights {
    fn of_directory(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => AccessFs::ReadFile | AccessFs::ReadDir,
            Self::ReadAndExecute => AccessFs::from_read(NEWEST),
            Self::ReadAndWrite => self.of_file() | AccessFs::ReadDir,
            Self::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
            Self::All => AccessFs::from_all(NEWEST) & !AccessFs::Execute,
        }
    }

    fn of_file(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => AccessFs::ReadFile.into(),
            Self::ReadAndExecute => AccessFs::ReadFile | AccessFs::Execute,
            Self::ReadAndWrite | Self::All => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate,
            Self::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
        }
    }
}

/// Whether rules can let files be moved to other directories: the kernel has landlock, and is Linux 5.19 at least.
#[must_use]
pub fn can_move_files() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules.handle_access(AccessFs::Refer).is_ok()
}

/// Rules that are being made: what no rule allows is denied. Besides, this process listens on no TCP port, and signals and
/// connects to nothing outside by the kernel's names.
#[derive(Debug)]
pub struct Rules(RulesetCreated);

impl Rules {
    /// None yet.
    ///
    /// # Errors
    /// When the kernel has landlock and refuses it.
    pub fn new() -> Result<Self, RulesetError> {
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::BindTcp)?
            .scope(Scope::AbstractUnixSocket | Scope::Signal)?
            .create()?;
        Ok(Self(rules))
    }

    /// Allows this in a directory and below it. Nothing where there is none.
    ///
    /// # Errors
    /// When the kernel refuses the rule.
    pub fn beneath(self, directory: &Path, rights: Rights) -> Result<Self, RulesetError> {
        let Ok(opened) = PathFd::new(directory) else { return Ok(self) };
        Ok(Self(self.0.add_rule(PathBeneath::new(opened, rights.of_directory()))?))
    }

    /// Allows this for an open file. Of a directory, for the files below it.
    ///
    /// # Errors
    /// When the kernel refuses the rule.
    pub fn file(self, file: BorrowedFd<'_>, rights: Rights) -> Result<Self, RulesetError> {
        Ok(Self(self.0.add_rule(PathBeneath::new(file, rights.of_file()))?))
    }

    /// Restricts this thread and what it starts. Returns whether the kernel has landlock.
    ///
    /// # Errors
    /// When the kernel has landlock and refuses the rules.
    pub fn restrict(self) -> Result<bool, RulesetError> {
        Ok(self.0.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
    }
}

pub use landlock::RulesetError as LandlockError;
