//! What changes while a guest runs: volumes and NICs are hotplugged and unplugged, links of NICs are switched, memory is dumped.

use tokio::time::Instant;
use tracing::warn;
use vireo_api::spec::{self, Disk, Vm};
use vireo_proto::files;
use vireo_proto::launcher::{PluggedVolume, State};

use super::act::{Done, cancel_if, run_blocking, sync_error};
use super::deadline::Interrupt;
use super::desired::Desired;
use super::nics;
use super::reconciler::VmiReconciler;
use super::status::SyncError;
use super::volumes::{self, Change};
use crate::launcher;
use crate::launcher::link::chain;
use crate::manifests::Origin;
use crate::node::Attachment;
use crate::settings::Runtime;
use crate::storage::{self, HostDisks, StorageError};

/// The reason of a sync error: a link was not switched.
pub(super) const LINK_FAILED: &str = "FailedLinkSync";

fn disk_error(error: StorageError) -> SyncError {
    let sync_error = SyncError { reason: error.reason(), message: chain(&error) };
    if sync_error.is_about_claims() {
        sync_error
    } else {
        SyncError { reason: volumes::HOTPLUG_FAILED, ..sync_error }
    }
}

/// The first error of two changes. The second one is in the log alone.
fn first_error(first: Done, second: Done) -> Done {
    if let (Err(_), Err(second)) = (&first, &second) {
        warn!(reason = second.reason, "{}", second.message);
    }
    first.and(second)
}

/// Whether the link of a NIC has to be switched. Launchers of earlier releases do not report links.
pub(super) fn links_differ(vm: &Vm, state: &State) -> bool {
    let Some(links) = &state.links else { return false };
    let is_switched = |nic: &spec::Interface| {
        if nic.is_link_up() { &links.down } else { &links.up }.iter().any(|one| one == nic.name())
    };
    vm.interfaces().iter().any(is_switched)
}

impl VmiReconciler {
    /// Applies the part of a VMI that the API may change while it runs: its hotplugged volumes, its NICs and their links.
    pub(super) fn apply_devices(&mut self, desired: &Desired) -> Done {
        let Some((manifest, Origin::Object(uid))) = desired.manifest() else { return Ok(()) };
        let Some(record) = self.record.as_ref().filter(|record| record.uid == *uid) else { return Ok(()) };
        let (now, has) = (&manifest.vmi.spec, &record.vmi.spec);
        let (devices, had) = (&now.domain.devices, &has.domain.devices);
        if (&now.volumes, &now.networks) == (&has.volumes, &has.networks)
            && (&devices.disks, &devices.interfaces) == (&had.disks, &had.interfaces)
        {
            return Ok(());
        }
        let (volumes, networks) = (now.volumes.clone(), now.networks.clone());
        let (disks, interfaces) = (devices.disks.clone(), devices.interfaces.clone());
        // The change may fix the last error.
        self.backoff.reset();
        self.change(|record| {
            let spec = &mut record.vmi.spec;
            (spec.volumes, spec.networks) = (volumes, networks);
            (spec.domain.devices.disks, spec.domain.devices.interfaces) = (disks, interfaces);
        })
    }

    /// Tries every change, until it is interrupted: NICs first, as a volume may have to wait for the guest. Returns the first
    /// error.
    pub(super) async fn sync_devices(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        // A claim that appears from here on triggers another reconcile.
        self.claims.mark_unchanged();
        let vm = self.known()?.vm().map_err(sync_error("FailedSpec"))?;
        let Some(state) = self.state() else { return Ok(()) };
        let mut nics = match links_differ(&vm, &state) {
            true => self.set_links(&vm, &state, interrupt).await,
            false => Ok(()),
        };
        let bridged = self.known()?.bridged;
        for change in nics::changes(&vm, &state, &bridged) {
            if interrupt.is_due() {
                return nics;
            }
            nics = first_error(nics, self.change_nic(&vm, change, interrupt).await);
        }
        if interrupt.is_due() {
            return nics;
        }
        let volumes = first_error(nics, self.hotplug_volumes(&vm, &state.volumes, interrupt).await);
        if interrupt.is_due() {
            return volumes;
        }
        first_error(volumes, self.dump_memory(&vm, interrupt).await)
    }

    async fn set_links(&self, vm: &Vm, state: &State, interrupt: &mut Interrupt<'_>) -> Done {
        let links = state.links.clone().unwrap_or_default();
        let has = |nic: &spec::Interface| links.up.iter().chain(&links.down).any(|name| name == nic.name());
        let down = vm.interfaces().iter().filter(|nic| !nic.is_link_up() && has(nic));
        let down = down.map(|nic| nic.name().to_owned()).collect();
        let Some(done) = interrupt.or(self.link()?.set_links(down)).await else { return Ok(()) };
        done.map_err(sync_error(LINK_FAILED))
    }

    async fn hotplug_volumes(
        &mut self,
        vm: &Vm,
        plugged: &[PluggedVolume],
        interrupt: &mut Interrupt<'_>,
    ) -> Done {
        let mut first = Ok(());
        for change in volumes::changes(vm, plugged, &self.volume_places()) {
            let done = match change {
                Change::Detach(name) => {
                    self.reattach.forget(volumes::HOTPLUG_FAILED, &name);
                    let Some(done) = interrupt.or(self.link()?.detach(name)).await else { return first };
                    done.map_err(sync_error(volumes::HOTPLUG_FAILED))
                }
                Change::Attach(disk) => self.hotplug(vm, disk, interrupt).await,
            };
            first = first_error(first, done);
            if interrupt.is_due() {
                break;
            }
        }
        first
    }

    /// Waits for the process of an attachment Pod. Returns `false` when it is interrupted.
    pub(super) async fn await_attachment(
        &self,
        pod: Option<&Attachment>,
        interrupt: &mut Interrupt<'_>,
    ) -> bool {
        let (Runtime::Pods(pods), Some(pod)) = (&self.node.settings.runtime, pod) else { return true };
        interrupt.or(launcher::pod::await_attachment(pod, pods)).await.is_some()
    }

    async fn hotplug(&mut self, vm: &Vm, disk: &Disk, interrupt: &mut Interrupt<'_>) -> Done {
        let failed = volumes::HOTPLUG_FAILED;
        let name = disk.name().to_owned();
        self.reattach.check(failed, &name, Instant::now())?;
        let (places, record) = (self.places(vm)?, self.known()?);
        let prepare = storage::prepare_disk(vm, disk, &places, &self.node.jobs);
        let source = cancel_if(interrupt.desired, |desired| desired.removes(&record), prepare).await;
        let Some(source) = source else { return Ok(()) };
        let disk = crate::resolve::disk(disk, &source.map_err(disk_error)?);
        let (socket, opened) = (record.dir.files_socket(), disk.clone());
        let runtime = self.node.settings.runtime.clone();
        let attachments = self.node.attachments(&self.key.namespace, record.uid);
        let space = self.node.claim_space();
        if !self.await_attachment(launcher::pod::attachment_of(&disk, &attachments), interrupt).await {
            return Ok(());
        }
        let pass = move || {
            // Users name no path of the node for a disk that is hotplugged.
            let files = match runtime {
                Runtime::Process => launcher::files::open_disk(&opened, &HostDisks::default()),
                Runtime::Pods(pods) => launcher::pod::open_attached(&opened, (&attachments, space), &pods),
            }?;
            files::pass(&socket, &files)
        };
        run_blocking(failed, move || pass().map_err(sync_error(failed))).await?;
        let Some(done) = interrupt.or(self.link()?.attach(disk)).await else { return Ok(()) };
        done.map_err(sync_error(failed))?;
        self.reattach.attached(failed, &name, Instant::now());
        Ok(())
    }
}
