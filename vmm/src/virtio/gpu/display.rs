use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::super::DeviceConfig;
use super::super::device::copy_from;
use super::super::notifier::Notifier;
use super::CURSOR_SIDE;
use super::command::Rect;
use super::edid::MAX_SIDE;
use super::resource::Pixels;
use crate::display::{Area, Canvas, Cursor, Source, Suggestion};
use crate::state::SectionError;

/// The preferred size, until a viewer requests another: firmware's first.
const FIRST_SIZE: (u16, u16) = (1024, 768);
/// No desktop is smaller or larger.
const SIDES: RangeInclusive<u16> = 64..=MAX_SIDE;
/// So many flushed rectangles are kept apart; more become one.
const MAX_DIRTY: usize = 64;
/// `events_read`: the best size is another one.
const EVENT_DISPLAY: u32 = 1;
/// Of the configuration space (section 5.7.4), and where `events_clear` is.
const CONFIG_SIZE: usize = 16;
const EVENTS_CLEAR: usize = 4;

/// What the adapter shows: its driver's frame, or what is on the other head while no driver has shown any.
pub(super) struct GpuDisplay {
    /// Where firmware draws, and kernels without a driver.
    firmware: Option<Arc<dyn Source>>,
    shown: Mutex<Shown>,
    /// Of `events_read`.
    events: AtomicU32,
    notifier: Notifier,
}

#[derive(Default)]
struct Shown {
    /// A driver is there.
    active: bool,
    /// It has shown something, so what firmware draws is no longer shown.
    driven: bool,
    scanout: Option<Scanout>,
    /// Flushed and not looked at yet, in the scanout's frame.
    dirty: Vec<Area>,
    /// All of it is to be looked at.
    stale: bool,
    cursor: Option<Arc<Cursor>>,
    best: Option<(u16, u16)>,
}

/// The part of a frame that is on the display.
struct Scanout {
    pixels: Arc<Pixels>,
    area: Area,
}

/// What is shown, as it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DisplayState {
    pub(super) active: bool,
    driven: bool,
    /// The number of the frame, and the first column and line, columns and lines.
    scanout: Option<(u32, [u16; 4])>,
    cursor: Option<CursorState>,
    best: Option<(u16, u16)>,
    events: u32,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CursorState {
    size: (u16, u16),
    hot: (u16, u16),
    pixels: Vec<u32>,
}

impl GpuDisplay {
    pub(super) fn new(firmware: Option<Arc<dyn Source>>) -> std::io::Result<Self> {
        Ok(Self { firmware, shown: Mutex::default(), events: AtomicU32::new(0), notifier: Notifier::new()? })
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the worker of another preferred size.
    pub(super) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// The size that a driver had best show.
    pub(super) fn best_size(&self) -> (u16, u16) {
        self.shown().best.unwrap_or(FIRST_SIZE)
    }

    /// The driver will read of the best size.
    pub(super) fn note_resize(&self) {
        self.events.fetch_or(EVENT_DISPLAY, Ordering::SeqCst);
    }

    /// A driver has come, or gone: nothing is left of what the last one showed.
    pub(super) fn reset(&self, active: bool) {
        let mut shown = self.shown();
        let best = shown.best;
        *shown = Shown { active, stale: true, best, ..Shown::default() };
        self.events.store(0, Ordering::SeqCst);
    }

    /// What is shown, the frame by its number.
    pub(super) fn save(&self, number: impl Fn(&Arc<Pixels>) -> Option<u32>) -> DisplayState {
        let shown = self.shown();
        let scanout = shown.scanout.as_ref();
        DisplayState {
            active: shown.active,
            driven: shown.driven,
            scanout: scanout.and_then(|Scanout { pixels, area }| {
                Some((number(pixels)?, [area.x, area.y, area.width, area.height]))
            }),
            cursor: shown.cursor.as_deref().map(|Cursor { width, height, hot, pixels }| CursorState {
                size: (*width, *height),
                hot: *hot,
                pixels: pixels.clone(),
            }),
            best: shown.best,
            events: self.events.load(Ordering::SeqCst),
        }
    }

    /// Shows what was saved, or shows that no driver could have had it shown.
    pub(super) fn restore(
        &self,
        saved: DisplayState,
        mut pixels: impl FnMut(u32) -> Option<Arc<Pixels>>,
    ) -> Result<(), SectionError> {
        const INVALID: SectionError = SectionError::Invalid("it shows what no driver can show");
        let DisplayState { active, driven, scanout, cursor, best, events } = saved;
        let scanout = match scanout {
            None => None,
            Some((number, [x, y, width, height])) => {
                let pixels = pixels(number).ok_or(INVALID)?;
                let [x, y, width, height] = [x, y, width, height].map(u32::from);
                let rect = Rect { x, y, width, height };
                let area = rect.within(pixels.width, pixels.height).ok_or(INVALID)?;
                Some(Scanout { pixels, area })
            }
        };
        let cursor = match cursor {
            None => None,
            Some(CursorState { size: (width, height), hot, pixels }) => {
                let count = usize::from(width) * usize::from(height);
                let inside = |at: u16, side: u16| at == 0 || at < side;
                let fits = width <= CURSOR_SIDE && height <= CURSOR_SIDE && pixels.len() == count;
                if !fits || !inside(hot.0, width) || !inside(hot.1, height) {
                    return Err(INVALID);
                }
                Some(Arc::new(Cursor { width, height, hot, pixels }))
            }
        };
        if best.is_some_and(|(width, height)| !SIDES.contains(&width) || !SIDES.contains(&height)) {
            return Err(INVALID);
        }
        *self.shown() = Shown { active, driven, scanout, dirty: Vec::new(), stale: true, cursor, best };
        self.events.store(events, Ordering::SeqCst);
        Ok(())
    }

    /// Shows `area` of a frame, or nothing.
    pub(super) fn show(&self, picture: Option<(Arc<Pixels>, Area)>) {
        let mut shown = self.shown();
        shown.driven |= picture.is_some();
        shown.scanout = picture.map(|(pixels, area)| Scanout { pixels, area });
        shown.stale = true;
        shown.dirty.clear();
    }

    /// A frame is gone.
    pub(super) fn forget(&self, pixels: &Arc<Pixels>) {
        let mut shown = self.shown();
        if shown.scanout.as_ref().is_some_and(|scanout| Arc::ptr_eq(&scanout.pixels, pixels)) {
            shown.scanout = None;
            shown.stale = true;
        }
    }

    /// `area` of a frame is to be seen as it is now.
    pub(super) fn flush(&self, pixels: &Arc<Pixels>, area: Area) {
        let mut shown = self.shown();
        let Some(scanout) = &shown.scanout else { return };
        let seen = area.and(scanout.area);
        if !Arc::ptr_eq(&scanout.pixels, pixels) || seen.is_empty() || shown.stale {
            return;
        }
        if shown.dirty.len() >= MAX_DIRTY {
            let all = shown.dirty.drain(..).fold(seen, Area::or);
            shown.dirty.push(all);
        } else if !shown.dirty.contains(&seen) {
            shown.dirty.push(seen);
        }
    }

    pub(super) fn set_cursor(&self, cursor: Option<Cursor>) {
        // One that is hidden is a cursor too.
        self.shown().cursor = Some(Arc::new(cursor.unwrap_or_default()));
    }
}

impl Source for GpuDisplay {
    fn refresh(&self, canvas: &mut Canvas, whole: bool) {
        let mut shown = self.shown();
        let whole = std::mem::take(&mut shown.stale) || whole;
        canvas.set_cursor(shown.cursor.as_ref());
        if !shown.driven {
            drop(shown);
            return self.firmware.iter().for_each(|firmware| firmware.refresh(canvas, whole));
        }
        let dirty = std::mem::take(&mut shown.dirty);
        match &shown.scanout {
            Some(scanout) if whole => {
                canvas.resize(scanout.area.width, scanout.area.height);
                scanout.draw(scanout.area, canvas);
            }
            Some(scanout) => dirty.into_iter().for_each(|area| scanout.draw(area, canvas)),
            None if whole => blank(canvas),
            None => {}
        }
    }

    fn suggest(&self, width: u16, height: u16) -> Suggestion {
        if !SIDES.contains(&width) || !SIDES.contains(&height) {
            return Suggestion::Impossible;
        }
        let mut shown = self.shown();
        // A driver that comes later finds it so.
        shown.best = Some((width, height));
        if !shown.active {
            return Suggestion::NotMine;
        }
        drop(shown);
        self.notifier.ring();
        Suggestion::Taken
    }
}

impl Scanout {
    fn draw(&self, area: Area, canvas: &mut Canvas) {
        let format = self.pixels.format;
        let x = usize::from(area.x.saturating_sub(self.area.x));
        let mut row = Vec::with_capacity(area.width.into());
        self.pixels.lines(area, |y, line| {
            row.clear();
            row.extend(line.as_chunks().0.iter().map(|pixel| format.rgb(*pixel)));
            canvas.put(x, usize::from(y.saturating_sub(self.area.y)), &row);
        });
    }
}

fn blank(canvas: &mut Canvas) {
    let row = vec![0; canvas.width().into()];
    (0..canvas.height()).for_each(|y| canvas.put(0, y.into(), &row));
}

/// The configuration space: `events_read`, `events_clear`, `num_scanouts`, `num_capsets`.
impl DeviceConfig for GpuDisplay {
    fn size(&self) -> usize {
        CONFIG_SIZE
    }

    fn read(&self, offset: usize, data: &mut [u8]) {
        let words = [self.events.load(Ordering::SeqCst), 0, 1, 0];
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        copy_from(&bytes, offset, data);
    }

    fn write(&self, offset: usize, data: &[u8]) -> bool {
        if let (EVENTS_CLEAR, Ok(clear)) = (offset, data.try_into()) {
            self.events.fetch_and(!u32::from_le_bytes(clear), Ordering::SeqCst);
        }
        false
    }
}

impl std::fmt::Debug for GpuDisplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuDisplay").finish_non_exhaustive()
    }
}
