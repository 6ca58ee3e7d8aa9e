use super::{Boot, Cpus, Disk, Graphics, MemorySize, Net, Notices, Smbios};

/// Slots on the root bus that are left for devices (the host bridge and the LPC bridge take two of 32).
const DEVICE_SLOTS: usize = 29;

/// A whole machine, ready to be built.
#[derive(Debug)]
pub struct Machine {
    pub(crate) cpus: Cpus,
    pub(crate) memory: MemorySize,
    pub(crate) boot: Boot,
    pub(crate) disks: Vec<Disk>,
    pub(crate) nets: Vec<Net>,
    pub(crate) rng: bool,
    pub(crate) virtio_console: bool,
    pub(crate) graphics: Option<Graphics>,
    pub(crate) smbios: Option<Smbios>,
    pub(crate) notices: Notices,
}

/// More devices than the root bus has slots.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0} devices do not fit on the {DEVICE_SLOTS} free slots of the machine")]
pub struct TooManyDevices(usize);

impl Machine {
    /// A machine with a serial port and nothing else.
    pub fn new(cpus: Cpus, memory: MemorySize, boot: Boot) -> Self {
        Self {
            cpus,
            memory,
            boot,
            disks: Vec::new(),
            nets: Vec::new(),
            rng: false,
            virtio_console: false,
            graphics: None,
            smbios: None,
            notices: Notices::default(),
        }
    }

    /// Adds disks and cards, in slot order.
    pub fn with_devices(mut self, disks: Vec<Disk>, nets: Vec<Net>) -> Result<Self, TooManyDevices> {
        let others = [self.rng, self.virtio_console, self.graphics.is_some()].map(usize::from);
        let all = disks.len() + nets.len() + others.iter().sum::<usize>();
        if all > DEVICE_SLOTS {
            return Err(TooManyDevices(all));
        }
        self.disks = disks;
        self.nets = nets;
        Ok(self)
    }

    /// Adds a virtio entropy device.
    #[must_use]
    pub fn with_rng(mut self, yes: bool) -> Self {
        self.rng = yes;
        self
    }

    /// Adds a virtio console; its output joins the serial port's, and input stays the serial port's.
    #[must_use]
    pub fn with_virtio_console(mut self, yes: bool) -> Self {
        self.virtio_console = yes;
        self
    }

    /// Says where to tell what happens in the machine.
    #[must_use]
    pub fn with_notices(mut self, notices: Notices) -> Self {
        self.notices = notices;
        self
    }

    /// Adds a screen.
    #[must_use]
    pub fn with_graphics(mut self, graphics: Option<Graphics>) -> Self {
        self.graphics = graphics;
        self
    }

    /// Sets what the guest reads about the machine.
    #[must_use]
    pub fn with_smbios(mut self, smbios: Option<Smbios>) -> Self {
        self.smbios = smbios;
        self
    }
}
