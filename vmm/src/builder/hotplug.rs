//! The hotplug slots: those on the root bus that no device has.

use std::sync::Arc;

use super::{Assembly, BuildError};
use crate::hotplug::{Controller, HOTPLUG_SLOTS, Hotplug, Slots};
use crate::layout;
use crate::virtio::DeviceContext;

/// Adds the controller and the disks that are attached already. Every other device is on the bus.
pub(super) fn install(
    hotplug: &Hotplug,
    assembly: &Assembly,
    host: &DeviceContext,
) -> Result<Arc<Slots>, BuildError> {
    let taken = assembly.pci.addresses();
    let free = (0..32_u8).filter(|slot| taken.iter().all(|address| address.device() != *slot));
    let mask = free.take(HOTPLUG_SLOTS).fold(0, |mask, slot| mask | 1_u32 << slot);
    let ejected = Box::new(hotplug.eject_handler());
    let controller = Arc::new(Controller::new(&assembly.pci, assembly.power.clone(), mask, ejected));
    assembly.buses.port(
        "hotplug controller",
        (layout::HOTPLUG_PORT, layout::HOTPLUG_SIZE),
        controller.clone(),
    )?;
    let slots = Arc::new(Slots::new(controller, host.clone()));
    hotplug.begin(&slots, &assembly.pci)?;
    Ok(slots)
}
