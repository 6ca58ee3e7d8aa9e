//! The display of a VM with its keyboard and pointer input.
//!
//! A [`Display`] is owned by the monitor's user and outlives the VM: viewers stay when the guest resets itself and
//! the VM is built anew. Devices attach to it as [`Source`], [`Keyboard`] and [`Pointer`].
//!
//! Nothing is drawn ahead of time. The canvas exists while a viewer watches, and the source is polled only
//! while a viewer waits: by the viewer's own thread, less and less often while nothing moves. A display without viewers
//! costs nothing. All viewers share the canvas: each knows up to which generation it has seen it, and
//! copies the [`Band`] that it encodes next.

mod band;
mod canvas;
mod cursor;
mod input;
mod input_state;
mod keys;
mod keysym;

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use band::Band;
pub use canvas::{Area, Canvas, Frame};
pub use cursor::Cursor;
pub use input::{Keyboard, Leds, Pointer, Pointing};
pub use input_state::InputState;
pub use keys::Key;
pub use keysym::Stroke;

use input::Seat;

/// Interval of polling a source while the frame changes: 30 Hz looks smooth.
const LIVELY: Duration = Duration::from_millis(33);
/// Interval while nothing changes.
const IDLE: Duration = Duration::from_millis(250);

/// A device that draws.
pub trait Source: Send + Sync {
    /// Brings `canvas` up to date: its size, and the pixels that changed since the last call or, with `whole`, all of
    /// them. Called on viewers' threads, one at a time.
    fn refresh(&self, canvas: &mut Canvas, whole: bool);

    /// A viewer requests this size.
    fn suggest(&self, width: u16, height: u16) -> Suggestion {
        let _ = (width, height);
        Suggestion::NotMine
    }
}

/// The result of a request for another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suggestion {
    /// The guest was notified, and may or may not follow.
    Taken,
    /// No driver of the guest supports it.
    NotMine,
    /// No display here has such a size.
    Impossible,
}

/// A display with its keyboard and pointer. Clones are the same display.
#[derive(Clone, Default)]
pub struct Display(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    seat: Mutex<Seat>,
    /// See [`Band`].
    copied: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    source: Option<Weak<dyn Source>>,
    /// While there are viewers.
    canvas: Option<Canvas>,
    watchers: usize,
    /// The source has not drawn on this canvas yet.
    fresh: bool,
    refreshed: Option<Instant>,
    pause: Duration,
}

impl fmt::Debug for Display {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Display").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Display {
    /// Makes `source` draw, until it is dropped or another one replaces it.
    pub fn attach(&self, source: &Arc<dyn Source>) {
        let mut state = lock(&self.0.state);
        state.source = Some(Arc::downgrade(source));
        state.fresh = true;
        state.wake();
        self.0.changed.notify_all();
    }

    /// Adds a keyboard; see [`Keyboard::active`] for which one gets the keys.
    pub fn attach_keyboard(&self, keyboard: &Arc<dyn Keyboard>) {
        lock(&self.0.seat).attach_keyboard(keyboard);
    }

    /// Adds a pointer; see [`Pointer::active`] for which one is moved.
    pub fn attach_pointer(&self, pointer: &Arc<dyn Pointer>) {
        lock(&self.0.seat).attach_pointer(pointer);
    }

    /// A key went down or up. Never blocks: a guest that reads no keys loses them.
    pub fn key(&self, key: Key, down: bool) {
        lock(&self.0.seat).key(key, down);
        self.expect_change();
    }

    /// The pointer moved, or a button did.
    pub fn point(&self, pointing: Pointing) {
        lock(&self.0.seat).point(pointing);
        self.expect_change();
    }

    /// The lights of the keyboard that gets the keys.
    pub fn leds(&self) -> Leds {
        lock(&self.0.seat).leds()
    }

    /// Requests another size.
    pub fn suggest_size(&self, width: u16, height: u16) -> Suggestion {
        let source = lock(&self.0.state).source.as_ref().and_then(Weak::upgrade);
        let taken = source.map_or(Suggestion::NotMine, |source| source.suggest(width, height));
        self.expect_change();
        taken
    }

    /// Something will be drawn soon: who acts wants to see what it does.
    fn expect_change(&self) {
        lock(&self.0.state).pause = LIVELY;
        self.0.changed.notify_all();
    }

    /// Begins to watch.
    pub fn watch(&self) -> Watch {
        let mut state = lock(&self.0.state);
        state.watchers += 1;
        if state.canvas.is_none() {
            state.canvas = Some(Canvas::default());
            state.fresh = true;
        }
        Watch { display: self.clone(), seen: 0 }
    }

    /// A buffer for what a viewer copies.
    pub fn band(&self) -> Band {
        Band::new(Arc::clone(&self.0.copied))
    }

    /// For tests: pixels for which all bands have memory.
    #[cfg(test)]
    pub(crate) fn copied(&self) -> usize {
        self.0.copied.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// What is on the display now.
    pub fn picture(&self) -> Frame {
        let watch = self.watch();
        let mut state = lock(&self.0.state);
        state.refresh();
        let picture = state.canvas.as_ref().map_or_else(Frame::default, Canvas::picture);
        drop(state);
        drop(watch);
        picture
    }
}

impl State {
    fn wake(&mut self) {
        self.refreshed = None;
        self.pause = LIVELY;
    }

    /// How long until the source may be polled again.
    fn due_in(&self) -> Duration {
        self.refreshed.map_or(Duration::ZERO, |at| self.pause.saturating_sub(at.elapsed()))
    }

    /// Polls the source; returns whether anything changed.
    fn refresh(&mut self) -> bool {
        let Some(canvas) = &mut self.canvas else { return false };
        let before = canvas.generation();
        canvas.begin();
        // Between two VMs there is no source and the last frame of the guest stays.
        if let Some(source) = self.source.as_ref().and_then(Weak::upgrade) {
            source.refresh(canvas, std::mem::take(&mut self.fresh));
        }
        let moved = canvas.commit(before);
        self.pause = if moved { LIVELY } else { (self.pause * 2).clamp(LIVELY, IDLE) };
        self.refreshed = Some(Instant::now());
        moved
    }
}

/// One viewer's look at a display. The canvas goes with the last of them.
pub struct Watch {
    display: Display,
    /// Everything up to here was taken.
    seen: u64,
}

impl Watch {
    /// The size of the display now, in columns and lines.
    pub fn size(&self) -> (u16, u16) {
        let mut state = lock(&self.display.0.state);
        if state.due_in().is_zero() {
            state.refresh();
            self.display.0.changed.notify_all();
        }
        state.canvas.as_ref().map_or((0, 0), |canvas| (canvas.width(), canvas.height()))
    }

    /// Blocks until `take` makes something of the canvas. It is given the generation this viewer has seen, and is
    /// called again whenever the canvas changed or [`Self::alarm`] was raised. While it returns `wants`, the source is
    /// polled.
    pub fn wait<T>(&mut self, mut take: impl FnMut(&Canvas, u64) -> Next<T>) -> T {
        let shared = self.display.0.clone();
        let mut state = lock(&shared.state);
        loop {
            let wants = match take(state.canvas.get_or_insert_default(), self.seen) {
                Next::Done { seen, value } => {
                    self.seen = seen;
                    return value;
                }
                Next::Changed => true,
                Next::Alarm => false,
            };
            state = if !wants {
                shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else if state.due_in().is_zero() {
                if state.refresh() {
                    shared.changed.notify_all();
                }
                state
            } else {
                let due = state.due_in();
                shared.changed.wait_timeout(state, due).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Copies `area` as it is now, which may be later than what [`Self::wait`] was given: changes since then are reported
    /// again.
    pub fn copy(&self, area: Area, band: &mut Band) {
        band.fill(lock(&self.display.0.state).canvas.get_or_insert_default(), area);
    }

    /// Notifies every viewer that waits.
    pub fn alarm(display: &Display) {
        drop(lock(&display.0.state));
        display.0.changed.notify_all();
    }
}

/// What a viewer makes of the canvas.
pub enum Next<T> {
    /// It took something, and has now seen everything up to this generation.
    Done {
        /// The canvas's generation.
        seen: u64,
        /// What it took.
        value: T,
    },
    /// It waits for the frame to change.
    Changed,
    /// It waits only for the alarm.
    Alarm,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = lock(&self.display.0.state);
        state.watchers = state.watchers.saturating_sub(1);
        if state.watchers == 0 {
            state.canvas = None;
            state.refreshed = None;
        }
    }
}

#[cfg(test)]
mod tests;
