//! The controller of VirtualMachinePools: carries out what [`vireo_operators::pool`] decides.

mod hands;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use vireo_api::v1::{
    POOL_KIND, VirtualMachine, VirtualMachineInstance, VirtualMachinePool, VirtualMachineTemplateSpec,
};
use vireo_operators::pool::{self, Member, Seen, Step};

use crate::children::{Children, Whose, without_spec};
use crate::rounds::{self, Due};
use crate::store::{DiskError, Event, Follower, Key, News, Object, Store};
use crate::{meta, place};
use hands::Hands;

/// How soon what could not be created or written is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// What is remembered from round to round.
#[derive(Debug)]
struct Rounds {
    follower: Follower,
    machines: Children<VirtualMachine>,
    instances: Children<VirtualMachineInstance>,
    revisions: Children<VirtualMachineTemplateSpec>,
    /// Why the last machine of a pool could not be created or changed.
    failures: BTreeMap<Key, String>,
    due: Due,
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            follower: Follower::default(),
            machines: Children::of(place::vms(), without_spec),
            instances: Children::of(place::vmis(), without_spec),
            revisions: Children::of(place::revisions(), template),
            failures: BTreeMap::new(),
            due: Due::default(),
        }
    }
}

/// The template in a revision of a pool.
fn template(revision: &Value) -> Option<VirtualMachineTemplateSpec> {
    serde_json::from_value(revision.pointer("/data/virtualMachineTemplate")?.clone()).ok()
}

/// Controls until the store is gone.
pub async fn run(store: Arc<Store>) {
    rounds::go(store, "pools", |store, rounds: &mut Rounds| rounds.round(store)).await;
}

impl Rounds {
    /// Looks at every pool that may have something to do; how long nothing is to be done if nothing changes. Blocks.
    fn round(&mut self, store: &Store) -> Option<Duration> {
        let now = Timestamp::now();
        let soon = now.checked_add(RETRY).unwrap_or(now);
        let changed = self.changed(store);
        let mut due = std::mem::take(&mut self.due);
        let wait = due.round(changed, now, |key| {
            let Some(object) = store.get(key) else {
                self.failures.remove(key);
                return None;
            };
            let next = self.control(store, &object, now).unwrap_or_else(|error| {
                tracing::warn!(%error, "a pool cannot be written; it is tried again");
                Some(soon)
            });
            let retry = self.failures.contains_key(key).then_some(soon);
            [next, retry].into_iter().flatten().min()
        });
        self.due = due;
        wait
    }

    fn changed(&mut self, store: &Store) -> BTreeSet<Key> {
        match self.follower.look(store) {
            News::Everything => {
                self.machines.fill(store);
                self.instances.fill(store);
                self.revisions.fill(store);
                let pools = store.list(&place::pools().name(), None).objects;
                pools.into_iter().map(|object| object.key.clone()).collect()
            }
            News::These(events) => events.iter().flat_map(|event| self.concerned(event)).collect(),
        }
    }

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
            Whose::Owner(_) | Whose::Nobody(_) => None,
        };
        whose.into_iter().filter_map(pool).collect()
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
        let failure = self.failures.get(&object.key).map(String::as_str);
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
        match failure {
            Some(why) => self.failures.insert(object.key.clone(), why),
            None => self.failures.remove(&object.key),
        };
        Ok(verdict.again)
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
