use std::fs::File;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use vireo_proto::launcher::{DiskFailure, Fault, Panic, PluggedVolume};
use vireo_vmconfig::DiskSource;

use crate::fault::{Code, fault};
use crate::host::{DiskFiles, NicFiles};
use crate::launch::{Disk, Interface};

use super::stats::{StatsClient, StatsRequests};

/// A VM on its way up.
pub type Starting = Pin<Box<dyn Future<Output = Result<Guest, Fault>> + Send>>;

/// How long after [`VmCommand::SoftReboot`] a guest that switches itself off is thought to follow it.
pub const SOFT_REBOOT: Duration = Duration::from_secs(300);

/// How many volumes and NICs may wait to be attached or detached.
const MAX_QUEUED_HOTPLUGS: usize = 16;

/// How long a guest gets to release a volume or a NIC.
pub(super) const UNPLUG_TIMEOUT: Duration = Duration::from_secs(15);

/// The status of a volume that the guest has by a name.
pub(super) fn plugged_volume(disk: &Disk, target: String) -> PluggedVolume {
    let path = match &disk.source {
        DiskSource::Raw(path) | DiskSource::Qcow2 { path, .. } => path.to_string_lossy().into_owned(),
        DiskSource::NoMedium => String::new(),
    };
    PluggedVolume { name: disk.name.clone(), target, path }
}

/// Why a volume is not detached.
pub(super) fn still_attached(volume: &PluggedVolume, how: &str) -> Fault {
    let detail = format!("volume {} stays attached: the guest {how}; is its system up?", volume.name);
    fault(Code::Conflict, detail)
}

/// Why a NIC is not detached.
pub(super) fn nic_stays(name: &str, how: &str) -> Fault {
    fault(Code::Conflict, format!("NIC {name} stays attached: the guest {how}; is its system up?"))
}

/// Why a medium is not taken out.
pub(super) fn drive_locked(volume: &PluggedVolume) -> Fault {
    fault(Code::Conflict, format!("volume {} stays attached: the guest has locked the drive", volume.name))
}

/// A command for a running VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmCommand {
    /// Press the ACPI power button.
    PowerButton,
    /// Press it, and start again if the guest switches itself off within [`SOFT_REBOOT`]. [`VmCommand::PowerButton`] takes
    /// that back.
    SoftReboot,
    /// Press the reset button.
    Reset,
    /// Stop the CPUs until [`VmCommand::Resume`]; answered by [`Event::Paused`], also where they are paused already.
    Pause,
    /// Resume the vCPUs; answered by [`Event::Resumed`]. Requests held because disks failed are retried at once.
    Resume,
    /// Switch the link of a NIC.
    SetLink {
        /// Its name.
        nic: String,
        /// Whether it is up from now on.
        up: bool,
    },
    /// Die now.
    Kill,
}

/// What happens to a running VM.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The guest rebooted itself and runs again.
    Rebooted,
    /// The firmware found nothing to start.
    NoBootDevice,
    /// The CPUs are paused because that was ordered.
    Paused,
    /// The vCPUs resume, unless disk failures hold them.
    Resumed,
    /// The host cannot carry out requests of these disks now, and of no others. While there are any, the requests are
    /// held and retried, and the vCPUs are paused. Repeated whenever a retry fails.
    DisksFailed(Vec<DiskFailure>),
    /// These volumes are attached now, and no others.
    Plugged(Vec<PluggedVolume>),
    /// A NIC is attached, or no longer is.
    Nic(NicChange),
    /// The memory dump is written, or why it is not.
    MemoryDumped(Option<String>),
    /// It is gone. Nothing follows.
    Ended(End),
}

/// A hotplug action and the reply to send.
#[derive(Debug)]
pub struct HotplugRequest {
    /// In or out.
    pub action: HotplugAction,
    /// Answered once it is done, or cannot be.
    pub reply: oneshot::Sender<Option<Fault>>,
}

/// A device that is to be attached or detached.
#[derive(Debug)]
pub enum HotplugAction {
    /// A volume.
    Volume(VolumeAction),
    /// A NIC, to be attached to its tap.
    AttachNic(Box<Interface>, NicFiles),
    /// A NIC, to be detached, by its name.
    DetachNic(String),
}

/// A volume that is to be attached or detached.
#[derive(Debug)]
pub enum VolumeAction {
    /// In, from its open and locked files.
    Attach(Box<Disk>, DiskFiles),
    /// Out, by its name.
    Detach(String),
}

/// What has become of a NIC, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicChange {
    /// The guest has it.
    Attached(String),
    /// It could not be attached, or the guest has released it.
    Gone(String),
}

/// The interface of kernels to report panics, where no other is named.
pub(super) const PVPANIC: &str = "pvpanic";

/// How a VM ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The guest powered off.
    PoweredOff,
    /// The guest rebooted, and that ends this VM.
    Rebooted,
    /// Killed by [`VmCommand::Kill`].
    Killed,
    /// The guest's CPU faulted beyond recovery, or its watchdog expired.
    Crashed(String),
    /// The guest's kernel panicked: how, and what it reported.
    Panicked(String, Panic),
    /// The hypervisor gave up.
    Failed(Fault),
}

/// The session's handle of a running VM. Dropping it kills the VM.
#[derive(Debug)]
pub struct Guest {
    commands: mpsc::UnboundedSender<VmCommand>,
    hotplugs: mpsc::Sender<HotplugRequest>,
    dumps: mpsc::Sender<File>,
    events: mpsc::UnboundedReceiver<Event>,
    meter: StatsClient,
    ended: bool,
}

/// The hypervisor's side of a running VM.
#[derive(Debug)]
pub struct GuestEnd {
    /// Commands; closed when the session dropped its handle, which means [`VmCommand::Kill`].
    pub commands: Controls,
    /// Hotplug requests; a hypervisor without hotplug drops the receiver.
    pub hotplugs: mpsc::Receiver<HotplugRequest>,
    /// Files for memory dumps, each answered by [`Event::MemoryDumped`] before the next. vCPUs stand still meanwhile, and are as
    /// before afterwards.
    pub dumps: mpsc::Receiver<File>,
    /// Sink for events.
    pub events: Events,
    /// Who wants to know what the VM has used.
    pub stats_requests: StatsRequests,
}

/// Commands for a VM, in order.
pub type Controls = mpsc::UnboundedReceiver<VmCommand>;

/// Events of a VM, in order.
pub type Events = mpsc::UnboundedSender<Event>;

/// Two sides of one VM.
pub fn guest() -> (Guest, GuestEnd) {
    let (commands, controls) = mpsc::unbounded_channel();
    let (events, receiver) = mpsc::unbounded_channel();
    let (hotplugs, hotplug_requests) = mpsc::channel(MAX_QUEUED_HOTPLUGS);
    let (dumps, dump_requests) = mpsc::channel(1);
    let (meter, stats_requests) = StatsClient::new();
    let guest = Guest { commands, hotplugs, dumps, events: receiver, meter, ended: false };
    (
        guest,
        GuestEnd {
            commands: controls,
            hotplugs: hotplug_requests,
            dumps: dump_requests,
            events,
            stats_requests,
        },
    )
}

impl Guest {
    /// Sends a command. One for a VM that has ended is dropped.
    pub fn command(&self, command: VmCommand) {
        // Fails only after the hypervisor's task ended, which `next` reports.
        let _ = self.commands.send(command);
    }

    /// Queues a hotplug request.
    ///
    /// # Errors
    /// What is not queued, which is answered.
    pub fn hotplug(&self, request: HotplugRequest) -> Result<(), HotplugAction> {
        let (request, fault) = match self.hotplugs.try_send(request) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Full(request)) => {
                (request, fault(Code::Conflict, "many devices wait to be attached or detached already"))
            }
            Err(mpsc::error::TrySendError::Closed(request)) => (
                request,
                fault(Code::Unsupported, "the hypervisor of this VM cannot attach or detach devices"),
            ),
        };
        // The caller may be gone.
        let _ = request.reply.send(Some(fault));
        Err(request.action)
    }

    /// Has the guest's memory written to a file.
    ///
    /// # Errors
    /// When another is written, or the VM has ended.
    pub fn dump(&self, file: File) -> Result<(), Fault> {
        self.dumps.try_send(file).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => fault(Code::Conflict, "a memory dump is under way"),
            mpsc::error::TrySendError::Closed(_) => fault(Code::Conflict, "the VM has ended"),
        })
    }

    /// Where to read what the VM has used.
    pub fn meter(&self) -> StatsClient {
        self.meter.clone()
    }

    /// The next thing that happens. After [`Event::Ended`], never anything.
    pub async fn next(&mut self) -> Event {
        if self.ended {
            return std::future::pending().await;
        }
        let event = self.events.recv().await.unwrap_or_else(|| {
            let detail = "the hypervisor's task ended unexpectedly";
            Event::Ended(End::Failed(fault(Code::Internal, detail)))
        });
        self.ended = matches!(event, Event::Ended(_));
        event
    }
}
