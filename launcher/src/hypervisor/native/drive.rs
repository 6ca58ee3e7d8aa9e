use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use vireo_vmm::Controls;

use super::wishes::Wishes;
use crate::hypervisor::{Event, Order};

/// A guest as its orders reach it.
pub(super) struct Driven {
    pub(super) wishes: Arc<Wishes>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// The machine there is; `None` between two.
    pub(super) current: watch::Receiver<Option<Controls>>,
}

impl Driven {
    /// Passes orders on to the machine there is, until there is none and will be none.
    ///
    /// A kill holds across a reset: the machine that comes after it dies too. So does a pause.
    pub(super) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut killed = false;
        loop {
            tokio::select! {
                order = orders.recv(), if !killed => match order {
                    // An owner that let go wants nothing else either.
                    Some(Order::Kill) | None => {
                        killed = true;
                        self.with(Controls::kill);
                    }
                    Some(order) => self.follow(order).await,
                },
                changed = self.current.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    if killed {
                        self.with(Controls::kill);
                    } else if self.wishes.paused() {
                        // It may have been started before that was wanted.
                        self.pause().await;
                    }
                }
            }
        }
    }

    async fn follow(&self, order: Order) {
        match order {
            Order::PowerButton => {
                self.wishes.reboot_softly(false);
                self.with(Controls::power_button);
            }
            Order::SoftReboot => {
                self.wishes.reboot_softly(true);
                self.with(Controls::power_button);
            }
            Order::Reset => self.with(Controls::reset),
            Order::Pause => {
                self.wishes.pause(true);
                self.pause().await;
                self.tell(Event::Paused);
            }
            Order::Resume => {
                self.wishes.pause(false);
                self.with(Controls::resume);
                self.tell(Event::Resumed);
            }
            Order::Kill => self.with(Controls::kill),
        }
    }

    /// Processors stop once they are back from the devices, which may block.
    async fn pause(&self) {
        let Some(controls) = self.current.borrow().clone() else { return };
        if tokio::task::spawn_blocking(move || controls.pause()).await.is_err() {
            tracing::error!("pausing the machine broke off");
        }
    }

    fn with(&self, act: impl FnOnce(&Controls)) {
        if let Some(controls) = self.current.borrow().as_ref() {
            act(controls);
        }
    }

    fn tell(&self, event: Event) {
        // The owner may have let go.
        let _ = self.events.send(event);
    }
}
