//! Which VMs of a pool come first.

use vireo_api::v1::VirtualMachinePoolSelectionPolicy;

use super::{Member, number};
use crate::selector;

/// What `sortPolicy` may be.
pub const SORT_POLICIES: [&str; 5] = ["AscendingOrder", "DescendingOrder", "Newest", "Oldest", "Random"];

/// The VMs that a policy chooses, in its order.
pub(super) fn by<'a>(
    policy: Option<&VirtualMachinePoolSelectionPolicy>,
    members: &[Member<'a>],
) -> Vec<Member<'a>> {
    let labels = policy.and_then(|policy| policy.selectors.as_ref()?.label_selector.as_ref());
    let chosen = |member: &&Member<'_>| {
        labels.is_none_or(|labels| selector::matches(labels, &member.vm.metadata.labels))
    };
    let mut members: Vec<Member<'a>> = members.iter().filter(chosen).copied().collect();
    let position = |member: &Member<'_>| {
        let owner = member.vm.metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
        owner.and_then(|owner| number(&owner.name, &member.vm.metadata.name)).unwrap_or(0)
    };
    let made = |member: &Member<'_>| member.vm.metadata.creation_timestamp.clone();
    match policy.and_then(|policy| policy.sort_policy.as_deref()) {
        Some("AscendingOrder") => members.sort_by_key(position),
        Some("DescendingOrder") => members.sort_by_key(|member| std::cmp::Reverse(position(member))),
        Some("Newest") => members.sort_by_key(|member| std::cmp::Reverse(made(member))),
        Some("Oldest") => members.sort_by_key(made),
        // UIDs are random, and stay what they are between reconciliations.
        _ => members.sort_by(|one, other| one.vm.metadata.uid.cmp(&other.vm.metadata.uid)),
    }
    members
}
