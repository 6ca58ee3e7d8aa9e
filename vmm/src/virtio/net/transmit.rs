use std::io;
use std::os::fd::BorrowedFd;

use super::super::{Chain, ChainError, Finished, GuestMemory, Pending};
use super::{HEADER, MAX_FRAME};
use crate::sys::vectored;

/// Hands a frame of the guest to the tap. What the tap does not take is lost, as on any network.
pub(super) fn send(
    tap: BorrowedFd<'_>,
    memory: &GuestMemory,
    pending: Pending,
    chain: Result<Chain, ChainError>,
) -> Finished {
    match chain {
        Ok(Chain { readable, .. }) if (HEADER + 1..=HEADER + MAX_FRAME).contains(&readable.len()) => {
            let written = readable.io_vecs(memory).and_then(|vecs| vectored::write(tap, &vecs));
            match written {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => tracing::debug!(%error, "the tap rejected a frame"),
            }
        }
        Ok(_) => tracing::debug!("a frame without a header, or too large, is dropped"),
        Err(error) => tracing::debug!(%error, "invalid descriptor chain"),
    }
    pending.finish(0)
}
