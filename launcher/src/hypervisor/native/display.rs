//! The VM's display, served over VNC on its socket until the guest ends, across resets.

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
pub(super) struct VmDisplay {
    display: Display,
    adapter: Adapter,
    _server: Option<Server>,
}

/// Creates the display that `launch` asks for. Without a socket it is not served.
pub(super) fn open(launch: &Launch) -> Result<Option<VmDisplay>, Fault> {
    let Some(video) = launch.video else { return Ok(None) };
    // Cirrus and ramfb are rejected earlier.
    let adapter = match video {
        Video::Virtio => Adapter::Virtio,
        Video::Vga | Video::Bochs | Video::Cirrus | Video::Ramfb => Adapter::Bochs,
    };
    let display = Display::default();
    let server = match &launch.vnc_socket {
        None => None,
        Some(path) => {
            // A launcher before this one may have left it; one that still lives holds the VM's disks.
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(no_socket(path, &error)),
                Ok(()) | Err(_) => {}
            }
            let listening = Server::listen(&Address::Unix(path.clone()), display.clone());
            Some(listening.map_err(|error| no_socket(path, &error))?)
        }
    };
    Ok(Some(VmDisplay { display, adapter, _server: server }))
}

fn no_socket(path: &std::path::Path, error: &io::Error) -> Fault {
    fault(Code::HostResource, format!("cannot serve the display on {}: {error}", path.display()))
}

impl VmDisplay {
    /// For the VM.
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
