//! The arguments of a QEMU process.

use serde_json::Value;

/// A command line under construction.
#[derive(Default)]
pub(super) struct Args(Vec<String>);

impl Args {
    pub(super) fn into_line(self) -> Vec<String> {
        self.0
    }

    pub(super) fn flag(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    pub(super) fn option(&mut self, name: &str, value: impl Into<String>) {
        self.flag(name);
        self.0.push(value.into());
    }

    pub(super) fn json(&mut self, name: &str, value: &Value) {
        self.option(name, value.to_string());
    }
}
