//! The controller of VirtualMachinePools: carries out what [`vireo_operators::pool`] decides.

mod hands;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use vireo_api::v1::{
    POOL_KIND, VirtualMachine, VirtualMachineInstance, VirtualMachinePool, VirtualMachineTemplateSpec,
};
use vireo_operators::pool::{self, Member, Seen, Step};

use crate::owner_index::{Children, Whose, without_spec};
use crate::place;
use hands::Hands;
use vireo_apiserver::controller::{self, Controller, Failures};
use vireo_apiserver::meta;
use vireo_apiserver::store::{Changes, DiskError, Event, Follower, Key, Object, Store};

/// What is remembered from round to round.
#[derive(Debug)]
struct Pools {
    follower: Follower,
    machines: Children<VirtualMachine>,
    instances: Children<VirtualMachineInstance>,
    revisions: Children<VirtualMachineTemplateSpec>,
    /// Why the last machine of a pool could not be created or changed.
    failures: Failures,
}

impl Default for Pools {
    fn default() -> Self {
        Self {
            follower: Follower::default(),
            machines: Children::of(place::vms(), without_spec),
            instances: Children::of(place::vmis(), without_spec),
            revisions: Children::of(place::revisions(), template),
            failures: Failures::default(),
        }
    }
}

/// The template in a revision of a pool.
fn template(revision: &Value) -> Option<VirtualMachineTemplateSpec> {
    serde_json::from_value(revision.pointer("/data/virtualMachineTemplate")?.clone()).ok()
}

/// Controls until the store is gone.
pub async fn run(store: Arc<Store>) {
    controller::control(store, Pools::default).await;
}

impl Controller for Pools {
    const NAME: &'static str = "pools";

    fn changed(&mut self, store: &Store) -> BTreeSet<Key> {
        match self.follower.look(store) {
            Changes::Relist => {
                self.machines.fill(store);
                self.instances.fill(store);
                self.revisions.fill(store);
                let pools = store.list(&place::pools().name(), None).objects;
                pools.into_iter().map(|object| object.key.clone()).collect()
            }
            Changes::Delta(events) => events.iter().flat_map(|event| self.concerned(event)).collect(),
        }
    }

    fn control(
        &mut self,
        store: &Store,
        object: &Arc<Object>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, DiskError> {
        // What is stored was read when it was admitted; a later release may read it otherwise.
        let Ok(pool) = serde_json::from_value::<VirtualMachinePool>(object.value.clone()) else {
            return Ok(None);
        };
        let (uid, namespace) = (&pool.metadata.uid, &object.key.namespace);
        let member = |(key, machine): (&Key, _)| Member {
            machine,
            instance: self.instances.get(&place::vmis().key(namespace, &key.name)),
        };
        let members: Vec<Member<'_>> = self.machines.owned_by(uid).map(member).collect();
        let revisions = self.revisions.owned_by(uid);
        let revisions = revisions.map(|(key, template)| (key.name.clone(), template.clone())).collect();
        let failure = self.failures.of(&object.key);
        let seen = Seen { pool: &pool, members: &members, revisions: &revisions, failure, now };
        let is_taken = |name: &str| store.get(&place::vms().key(namespace, name)).is_some();
        let verdict = pool::decide(seen, is_taken);

        let status = serde_json::to_value(&verdict.status).unwrap_or_default();
        place::change(store, object, |value| {
            value["status"] = status;
            !meta::is_leaving(value) || place::is_held(value)
        })?;
        let hands = Hands { store, pool: &pool, members: &members };
        hands.tell_of_pause(verdict.paused)?;
        let failure = carry_out(&hands, verdict.steps)?;
        let retry = self.failures.note(&object.key, failure, now);
        Ok([verdict.again, retry].into_iter().flatten().min())
    }

    fn forget(&mut self, key: &Key) {
        self.failures.forget(key);
    }
}

impl Pools {
    /// The pools that a write concerns.
    fn concerned(&mut self, event: &Event) -> Vec<Key> {
        if event.key.resource == place::pools().name() {
            return vec![event.key.clone()];
        }
        let mut whose = self.machines.heed(event);
        whose.extend(self.revisions.heed(event));
        if !self.instances.heed(event).is_empty() {
            let machine = place::vms().key(&event.key.namespace, &event.key.name);
            whose.extend(self.machines.whose(&machine).cloned());
        }
        let pool = |whose: Whose| match whose {
            Whose::Owner(owner) if owner.kind == POOL_KIND => {
                Some(place::pools().key(&owner.namespace, &owner.name))
            }
            Whose::Owner(_) | Whose::Nobody => None,
        };
        whose.into_iter().filter_map(pool).collect()
    }
}

/// Does one step after the other, up to the first that is refused: what one machine is refused for, all are. Why it was.
fn carry_out(hands: &Hands<'_>, steps: Vec<Step>) -> Result<Option<String>, DiskError> {
    for step in steps {
        let refused = hands.act(step)?;
        if refused.is_some() {
            return Ok(refused);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
