//! What is remembered of one VMI, in memory and on disk.

use std::path::Path;

use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;
use vireo_api::spec::{Report, Vm};
use vireo_api::v1::VirtualMachineInstance;

use super::decide;
use super::status::{self, Phase};
use crate::manifests::document::Accepted;
use crate::manifests::{Key, Origin};
use crate::network::Plan;
use crate::state::{MachineDir, StateDir, StateError, read_json, write_json};

/// Which manifest a VMI came from, so that it is known after a restart when that file cannot be read.
pub(super) const MANIFEST_ANNOTATION: &str = "vireo.io/manifest";

/// An accepted VMI.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) uid: Uuid,
    pub(super) dir: MachineDir,
    pub(super) vmi: VirtualMachineInstance,
    pub(super) plan: Option<Plan>,
}

/// Why a VMI's directory does not give a record.
#[derive(Debug, Error)]
pub(super) enum RecordError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("{0} names another VMI than its directory")]
    Mismatch(String),
}

impl Record {
    /// Gives a manifest its UID, if it has none. Nothing is on disk yet.
    pub(super) fn new(state: &StateDir, manifest: &Accepted, origin: &Origin, now: &str) -> Self {
        let mut vmi = manifest.vmi.clone();
        let uid = match origin {
            Origin::Object(uid) => *uid,
            Origin::File(file) => {
                let uid = Uuid::new_v4();
                vmi.metadata.uid = uid.to_string();
                vmi.metadata.creation_timestamp = Some(now.to_owned());
                vmi.metadata.generation = Some(1);
                vmi.metadata.annotations.insert(MANIFEST_ANNOTATION.to_owned(), file.clone());
                uid
            }
        };
        Self { uid, dir: state.machine(uid), vmi, plan: None }
    }

    /// Reads a VMI's directory. `None`: no VMI was accepted there.
    pub(super) fn load(uid: Uuid, dir: MachineDir) -> Result<Option<Self>, RecordError> {
        let Some(vmi) = read_json::<VirtualMachineInstance>(&dir.vmi())? else { return Ok(None) };
        if vmi.metadata.uid != uid.to_string() || vmi.metadata.name.is_empty() {
            return Err(RecordError::Mismatch(dir.vmi().display().to_string()));
        }
        let plan = read_json(&dir.network())?;
        Ok(Some(Self { uid, dir, vmi, plan }))
    }

    pub(super) fn key(&self) -> Key {
        Key { namespace: self.vmi.metadata.namespace.clone(), name: self.vmi.metadata.name.clone() }
    }

    /// The manifest it came from.
    pub(super) fn file(&self) -> Option<&str> {
        self.vmi.metadata.annotations.get(MANIFEST_ANNOTATION).map(String::as_str)
    }

    pub(super) fn phase(&self) -> Phase {
        Phase::parse(&self.vmi.status.phase)
    }

    pub(super) fn leaving(&self) -> bool {
        self.vmi.metadata.deletion_timestamp.is_some()
    }

    /// Why its guest is to end, if its livenessProbe failed.
    pub(super) fn unhealthy(&self) -> Option<&str> {
        status::unhealthy(&self.vmi.status)
    }

    /// Whether its guest is to end because its launcher Pod is being deleted.
    pub(super) fn stopped(&self) -> bool {
        status::stopped_since(&self.vmi.status).is_some()
    }

    /// What decisions look at. What its manifest says by now is not known here.
    pub(super) fn facts(&self) -> decide::Record {
        decide::Record {
            is_final: self.phase().is_final(),
            leaving: self.leaving(),
            unhealthy: self.unhealthy().is_some(),
            stopped: self.stopped(),
            started: self.started(),
            has_network: self.plan.is_some(),
            outdated: false,
        }
    }

    /// Its guest has run.
    pub(super) fn started(&self) -> bool {
        let mut noted = self.vmi.status.phase_transition_timestamps.iter();
        self.phase() == Phase::Running || noted.any(|entry| entry.phase == Phase::Running.as_str())
    }

    /// Nobody wants its guest to go on.
    pub(super) fn ends(&self) -> bool {
        self.facts().ends()
    }

    /// Since when, where that is recorded.
    pub(super) fn ends_since(&self) -> Option<Timestamp> {
        let since = match &self.vmi.metadata.deletion_timestamp {
            Some(since) => since.as_str(),
            None => status::unhealthy_since(&self.vmi.status)
                .or_else(|| status::stopped_since(&self.vmi.status))?,
        };
        since.parse().ok()
    }

    /// What it means. It was checked when it was accepted; a later release may read it differently.
    pub(super) fn vm(&self) -> Result<Vm, Report> {
        Vm::try_from(&self.vmi)
    }

    /// Seconds the guest gets to shut down.
    pub(super) fn grace(&self) -> u64 {
        grace(&self.vmi)
    }

    /// Whether a manifest asks for something else than this.
    pub(super) fn differs(&self, manifest: &Accepted) -> bool {
        let mut annotations = self.vmi.metadata.annotations.clone();
        annotations.remove(MANIFEST_ANNOTATION);
        self.vmi.spec != manifest.vmi.spec
            || annotations != manifest.vmi.metadata.annotations
            || self.vmi.metadata.labels != manifest.vmi.metadata.labels
    }

    /// Writes the VMI down.
    pub(super) fn write(&self) -> Result<(), StateError> {
        write_json(&self.dir.vmi(), &self.vmi)
    }

    /// Writes the network down, before any of it is made.
    pub(super) fn write_plan(&self) -> Result<(), StateError> {
        match &self.plan {
            Some(plan) => write_json(&self.dir.network(), plan),
            None => Ok(remove_file(&self.dir.network())?),
        }
    }
}

/// Seconds a guest gets to shut down. Read from the wire form, so that it is known of every VMI.
pub(crate) fn grace(vmi: &VirtualMachineInstance) -> u64 {
    let given = vmi.spec.termination_grace_period_seconds;
    given.map_or(30, |seconds| u64::try_from(seconds).unwrap_or(0))
}

fn remove_file(path: &Path) -> Result<(), StateError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(StateError::Io { verb: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// The current time as the API writes it: RFC 3339, in seconds.
pub(super) fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}
