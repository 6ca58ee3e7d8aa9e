//! An engine that completes reads when a test has it do so.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use vmm_sys_util::eventfd::EventFd;

use super::{Completion, Engine, FileOperation};

#[derive(Default)]
pub(crate) struct State {
    /// Tags and byte offsets of reads.
    pub(crate) running: Vec<(usize, u64)>,
    completed: Vec<Completion>,
    pub(crate) waited: u32,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    notify: EventFd,
}

#[derive(Clone)]
pub(crate) struct Manual(Arc<Shared>);

impl Manual {
    pub(crate) fn new() -> Self {
        let notify = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        Self(Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), notify }))
    }

    pub(crate) fn when(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.0.state.lock().unwrap();
        self.0.changed.wait_while(state, |state| !condition(state)).unwrap()
    }

    /// Completes the read at a byte offset.
    pub(crate) fn complete(&self, offset: u64, moved: io::Result<u64>) {
        let mut state = self.when(|state| state.running.iter().any(|running| running.1 == offset));
        let at = state.running.iter().position(|running| running.1 == offset).unwrap();
        let (tag, _) = state.running.remove(at);
        state.completed.push(Completion { tag, moved });
        drop(state);
        self.0.changed.notify_all();
        self.0.notify.write(1).unwrap();
    }
}

impl Engine for Manual {
    fn prepare(&mut self, tag: usize, _: usize, operation: FileOperation<'_>) -> io::Result<()> {
        let FileOperation::Read { offset, .. } = operation else { return Err(io::ErrorKind::Other.into()) };
        self.0.state.lock().unwrap().running.push((tag, offset));
        self.0.changed.notify_all();
        Ok(())
    }

    fn commit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn take_completed(&mut self, completed: &mut Vec<Completion>) {
        let _ = self.0.notify.read();
        completed.append(&mut self.0.state.lock().unwrap().completed);
    }

    fn wait(&mut self) -> io::Result<()> {
        self.0.state.lock().unwrap().waited += 1;
        self.0.changed.notify_all();
        drop(self.when(|state| !state.completed.is_empty()));
        Ok(())
    }

    fn source(&self) -> BorrowedFd<'_> {
        #[expect(unsafe_code, reason = "an EventFd lends its descriptor as a number only")]
        // SAFETY: it is open as long as `self` is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(self.0.notify.as_raw_fd()) };
        fd
    }
}
