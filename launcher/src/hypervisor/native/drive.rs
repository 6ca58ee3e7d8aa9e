use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use vireo_vmm::Controls;

use super::stall::{News, Stalls};
use super::wishes::Wishes;
use crate::hypervisor::{Event, Order};

/// A guest as its orders reach it.
pub(super) struct Driven {
    pub(super) wishes: Arc<Wishes>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// The machine there is; `None` between two.
    pub(super) current: watch::Receiver<Option<Controls>>,
    pub(super) stalls: Stalls,
}

impl Driven {
    /// Passes orders on to the machine there is, until there is none and will be none.
    ///
    /// A kill holds across a reset: the machine that comes after it dies too. So does a pause.
    ///
    /// While a request of a disk is held, the processors stand still: to the guest no time passes in which it could give
    /// up. The disk's worker tries again by itself.
    pub(super) async fn run(
        mut self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        mut failures: mpsc::UnboundedReceiver<News>,
    ) {
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
                Some(news) = failures.recv(), if !killed => self.disk_failed(news).await,
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
                match self.stalls.any() {
                    true => self.stalls.retry(),
                    false => self.with(Controls::resume),
                }
                self.tell(Event::Resumed);
            }
            Order::Kill => self.with(Controls::kill),
        }
    }

    /// A request of a disk is held, is still held, or is no more.
    async fn disk_failed(&mut self, news: News) {
        let failures = self.stalls.hear(news);
        if self.stalls.any() {
            self.pause().await;
        } else if !self.wishes.paused() {
            self.with(Controls::resume);
        }
        self.tell(Event::DisksFailed(failures));
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
