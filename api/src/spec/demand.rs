use super::Field;

/// Devices of [`Demand::qemu_args`] that are on another bus than PCI.
const OTHER_BUSES: [&str; 3] = ["hda-duplex", "pvpanic", "usb-tablet"];

/// A device or property that not every hypervisor has. One that has it may be given [`Demand::qemu_args`]; one that
/// has not refuses by [`Demand::field`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    field: Field,
    what: String,
    qemu_args: Vec<String>,
}

impl Demand {
    pub(crate) fn new(field: Field, what: String, qemu_args: &[&str]) -> Self {
        Self { field, what, qemu_args: qemu_args.iter().map(|arg| (*arg).to_owned()).collect() }
    }

    /// The field that asks.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// What it asks for, for people: "an i6300esb watchdog".
    pub fn what(&self) -> &str {
        &self.what
    }

    /// How many devices on QEMU's root PCI bus provide it.
    pub(crate) fn pci_devices(&self) -> usize {
        let devices = self.qemu_args.windows(2).filter_map(|pair| match pair {
            [option, device] if option == "-device" => device.split(',').next(),
            _ => None,
        });
        devices.filter(|driver| !OTHER_BUSES.contains(driver)).count()
    }

    /// QEMU arguments that provide it; never empty. No part of them is text from a manifest that was not checked.
    pub fn qemu_args(&self) -> &[String] {
        &self.qemu_args
    }
}

/// A field that is accepted and has no effect yet, because nothing a guest may rely on depends on it. To be shown
/// to whoever wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    field: Field,
    what: String,
}

impl Notice {
    pub(crate) fn new(field: Field, what: String) -> Self {
        Self { field, what }
    }

    /// The field.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// What it asks for and does not get.
    pub fn what(&self) -> &str {
        &self.what
    }
}
