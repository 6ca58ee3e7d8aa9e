use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use vireo_proto::launcher::{DiskFailure, Fault, PluggedVolume};

use crate::fault::{Code, fault};
use crate::host::DiskFiles;
use crate::launch::Disk;

use super::figures::{Meter, Readings};

/// A machine on its way up.
pub type Starting = Pin<Box<dyn Future<Output = Result<Guest, Fault>> + Send>>;

/// How long after [`Order::SoftReboot`] a guest that switches itself off is thought to follow it.
pub const SOFT_REBOOT: Duration = Duration::from_secs(300);

/// How many volumes may wait to be plugged in or out.
const PLUGS: usize = 16;

/// What a running machine can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Press the ACPI power button.
    PowerButton,
    /// Press it, and start again if the guest switches itself off within [`SOFT_REBOOT`]. [`Order::PowerButton`] takes
    /// that back.
    SoftReboot,
    /// Press the reset button.
    Reset,
    /// Stop the CPUs until [`Order::Resume`]; answered by [`Event::Paused`], also where they stand still already.
    Pause,
    /// Let them go on; answered by [`Event::Resumed`]. What is held because disks failed is tried at once.
    Resume,
    /// Die now.
    Kill,
}

/// What happens to a running machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The guest rebooted itself and runs again.
    Rebooted,
    /// The firmware found nothing to start.
    NoBootDevice,
    /// The CPUs stand still because that was ordered.
    Paused,
    /// The CPUs go on, as far as orders are concerned.
    Resumed,
    /// The host cannot carry out requests of these disks now, and of no others. While there are any, the requests are
    /// held, tried again, and the CPUs stand still. Told again each time that one fails again.
    DisksFailed(Vec<DiskFailure>),
    /// These volumes are plugged in now, and no others.
    Plugged(Vec<PluggedVolume>),
    /// It is gone. Nothing follows.
    Ended(End),
}

/// What is to be plugged, and who waits for it.
#[derive(Debug)]
pub struct Plugging {
    /// In or out.
    pub plug: Plug,
    /// Answered once it is done, or cannot be.
    pub reply: oneshot::Sender<Option<Fault>>,
}

/// A volume that is to be plugged in or out.
#[derive(Debug)]
pub enum Plug {
    /// In, from its open and locked files.
    In(Box<Disk>, DiskFiles),
    /// Out, by its name.
    Out(String),
}

/// How a machine ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The guest powered off.
    PoweredOff,
    /// The guest rebooted, and that ends this machine.
    Rebooted,
    /// It was told to die.
    Killed,
    /// The guest's kernel panicked or its CPU faulted beyond recovery.
    Crashed(String),
    /// The hypervisor gave up.
    Failed(Fault),
}

/// The owner's side of a running machine. Dropping it kills the machine.
#[derive(Debug)]
pub struct Guest {
    orders: mpsc::UnboundedSender<Order>,
    plugs: mpsc::Sender<Plugging>,
    events: mpsc::UnboundedReceiver<Event>,
    meter: Meter,
    ended: bool,
}

/// The hypervisor's side of a running machine.
#[derive(Debug)]
pub struct GuestEnd {
    /// What its owner wants; closed when the owner let go, which means [`Order::Kill`].
    pub orders: Controls,
    /// Volumes to plug in and out; a hypervisor that cannot lets go of it.
    pub plugs: mpsc::Receiver<Plugging>,
    /// Where to say what happens.
    pub events: Events,
    /// Who wants to know what the machine has used.
    pub readings: Readings,
}

/// Orders for a machine, in the order they were given.
pub type Controls = mpsc::UnboundedReceiver<Order>;

/// What happens to a machine, in the order it happens.
pub type Events = mpsc::UnboundedSender<Event>;

/// Two sides of one machine.
pub fn guest() -> (Guest, GuestEnd) {
    let (orders, controls) = mpsc::unbounded_channel();
    let (events, receiver) = mpsc::unbounded_channel();
    let (plugs, plugged) = mpsc::channel(PLUGS);
    let (meter, readings) = Meter::new();
    let guest = Guest { orders, plugs, events: receiver, meter, ended: false };
    (guest, GuestEnd { orders: controls, plugs: plugged, events, readings })
}

impl Guest {
    /// Tells the machine something. A machine that is gone does not hear it.
    pub fn order(&self, order: Order) {
        // The only error is that the other side is gone, and then `next` says so.
        let _ = self.orders.send(order);
    }

    /// Plugs a volume in or out, in its own time.
    pub fn plug(&self, plugging: Plugging) {
        let (plugging, fault) = match self.plugs.try_send(plugging) {
            Ok(()) => return,
            Err(mpsc::error::TrySendError::Full(plugging)) => {
                (plugging, fault(Code::Conflict, "many volumes wait to be plugged in or out already"))
            }
            Err(mpsc::error::TrySendError::Closed(plugging)) => (
                plugging,
                fault(Code::Unsupported, "the hypervisor of this machine cannot plug volumes in or out"),
            ),
        };
        // The caller may have hung up.
        let _ = plugging.reply.send(Some(fault));
    }

    /// Where to read what the machine has used.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// The next thing that happens. After [`Event::Ended`], never anything.
    pub async fn next(&mut self) -> Event {
        if self.ended {
            return std::future::pending().await;
        }
        let event = self.events.recv().await.unwrap_or_else(|| {
            let detail = "the hypervisor's task ended without a word";
            Event::Ended(End::Failed(fault(Code::Internal, detail)))
        });
        self.ended = matches!(event, Event::Ended(_));
        event
    }
}
