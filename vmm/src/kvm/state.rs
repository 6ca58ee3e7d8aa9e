//! The state that the kernel keeps of a VM beside its vCPUs: interrupt controllers, timer and clock.

use std::sync::Arc;

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_clock_data, kvm_irqchip,
    kvm_pit_state2,
};
use kvm_ioctls::VmFd;

use super::KvmError;
use crate::state::{Section, SectionError, SharedSection};

/// An interrupt controller in the kernel.
struct Irqchip {
    vm: Arc<VmFd>,
    id: u32,
}

/// The timer (8254).
struct Pit(Arc<VmFd>);

/// What kvmclock counts.
struct Clock(Arc<VmFd>);

/// The interrupt controllers and the timer, by their names, in the order in which they are loaded.
pub(crate) fn sections(vm: &Arc<VmFd>) -> Vec<(&'static str, SharedSection)> {
    let chip = |id| Arc::new(Irqchip { vm: vm.clone(), id }) as SharedSection;
    vec![
        ("first PIC", chip(KVM_IRQCHIP_PIC_MASTER)),
        ("second PIC", chip(KVM_IRQCHIP_PIC_SLAVE)),
        ("IOAPIC", chip(KVM_IRQCHIP_IOAPIC)),
        ("PIT", Arc::new(Pit(vm.clone()))),
    ]
}

/// The VM's clock.
pub(crate) fn clock(vm: &Arc<VmFd>) -> SharedSection {
    Arc::new(Clock(vm.clone()))
}

impl Section for Irqchip {
    const TAG: &'static str = "kvm-irqchip";
    const VERSION: u16 = 1;
    type State = kvm_irqchip;

    fn save(&self) -> Result<kvm_irqchip, SectionError> {
        let mut state = kvm_irqchip { chip_id: self.id, ..Default::default() };
        self.vm.get_irqchip(&mut state).map_err(KvmError::at("read an interrupt controller"))?;
        Ok(state)
    }

    fn load(&self, state: kvm_irqchip) -> Result<(), SectionError> {
        if state.chip_id != self.id {
            return Err(SectionError::Invalid("it is the state of another interrupt controller"));
        }
        self.vm.set_irqchip(&state).map_err(KvmError::at("set an interrupt controller"))?;
        Ok(())
    }
}

impl Section for Pit {
    const TAG: &'static str = "kvm-pit";
    const VERSION: u16 = 1;
    type State = kvm_pit_state2;

    fn save(&self) -> Result<kvm_pit_state2, SectionError> {
        Ok(self.0.get_pit2().map_err(KvmError::at("read the timer"))?)
    }

    fn load(&self, state: kvm_pit_state2) -> Result<(), SectionError> {
        self.0.set_pit2(&state).map_err(KvmError::at("set the timer"))?;
        Ok(())
    }
}

impl Section for Clock {
    const TAG: &'static str = "kvm-clock";
    const VERSION: u16 = 1;
    /// Nanoseconds.
    type State = u64;

    fn save(&self) -> Result<u64, SectionError> {
        Ok(self.0.get_clock().map_err(KvmError::at("read the clock"))?.clock)
    }

    /// The clock goes on from where it was: for the guest, no time has passed.
    fn load(&self, clock: u64) -> Result<(), SectionError> {
        let state = kvm_clock_data { clock, ..Default::default() };
        self.0.set_clock(&state).map_err(KvmError::at("set the clock"))?;
        Ok(())
    }
}
