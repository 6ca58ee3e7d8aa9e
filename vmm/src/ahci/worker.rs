use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};

use serde::{Deserialize, Serialize};

use super::drive::{Drive, DriveState};
use super::port::{End, Job, PATIENCE, Port};
use super::slot::{self, Command};
use crate::config::{Holding, LaneStall, ThreadHook, ThreadKind};
use crate::memory::GuestMemory;
use crate::state::SectionError;

/// A command is carried out without deep recursion; image formats recurse a little.
const STACK: usize = 256 << 10;

/// The thread that serves one port. Dropping it stops the thread, and joins it unless the host does not answer.
pub(super) struct Worker {
    port: Arc<Port>,
    stall: Arc<LaneStall>,
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
        let mut server = Server::new(drive, memory);
        let thread = thread::Builder::new().name("ahci".to_owned()).stack_size(STACK).spawn(move || {
            let _running = running;
            threads.started(ThreadKind::Device);
            while let Some(job) = theirs.next(&mut server) {
                let end = server.serve(job);
                theirs.complete(&server.memory, job, end);
            }
        })?;
        Ok(Self { port, stall, thread: Some(thread), over })
    }
}

impl Worker {
    /// Has it finish what was begun, and begin nothing.
    pub(super) fn ask_to_pause(&self) {
        self.stall.park(true);
        self.port.ask_to_pause();
    }

    /// Waits until that is so; whether it came to that in time.
    pub(super) fn is_paused_in_time(&self) -> bool {
        let quiet = self.port.is_paused_in_time();
        if !quiet {
            tracing::warn!("a SATA drive does not pause: the host does not answer its requests");
        }
        quiet
    }

    /// Continues after [`Self::ask_to_pause`].
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

/// What there is of a drive beside the registers of its port.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ServerState {
    drive: DriveState,
    in_reset: bool,
}

/// What serves a port.
pub(super) struct Server {
    drive: Box<dyn Drive>,
    memory: GuestMemory,
    /// The control register holds the drive in reset.
    in_reset: bool,
}

impl Server {
    pub(super) fn new(drive: Box<dyn Drive>, memory: GuestMemory) -> Self {
        Self { drive, memory, in_reset: false }
    }

    pub(super) fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// What was written is on stable storage then.
    pub(super) fn save(&mut self) -> Result<ServerState, &'static str> {
        if !self.drive.flush_now() {
            return Err("the host cannot flush the disk");
        }
        Ok(ServerState { drive: self.drive.save(), in_reset: self.in_reset })
    }

    pub(super) fn load(&mut self, ServerState { drive, in_reset }: ServerState) -> Result<(), SectionError> {
        self.drive.load(drive)?;
        self.in_reset = in_reset;
        Ok(())
    }

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
