//! What QEMU is asked when somebody wants figures, and what is read from its answers.
//!
//! A balloon's figures come from the guest. QEMU asks it for them at an interval; here it is asked once, by an interval
//! that begins now and never comes around again.

use std::time::Duration;

use serde_json::{Value, json};
use vireo_proto::launcher::{BalloonStatistics, DiskStatistics, OperationStatistics};

use crate::hypervisor::{Figures, Reading};

/// The balloon's id.
pub(super) const BALLOON: &str = "balloon";

/// How soon the guest's answer is looked for again, and how often.
const AGAIN: Duration = Duration::from_millis(20);
const TRIES: u32 = 10;
/// Seconds until the guest would be asked again by QEMU itself; about seven decades.
const NEVER: u32 = i32::MAX as u32;
/// What the guest says of what it does not know.
const UNKNOWN: u64 = u64::MAX;

const DISKS: &str = "figures-disks";
const CPUS: &str = "figures-cpus";
const SIZE: &str = "figures-balloon";
const REST: &str = "figures-rest";
const ASK: &str = "figures-ask";
const GUEST: &str = "figures-guest";

/// One look at a machine.
#[derive(Debug)]
pub(super) struct Inquiry {
    readers: Vec<Reading>,
    figures: Figures,
    /// In seconds since 1970: what the guest said before is not what it says now.
    since: u64,
    tries: u32,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for other answers.
    Wait,
    /// Say [`guest`] after a while.
    AskAgain(Duration),
    /// [`Inquiry::finish`]
    Finish,
}

/// All that is asked, in the order in which it is answered.
pub(super) fn questions() -> String {
    let balloon = |id: &str, seconds: u32| {
        let property =
            json!({ "path": path(), "property": "guest-stats-polling-interval", "value": seconds });
        json!({ "execute": "qom-set", "id": id, "arguments": property })
    };
    let all = [
        json!({ "execute": "query-blockstats", "id": DISKS }),
        json!({ "execute": "query-cpus-fast", "id": CPUS }),
        json!({ "execute": "query-balloon", "id": SIZE }),
        balloon(REST, 0),
        balloon(ASK, NEVER),
    ];
    all.iter().map(|question| format!("{question}\n")).collect::<String>() + &guest()
}

/// Asks what the guest has said.
pub(super) fn guest() -> String {
    let property = json!({ "path": path(), "property": "guest-stats" });
    format!("{}\n", json!({ "execute": "qom-get", "id": GUEST, "arguments": property }))
}

fn path() -> String {
    format!("/machine/peripheral/{BALLOON}")
}

/// Whether an answer is to one of [`questions`].
pub(super) fn is_ours(id: &str) -> bool {
    [DISKS, CPUS, SIZE, REST, ASK, GUEST].contains(&id)
}

impl Inquiry {
    /// For somebody who wants to know of this process, at this second.
    pub(super) fn new(reading: Reading, pid: i32, now: u64) -> Self {
        let figures = Figures { pid, ..Figures::default() };
        Self { readers: vec![reading], figures, since: now, tries: 0 }
    }

    /// Somebody else wants to know the same.
    pub(super) fn join(&mut self, reading: Reading) {
        self.readers.retain(|reader| !reader.is_closed());
        self.readers.push(reading);
    }

    /// Takes an answer, or that there is none.
    pub(super) fn hear(&mut self, id: &str, answer: Option<&Value>) -> Next {
        match (id, answer) {
            (DISKS, Some(answer)) => self.figures.disks = disks(answer),
            (CPUS, Some(answer)) => self.figures.vcpus = processors(answer),
            (SIZE, Some(answer)) => {
                let actual_bytes = number(answer, "/actual");
                self.figures.balloon =
                    Some(BalloonStatistics { actual_bytes, ..BalloonStatistics::default() });
            }
            (GUEST, Some(answer)) => return self.guest_said(answer),
            (GUEST, None) => return Next::Finish,
            _ => {}
        }
        Next::Wait
    }

    fn guest_said(&mut self, answer: &Value) -> Next {
        if number(answer, "/last-update").is_none_or(|then| then < self.since) {
            self.tries += 1;
            // A guest that stands still, or has no driver, says nothing.
            return if self.tries < TRIES { Next::AskAgain(AGAIN) } else { Next::Finish };
        }
        let said =
            |name: &str| number(answer, &format!("/stats/stat-{name}")).filter(|value| *value != UNKNOWN);
        let balloon = self.figures.balloon.get_or_insert_default();
        balloon.available_bytes = said("total-memory");
        balloon.unused_bytes = said("free-memory");
        balloon.usable_bytes = said("available-memory");
        balloon.cached_bytes = said("disk-caches");
        balloon.swap_in_bytes = said("swap-in");
        balloon.swap_out_bytes = said("swap-out");
        balloon.major_faults = said("major-faults");
        balloon.minor_faults = said("minor-faults");
        Next::Finish
    }

    /// Tells everybody.
    pub(super) fn finish(self) {
        for reader in self.readers {
            // Whoever asked may have lost patience.
            let _ = reader.send(self.figures.clone());
        }
    }
}

fn number(value: &Value, pointer: &str) -> Option<u64> {
    value.pointer(pointer)?.as_u64()
}

fn processors(answer: &Value) -> Vec<(u32, i32)> {
    let one = |cpu: &Value| {
        let index = u32::try_from(number(cpu, "/cpu-index")?).ok()?;
        Some((index, i32::try_from(number(cpu, "/thread-id")?).ok()?))
    };
    answer.as_array().into_iter().flatten().filter_map(one).collect()
}

fn disks(answer: &Value) -> Vec<(usize, DiskStatistics)> {
    let one = |device: &Value| {
        let place = place(device.pointer("/qdev")?.as_str()?)?;
        let stats = device.pointer("/stats")?;
        let of = |operations: &str, bytes: &str, time: &str| {
            let value = |name: &str| stats.get(name).and_then(Value::as_u64);
            let bytes = if bytes.is_empty() { Some(0) } else { value(bytes) };
            Some(OperationStatistics {
                requests: value(operations)?,
                bytes: bytes?,
                nanoseconds: value(time)?,
            })
        };
        let statistics = DiskStatistics {
            name: String::new(),
            reads: of("rd_operations", "rd_bytes", "rd_total_time_ns"),
            writes: of("wr_operations", "wr_bytes", "wr_total_time_ns"),
            flushes: of("flush_operations", "", "flush_total_time_ns"),
        };
        Some((place, statistics))
    };
    answer.as_array().into_iter().flatten().filter_map(one).collect()
}

/// Which disk of the launch message: from `device-disk3` as the id or inside of a path.
fn place(qdev: &str) -> Option<usize> {
    let (_, rest) = qdev.split_once("device-disk")?;
    rest.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn inquiry() -> (Inquiry, oneshot::Receiver<Figures>) {
        let (reading, figures) = oneshot::channel();
        (Inquiry::new(reading, 7, 1000), figures)
    }

    #[test]
    fn every_question_is_a_line_with_an_id_of_ours() {
        for line in questions().lines() {
            let question: Value = serde_json::from_str(line).unwrap();
            assert!(is_ours(question["id"].as_str().unwrap()), "{line}");
        }
        assert_eq!(questions().lines().count(), 6);
        assert!(!is_ours("quit"));
    }

    #[test]
    fn answers_become_figures() {
        let (mut inquiry, mut figures) = inquiry();
        let block = json!([
            { "qdev": "/machine/peripheral/device-disk1/virtio-backend", "stats": {
                "rd_operations": 1, "rd_bytes": 2, "rd_total_time_ns": 3, "wr_operations": 4, "wr_bytes": 5,
                "wr_total_time_ns": 6, "flush_operations": 7, "flush_total_time_ns": 8 } },
            { "qdev": "device-disk0", "stats": { "rd_operations": 1 } },
            { "device": "pflash0", "stats": {} },
        ]);
        let cpus = json!([{ "cpu-index": 0, "thread-id": 70 }, { "cpu-index": 1, "thread-id": 71 }, {}]);
        assert_eq!(inquiry.hear(DISKS, Some(&block)), Next::Wait);
        assert_eq!(inquiry.hear(CPUS, Some(&cpus)), Next::Wait);
        assert_eq!(inquiry.hear(SIZE, Some(&json!({ "actual": 9 }))), Next::Wait);
        assert_eq!(inquiry.hear(REST, Some(&json!({}))), Next::Wait);
        let said =
            json!({ "last-update": 1000, "stats": { "stat-free-memory": 10, "stat-swap-in": UNKNOWN } });
        assert_eq!(inquiry.hear(GUEST, Some(&said)), Next::Finish);
        inquiry.finish();
        let of = |requests, bytes, nanoseconds| Some(OperationStatistics { requests, bytes, nanoseconds });
        let busy = DiskStatistics {
            name: String::new(),
            reads: of(1, 2, 3),
            writes: of(4, 5, 6),
            flushes: of(7, 0, 8),
        };
        let balloon = BalloonStatistics {
            actual_bytes: Some(9),
            unused_bytes: Some(10),
            ..BalloonStatistics::default()
        };
        let expected = Figures {
            pid: 7,
            vcpus: vec![(0, 70), (1, 71)],
            disks: vec![(1, busy), (0, DiskStatistics::default())],
            balloon: Some(balloon),
        };
        assert_eq!(figures.try_recv(), Ok(expected));
    }

    #[test]
    fn a_guest_that_is_silent_is_asked_a_few_times() {
        let (mut inquiry, mut figures) = inquiry();
        let stale = json!({ "last-update": 999, "stats": { "stat-free-memory": 10 } });
        for _ in 1..TRIES {
            assert_eq!(inquiry.hear(GUEST, Some(&stale)), Next::AskAgain(AGAIN));
        }
        assert_eq!(inquiry.hear(GUEST, Some(&stale)), Next::Finish);
        inquiry.finish();
        assert_eq!(figures.try_recv().unwrap().balloon, None);
    }

    #[test]
    fn without_a_balloon_there_is_nothing_to_wait_for() {
        let (mut inquiry, _figures) = inquiry();
        assert_eq!(inquiry.hear(SIZE, None), Next::Wait);
        assert_eq!(inquiry.hear(ASK, None), Next::Wait);
        assert_eq!(inquiry.hear(GUEST, None), Next::Finish);
    }

    #[test]
    fn those_who_lost_patience_are_forgotten() {
        let (mut inquiry, figures) = inquiry();
        drop(figures);
        let (reading, mut other) = oneshot::channel();
        inquiry.join(reading);
        assert_eq!(inquiry.readers.len(), 1);
        inquiry.finish();
        assert_eq!(other.try_recv().unwrap().pid, 7);
    }
}
