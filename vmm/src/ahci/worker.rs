use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::drive::Drive;
use super::port::{End, Job, Port};
use super::slot::{self, Command};
use crate::config::DiskStall;
use crate::memory::GuestMemory;

/// A command is carried out without deep recursion; image formats recurse a little.
const STACK: usize = 256 << 10;

/// The thread that serves one port. Dropping it stops and joins the thread.
pub(super) struct Worker {
    port: Arc<Port>,
    stall: Arc<DiskStall>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn spawn(port: Arc<Port>, drive: Box<dyn Drive>, memory: GuestMemory) -> io::Result<Self> {
        let theirs = port.clone();
        let stall = drive.stall().clone();
        stall.arm();
        let mut server = Server { drive, memory, in_reset: false };
        let thread = thread::Builder::new().name("ahci".to_owned()).stack_size(STACK).spawn(move || {
            while let Some(job) = theirs.next(&server.memory) {
                let end = server.serve(job);
                theirs.complete(&server.memory, job, end);
            }
        })?;
        Ok(Self { port, stall, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.port.stop();
        self.stall.release();
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
