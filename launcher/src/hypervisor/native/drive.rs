use tokio::sync::{mpsc, watch};
use vireo_vmm::Controls;

use crate::hypervisor::Order;

/// Passes orders on to the machine there is, until there is none and will be none.
///
/// A kill holds across a reset: the machine that comes after it dies too.
pub(super) async fn drive(
    mut orders: mpsc::UnboundedReceiver<Order>,
    mut current: watch::Receiver<Option<Controls>>,
) {
    let mut killed = false;
    loop {
        tokio::select! {
            order = orders.recv(), if !killed => match order {
                Some(Order::PowerButton) => with(&current, Controls::power_button),
                // An owner that let go wants nothing else either.
                Some(Order::Kill) | None => {
                    killed = true;
                    with(&current, Controls::kill);
                }
            },
            changed = current.changed() => {
                if changed.is_err() {
                    return;
                }
                if killed {
                    with(&current, Controls::kill);
                }
            }
        }
    }
}

fn with(current: &watch::Receiver<Option<Controls>>, act: impl FnOnce(&Controls)) {
    if let Some(controls) = current.borrow().as_ref() {
        act(controls);
    }
}
