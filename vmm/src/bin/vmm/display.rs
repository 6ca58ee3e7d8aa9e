use std::fs::File;
use std::io;
use std::path::PathBuf;

use vireo_vmm::config::{Adapter, Graphics};
use vireo_vmm::display::Display;
use vireo_vmm::rfb::{Address, Server};

/// Where Debian's `seabios` has the video BIOS of the display adapter. Without it only drivers of their own draw.
const VIDEO_BIOS: &str = "/usr/share/seabios/vgabios-bochs-display.bin";

/// Why the display cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VncError {
    #[error("--vnc: cannot listen at {address}")]
    Listen {
        address: Address,
        #[source]
        source: io::Error,
    },
    #[error("--vnc: cannot open {path:?}")]
    VideoBios {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The display of all the VMs that a guest's resets make one after the other: its viewers stay.
pub(crate) struct VncDisplay {
    display: Display,
    adapter: Adapter,
    _server: Server,
}

impl VncDisplay {
    /// Shows a display at `address`.
    pub(crate) fn open(address: &Address, adapter: Adapter) -> Result<Self, VncError> {
        let display = Display::default();
        let server = Server::listen(address, display.clone())
            .map_err(|source| VncError::Listen { address: address.clone(), source })?;
        eprintln!("vmm: VNC at {}", server.address());
        Ok(Self { display, adapter, _server: server })
    }

    /// For the VM.
    pub(crate) fn graphics(&self) -> Result<Graphics, VncError> {
        let graphics = Graphics::new(self.display.clone(), self.adapter);
        match File::open(VIDEO_BIOS) {
            Ok(file) => Ok(graphics.with_video_bios(file)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                tracing::info!(
                    path = VIDEO_BIOS,
                    "no video BIOS: firmware shows nothing (Debian package seabios)"
                );
                Ok(graphics)
            }
            Err(source) => Err(VncError::VideoBios { path: VIDEO_BIOS.into(), source }),
        }
    }
}
