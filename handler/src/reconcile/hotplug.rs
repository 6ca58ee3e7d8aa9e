//! Hotplugs volumes into a running guest and unplugs them.

use tracing::warn;
use vireo_api::spec::{Disk, Vm};
use vireo_proto::files;

use super::act::{Done, cancel_if, run_blocking, sync_error};
use super::deadline::Interrupt;
use super::desired::Desired;
use super::reconciler::VmiReconciler;
use super::status::SyncError;
use super::volumes::{self, Change};
use crate::launcher;
use crate::launcher::link::chain;
use crate::manifests::Origin;
use crate::settings::Runtime;
use crate::storage::{self, HostDisks, StorageError};

fn disk_error(error: StorageError) -> SyncError {
    let sync_error = SyncError { reason: error.reason(), message: chain(&error) };
    if sync_error.is_about_claims() {
        sync_error
    } else {
        SyncError { reason: volumes::HOTPLUG_FAILED, ..sync_error }
    }
}

impl VmiReconciler {
    /// Applies the part of a VMI that the API may change while it runs: its hotplugged volumes.
    pub(super) fn apply_volumes(&mut self, desired: &Desired) -> Done {
        let Some((manifest, Origin::Object(uid))) = desired.manifest() else { return Ok(()) };
        let Some(record) = self.record.as_ref().filter(|record| record.uid == *uid) else { return Ok(()) };
        let (now, has) = (&manifest.vmi.spec, &record.vmi.spec);
        if now.volumes == has.volumes && now.domain.devices.disks == has.domain.devices.disks {
            return Ok(());
        }
        let (volumes, disks) = (now.volumes.clone(), now.domain.devices.disks.clone());
        // The change may fix the last error.
        self.backoff.reset();
        self.change(|record| {
            record.vmi.spec.volumes = volumes;
            record.vmi.spec.domain.devices.disks = disks;
        })
    }

    /// Tries every change and returns the first error.
    pub(super) async fn hotplug_volumes(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        // A claim that appears from here on triggers another reconcile.
        self.claims.mark_unchanged();
        let vm = self.known()?.vm().map_err(sync_error("FailedSpec"))?;
        let plugged = self.state().map(|state| state.volumes).unwrap_or_default();
        let mut first = Ok(());
        for change in volumes::changes(&vm, &plugged, &self.volume_places()) {
            let done = match change {
                Change::Detach(name) => {
                    let Some(done) = interrupt.or(self.link()?.detach(name)).await else { return first };
                    done.map_err(sync_error(volumes::HOTPLUG_FAILED))
                }
                Change::Attach(disk) => self.hotplug(&vm, disk, interrupt).await,
            };
            first = first.and(done);
        }
        let dumped = self.dump_memory(&vm, interrupt).await;
        if let (Err(_), Err(second)) = (&first, &dumped) {
            warn!(reason = second.reason, message = second.message, "the memory is not dumped");
        }
        first.and(dumped)
    }

    async fn hotplug(&self, vm: &Vm, disk: &Disk, interrupt: &mut Interrupt<'_>) -> Done {
        let (places, record) = (self.places(vm)?, self.known()?);
        let prepare = storage::prepare_disk(vm, disk, &places, &self.node.jobs);
        let source = cancel_if(interrupt.desired, |desired| desired.removes(&record), prepare).await;
        let Some(source) = source else { return Ok(()) };
        let disk = crate::resolve::disk(disk, &source.map_err(disk_error)?);
        let (socket, opened) = (record.dir.files_socket(), disk.clone());
        let runtime = self.node.settings.runtime.clone();
        let attachments = self.node.attachments(&self.key.namespace, record.uid);
        let pass = move || {
            // Users name no path of the node for a disk that is hotplugged.
            let files = match runtime {
                Runtime::Process => launcher::files::open_disk(&opened, &HostDisks::default()),
                Runtime::Pods(pods) => launcher::pod::open_attached(&opened, &attachments, &pods),
            }?;
            files::pass(&socket, &files)
        };
        let failed = volumes::HOTPLUG_FAILED;
        run_blocking(failed, move || pass().map_err(sync_error(failed))).await?;
        let Some(done) = interrupt.or(self.link()?.attach(disk)).await else { return Ok(()) };
        done.map_err(sync_error(volumes::HOTPLUG_FAILED))
    }
}
