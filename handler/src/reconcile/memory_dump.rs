//! Memory dumps: the node agent opens a file in a claim, and the launcher writes the guest's memory to it.

use std::os::fd::OwnedFd;

use jiff::Timestamp;
use vireo_api::spec::{MemoryDump, Vm};
use vireo_proto::files;
use vireo_proto::launcher::{self as wire, DumpMemoryRequest, State};

use super::act::{Done, run_blocking, sync_error};
use super::deadline::Interrupt;
use super::reconciler::VmiReconciler;
use super::status::SyncError;
use super::volumes::Places;
use crate::launcher::link::LinkError;
use crate::launcher::pod;
use crate::node::Attachments;
use crate::settings::Runtime;
use crate::storage::{ClaimError, DumpDirectory};

/// The reason of a sync error: the memory cannot be dumped.
pub(super) const DUMP_FAILED: &str = "FailedMemoryDump";

/// What is to be done about the memory dump of a VMI.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Begin to write it.
    Begin(&'a MemoryDump),
    /// Forget the one of a volume that is no longer in the spec.
    Forget,
}

/// The next step. Nothing is done while a dump is written, nor before its claim is there.
pub(super) fn step<'a>(vm: &'a Vm, state: &State, places: &Places) -> Option<Step<'a>> {
    match (vm.memory_dump(), &state.memory_dump) {
        (_, Some(wire::MemoryDump { ended: 0, .. })) | (None, None) => None,
        (Some(wanted), Some(written)) if wanted.volume() == written.volume => None,
        (_, Some(_)) => Some(Step::Forget),
        (Some(wanted), None) => places.has(wanted.claim()).then_some(Step::Begin(wanted)),
    }
}

/// How the files of a VMI's volume begin.
fn prefix(vmi: &str, volume: &str) -> String {
    format!("{vmi}-{volume}-")
}

impl VmiReconciler {
    /// Begins a memory dump, or forgets the last one.
    pub(super) async fn dump_memory(&self, vm: &Vm, interrupt: &mut Interrupt<'_>) -> Done {
        let places = self.volume_places();
        let Some(step) = self.state().and_then(|state| step(vm, &state, &places)) else { return Ok(()) };
        let Step::Begin(dump) = step else {
            let Some(done) = interrupt.or(self.link()?.forget_memory_dump()).await else { return Ok(()) };
            return done.map_err(sync_error(DUMP_FAILED));
        };
        let (record, link) = (self.known()?, self.link()?);
        let attachments = self.node.attachments(&self.key.namespace, record.uid);
        if !self.await_attachment(attachments.get(dump.claim()), interrupt).await {
            return Ok(());
        }
        let prefix = prefix(&self.key.name, dump.volume());
        let (open, socket) = (self.dump_directory((vm, attachments), dump), record.dir.files_socket());
        let whose = prefix.clone();
        let pass = move || -> Result<(DumpDirectory, String), SyncError> {
            let directory = open().map_err(sync_error(DUMP_FAILED))?;
            let (name, file) = directory.create(&whose, Timestamp::now()).map_err(sync_error(DUMP_FAILED))?;
            let passed: (String, OwnedFd) = (path(&directory, &name), file.into());
            files::pass(&socket, &[passed]).map_err(|error| {
                // The launcher writes to it once it is asked to. The error is reported, and not that of tidying up.
                let _ = directory.remove(&name);
                sync_error(DUMP_FAILED)(error)
            })?;
            Ok((directory, name))
        };
        let (directory, name) = run_blocking(DUMP_FAILED, pass).await?;
        let request = DumpMemoryRequest { volume: dump.volume().to_owned(), file: path(&directory, &name) };
        let Some(done) = interrupt.or(link.dump_memory(request)).await else { return Ok(()) };
        let leftover = leftover(&done);
        let tidy = move || match leftover {
            // The one before is replaced, as KubeVirt's launcher does, so that there is space for this one.
            Leftover::Earlier => directory.remove_others(&name, &prefix).map_err(sync_error(DUMP_FAILED)),
            Leftover::This => directory.remove(&name).map_err(sync_error(DUMP_FAILED)),
            Leftover::None => Ok(()),
        };
        let tidied = run_blocking(DUMP_FAILED, tidy).await;
        done.map_err(sync_error(DUMP_FAILED)).and(tidied)
    }

    /// What opens the directory for a memory dump. It blocks.
    fn dump_directory(
        &self,
        (vm, attachments): (&Vm, Attachments),
        dump: &MemoryDump,
    ) -> impl FnOnce() -> Result<DumpDirectory, ClaimError> + Send + use<> {
        let (namespace, claim) = (self.key.namespace.clone(), dump.claim().to_owned());
        let bytes = vm.memory().guest().get();
        let runtime = self.node.settings.runtime.clone();
        let claims = self.node.claims();
        move || {
            let name = (namespace.as_str(), claim.as_str());
            match (runtime, attachments.get(&claim)) {
                (Runtime::Process, _) => claims.dump_directory(name, bytes),
                (Runtime::Pods(pods), Some(pod)) => pod::dump_directory(pod, name, bytes, &pods),
                (Runtime::Pods(_), None) => Err(ClaimError::Absent { namespace, name: claim }),
            }
        }
    }
}

/// What a dump is called by, between the node agent and the launcher.
fn path(directory: &DumpDirectory, name: &str) -> String {
    directory.path().join(name).to_string_lossy().into_owned()
}

/// The files that are not needed any more.
#[derive(Debug, PartialEq, Eq)]
enum Leftover {
    /// Those of earlier dumps.
    Earlier,
    /// That of this one.
    This,
    /// None.
    None,
}

/// What is left over by the answer of a launcher that was asked for a dump. One that did not answer may be writing it.
fn leftover(answer: &Result<(), LinkError>) -> Leftover {
    match answer {
        Ok(()) => Leftover::Earlier,
        Err(LinkError::Fault(_) | LinkError::Unreachable(_) | LinkError::Version { .. }) => Leftover::This,
        // A launcher of an earlier release dumps no memory.
        Err(LinkError::Call(status)) if status.code() == tonic::Code::Unimplemented => Leftover::This,
        Err(LinkError::Call(_) | LinkError::Timeout(_)) => Leftover::None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use serde_json::json;
    use vireo_api::v1::VirtualMachineInstance;

    use super::*;
    use crate::node::Attachment;
    use crate::storage::{Claims, ImageReader};

    fn vm(volume: Option<&str>) -> Vm {
        let volumes: Vec<_> = volume
            .iter()
            .map(|name| json!({"name": name, "memoryDump": {"claimName": "dumps", "hotpluggable": true}}))
            .collect();
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}}, "volumes": volumes},
        }))
        .unwrap();
        Vm::try_from(&vmi).unwrap()
    }

    #[test]
    fn a_dump_is_written_once() {
        let (with, without) = (vm(Some("dumps")), vm(None));
        let dump = |volume: &str, ended| {
            let memory_dump = wire::MemoryDump { volume: volume.into(), ended, ..Default::default() };
            State { memory_dump: Some(memory_dump), ..State::default() }
        };
        let places = Places::Node(Claims::below("/claims".into(), ImageReader::InProcess));
        let idle = State::default();
        assert!(matches!(step(&with, &idle, &places), Some(Step::Begin(dump)) if dump.claim() == "dumps"));
        assert_eq!(step(&without, &idle, &places), None);
        assert_eq!(step(&with, &dump("dumps", 0), &places), None);
        assert_eq!(step(&with, &dump("dumps", 7), &places), None);
        assert_eq!(step(&without, &dump("dumps", 0), &places), None, "it is still written to");
        assert_eq!(step(&without, &dump("dumps", 7), &places), Some(Step::Forget));
        assert_eq!(step(&with, &dump("others", 7), &places), Some(Step::Forget));
    }

    #[test]
    fn a_dump_waits_for_the_attachment_pod_of_its_claim() {
        let wanted = vm(Some("dumps"));
        let attachment =
            Attachment { uid: "u".to_owned(), name: "hp".to_owned(), disks: BTreeMap::default() };
        let next = |claim: &str| {
            let places = Places::Pods([(claim.to_owned(), attachment.clone())].into());
            step(&wanted, &State::default(), &places).is_some()
        };
        assert!(next("dumps") && !next("other"));
    }

    #[test]
    fn files_are_named_after_vmi_and_volume_as_kubevirts() {
        assert_eq!(prefix("web", "dumps"), "web-dumps-");
    }

    #[test]
    fn a_file_that_may_be_written_is_not_removed() {
        let rejected = LinkError::Fault(Box::default());
        assert_eq!(leftover(&Err(rejected)), Leftover::This);
        assert_eq!(
            leftover(&Err(LinkError::Version { major: 9, minor: 0 })),
            Leftover::This,
            "it was not asked"
        );
        assert_eq!(leftover(&Err(LinkError::Timeout(Duration::from_secs(10)))), Leftover::None);
        let earlier = tonic::Status::unimplemented("an earlier release");
        assert_eq!(leftover(&Err(LinkError::Call(Box::new(earlier)))), Leftover::This);
        let broken = tonic::Status::unavailable("the connection broke");
        assert_eq!(leftover(&Err(LinkError::Call(Box::new(broken)))), Leftover::None);
        assert_eq!(leftover(&Ok(())), Leftover::Earlier);
    }
}
