use std::collections::HashMap;
use std::io;
use std::process::{ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};

use super::process::Event;
use crate::wire::Frame;

/// The host's end of the control channel.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) to_agent: Mutex<ChildStdin>,
    pub(super) routes: Mutex<Routes>,
    pub(super) next_id: AtomicU32,
}

/// Receivers of events by command; none once the host is gone.
type Routes = Option<HashMap<u32, Sender<Event>>>;

impl Link {
    pub(crate) fn send(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *self.to_agent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Interrupts the host for nothing. Its emulated CPU sometimes overlooks a timer that goes off while a guest
    /// runs, and with it everything, for minutes; the next interrupt wakes it.
    pub(super) fn beat(&self) {
        // A holder of the lock is sending.
        if let Ok(mut to_agent) = self.to_agent.try_lock() {
            // No command has this number. Fails only where the host is gone.
            let _ = Frame::Stdin(0, Vec::new()).write(&mut *to_agent);
        }
    }

    pub(crate) fn forget(&self, id: u32) {
        if let Some(routes) = &mut *self.routes.lock().unwrap_or_else(PoisonError::into_inner) {
            routes.remove(&id);
        }
    }

    /// An id for a command to be started, and the receiver of its events.
    pub(crate) fn attach(&self) -> (u32, Receiver<Event>) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        (id, self.listen(id))
    }

    fn listen(&self, id: u32) -> Receiver<Event> {
        let (sender, receiver) = mpsc::channel();
        if let Some(routes) = &mut *self.routes.lock().unwrap_or_else(PoisonError::into_inner) {
            routes.insert(id, sender);
        }
        receiver
    }

    /// Hands frames to their listeners until the channel ends.
    pub(super) fn read(&self, mut from: ChildStdout, ready: Sender<()>) {
        while let Ok(frame) = Frame::read(&mut from) {
            let (id, event) = match frame {
                Frame::Ready => {
                    // The listener may have given up at its deadline.
                    let _ = ready.send(());
                    continue;
                }
                Frame::Stdout(id, bytes) => (id, Event::Stdout(bytes)),
                Frame::Stderr(id, bytes) => (id, Event::Stderr(bytes)),
                Frame::Exit(id, status) => (id, Event::Exit(status)),
                Frame::Start(..) | Frame::Stdin(..) | Frame::Signal(..) => break,
            };
            if let Some(routes) = &*self.routes.lock().unwrap_or_else(PoisonError::into_inner)
                && let Some(listener) = routes.get(&id)
            {
                // Nothing may wait for the command any more.
                let _ = listener.send(event);
            }
        }
        *self.routes.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
