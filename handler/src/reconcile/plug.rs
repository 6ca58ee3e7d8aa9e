//! Plugging volumes into a guest that runs, and out of it.

use vireo_api::spec::{Disk, Vm};

use super::act::{Done, sync_error, unless};
use super::deadline::Interrupt;
use super::desired::Desired;
use super::machine::Machine;
use super::status::SyncError;
use super::volumes::{self, Change};
use crate::launcher::link::chain;
use crate::manifests::Origin;
use crate::storage::{self, StorageError};

fn not_there(error: StorageError) -> SyncError {
    let sync_error = SyncError { reason: error.reason(), message: chain(&error) };
    if sync_error.is_about_claims() {
        sync_error
    } else {
        SyncError { reason: volumes::FAILED, ..sync_error }
    }
}

impl Machine {
    /// Takes over from an API what of a VMI may change while it runs: the volumes that are plugged in.
    pub(super) fn follow(&mut self, desired: &Desired) -> Done {
        let Some((manifest, Origin::Object(uid))) = desired.manifest() else { return Ok(()) };
        let Some(record) = self.record.as_ref().filter(|record| record.uid == *uid) else { return Ok(()) };
        let (now, has) = (&manifest.vmi.spec, &record.vmi.spec);
        if now.volumes == has.volumes && now.domain.devices.disks == has.domain.devices.disks {
            return Ok(());
        }
        let (volumes, disks) = (now.volumes.clone(), now.domain.devices.disks.clone());
        // What went wrong may be what was changed.
        self.backoff.reset();
        self.change(|record| {
            record.vmi.spec.volumes = volumes;
            record.vmi.spec.domain.devices.disks = disks;
        })
    }

    /// Every change is tried; the first trouble is told.
    pub(super) async fn plug_volumes(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        // What appears from here on is news.
        self.claims.mark_unchanged();
        let vm = self.known()?.vm().map_err(sync_error("FailedSpec"))?;
        let plugged = self.state().map(|state| state.volumes).unwrap_or_default();
        let mut first = Ok(());
        for change in volumes::changes(&vm, &plugged, &self.node.claims()) {
            let done = match change {
                Change::Out(name) => {
                    let Some(done) = interrupt.or(self.link()?.detach(name)).await else { return first };
                    done.map_err(sync_error(volumes::FAILED))
                }
                Change::In(disk) => self.plug_in(&vm, disk, interrupt).await,
            };
            first = first.and(done);
        }
        first
    }

    async fn plug_in(&self, vm: &Vm, disk: &Disk, interrupt: &mut Interrupt<'_>) -> Done {
        let (places, record) = (self.places(vm)?, self.known()?);
        let prepare = storage::prepare_disk(vm, disk, &places, &self.node.jobs);
        let source = unless(interrupt.desired, |desired| desired.removes(&record), prepare).await;
        let Some(source) = source else { return Ok(()) };
        let disk = crate::resolve::disk(disk, &source.map_err(not_there)?);
        let Some(done) = interrupt.or(self.link()?.attach(disk)).await else { return Ok(()) };
        done.map_err(sync_error(volumes::FAILED))
    }
}
