//! Writes to the API server, by its audit log.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use vireo_tests::audit::AuditLog;

use super::Error;

/// Writes by who wrote what.
pub(super) struct Writes(BTreeMap<String, usize>);

impl Writes {
    /// Those that are logged so far of launcher Pods, of VMIs and of their events.
    pub(super) fn of(log: &AuditLog) -> Result<Self, Error> {
        let mut found = BTreeMap::new();
        for write in log.writes()? {
            let resource = write.resource.split('/').next().unwrap_or_default();
            if ["pods", "virtualmachineinstances", "events"].contains(&resource) {
                let user = write.user.rsplit(':').next().unwrap_or_default();
                *found.entry(format!("{user} {} {}", write.verb, write.resource)).or_insert(0) += 1;
            }
        }
        Ok(Self(found))
    }

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
