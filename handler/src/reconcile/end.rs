//! Shuts a guest down and records its outcome.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::{info, warn};

use super::act::{Done, run_blocking, sync_error};
use super::deadline::{Deadline, Interrupt, Sent};
use super::reconciler::VmiReconciler;
use super::record::{Record, now};
use super::status::{
    End, Lost, Phase, SyncError, end, end_before_start, mark_unhealthy, out_of_memory, stop, unhealthy_end,
};
use crate::console_log;
use crate::launcher::link::{LauncherStatus, LinkError};
use crate::network::bridge::Bridged;
use crate::node::Node;

impl VmiReconciler {
    pub(super) fn begin_deletion(&mut self) -> Done {
        let grace = self.known()?.grace();
        let at = now();
        self.change(|record| {
            record.vmi.metadata.deletion_timestamp = Some(at);
            record.vmi.metadata.deletion_grace_period_seconds = i64::try_from(grace).ok();
        })?;
        info!(grace_s = grace, "the VMI is being deleted: shutting the guest down");
        Ok(())
    }

    /// Begins to shut the guest down because its livenessProbe failed. The VMI stays.
    pub(super) fn mark_unhealthy(&mut self) -> Done {
        let grace = self.known()?.grace();
        let cause = self.prober.as_ref().map(|prober| prober.results().liveness.cause).unwrap_or_default();
        let at = now();
        self.change(|record| mark_unhealthy(&mut record.vmi.status, &cause, &at))?;
        warn!(cause, grace_s = grace, "the livenessProbe failed: shutting the guest down");
        Ok(())
    }

    /// Begins to shut the guest down because its launcher Pod is being deleted. The VMI stays.
    pub(super) fn stop(&mut self) -> Done {
        let grace = self.known()?.grace();
        let at = now();
        self.change(|record| stop(&mut record.vmi.status, &at))?;
        info!(grace_s = grace, "its launcher Pod is being deleted: shutting the guest down");
        Ok(())
    }

    /// Applies a new grace period. The shutdown request is sent again, because the launcher applies the shorter one.
    pub(super) fn shorten_grace(&mut self, grace: u64) -> Done {
        let Some(record) = self.record.as_ref().filter(|record| record.grace() != grace) else {
            return Ok(());
        };
        let shorter = grace < record.grace();
        self.change(|record| {
            let seconds = i64::try_from(grace).ok();
            record.vmi.spec.termination_grace_period_seconds = seconds;
            if record.deleting() {
                record.vmi.metadata.deletion_grace_period_seconds = seconds;
            }
        })?;
        if let Some(deadline) = self.deadline.as_mut().filter(|_| shorter) {
            deadline.shorten(grace);
        }
        Ok(())
    }

    fn set_sent(&mut self, request: Sent) {
        if let Some(deadline) = &mut self.deadline {
            deadline.sent = Some(request);
        }
    }

    pub(super) async fn ask_shutdown(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        let grace = self.known()?.grace();
        let Some(response) = interrupt.or(self.link()?.shutdown(grace)).await else { return Ok(()) };
        response.map_err(sync_error("FailedShutdown"))?;
        info!(grace_s = grace, "asked the guest to shut down");
        self.set_sent(Sent::Shutdown);
        Ok(())
    }

    pub(super) async fn kill(&mut self) -> Done {
        let process = Arc::clone(self.link()?.process());
        let (pid, cgroup) = (process.pid(), self.node.cgroups.as_ref().zip(self.record.as_ref()));
        let cgroup = cgroup.and_then(|(cgroups, record)| cgroups.of(record.uid));
        self.killed = self.deadline.map(|deadline| deadline.awaited).or(self.killed);
        warn!(pid, awaited = ?self.killed, "killing the launcher and all its processes: its deadline has passed");
        let killed_before = self.deadline.as_mut().is_some_and(Deadline::kill);
        run_blocking("FailedKill", move || {
            process.kill_all(cgroup.as_deref()).map_err(sync_error("FailedKill"))
        })
        .await?;
        match killed_before {
            false => Ok(()),
            true => {
                let message = format!(
                    "the launcher (process {pid}) does not end though it was killed: it may wait for the node's storage"
                );
                Err(SyncError { reason: "FailedKill", message })
            }
        }
    }

    pub(super) async fn record_outcome(&mut self) -> Done {
        let outcome = self.state().and_then(|state| state.outcome).unwrap_or_default();
        let record = self.known()?;
        if !record.deleting()
            && let Err(error) = console_log::keep(&record.dir).await
        {
            Node::log_error("cannot keep the console log of a guest that has ended", &error);
        }
        if record.stopped() && !record.started() && !record.deleting() {
            return self.finish(&end_before_start());
        }
        if let Some(panic) = &outcome.panic {
            self.node.metrics.count_panic(&self.key, panic);
        }
        let end = end(&outcome, record.grace(), record.deleting());
        match self.exceeded_memory().filter(|_| end.phase == Phase::Failed) {
            Some(limit) => self.finish(&out_of_memory(limit)),
            None => self.finish(&end),
        }
    }

    pub(super) async fn record_loss(&mut self) -> Done {
        // Read before the cgroups are removed.
        let exceeded_memory = self.exceeded_memory();
        self.end_leftovers().await?;
        let record = self.known()?;
        if record.stopped() && !record.started() && !record.deleting() {
            return self.finish(&end_before_start());
        }
        let lost = Lost {
            started: record.started(),
            deleting: record.deleting() || record.stopped(),
            killed: self.killed,
            ending: match self.launcher_status() {
                Some(LauncherStatus::Gone(ending)) => Some(ending),
                _ => None,
            },
            grace: record.grace(),
            with_node: record.dir.node_shutdown().exists(),
            exceeded_memory,
        };
        self.finish(&lost.end(&record.dir.launcher_log()))
    }

    fn finish(&mut self, end: &End) -> Done {
        let unhealthy_end = self.record.as_ref().and_then(Record::unhealthy).map(unhealthy_end);
        let end = unhealthy_end.as_ref().unwrap_or(end);
        let at = now();
        let state = self.state();
        let node = self.node.settings.node_name.clone();
        let is_single_host = self.node.settings.runtime.is_single_host();
        self.change(|record| {
            // Keep the launcher's last state, such as the hypervisor and why it was chosen.
            let vm = record.vm().ok();
            let facts = super::status::Facts {
                phase: end.phase,
                vm: vm.as_ref(),
                on_single_host: is_single_host.then_some(&record.vmi.spec),
                state: state.as_ref(),
                readiness: None,
                credentials: None,
                attachments: None,
                addresses: Vec::new(),
                bridged: &Bridged::new(),
                multus: &BTreeSet::new(),
                sync_error: None,
                manifest_changed: false,
                node: &node,
                now: &at,
            };
            record.vmi.status = super::status::next(&record.vmi.status, &facts);
            end.reason.clone_into(&mut record.vmi.status.reason);
            super::status::record_end(&mut record.vmi.status, end, &at);
        })?;
        if end.phase == Phase::Failed {
            warn!(reason = end.reason, "{}", end.message);
        }
        Ok(())
    }

    pub(super) async fn dismiss(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        match interrupt.or(self.link()?.dismiss()).await {
            None => {}
            Some(Ok(())) => self.set_sent(Sent::Dismissal),
            // A cancelled launch has reached the launcher: its state is about to arrive.
            Some(Err(LinkError::Fault(_))) if !self.launched => self.launched = true,
            Some(Err(error)) => return Err(sync_error("FailedDismiss")(error)),
        }
        Ok(())
    }
}
