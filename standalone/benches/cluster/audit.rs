//! Writes to the API server, by its audit log.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;

use super::Error;

/// A log from some place on.
pub(super) struct Audit(BufReader<File>);

/// Writes by who wrote what.
pub(super) struct Writes(BTreeMap<String, usize>);

impl Audit {
    /// From now on.
    pub(super) fn begin(path: &Path) -> Result<Self, Error> {
        let mut log = File::open(path)?;
        log.seek(SeekFrom::End(0))?;
        Ok(Self(BufReader::new(log)))
    }

    /// The writes since then of launcher Pods, of VMIs and of their events.
    pub(super) fn writes(self) -> Result<Writes, Error> {
        let mut found = BTreeMap::new();
        for line in self.0.lines() {
            let Ok(entry) = serde_json::from_str::<Value>(&line?) else { continue };
            let text = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let verb = text("/verb");
            let resource = text("/objectRef/resource");
            let is_write = ["create", "update", "patch", "delete"].contains(&verb);
            if !is_write || !["pods", "virtualmachineinstances", "events"].contains(&resource) {
                continue;
            }
            let user = text("/user/username").rsplit(':').next().unwrap_or_default();
            let subresource = text("/objectRef/subresource");
            let slash = if subresource.is_empty() { "" } else { "/" };
            *found.entry(format!("{user} {verb} {resource}{slash}{subresource}")).or_insert(0) += 1;
        }
        Ok(Writes(found))
    }
}

impl Writes {
    /// A line for each kind of write, with how many there are for one of `count` objects.
    pub(super) fn each(&self, count: usize) -> String {
        self.0.iter().fold(String::new(), |mut text, (what, writes)| {
            let each = f64::from(u32::try_from(*writes).unwrap_or(u32::MAX))
                / f64::from(u32::try_from(count).unwrap_or(u32::MAX));
            let _ = writeln!(text, "  {each:6.2} {what}");
            text
        })
    }
}
