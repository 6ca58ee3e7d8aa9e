use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE, KvmIrqRouting, kvm_irq_routing_entry, kvm_irq_routing_irqchip,
    kvm_irq_routing_msi,
};
use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::irq::{IrqLine, IrqPins, MsiMessage, MsiRouter, MsiVector};
use crate::layout;

/// How many message-signalled vectors a VM has. `KVM_MAX_IRQ_ROUTES` is 4096 and pins take up to 40 entries.
const MAX_VECTORS: usize = 2048;
/// The lines the two PICs answer for.
const PIC_LINES: u32 = 16;
/// The timer's line reaches the IOAPIC on another pin, as on every PC; ACPI tells the guest (`acpi::madt`).
const TIMER_PIN: u32 = 2;

/// The VM's interrupt routing table.
///
/// The kernel replaces the table as a whole, so every change goes through here. A vector that is not routed has its
/// GSI number but no entry.
pub(crate) struct KvmRouter {
    shared: Arc<Routing>,
}

struct Routing {
    vm: Arc<VmFd>,
    /// The index is the GSI, counted from `layout::MSI_GSI_START`.
    slots: Mutex<Vec<Slot>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Unrouted,
    Routed(MsiMessage),
}

impl KvmRouter {
    /// Routes the pins and no vector yet.
    pub(crate) fn new(vm: Arc<VmFd>) -> io::Result<Self> {
        let shared = Arc::new(Routing { vm, slots: Mutex::new(Vec::new()) });
        shared.commit(&[])?;
        Ok(Self { shared })
    }
}

impl Routing {
    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit(&self, slots: &[Slot]) -> io::Result<()> {
        let mut entries = pin_entries();
        entries.extend(slots.iter().zip(layout::MSI_GSI_START..).filter_map(|(slot, gsi)| match slot {
            Slot::Routed(message) => Some(msi_entry(gsi, *message)),
            Slot::Free | Slot::Unrouted => None,
        }));
        let table = KvmIrqRouting::from_entries(&entries)
            .map_err(|_| io::Error::other("the interrupt routing table is full"))?;
        Ok(self.vm.set_gsi_routing(&table)?)
    }

    fn set(&self, index: usize, to: Slot) -> io::Result<()> {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(index) else { return Ok(()) };
        let before = std::mem::replace(slot, to);
        if before == to || !matches!((before, to), (Slot::Routed(_), _) | (_, Slot::Routed(_))) {
            return Ok(());
        }
        let outcome = self.commit(&slots);
        if outcome.is_err()
            && let Some(slot) = slots.get_mut(index)
        {
            *slot = before;
        }
        outcome
    }
}

impl MsiRouter for KvmRouter {
    fn allocate(&self) -> io::Result<Arc<dyn MsiVector>> {
        let eventfd = EventFd::new(EFD_NONBLOCK)?;
        let mut slots = self.shared.slots();
        let index = match slots.iter().position(|slot| *slot == Slot::Free) {
            Some(free) => free,
            None if slots.len() < MAX_VECTORS => {
                slots.push(Slot::Free);
                slots.len() - 1
            }
            None => return Err(io::Error::other("no interrupt vector is left")),
        };
        let offset = u32::try_from(index).map_err(io::Error::other)?;
        if let Some(slot) = slots.get_mut(index) {
            *slot = Slot::Unrouted;
        }
        drop(slots);
        Ok(Arc::new(KvmVector {
            routing: self.shared.clone(),
            index,
            gsi: layout::MSI_GSI_START + offset,
            eventfd,
            attached: Mutex::new(false),
        }))
    }
}

struct KvmVector {
    routing: Arc<Routing>,
    index: usize,
    gsi: u32,
    eventfd: EventFd,
    /// Whether the kernel listens to `eventfd`.
    attached: Mutex<bool>,
}

impl KvmVector {
    fn attach(&self, yes: bool) -> io::Result<()> {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        if *attached == yes {
            return Ok(());
        }
        if yes {
            self.routing.vm.register_irqfd(&self.eventfd, self.gsi)?;
        } else {
            self.routing.vm.unregister_irqfd(&self.eventfd, self.gsi)?;
        }
        *attached = yes;
        Ok(())
    }
}

impl MsiVector for KvmVector {
    fn route(&self, message: MsiMessage) -> io::Result<()> {
        self.routing.set(self.index, Slot::Routed(message))?;
        self.attach(true)
    }

    /// The route stays in the table: taking it out would cost an RCU grace period each time a guest masks a vector.
    fn mask(&self) -> io::Result<()> {
        self.attach(false)
    }

    fn trigger(&self) -> io::Result<()> {
        self.eventfd.write(1)
    }

    fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }
}

impl Drop for KvmVector {
    fn drop(&mut self) {
        if let Err(error) = self.attach(false).and_then(|()| self.routing.set(self.index, Slot::Free)) {
            tracing::warn!(gsi = self.gsi, %error, "an interrupt vector could not be given back");
        }
    }
}

/// A pin of the in-kernel IOAPIC.
pub(crate) struct KvmLine {
    vm: Arc<VmFd>,
    gsi: u32,
    edge: EventFd,
}

impl KvmLine {
    /// Takes the line `gsi`.
    pub(crate) fn new(vm: Arc<VmFd>, gsi: u32) -> io::Result<Self> {
        let edge = EventFd::new(EFD_NONBLOCK)?;
        vm.register_irqfd(&edge, gsi)?;
        Ok(Self { vm, gsi, edge })
    }
}

impl IrqLine for KvmLine {
    fn pulse(&self) -> io::Result<()> {
        self.edge.write(1)
    }

    fn set_level(&self, high: bool) -> io::Result<()> {
        Ok(self.vm.set_irq_line(self.gsi, high)?)
    }
}

/// The pins as the levels that userspace holds.
pub(crate) struct KvmPins(pub(crate) Arc<VmFd>);

impl IrqPins for KvmPins {
    fn set_level(&self, gsi: u32, high: bool) -> io::Result<()> {
        Ok(self.0.set_irq_line(gsi, high)?)
    }
}

fn pin_entries() -> Vec<kvm_irq_routing_entry> {
    let mut entries = Vec::new();
    for gsi in 0..PIC_LINES {
        let chip = if gsi < 8 { KVM_IRQCHIP_PIC_MASTER } else { KVM_IRQCHIP_PIC_SLAVE };
        entries.push(pin_entry(gsi, chip, gsi % 8));
    }
    for gsi in (0..layout::IOAPIC_PINS).filter(|&gsi| gsi != TIMER_PIN) {
        let pin = if gsi == 0 { TIMER_PIN } else { gsi };
        entries.push(pin_entry(gsi, KVM_IRQCHIP_IOAPIC, pin));
    }
    entries
}

fn pin_entry(gsi: u32, irqchip: u32, pin: u32) -> kvm_irq_routing_entry {
    let mut entry = kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_IRQCHIP, ..Default::default() };
    entry.u.irqchip = kvm_irq_routing_irqchip { irqchip, pin };
    entry
}

fn msi_entry(gsi: u32, message: MsiMessage) -> kvm_irq_routing_entry {
    let [low, high] = split(message.address);
    let mut entry = kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_MSI, ..Default::default() };
    entry.u.msi =
        kvm_irq_routing_msi { address_lo: low, address_hi: high, data: message.data, ..Default::default() };
    entry
}

fn split(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_reaches_pin_two_and_nothing_else_does() {
        let entries = pin_entries();
        // SAFETY: every entry of `pin_entries` is of the irqchip kind, so that field of the union is initialised.
        #[expect(unsafe_code, reason = "the binding is a C union")]
        let ioapic: Vec<_> = entries
            .iter()
            .map(|entry| (entry.gsi, unsafe { entry.u.irqchip }))
            .filter(|(_, target)| target.irqchip == KVM_IRQCHIP_IOAPIC)
            .map(|(gsi, target)| (gsi, target.pin))
            .collect();
        assert_eq!(ioapic.len(), 23);
        assert_eq!(ioapic.iter().filter(|&&(_, pin)| pin == 2).collect::<Vec<_>>(), [&(0, 2)]);
        assert!(ioapic.iter().all(|&(gsi, pin)| gsi == pin || gsi == 0));
    }

    #[test]
    fn an_address_is_split_low_half_first() {
        assert_eq!(split(0x0000_0012_fee0_1000), [0xfee0_1000, 0x12]);
    }
}
