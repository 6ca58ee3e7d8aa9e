use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::{info, warn};
use vireo_proto::launcher::{Fault, MemoryDump, State};

use super::stage::RunningVm;
use super::{DumpCommand, Session};
use crate::fault::{Code, fault};

/// Whether a memory dump is being written.
pub(super) fn is_under_way(state: &State) -> bool {
    state.memory_dump.as_ref().is_some_and(|dump| dump.ended == 0)
}

/// What is not possible while a memory dump is written.
pub(super) fn under_way() -> Fault {
    fault(Code::Conflict, "a memory dump of the VMI is under way")
}

/// Seconds since 1970; never 0, which is no time.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX).max(1)
}

impl Session {
    /// Begins a memory dump, or forgets the last one.
    pub(super) fn dump(&self, vm: &RunningVm, command: DumpCommand) -> Result<(), Fault> {
        let (volume, file) = match command {
            DumpCommand::Forget if is_under_way(&self.state()) => return Err(under_way()),
            DumpCommand::Forget => {
                self.publish_changed(|state| state.memory_dump = None);
                return Ok(());
            }
            DumpCommand::Begin { volume, file } => (volume, file),
        };
        // Also where it is refused: it is closed then.
        let opened = self.node.files().take_file(Path::new(&file));
        if is_under_way(&self.state()) {
            return Err(under_way());
        }
        if vm.waiter.is_some() {
            // The hypervisor would stop the vCPUs for both.
            return Err(fault(Code::Conflict, "the VMI is being paused or unpaused"));
        }
        let missing = || fault(Code::HostResource, format!("no file was passed for {file}"));
        vm.guest.dump(opened.ok_or_else(missing)?)?;
        info!(volume, file, "dumping the guest's memory");
        self.publish(|state| {
            state.memory_dump = Some(MemoryDump { volume, file, started: now(), ..MemoryDump::default() });
        });
        Ok(())
    }

    /// The hypervisor has written the dump, or failed.
    pub(super) fn dumped(&self, failure: Option<String>) {
        match &failure {
            None => info!("the guest's memory is dumped"),
            Some(failure) => warn!(failure, "the guest's memory is not dumped"),
        }
        self.publish_changed(|state| {
            if let Some(dump) = &mut state.memory_dump {
                dump.ended = now();
                dump.failure = failure;
            }
        });
    }
}
