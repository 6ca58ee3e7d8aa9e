//! What the start of a VMI costs the API server, by its audit log.

use std::collections::BTreeMap;

use vireo_tests::HostError;
use vireo_tests::audit::{AuditLog, Write};
use vireo_tests::cluster::Cluster;

use super::{LIMIT, Vireo};
use crate::scenarios::probes::condition;

/// The accounts of Vireo's components.
const ACCOUNTS: &str = "system:serviceaccount:kubevirt:";
/// The most that a start may take beside its Pod: it is handed over to its node, Scheduling, and Running.
const MOST: usize = 3;
/// As `guest::runs`, with nothing to boot.
const VMI: &str = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: counted}\nspec:\n  terminationGracePeriodSeconds: 0\n  domain: {memory: {guest: 64Mi}, devices: {autoattachGraphicsDevice: false}}\n";

/// A VMI becomes ready with few writes of Vireo's: one of its Pod, and [`MOST`] others. Events are another matter, and
/// reported. What the kubelet and the scheduler write of the Pod is Kubernetes' own.
pub(super) fn are_few(vireo: &Vireo<'_>, cluster: &Cluster) -> Result<(), HostError> {
    vireo.step("the writes of a start are counted");
    let log = AuditLog::begin(&cluster.audit_log()).expect("an audit log");
    vireo.feed("apply -f -", VMI);
    let vmi = vireo.becomes("vmi counted", "is ready", |vmi| condition(vmi, "Ready")["status"] == "True")?;
    let writes = log.writes().expect("the audit log is read");
    let ours = |write: &&Write| write.namespace == vireo.namespace && write.user.starts_with(ACCOUNTS);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for write in writes.iter().filter(ours) {
        let account = &write.user[ACCOUNTS.len()..];
        *counts.entry(format!("{account} {} {}", write.verb, write.resource)).or_default() += 1;
    }
    let of =
        |wanted: &dyn Fn(&Write) -> bool| writes.iter().filter(ours).filter(|write| wanted(write)).count();
    let is_event = |write: &Write| write.resource == "events";
    let is_pod = |write: &Write| (&*write.verb, &*write.resource) == ("create", "pods");
    let (events, pods) = (of(&is_event), of(&is_pod));
    let others = of(&|write| !is_event(write) && !is_pod(write));
    eprintln!(
        "cluster: a start takes {pods} writes of its Pod, {others} others and {events} events: {counts:?}"
    );
    assert_eq!(pods, 1, "{counts:?}");
    assert!(events > 0, "the audit log has none of a start: {counts:?}");
    assert!(
        (1..=MOST).contains(&others),
        "{others} writes beside the Pod's, at most {MOST}: {counts:?}\n{vmi:#}"
    );
    vireo.ok(&format!("delete vmi counted {LIMIT}"));
    vireo.gone("counted")
}
