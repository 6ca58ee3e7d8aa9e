//! The arguments of a QEMU process.

use serde_json::{Value, json};
use vireo_vmconfig::PciSlot;

/// A command line under construction.
#[derive(Default)]
pub(super) struct Args {
    line: Vec<String>,
    /// Devices with a slot of their own: they come first, as others take the first free slot.
    fixed: Vec<Value>,
}

impl Args {
    pub(super) fn into_line(mut self) -> Vec<String> {
        let mut line = Vec::new();
        for device in std::mem::take(&mut self.fixed) {
            line.extend(["-device".to_owned(), device.to_string()]);
        }
        line.append(&mut self.line);
        line
    }

    /// A device in a slot that is chosen, else in the first free one.
    pub(super) fn device(&mut self, mut device: Value, slot: Option<PciSlot>) {
        match slot {
            Some(slot) => {
                device["addr"] = json!(format!("{:x}", slot.number()));
                self.fixed.push(device);
            }
            None => self.json("-device", &device),
        }
    }

    pub(super) fn flag(&mut self, name: &str) {
        self.line.push(name.to_owned());
    }

    pub(super) fn option(&mut self, name: &str, value: impl Into<String>) {
        self.flag(name);
        self.line.push(value.into());
    }

    pub(super) fn json(&mut self, name: &str, value: &Value) {
        self.option(name, value.to_string());
    }
}
