use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};

use super::drive::Drive;
use super::port::{End, Job, PATIENCE, Port};
use super::slot::{self, Command};
use crate::config::{DiskStall, Holding, ThreadHook, ThreadKind};
use crate::memory::GuestMemory;

/// A command is carried out without deep recursion; image formats recurse a little.
const STACK: usize = 256 << 10;

/// The thread that serves one port. Dropping it stops the thread, and joins it unless the host does not answer.
pub(super) struct Worker {
    port: Arc<Port>,
    stall: Arc<DiskStall>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread is over.
    over: Receiver<Infallible>,
}

impl Worker {
    pub(super) fn spawn(
        port: Arc<Port>,
        drive: Box<dyn Drive>,
        memory: GuestMemory,
        threads: ThreadHook,
    ) -> io::Result<Self> {
        let theirs = port.clone();
        let stall = drive.stall().clone();
        let held = port.clone();
        stall.arm(Some(Holding(Arc::new(move |is_held| held.set_held(is_held)))));
        let (running, over) = mpsc::sync_channel(0);
        let mut server = Server { drive, memory, in_reset: false };
        let thread = thread::Builder::new().name("ahci".to_owned()).stack_size(STACK).spawn(move || {
            let _running = running;
            threads.started(ThreadKind::Device);
            while let Some(job) = theirs.next(&server.memory) {
                let end = server.serve(job);
                theirs.complete(&server.memory, job, end);
            }
        })?;
        Ok(Self { port, stall, thread: Some(thread), over })
    }
}

impl Worker {
    /// Finishes what was begun, and begins nothing. Whether that is so in time.
    pub(super) fn pause(&self) -> bool {
        self.stall.park(true);
        let quiet = self.port.pause();
        if !quiet {
            tracing::warn!("a SATA drive does not pause: the host does not answer its requests");
        }
        quiet
    }

    /// Continues after [`Self::pause`].
    pub(super) fn resume(&self) {
        self.stall.park(false);
        self.port.resume();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.port.stop();
        self.stall.release();
        if self.over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a SATA drive does not stop: the host does not answer its requests");
            return;
        }
        if let Some(thread) = self.thread.take() {
            // A panic was reported by its own thread.
            let _ = thread.join();
        }
    }
}

struct Server {
    drive: Box<dyn Drive>,
    memory: GuestMemory,
    /// The control register holds the drive in reset.
    in_reset: bool,
}

impl Server {
    fn serve(&mut self, job: Job) -> End {
        if job.reset {
            self.drive.reset();
            self.in_reset = false;
        }
        let Ok(command) = Command::read(&self.memory, job.list, job.slot) else { return End::BusError };
        let taskfile = command.taskfile;
        if !taskfile.is_command {
            let was = std::mem::replace(&mut self.in_reset, taskfile.is_software_reset());
            if was && !self.in_reset {
                self.drive.reset();
                return End::Reset;
            }
            return End::Control;
        }
        let outcome = self.drive.execute(&self.memory, command);
        slot::set_transferred(&self.memory, job.list, job.slot, outcome.transferred);
        End::Done(outcome)
    }
}
