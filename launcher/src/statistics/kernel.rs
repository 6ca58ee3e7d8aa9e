use procfs::net::{DeviceStatus, dev_status};
use procfs::process::{Process, Stat, Task};
use vireo_proto::launcher::{InterfaceStatistics, Statistics, TrafficStatistics, VcpuStatistics};

const SECOND: u64 = 1_000_000_000;

/// What a process has used: all of it, and those of its threads that are vCPUs.
pub(super) fn of_process(pid: i32, vcpus: &[(u32, i32)]) -> Statistics {
    let process = Process::new(pid).ok();
    let stat = process.as_ref().and_then(|process| process.stat().ok());
    let vcpus = vcpus.iter().map(|&(number, thread)| {
        let task = process.as_ref().and_then(|process| process.task_from_tid(thread).ok());
        cpu_number(number, task)
    });
    Statistics {
        vcpus: vcpus.collect(),
        user_nanoseconds: stat.as_ref().map(|stat| nanoseconds(stat.utime)),
        system_nanoseconds: stat.as_ref().map(|stat| nanoseconds(stat.stime)),
        resident_bytes: stat.as_ref().map(resident),
        ..Statistics::default()
    }
}

fn resident(stat: &Stat) -> u64 {
    stat.rss.saturating_mul(procfs::page_size())
}

/// From clock ticks.
fn nanoseconds(ticks: u64) -> u64 {
    ticks.saturating_mul(SECOND) / procfs::ticks_per_second().max(1)
}

fn cpu_number(number: u32, task: Option<Task>) -> VcpuStatistics {
    // Exact where the kernel counts for schedulers, else in ticks.
    let schedule = task.as_ref().and_then(|task| task.schedstat().ok());
    let ticks = || task.as_ref()?.stat().ok().map(|stat| nanoseconds(stat.utime.saturating_add(stat.stime)));
    let allowed = task.as_ref().and_then(|task| task.status().ok()?.cpus_allowed);
    VcpuStatistics {
        number,
        nanoseconds: schedule.as_ref().map(|schedule| schedule.sum_exec_runtime).or_else(ticks),
        delay_nanoseconds: schedule.map(|schedule| schedule.run_delay),
        wait_nanoseconds: task.as_ref().and_then(wait),
        host_cpus: allowed.map(|words| words.iter().map(|word| word.count_ones()).sum()),
    }
}

/// How long a thread was ready and did not run. It is 0 unless the kernel counts for schedulers in detail.
fn wait(task: &Task) -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/sys/kernel/sched_schedstats").ok()?.trim() == "1";
    let path = format!("/proc/{}/task/{}/sched", task.pid, task.tid);
    let text = counts.then(|| std::fs::read_to_string(path).ok()).flatten()?;
    wait_sum(&text)
}

/// The sum of waits in a thread's `sched` file, which has milliseconds.
fn wait_sum(text: &str) -> Option<u64> {
    let (_, value) = text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| {
        // Kernels before 5.16 have the names of their structures before it.
        name.trim().rsplit('.').next() == Some("wait_sum")
    })?;
    let (milliseconds, rest) = value.trim().split_once('.')?;
    let (milliseconds, nanoseconds): (u64, u64) = (milliseconds.parse().ok()?, rest.parse().ok()?);
    (rest.len() == 6).then(|| milliseconds.saturating_mul(1_000_000).saturating_add(nanoseconds))
}

/// What went through taps of this network namespace, as their guests see it: what a tap transmits, its guest receives.
pub(super) fn of_taps<'a>(taps: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<InterfaceStatistics> {
    let Ok(devices) = dev_status() else { return Vec::new() };
    let known = taps.filter_map(|(name, tap)| Some(as_guest(name, devices.get(tap)?)));
    known.collect()
}

fn as_guest(name: &str, tap: &DeviceStatus) -> InterfaceStatistics {
    InterfaceStatistics {
        name: name.to_owned(),
        received: Some(TrafficStatistics {
            bytes: tap.sent_bytes,
            packets: tap.sent_packets,
            errors: tap.sent_errs,
            dropped: tap.sent_drop,
        }),
        transmitted: Some(TrafficStatistics {
            bytes: tap.recv_bytes,
            packets: tap.recv_packets,
            errors: tap.recv_errs,
            dropped: tap.recv_drop,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_where_the_kernel_counts_them() {
        for (text, expected) in [
            ("se.statistics.wait_sum      :      12.000345\n", Some(12_000_345)),
            ("wait_max   :   9.000000\nwait_sum   :   1.500000\nwait_count  :  3\n", Some(1_500_000)),
            ("se.exec_start : 12.000345\n", None),
            ("wait_sum : 12.5\n", None),
            ("", None),
        ] {
            assert_eq!(wait_sum(text), expected, "{text}");
        }
    }

    #[test]
    fn a_thread_may_run_on_cpus_of_the_host() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = of_process(pid, &[(0, pid)]);
        let allowed = rustix::thread::sched_getaffinity(None).unwrap().count();
        assert_eq!(own.vcpus[0].host_cpus, Some(allowed));
    }

    #[test]
    fn the_loopback_device_is_there_and_its_directions_are_the_guests() {
        let lo = DeviceStatus { recv_bytes: 1, sent_bytes: 2, ..dev_status().unwrap().remove("lo").unwrap() };
        let seen = as_guest("default", &lo);
        assert_eq!((seen.received.unwrap().bytes, seen.transmitted.unwrap().bytes), (2, 1));
        let names: Vec<_> =
            of_taps([("a", "lo"), ("b", "no-such")].into_iter()).into_iter().map(|i| i.name).collect();
        assert_eq!(names, ["a"]);
    }
}
