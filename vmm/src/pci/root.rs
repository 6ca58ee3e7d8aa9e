use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use super::address::Register;
use super::host::HostBridge;
use super::intx::Pirqs;
use super::lpc::Lpc;
use super::ports::ConfigPorts;
use super::windows::Windows;
use super::{Address, Decoding, Function, Slot};
use crate::bus::{Bus, BusDevice, BusError, BusRange};
use crate::irq::IrqPins;
use crate::layout::{PCI_CONFIG_PORT, RAM_ABOVE_4G};
use crate::memory::RamRange;
use crate::state::SharedSection;

const HOST: Address = Address::root(0);
const LPC: Address = Address::root(31);
/// Bytes of configuration space a function has.
const FUNCTION_SIZE: u64 = 4096;

/// Why the root bus could not take something.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// Something else answers where the bus itself has to.
    #[error("the PCI configuration space does not fit in the address map")]
    Claimed(#[source] BusError),
    /// All 32 slots are taken.
    #[error("no slot of the PCI root bus is free")]
    Full,
    /// There is a function already.
    #[error("{0} is taken on the PCI root bus")]
    Taken(Address),
    /// The windows of the layout do not hold the BAR.
    #[error("no room for a PCI BAR of {0:#x} bytes")]
    NoRoom(u64),
    /// The RAM ends where no window fits above it.
    #[error("no room for a 64-bit PCI window above RAM that ends at {0:#x}")]
    Window(u64),
}

type Slots = BTreeMap<Address, Arc<dyn Function>>;

/// The root bus: the slots, the windows their BARs come from, and both ways to configuration space.
pub struct Root {
    fabric: Arc<Fabric>,
    ports: Arc<ConfigPorts>,
    windows: Arc<Windows>,
    pirqs: Arc<Pirqs>,
    pio: Weak<Bus>,
}

impl Root {
    /// Puts the host bridge and the LPC bridge on a bus and makes its configuration space reachable on `mmio` and
    /// `pio`. BARs keep clear of `ram`; the 64-bit window begins at the next 4 GiB above it. Interrupt lines lead to
    /// `pins`.
    pub fn new(
        (mmio, pio): (&Arc<Bus>, &Arc<Bus>),
        ram: &[RamRange],
        pins: Arc<dyn IrqPins>,
    ) -> Result<Self, RootError> {
        let windows = Arc::new(Windows::new(ram)?);
        let pirqs = Arc::new(Pirqs::new(pins));
        let host = Arc::new(HostBridge::new());
        let slots: Slots =
            [(HOST, host.clone() as Arc<dyn Function>), (LPC, Arc::new(Lpc::new(pirqs.clone())))].into();
        let fabric = Arc::new_cyclic(|me| Fabric {
            slots: RwLock::new(slots),
            host,
            mmio: Arc::downgrade(mmio),
            ecam: Mutex::new(None),
            me: me.clone(),
        });
        fabric.place_ecam().map_err(RootError::Claimed)?;
        let ports = Arc::new(ConfigPorts::new(fabric.clone()));
        let range = BusRange::new(u64::from(PCI_CONFIG_PORT), 8).ok_or(RootError::Full)?;
        pio.insert(range, ports.clone()).map_err(RootError::Claimed)?;
        Ok(Self { fabric, ports, windows, pirqs, pio: Arc::downgrade(pio) })
    }

    /// Puts `function` on the lowest free slot and gives its BARs addresses.
    pub fn add(&self, function: Arc<dyn Function>) -> Result<Address, RootError> {
        let mut slots = self.fabric.slots.write().unwrap_or_else(PoisonError::into_inner);
        let free = |device: &Address| slots.keys().all(|taken| taken.device() != device.device());
        let address = (0..32).map(Address::root).find(free).ok_or(RootError::Full)?;
        self.put(&mut slots, address, false, function)?;
        Ok(address)
    }

    /// Puts `function` at `address` and gives its BARs addresses. Function 0 of the same device has to be there and
    /// to set the multi-function bit ([`super::ConfigSpace::set_multifunction`]), or the guest does not look.
    pub fn add_at(&self, address: Address, function: Arc<dyn Function>) -> Result<(), RootError> {
        let mut slots = self.fabric.slots.write().unwrap_or_else(PoisonError::into_inner);
        self.put(&mut slots, address, false, function)
    }

    /// Puts `function` at `address` while the guest runs, which assigns addresses to its BARs.
    pub(crate) fn hot_add(&self, address: Address, function: Arc<dyn Function>) -> Result<(), RootError> {
        let mut slots = self.fabric.slots.write().unwrap_or_else(PoisonError::into_inner);
        self.put(&mut slots, address, true, function)
    }

    /// Takes the function at `address` away. It is still to be detached and stopped.
    pub(crate) fn remove(&self, address: Address) -> Option<Arc<dyn Function>> {
        self.fabric.slots.write().unwrap_or_else(PoisonError::into_inner).remove(&address)
    }

    fn put(
        &self,
        slots: &mut Slots,
        address: Address,
        is_hot: bool,
        function: Arc<dyn Function>,
    ) -> Result<(), RootError> {
        if slots.contains_key(&address) {
            return Err(RootError::Taken(address));
        }
        let buses = (self.fabric.mmio.clone(), self.pio.clone());
        let (windows, pirqs) = (self.windows.clone(), self.pirqs.clone());
        let slot = Slot::new(address, buses, windows, pirqs);
        function.attach(&if is_hot { slot.hot() } else { slot })?;
        slots.insert(address, function);
        Ok(())
    }

    /// Where functions are, in order.
    pub fn addresses(&self) -> Vec<Address> {
        self.fabric.slots.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Where configuration space is mapped, for MCFG; firmware may have moved it.
    pub fn ecam(&self) -> Option<BusRange> {
        *self.fabric.ecam.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The windows that the guest's firmware chooses on the bus, to be read when needed.
    pub fn programmed(&self) -> Programmed {
        Programmed(self.fabric.clone())
    }

    /// The window 64-bit BARs come from, for the root bridge's `_CRS`.
    pub fn window64(&self) -> BusRange {
        self.windows.high()
    }

    /// Gives single-byte accesses to the reset control register (0xCF9), which lies among the ports of the bus, to
    /// `device` (at offset 0). The first claim counts; returns whether this was it.
    pub fn claim_reset_port(&self, device: Arc<dyn BusDevice>) -> bool {
        self.ports.claim_reset(device)
    }

    /// Has the workers of all functions finish what they began, and rest: afterwards none changes RAM, or what is on
    /// the host's side. For when no vCPU runs. A function that does not rest in time is named in the log.
    pub fn pause(&self) {
        let _busy = self.pause_all();
    }

    /// The same; answers with the name of a function that does not rest in time.
    pub(crate) fn pause_all(&self) -> Option<String> {
        let mut busy = None;
        for (name, function) in self.named_functions() {
            if !function.pause() {
                busy.get_or_insert(name);
            }
        }
        busy
    }

    /// The functions in the order of their addresses, with names that stay the same for the same configuration.
    pub(crate) fn named_functions(&self) -> Vec<(String, Arc<dyn Function>)> {
        let slots = self.fabric.slots.read().unwrap_or_else(PoisonError::into_inner);
        let named = slots
            .iter()
            .map(|(address, function)| (format!("{} at {address}", function.name()), function.clone()));
        named.collect()
    }

    /// The ports of configuration space.
    pub(crate) fn ports(&self) -> SharedSection {
        self.ports.clone()
    }

    /// Follows the registers of functions after they were loaded, as after the guest's writes.
    pub(crate) fn follow_loaded(&self) {
        if let Err(error) = self.fabric.place_ecam() {
            tracing::debug!(%error, "configuration space is on something else");
        }
        self.fabric.functions().iter().for_each(|function| function.retry());
    }

    /// vCPUs run, or none does.
    pub fn set_running(&self, runs: bool) {
        for function in self.fabric.functions() {
            function.set_running(runs);
        }
    }

    /// Continues after [`Self::pause`].
    pub fn resume(&self) {
        for function in self.fabric.functions() {
            function.resume();
        }
    }

    /// Stops the workers of all functions and waits for them. For when no vCPU runs any more.
    pub fn stop(&self) {
        for function in self.fabric.functions() {
            function.stop();
        }
    }
}

/// The addresses on the bus as the guest has programmed them.
#[derive(Clone)]
pub struct Programmed(Arc<Fabric>);

impl Programmed {
    /// Where configuration space is mapped.
    pub fn ecam(&self) -> Option<BusRange> {
        *self.0.ecam.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// First addresses of the 64-bit memory BARs that lie above 4 GiB.
    pub fn high_bars(&self) -> Vec<u64> {
        self.0.functions().iter().flat_map(|function| high_bars(function.as_ref())).collect()
    }
}

/// Of one function with a header of type 0 (PCI 3.0, section 6.2.5.1).
fn high_bars(function: &dyn Function) -> Vec<u64> {
    const BARS: [u16; 6] = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24];
    const KIND: u32 = 0b111;
    const MEMORY_64: u32 = 0b100;
    let values = BARS.map(|register| {
        let mut bytes = [0; 4];
        function.read_config(register, &mut bytes);
        u32::from_le_bytes(bytes)
    });
    let (mut found, mut rest) = (Vec::new(), values.as_slice());
    while let [low, tail @ ..] = rest {
        rest = tail;
        if let (MEMORY_64, [high, tail @ ..]) = (low & KIND, tail) {
            rest = tail;
            found.push(u64::from(*high) << 32 | u64::from(low & !0xf));
        }
    }
    found.retain(|address| *address >= RAM_ABOVE_4G);
    found
}

/// The slots, as the ways to configuration space see them.
pub(super) struct Fabric {
    slots: RwLock<Slots>,
    host: Arc<HostBridge>,
    /// Weak: the bus holds us through [`Ecam`].
    mmio: Weak<Bus>,
    ecam: Mutex<Option<BusRange>>,
    me: Weak<Self>,
}

impl Fabric {
    /// Absent functions read as ones (PCI 3.0, section 6.1).
    pub(super) fn read(&self, register: Register, data: &mut [u8]) {
        data.fill(0xff);
        if let Some(function) = self.function(register, data.len()) {
            function.read_config(register.offset, data);
        }
    }

    pub(super) fn write(&self, register: Register, data: &[u8]) {
        let Some(function) = self.function(register, data.len()) else { return };
        if function.write_config(register.offset, data) == Decoding::Changed {
            if register.address == HOST
                && let Err(error) = self.place_ecam()
            {
                tracing::debug!(%error, "the guest moved configuration space onto something else");
            }
            // What was in the way of a BAR may be gone now.
            self.functions().iter().for_each(|function| function.retry());
        }
    }

    fn function(&self, register: Register, len: usize) -> Option<Arc<dyn Function>> {
        let end = u64::from(register.offset).checked_add(u64::try_from(len).ok()?)?;
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(&register.address).filter(|_| end <= FUNCTION_SIZE).cloned()
    }

    fn functions(&self) -> Vec<Arc<dyn Function>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Moves the memory-mapped window to PCIEXBAR. Where that is impossible there is none.
    fn place_ecam(&self) -> Result<(), BusError> {
        let mut ecam = self.ecam.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = self.host.ecam();
        let (Some(bus), Some(me)) = (self.mmio.upgrade(), self.me.upgrade()) else {
            return Ok(());
        };
        if *ecam == wanted {
            return Ok(());
        }
        let placed = match wanted {
            Some(range) => bus.replace(*ecam, range, Arc::new(Ecam(me))),
            None => Ok(()),
        };
        if wanted.is_none() || placed.is_err() {
            if let Some(old) = ecam.take() {
                bus.remove(old)?;
            }
        } else {
            *ecam = wanted;
        }
        placed
    }
}

/// The memory-mapped way: 4096 bytes a function (PCI Express base specification, section 7.2.2).
struct Ecam(Arc<Fabric>);

impl BusDevice for Ecam {
    fn read(&self, offset: u64, data: &mut [u8]) {
        self.0.read(Register::from_ecam(offset), data);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        self.0.write(Register::from_ecam(offset), data);
    }
}
