//! The screen of a machine: shown on its socket for as long as the guest lives, across its resets.

use std::fs::{self, File};
use std::io;

use tracing::warn;
use vireo_proto::launcher::Fault;
use vireo_vmm::config::{Adapter, Graphics};
use vireo_vmm::display::Display;
use vireo_vmm::rfb::{Address, Server};

use crate::fault::{Code, fault};
use crate::launch::Launch;
use vireo_vmconfig::Video;

/// Where Debian's `seabios` has the video BIOS of the display adapter.
const VIDEO_BIOS: &str = "/usr/share/seabios/vgabios-bochs-display.bin";

/// A display and who shows it.
pub(super) struct Screen {
    display: Display,
    adapter: Adapter,
    _server: Option<Server>,
}

/// Opens the screen that `launch` asks for. One without a socket is there for the guest alone.
pub(super) fn open(launch: &Launch) -> Result<Option<Screen>, Fault> {
    let Some(video) = launch.video else { return Ok(None) };
    // Cirrus and ramfb are refused before.
    let adapter = match video {
        Video::Virtio => Adapter::Virtio,
        Video::Vga | Video::Bochs | Video::Cirrus | Video::Ramfb => Adapter::Bochs,
    };
    let display = Display::default();
    let server = match &launch.vnc_socket {
        None => None,
        Some(path) => {
            // A launcher before this one may have left it; one that still lives holds the machine's disks.
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(no_socket(path, &error)),
                Ok(()) | Err(_) => {}
            }
            let listening = Server::listen(&Address::Unix(path.clone()), display.clone());
            Some(listening.map_err(|error| no_socket(path, &error))?)
        }
    };
    Ok(Some(Screen { display, adapter, _server: server }))
}

fn no_socket(path: &std::path::Path, error: &io::Error) -> Fault {
    fault(Code::HostResource, format!("cannot show the screen on {}: {error}", path.display()))
}

impl Screen {
    /// For the machine.
    pub(super) fn graphics(&self) -> Result<Graphics, Fault> {
        let graphics = Graphics::new(self.display.clone(), self.adapter);
        match File::open(VIDEO_BIOS) {
            Ok(file) => Ok(graphics.with_video_bios(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                warn!(
                    "{VIDEO_BIOS} is missing (Debian package seabios): a BIOS and what it starts show nothing"
                );
                Ok(graphics)
            }
            Err(error) => Err(fault(Code::HostResource, format!("cannot open {VIDEO_BIOS}: {error}"))),
        }
    }
}
