//! What an instance that does not run yet waits for, by its status.

use serde_json::Value;

/// The condition whose reason is why an instance is not as its specification says.
const SYNCHRONIZED: &str = "Synchronized";
/// The condition of the launcher Pod that has no node.
const SCHEDULED: &str = "PodScheduled";
/// The reason of a volume whose image is being downloaded.
const PULLING: &str = "Pulling";

/// Prints what an instance waits for, once per change.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// What was printed last.
    last: Option<String>,
}

impl Waiting {
    /// The line to print for a status, if it is about something else than the line before.
    pub(super) fn line(&mut self, name: &str, vmi: &Value) -> Option<String> {
        let cause = cause(vmi)?;
        let is_new = self.last.as_deref() != Some(cause.as_str());
        let line = is_new.then(|| format!("Waiting for {name}: {cause}"));
        self.last = Some(cause);
        line
    }
}

/// What an instance waits for: images that are pulled, what is missing for it, or a node. None where it is just being started.
fn cause(vmi: &Value) -> Option<String> {
    let list = |field: &str| vmi.pointer(field).and_then(Value::as_array).into_iter().flatten();
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let pull = list("/status/volumeStatus").find(|volume| volume["reason"] == PULLING);
    if let Some(volume) = pull {
        return Some(format!("volume {}: {}", text(volume, "name"), text(volume, "message")));
    }
    let failing =
        |kind: &str| list("/status/conditions").find(|one| one["type"] == kind && one["status"] == "False");
    let condition = failing(SYNCHRONIZED).or_else(|| failing(SCHEDULED))?;
    let (reason, message) = (text(condition, "reason"), text(condition, "message"));
    let parts: Vec<String> = [reason, message].into_iter().filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join(": "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": message})
    }

    #[test]
    fn a_cause_is_printed_once_per_change() {
        let mut waiting = Waiting::default();
        let mut line = |status: Value| waiting.line("web", &json!({"status": status}));
        assert_eq!(line(json!({"phase": "Scheduling"})), None);
        let pulling = |mib: u32| {
            let message = format!("registry/image:1 is being pulled: {mib} of 9 MiB are here");
            json!({"volumeStatus": [{"name": "a"}, {"name": "b", "reason": "Pulling", "message": message}]})
        };
        let shown = "Waiting for web: volume b: registry/image:1 is being pulled: 1 of 9 MiB are here";
        assert_eq!(line(pulling(1)).as_deref(), Some(shown));
        assert_eq!(line(pulling(1)), None);
        assert!(line(pulling(2)).is_some());
        let failed =
            json!({"conditions": [condition("Synchronized", "False", "ErrImagePull", "no such image")]});
        assert_eq!(line(failed.clone()).as_deref(), Some("Waiting for web: ErrImagePull: no such image"));
        assert_eq!(line(json!({})), None);
        assert_eq!(line(failed), None, "nothing else was printed");
    }

    #[test]
    fn a_node_is_waited_for_and_what_is_well_is_not() {
        let of = |conditions: &[Value]| cause(&json!({"status": {"conditions": conditions}}));
        let unscheduled = condition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available");
        assert_eq!(
            of(&[condition("Synchronized", "True", "", ""), unscheduled]).as_deref(),
            Some("Unschedulable: 0/1 nodes are available")
        );
        assert_eq!(of(&[condition("Ready", "False", "GuestNotRunning", "not yet")]), None);
        assert_eq!(of(&[condition("Synchronized", "False", "", "")]), None);
    }
}
