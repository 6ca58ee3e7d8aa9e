//! The namespace of a VM, and its wire to the host: made with the mark of the VMI, or found by it.

use std::fs::File;
use std::os::fd::AsFd as _;

use tracing::warn;

use super::{LOOPBACK, NetworkError, POD_INTERFACE, Plan, in_namespace, link, namespace_error, netns, owner};

/// Makes the namespace with the mark of its VMI, or finds it.
pub(super) fn make_namespace(plan: &Plan) -> Result<(), NetworkError> {
    let mark = plan.mark();
    let set_mark = move || match mark {
        Some(mark) => link::with_links(async |links| links.set_alias(LOOPBACK, &mark).await),
        None => Ok(()),
    };
    netns::create(&plan.namespace, set_mark).map_err(namespace_error("make", plan))??;
    verify_namespace(plan)
}

/// Fails when a namespace is not the VM's.
pub(super) fn verify_namespace(plan: &Plan) -> Result<(), NetworkError> {
    let (path, Some(mark)) = (netns::path(&plan.namespace), plan.mark()) else { return Ok(()) };
    let what = format!("the network namespace {}", plan.namespace);
    in_namespace(&path, move || {
        link::with_links(async |links| owner::verify(&links, LOOPBACK, &mark, &what).await)
    })
}

/// Fails when the host's end of a wire exists and is not the VM's. Returns whether it exists.
pub(super) fn find_wire(plan: &Plan) -> Result<bool, NetworkError> {
    let (name, mark) = (&plan.host_link, plan.mark());
    link::with_links(async |links| {
        if !links.exists(name).await? {
            return Ok(false);
        }
        if let Some(mark) = &mark {
            owner::verify(&links, name, mark, &format!("the interface {name}")).await?;
        }
        Ok(true)
    })
}

/// Makes the wire in the VM's namespace, where nothing else is, marks it, and moves an end of it to the host. That fails when
/// the host has an interface of its name.
pub(super) fn make_wire(plan: &Plan) -> Result<(), NetworkError> {
    if find_wire(plan)? {
        return Ok(());
    }
    let host = File::open("/proc/thread-self/ns/net").map_err(namespace_error("enter", plan))?;
    let (name, mark) = (plan.host_link.clone(), plan.mark());
    in_namespace(&netns::path(&plan.namespace), move || {
        link::with_links(async |links| {
            links.add_veth(&name, POD_INTERFACE).await?;
            if let Some(mark) = &mark {
                links.set_alias(&name, mark).await?;
            }
            links.move_to(&name, host.as_fd()).await
        })
    })
}

/// `None` where a part is not the VM's, which is logged.
pub(super) fn unless_foreign<T>(found: Result<T, NetworkError>) -> Result<Option<T>, NetworkError> {
    match found {
        Err(error @ NetworkError::Foreign { .. }) => {
            warn!("{error}");
            Ok(None)
        }
        other => other.map(Some),
    }
}
