//! Statistics from QEMU: the queries and the parsing of their responses.
//!
//! A balloon's statistics come from the guest. QEMU polls the guest at an interval; here it is polled once, by an
//! interval that starts now and is too long to elapse again.

use std::time::Duration;

use serde_json::{Value, json};
use vireo_proto::launcher::{BalloonStatistics, DiskStatistics, OperationStatistics};

use crate::hypervisor::{HypervisorStats, StatsReply};

/// The balloon's id.
pub(super) const BALLOON: &str = "balloon";

/// How soon the guest's answer is looked for again, and how often.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_POLLS: u32 = 10;
/// Seconds until QEMU would poll the guest again; about seven decades.
const NEVER: u32 = i32::MAX as u32;
/// What the guest's driver reports for an unknown value.
const UNKNOWN: u64 = u64::MAX;

const DISKS: &str = "figures-disks";
const CPUS: &str = "figures-cpus";
const SIZE: &str = "figures-balloon";
const STOP_POLLING: &str = "figures-rest";
const START_POLLING: &str = "figures-ask";
const GUEST: &str = "figures-guest";

/// One look at a VM.
#[derive(Debug)]
pub(super) struct StatsQuery {
    replies: Vec<StatsReply>,
    stats: HypervisorStats,
    /// In seconds since 1970: older values of the guest are stale.
    since: u64,
    /// The devices of the attached volumes, and their names.
    plugged: Vec<(String, String)>,
    polls: u32,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for other answers.
    Wait,
    /// Send [`guest_query`] after a while.
    PollGuest(Duration),
    /// [`StatsQuery::finish`]
    Finish,
}

/// All queries, in the order in which they are answered.
pub(super) fn queries() -> String {
    let balloon = |id: &str, seconds: u32| {
        let property =
            json!({ "path": path(), "property": "guest-stats-polling-interval", "value": seconds });
        json!({ "execute": "qom-set", "id": id, "arguments": property })
    };
    let all = [
        json!({ "execute": "query-blockstats", "id": DISKS }),
        json!({ "execute": "query-cpus-fast", "id": CPUS }),
        json!({ "execute": "query-balloon", "id": SIZE }),
        balloon(STOP_POLLING, 0),
        balloon(START_POLLING, NEVER),
    ];
    all.iter().map(|query| format!("{query}\n")).collect::<String>() + &guest_query()
}

/// Queries the guest's values.
pub(super) fn guest_query() -> String {
    let property = json!({ "path": path(), "property": "guest-stats" });
    format!("{}\n", json!({ "execute": "qom-get", "id": GUEST, "arguments": property }))
}

fn path() -> String {
    format!("/machine/peripheral/{BALLOON}")
}

/// Whether an answer is to one of [`queries`].
pub(super) fn is_stats_query(id: &str) -> bool {
    [DISKS, CPUS, SIZE, STOP_POLLING, START_POLLING, GUEST].contains(&id)
}

impl StatsQuery {
    /// Started by a request, for this process, at this second. `plugged` are the devices of the attached volumes, and their names.
    pub(super) fn new(reading: StatsReply, pid: i32, now: u64, plugged: Vec<(String, String)>) -> Self {
        let stats = HypervisorStats { pid, ..HypervisorStats::default() };
        Self { replies: vec![reading], stats, since: now, plugged, polls: 0 }
    }

    /// Another request joins the query.
    pub(super) fn join(&mut self, reading: StatsReply) {
        self.replies.retain(|reply| !reply.is_closed());
        self.replies.push(reading);
    }

    /// Takes an answer, or that there is none.
    pub(super) fn record(&mut self, id: &str, answer: Option<&Value>) -> Next {
        match (id, answer) {
            (DISKS, Some(answer)) => self.record_disks(answer),
            (CPUS, Some(answer)) => self.stats.vcpus = vcpus(answer),
            (SIZE, Some(answer)) => {
                let actual_bytes = number(answer, "/actual");
                self.stats.balloon = Some(BalloonStatistics { actual_bytes, ..BalloonStatistics::default() });
            }
            (GUEST, Some(answer)) => return self.record_guest(answer),
            (GUEST, None) => return Next::Finish,
            _ => {}
        }
        Next::Wait
    }

    fn record_disks(&mut self, answer: &Value) {
        for (device, statistics) in answer.as_array().into_iter().flatten().filter_map(disk) {
            if let Some(index) = disk_index(device) {
                self.stats.disks.push((index, statistics));
            } else if let Some((_, name)) = self.plugged.iter().find(|(id, _)| id == device) {
                self.stats.plugged.push(DiskStatistics { name: name.clone(), ..statistics });
            }
        }
    }

    fn record_guest(&mut self, answer: &Value) -> Next {
        if number(answer, "/last-update").is_none_or(|then| then < self.since) {
            self.polls += 1;
            // A guest that is paused, or has no driver, does not respond.
            return if self.polls < MAX_POLLS { Next::PollGuest(POLL_INTERVAL) } else { Next::Finish };
        }
        let value =
            |name: &str| number(answer, &format!("/stats/stat-{name}")).filter(|value| *value != UNKNOWN);
        let balloon = self.stats.balloon.get_or_insert_default();
        balloon.available_bytes = value("total-memory");
        balloon.unused_bytes = value("free-memory");
        balloon.usable_bytes = value("available-memory");
        balloon.cached_bytes = value("disk-caches");
        balloon.swap_in_bytes = value("swap-in");
        balloon.swap_out_bytes = value("swap-out");
        balloon.major_faults = value("major-faults");
        balloon.minor_faults = value("minor-faults");
        Next::Finish
    }

    /// Sends all replies.
    pub(super) fn finish(self) {
        for reply in self.replies {
            // The requester may have stopped waiting.
            let _ = reply.send(self.stats.clone());
        }
    }
}

fn number(value: &Value, pointer: &str) -> Option<u64> {
    value.pointer(pointer)?.as_u64()
}

fn vcpus(answer: &Value) -> Vec<(u32, i32)> {
    let one = |cpu: &Value| {
        let index = u32::try_from(number(cpu, "/cpu-index")?).ok()?;
        Some((index, i32::try_from(number(cpu, "/thread-id")?).ok()?))
    };
    answer.as_array().into_iter().flatten().filter_map(one).collect()
}

/// A device of ours and its statistics, without a name.
fn disk(device: &Value) -> Option<(&str, DiskStatistics)> {
    // The id, or a path with it.
    let qdev = device.pointer("/qdev")?.as_str()?;
    let id = qdev.split('/').find(|part| part.starts_with("device-"))?;
    let stats = device.pointer("/stats")?;
    let of = |operations: &str, bytes: &str, time: &str| {
        let value = |name: &str| stats.get(name).and_then(Value::as_u64);
        let bytes = if bytes.is_empty() { Some(0) } else { value(bytes) };
        Some(OperationStatistics { requests: value(operations)?, bytes: bytes?, nanoseconds: value(time)? })
    };
    let statistics = DiskStatistics {
        name: String::new(),
        reads: of("rd_operations", "rd_bytes", "rd_total_time_ns"),
        writes: of("wr_operations", "wr_bytes", "wr_total_time_ns"),
        flushes: of("flush_operations", "", "flush_total_time_ns"),
    };
    Some((id, statistics))
}

/// Which disk of the launch message a device is.
fn disk_index(device: &str) -> Option<usize> {
    device.strip_prefix("device-disk")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn query() -> (StatsQuery, oneshot::Receiver<HypervisorStats>) {
        let (reading, stats) = oneshot::channel();
        let plugged = vec![("device-plugged1".to_owned(), "data".to_owned())];
        (StatsQuery::new(reading, 7, 1000, plugged), stats)
    }

    #[test]
    fn every_question_is_a_line_with_an_id_of_ours() {
        for line in queries().lines() {
            let query: Value = serde_json::from_str(line).unwrap();
            assert!(is_stats_query(query["id"].as_str().unwrap()), "{line}");
        }
        assert_eq!(queries().lines().count(), 6);
        assert!(!is_stats_query("quit"));
    }

    #[test]
    fn answers_become_figures() {
        let (mut query, mut stats) = query();
        let block = json!([
            { "qdev": "/machine/peripheral/device-disk1/virtio-backend", "stats": {
                "rd_operations": 1, "rd_bytes": 2, "rd_total_time_ns": 3, "wr_operations": 4, "wr_bytes": 5,
                "wr_total_time_ns": 6, "flush_operations": 7, "flush_total_time_ns": 8 } },
            { "qdev": "device-disk0", "stats": { "rd_operations": 1 } },
            { "qdev": "/machine/peripheral/device-plugged1/virtio-backend", "stats": {
                "flush_operations": 9, "flush_total_time_ns": 10 } },
            { "qdev": "device-plugged10", "stats": {} },
            { "device": "pflash0", "stats": {} },
        ]);
        let cpus = json!([{ "cpu-index": 0, "thread-id": 70 }, { "cpu-index": 1, "thread-id": 71 }, {}]);
        assert_eq!(query.record(DISKS, Some(&block)), Next::Wait);
        assert_eq!(query.record(CPUS, Some(&cpus)), Next::Wait);
        assert_eq!(query.record(SIZE, Some(&json!({ "actual": 9 }))), Next::Wait);
        assert_eq!(query.record(STOP_POLLING, Some(&json!({}))), Next::Wait);
        let value =
            json!({ "last-update": 1000, "stats": { "stat-free-memory": 10, "stat-swap-in": UNKNOWN } });
        assert_eq!(query.record(GUEST, Some(&value)), Next::Finish);
        query.finish();
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
        let expected = HypervisorStats {
            pid: 7,
            vcpus: vec![(0, 70), (1, 71)],
            disks: vec![(1, busy), (0, DiskStatistics::default())],
            plugged: vec![DiskStatistics {
                name: "data".to_owned(),
                flushes: of(9, 0, 10),
                ..DiskStatistics::default()
            }],
            balloon: Some(balloon),
        };
        assert_eq!(stats.try_recv(), Ok(expected));
    }

    #[test]
    fn a_guest_that_is_silent_is_asked_a_few_times() {
        let (mut query, mut stats) = query();
        let stale = json!({ "last-update": 999, "stats": { "stat-free-memory": 10 } });
        for _ in 1..MAX_POLLS {
            assert_eq!(query.record(GUEST, Some(&stale)), Next::PollGuest(POLL_INTERVAL));
        }
        assert_eq!(query.record(GUEST, Some(&stale)), Next::Finish);
        query.finish();
        assert_eq!(stats.try_recv().unwrap().balloon, None);
    }

    #[test]
    fn without_a_balloon_there_is_nothing_to_wait_for() {
        let (mut query, _figures) = query();
        assert_eq!(query.record(SIZE, None), Next::Wait);
        assert_eq!(query.record(START_POLLING, None), Next::Wait);
        assert_eq!(query.record(GUEST, None), Next::Finish);
    }

    #[test]
    fn those_who_lost_patience_are_forgotten() {
        let (mut query, stats) = query();
        drop(stats);
        let (reading, mut other) = oneshot::channel();
        query.join(reading);
        assert_eq!(query.replies.len(), 1);
        query.finish();
        assert_eq!(other.try_recv().unwrap().pid, 7);
    }
}
