use std::os::fd::{AsRawFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tracing::warn;
use vireo_vmm::Controls;
use vireo_vmm::serial::SerialInput;

/// Moves keys into the guest's serial port, as fast as it takes them.
pub(super) async fn forward(
    mut input: mpsc::Receiver<Vec<u8>>,
    mut current: watch::Receiver<Option<Controls>>,
) {
    while let Some(chunk) = input.recv().await {
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            let serial = current.borrow_and_update().as_ref().map(Controls::serial_input);
            let Some(serial) = serial else {
                // Between two VMs keys wait for the next one.
                if current.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let taken = serial.push(rest);
            rest = rest.get(taken..).unwrap_or_default();
            if !rest.is_empty() {
                tokio::select! {
                    room = room(serial) => if let Err(error) = room {
                        warn!(%error, "cannot wait for the guest to read its keys");
                        return;
                    },
                    changed = current.changed() => if changed.is_err() {
                        return;
                    },
                }
            }
        }
    }
}

/// The serial port's event descriptor, for the event loop.
struct Room(SerialInput);

impl AsRawFd for Room {
    fn as_raw_fd(&self) -> RawFd {
        self.0.room().as_raw_fd()
    }
}

async fn room(serial: SerialInput) -> std::io::Result<()> {
    #[expect(unsafe_code, reason = "tokio has no safe way to watch a descriptor it does not own")]
    // SAFETY: the serial port creates its event descriptor when it is built and closes it when it is dropped; `Room`
    // owns the port and is dropped together with the registration.
    let readable = unsafe { AsyncFd::register_with_interest(Room(serial), Interest::READABLE) };
    readable?.readable().await.map(drop)
}
