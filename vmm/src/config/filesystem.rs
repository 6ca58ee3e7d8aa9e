use std::io;
use std::os::unix::net::UnixStream;

use crate::sys::vhost_user::VhostUser;

/// A file system of the host, which another process shares with the guest (virtio-fs over vhost-user).
#[derive(Debug)]
pub struct Filesystem {
    tag: String,
    backend: VhostUser,
}

/// Why there is no such file system.
#[derive(Debug, thiserror::Error)]
pub enum FilesystemError {
    /// Not a name by which a guest can mount it.
    #[error("tag {0:?}: must be 1 to {max} bytes, and none of them zero", max = Filesystem::MAX_TAG)]
    Tag(String),
    /// The process does not do as vhost-user has it.
    #[error("the process that shares the file system {tag} cannot be used")]
    Backend {
        /// The name of the file system.
        tag: String,
        /// What it did.
        #[source]
        source: io::Error,
    },
}

impl Filesystem {
    /// The longest tag, in bytes (virtio 1.2, section 5.11.4).
    pub const MAX_TAG: usize = 36;
    /// Of requests that go first, and of all others.
    pub(crate) const QUEUES: usize = 2;

    /// One that the process at the other end of `socket` shares. The guest mounts it by its tag. Waits for answers of the
    /// process.
    ///
    /// # Errors
    /// A tag that cannot be one, or a process that does not answer, or not as is needed.
    pub fn new(tag: &str, socket: UnixStream) -> Result<Self, FilesystemError> {
        if !(1..=Self::MAX_TAG).contains(&tag.len()) || tag.contains('\0') {
            return Err(FilesystemError::Tag(tag.to_owned()));
        }
        match VhostUser::new(socket, Self::QUEUES) {
            Ok(backend) => Ok(Self { tag: tag.to_owned(), backend }),
            Err(source) => Err(FilesystemError::Backend { tag: tag.to_owned(), source }),
        }
    }

    /// One that a process shares which was connected to.
    #[cfg(test)]
    pub(crate) fn connected(tag: &str, backend: VhostUser) -> Self {
        Self { tag: tag.to_owned(), backend }
    }

    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }

    pub(crate) fn backend(&self) -> &VhostUser {
        &self.backend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_fits_its_field_and_ends_nowhere_else() {
        for tag in ["", "a\0b", "t".repeat(37).as_str()] {
            let (socket, _peer) = UnixStream::pair().unwrap();
            assert!(matches!(Filesystem::new(tag, socket), Err(FilesystemError::Tag(of)) if of == tag));
        }
    }

    #[test]
    fn a_process_that_is_gone_is_named() {
        let (socket, peer) = UnixStream::pair().unwrap();
        drop(peer);
        let error = Filesystem::new("config", socket).unwrap_err();
        assert_eq!(error.to_string(), "the process that shares the file system config cannot be used");
    }
}
