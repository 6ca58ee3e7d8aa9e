use jiff::Timestamp;
use serde_json::Value;
use vireo_api::v1::{
    Condition, PhaseTransitionTimestamp, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceTemplateSpec,
};

use super::super::memory_dump::DumpVolume;
use super::super::*;
use crate::data_volume::tests::Cluster;

/// One VM, and what a cluster does with it.
pub(super) struct World {
    pub(super) vm: VirtualMachine,
    pub(super) instance: Option<VirtualMachineInstance>,
    pub(super) revision: Option<Value>,
    /// What the VM's choices make of its template.
    pub(super) expanded: Option<Result<VirtualMachineInstanceTemplateSpec, String>>,
    /// Its claims and DataVolumes.
    pub(super) storage: Cluster,
    /// Why no DataVolumes can be created.
    pub(super) refused: Option<&'static str>,
    /// An action on the VMI that is refused.
    pub(super) refused_action: Option<Refusable>,
    pub(super) now: Timestamp,
    pub(super) again: Option<Timestamp>,
    /// Whether guests come as far as running; else they fail on the way.
    pub(super) guests_run: bool,
    /// Instances so far.
    pub(super) created: u32,
}

impl World {
    pub(super) fn new(strategy: &str) -> Self {
        let mut vm = VirtualMachine::default();
        vm.metadata.name = "web".to_owned();
        vm.metadata.uid = "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1".to_owned();
        vm.metadata.generation = Some(3);
        vm.spec.run_strategy = Some(strategy.to_owned());
        vm.spec.template = Some(VirtualMachineInstanceTemplateSpec::default());
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        Self {
            vm,
            instance: None,
            revision: None,
            expanded: None,
            storage: Cluster { has_cdi: true, ..Cluster::default() },
            refused: None,
            refused_action: None,
            now,
            again: None,
            guests_run: true,
            created: 0,
        }
    }

    /// Decides once and does it; whether there was anything to do.
    pub(super) fn step(&mut self) -> bool {
        let (vm, instance, revision) = (&self.vm, self.instance.as_ref(), self.revision.as_ref());
        let expanded = self.expanded.as_ref().map(|expanded| expanded.as_ref().map_err(String::as_str));
        let provision = &Provision::of(vm, &self.storage);
        let of_templates = self.refused.map(|message| (Refusable::CreateDataVolumes, message));
        let refused = of_templates.or(self.refused_action.map(|action| (action, "not allowed")));
        let refused = refused.map(|(action, message)| Refused { action, message: message.to_owned() });
        let refused = refused.as_ref();
        let (now, jitter) = (self.now, 1.0);
        let decision = decide(Observed { vm, instance, revision, expanded, provision, refused, now, jitter });
        self.again = decision.requeue_at;
        let changed = self.vm.status != decision.status;
        self.vm.status = decision.status;
        let waits = match &decision.action {
            Action::Wait => true,
            Action::CreateDataVolumes(_) => self.refused.is_some(),
            action => self.refuses(action),
        };
        if !self.refuses(&decision.action) {
            self.perform(decision.action);
        }
        let lived = self.live();
        changed || !waits || lived
    }

    fn refuses(&self, action: &Action) -> bool {
        self.refused_action.is_some() && Refusable::of(action) == self.refused_action
    }

    /// Until there is nothing more to do now.
    pub(super) fn settle(&mut self) {
        for _ in 0..200 {
            if !self.step() {
                return;
            }
        }
        panic!("it never settles: {:#?}", self.vm.status);
    }

    fn perform(&mut self, step: Action) {
        match step {
            Action::Wait => {}
            Action::AddFinalizer => self.vm.metadata.finalizers.push(FINALIZER.to_owned()),
            Action::CreateDataVolumes(templates) => {
                for template in templates.into_iter().filter(|_| self.refused.is_none()) {
                    let name = &self.vm.spec.data_volume_templates[template].metadata.name;
                    self.storage.add_data_volume(name, serde_json::json!({}));
                }
            }
            Action::CreateVmi(start) => {
                assert!(self.instance.is_none(), "there is one already");
                let Start { revision, mut instance } = *start;
                self.created += 1;
                instance.metadata.uid = format!("instance-{}", self.created);
                assert_eq!(Revision::name_for(&self.vm, &instance), Some(revision.name));
                self.revision = Some(revision.data);
                self.instance = Some(instance);
            }
            Action::ApplyVolumes(request) => {
                let template = self.vm.spec.template.as_mut().map(|template| &mut template.spec);
                let instance = self.instance.as_mut().map(|instance| &mut instance.spec);
                for spec in [template, instance].into_iter().flatten() {
                    volumes::apply(&request, spec);
                }
            }
            Action::SyncInstance(change) => {
                let instance = self.instance.as_mut().unwrap();
                change.apply(&mut instance.spec);
                if change.changes_template() {
                    change.apply_to_template(&mut self.vm.spec.template.as_mut().unwrap().spec);
                }
                let mut object =
                    serde_json::json!({"metadata": {"annotations": instance.metadata.annotations}});
                change.unmark(&mut object);
                let annotations = object["metadata"]["annotations"].take();
                instance.metadata.annotations = serde_json::from_value(annotations).unwrap();
            }
            Action::ApplyMemoryDump(DumpVolume { claim, in_template, in_vmi }) => {
                let template = self.vm.spec.template.as_mut().map(|template| &mut template.spec);
                let instance = self.instance.as_mut().map(|instance| &mut instance.spec);
                for (spec, wanted) in [(template, in_template), (instance, in_vmi)] {
                    if let (Some(spec), Some(wanted)) = (spec, wanted) {
                        let mut object = serde_json::json!({ "spec": spec });
                        memory_dump::set_volume(&mut object, SpecOwner::Vmi, &claim, wanted);
                        *spec = serde_json::from_value(object["spec"].take()).unwrap();
                    }
                }
            }
            Action::DeleteVmi => {
                assert!(self.instance.is_some(), "there is none");
                self.delete_instance();
            }
            Action::ReleaseVmi => {
                let instance = self.instance.as_mut().unwrap();
                instance.metadata.finalizers.retain(|one| one != FINALIZER);
            }
            Action::SetRunStrategy(strategy) => self.vm.spec.run_strategy = Some(strategy.to_string()),
            Action::RemoveFinalizer => self.vm.metadata.finalizers.retain(|one| one != FINALIZER),
        }
    }

    /// What the node does: whether anything.
    fn live(&mut self) -> bool {
        let Some(instance) = &mut self.instance else { return false };
        let deleting = instance.metadata.deletion_timestamp.is_some();
        let next = match (instance.status.phase.as_str(), deleting) {
            ("Succeeded" | "Failed", true) if instance.metadata.finalizers.is_empty() => {
                self.instance = None;
                return true;
            }
            ("Succeeded" | "Failed", _) | ("Running", false) => return false,
            ("Running", true) => "Succeeded",
            (_, true) => "Failed",
            ("", false) => "Scheduled",
            (_, false) if self.guests_run => "Running",
            (_, false) => "Failed",
        };
        reach(instance, next);
        true
    }

    pub(super) fn runs(&self) -> bool {
        self.phase() == Some("Running")
    }

    pub(super) fn phase(&self) -> Option<&str> {
        self.instance.as_ref().map(|instance| instance.status.phase.as_str())
    }

    pub(super) fn uid(&self) -> String {
        self.instance.as_ref().unwrap().metadata.uid.clone()
    }

    /// The guest ends, if there is one.
    pub(super) fn ends(&mut self, phase: &str) {
        if let Some(instance) = self.instance.as_mut().filter(|one| one.status.phase == "Running") {
            reach(instance, phase);
        }
    }

    pub(super) fn delete_instance(&mut self) {
        if let Some(instance) = &mut self.instance {
            instance.metadata.deletion_timestamp = Some(self.now.to_string());
        }
    }

    pub(super) fn delete_vm(&mut self) {
        self.vm.metadata.deletion_timestamp = Some(self.now.to_string());
    }

    pub(super) fn start(&mut self, options: StartOptions) -> Result<Writes, Rejection> {
        start(&mut self.vm, self.instance.as_ref(), options)
    }

    pub(super) fn stop(&mut self, options: StopOptions) -> Result<Writes, Rejection> {
        let asked = stop(&mut self.vm, self.instance.as_ref(), options)?;
        self.shorten_grace(asked);
        Ok(asked)
    }

    pub(super) fn restart(&mut self, options: RestartOptions) -> Result<Writes, Rejection> {
        let asked = restart(&mut self.vm, self.instance.as_ref(), options)?;
        self.shorten_grace(asked);
        Ok(asked)
    }

    fn shorten_grace(&mut self, asked: Writes) {
        if let Some(seconds) = asked.grace_period {
            self.instance.as_mut().unwrap().spec.termination_grace_period_seconds = Some(seconds);
        }
    }
}

fn reach(instance: &mut VirtualMachineInstance, phase: &str) {
    let status = &mut instance.status;
    status.phase = phase.to_owned();
    let transition = PhaseTransitionTimestamp { phase: phase.to_owned(), ..Default::default() };
    status.phase_transition_timestamps.push(transition);
    let ready = if phase == "Running" { "True" } else { "False" };
    let ready = Condition { r#type: "Ready".into(), status: ready.into(), ..Condition::default() };
    status.conditions = vec![ready];
}
