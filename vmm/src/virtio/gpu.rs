//! The graphics adapter (section 5.7), in two dimensions, with one display.
//!
//! Its driver copies frames here and sets which of them is scanned out, and flushes changed areas. Viewers look at
//! that when they request an update; a display without viewers is not read. All that a driver can make the host keep is
//! bounded, and everything it names is checked to be there.

mod command;
mod display;
mod edid;
mod format;
mod resource;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use self::command::{Code, Command, Header, Rect};
use self::display::GpuDisplay;
use self::resource::Resources;
use self::state::Shared;
use super::{
    Chain, ChainError, Device, DeviceInfo, DeviceState, Finished, GuestMemory, Lane, Pending, Queues,
    RingError, Segments,
};
use crate::display::{Cursor, Source};
use crate::state::SharedSection;

/// Section 5.
const DEVICE_ID: u16 = 16;
/// Vendor and device on the PCI bus.
pub(crate) const IDS: (u16, u16) = (0x1af4, 0x1040 + DEVICE_ID);
/// PCI's class: a VGA compatible display. Kernels take the display from firmware only for such.
const CLASS: u32 = 0x03_00_00;
const QUEUE_SIZE: u16 = 64;
const CURSOR_QUEUE_SIZE: u16 = 16;
const CONTROL: usize = 0;
const CURSOR: usize = 1;
/// VIRTIO_GPU_F_EDID.
const EDID: u64 = 1 << 1;
/// The one scanout, of the 16 in an answer.
const SCANOUT: u32 = 0;
const MAX_SCANOUTS: usize = 16;
/// Room for an EDID in an answer.
const EDID_ROOM: usize = 1024;
/// No cursor is larger.
const CURSOR_SIDE: u16 = 64;

/// The adapter.
pub struct Gpu {
    shared: Arc<Shared>,
}

impl Gpu {
    /// An adapter, and what it shows. Until a driver shows something, that is what `firmware` draws, which is saved with
    /// the adapter.
    pub(crate) fn new(
        firmware: Option<(Arc<dyn Source>, SharedSection)>,
    ) -> io::Result<(Self, Arc<dyn Source>)> {
        let (source, section) = firmware.unzip();
        let display = Arc::new(GpuDisplay::new(source)?);
        Ok((Self { shared: Arc::new(Shared::new(display.clone(), section)) }, display))
    }

    fn display(&self) -> &Arc<GpuDisplay> {
        &self.shared.display
    }

    /// Answers a chain of either queue.
    fn answer(
        &mut self,
        memory: &GuestMemory,
        pending: Pending,
        chain: Result<Chain, ChainError>,
    ) -> Finished {
        let written = match chain {
            Ok(Chain { readable, writable }) => self.execute(memory, readable, &writable),
            Err(error) => {
                tracing::debug!(%error, "invalid descriptor chain");
                0
            }
        };
        pending.finish(written)
    }

    /// Carries a request out; how many bytes of the answer were written.
    fn execute(&self, memory: &GuestMemory, request: Segments, answer: &Segments) -> u32 {
        let Some((header, command)) = command::parse(memory, request) else { return 0 };
        let bytes = match command.map(|command| self.perform(memory, &header, command)) {
            Some(Ok(answer)) => answer,
            Some(Err(code)) => header.answer(code, &[]),
            None => header.answer(Code::Unspecified, &[]),
        };
        // Cursor commands have no room for one (section 5.7.6.10).
        let fits = u64::try_from(bytes.len()).is_ok_and(|len| len <= answer.len());
        if fits && answer.write(memory, &bytes).is_ok() { u32::try_from(bytes.len()).unwrap_or(0) } else { 0 }
    }

    fn perform(&self, memory: &GuestMemory, header: &Header, command: Command) -> Result<Vec<u8>, Code> {
        let mut resources = self.shared.resources();
        match command {
            Command::DisplayInfo => return Ok(header.answer(Code::DisplayInfo, &self.display_info())),
            Command::Edid { scanout } => {
                check_scanout(scanout)?;
                return Ok(header.answer(Code::Edid, &self.edid()));
            }
            Command::Create { resource, format, width, height } => {
                resources.create(resource, format, (width, height))?;
            }
            Command::Unref { resource } => self.display().forget(&resources.unref(resource)?),
            Command::SetScanout { scanout, resource, rect } => {
                self.set_scanout(&mut resources, scanout, resource, rect)?;
            }
            Command::Flush { resource, rect } => {
                let pixels = resources.pixels(resource)?;
                let area = rect.within(pixels.width, pixels.height).ok_or(Code::InvalidParameter)?;
                self.display().flush(&pixels, area);
            }
            Command::Transfer { resource, rect, offset } => {
                resources.transfer(memory, resource, (rect, offset))?;
            }
            Command::Attach { resource, entries } => resources.attach(memory, resource, entries)?,
            Command::Detach { resource } => resources.detach(resource)?,
            Command::UpdateCursor { scanout, resource, hot } => {
                self.set_cursor(&mut resources, scanout, resource, hot)?;
            }
            Command::MoveCursor => {}
        }
        Ok(header.answer(Code::NoData, &[]))
    }

    fn set_scanout(
        &self,
        resources: &mut Resources,
        scanout: u32,
        resource: u32,
        rect: Rect,
    ) -> Result<(), Code> {
        check_scanout(scanout)?;
        if resource == 0 {
            self.display().show(None);
            return Ok(());
        }
        let pixels = resources.pixels(resource)?;
        let area = rect.within(pixels.width, pixels.height).ok_or(Code::InvalidParameter)?;
        self.display().show(Some((pixels, area)));
        Ok(())
    }

    fn set_cursor(
        &self,
        resources: &mut Resources,
        scanout: u32,
        resource: u32,
        hot: (u32, u32),
    ) -> Result<(), Code> {
        check_scanout(scanout)?;
        if resource == 0 {
            self.display().set_cursor(None);
            return Ok(());
        }
        let pixels = resources.pixels(resource)?;
        let (width, height) = (pixels.width, pixels.height);
        if width > CURSOR_SIDE || height > CURSOR_SIDE {
            return Err(Code::InvalidParameter);
        }
        let inside = |at: u32, side: u16| u16::try_from(at).unwrap_or(u16::MAX).min(side.saturating_sub(1));
        let hot = (inside(hot.0, width), inside(hot.1, height));
        self.display().set_cursor(Some(Cursor { width, height, hot, pixels: pixels.argb() }));
        Ok(())
    }

    /// The one display, enabled, at its best size.
    fn display_info(&self) -> Vec<u8> {
        let (width, height) = self.display().best_size();
        let enabled = 1;
        let first = [0, 0, width.into(), height.into(), enabled, 0];
        let mut body: Vec<u8> = first.into_iter().flat_map(u32::to_le_bytes).collect();
        body.resize(body.len() * MAX_SCANOUTS, 0);
        body
    }

    fn edid(&self) -> Vec<u8> {
        let (width, height) = self.display().best_size();
        let block = edid::block(width, height);
        let mut body = u32::try_from(block.len()).unwrap_or(0).to_le_bytes().to_vec();
        body.extend([0; 4]);
        body.extend(block);
        body.resize(8 + EDID_ROOM, 0);
        body
    }
}

fn check_scanout(scanout: u32) -> Result<(), Code> {
    if scanout == SCANOUT { Ok(()) } else { Err(Code::InvalidScanout) }
}

impl Device for Gpu {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "gpu",
            id: DEVICE_ID,
            class: CLASS,
            features: EDID,
            queues: vec![QUEUE_SIZE, CURSOR_QUEUE_SIZE],
            config: self.display().clone(),
            state: DeviceState::Section(self.shared.clone()),
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

impl Lane for Gpu {
    fn activate(&mut self, _features: u64) -> io::Result<()> {
        self.shared.reset(true);
        Ok(())
    }

    fn deactivate(&mut self) {
        self.shared.reset(false);
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        match queue {
            CONTROL | CURSOR => {
                queues.get(queue)?.drain(|memory, pending, chain| self.answer(memory, pending, chain))
            }
            other => Err(RingError::Absent(other)),
        }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.display().notifier().as_fd())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.display().notifier().settle();
        self.display().note_resize();
        queues.config_changed();
        Ok(())
    }
}

/// For fuzzing: hands `run` what carries out a request with room for its answer; a viewer looks after each.
#[cfg(fuzzing)]
pub(crate) fn fuzz(memory: &GuestMemory, run: impl FnOnce(Box<dyn FnMut(Segments, Segments) + '_>)) {
    let (gpu, source) = Gpu::new(None).expect("an eventfd");
    let mut canvas = crate::display::Canvas::default();
    run(Box::new(move |request, answer| {
        let written = gpu.execute(memory, request, &answer);
        assert!((24..=2048).contains(&written), "an answer to each");
        gpu.shared.resources().check();
        source.refresh(&mut canvas, false);
    }));
}
