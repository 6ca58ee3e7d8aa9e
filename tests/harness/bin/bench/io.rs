//! `bench io`: requests to a guest's disk, under `vmm`, the launcher and QEMU's q35, each with and without the page cache, in one
//! nested host.

mod guest;
mod monitor;
mod peer;
pub(crate) mod report;
mod store;
mod workload;

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use vireo_tests::{Host, HostBuilder, Image, Initrd};

use self::guest::Guest;
use self::monitor::Monitor;
use self::peer::Peer;
use self::report::Sample;
use self::store::Store;
use self::workload::Workload;
use crate::{Error, parse_list};

/// What a guest's start takes, with the emulated host at its slowest, and what its jobs take beside their time.
const GUEST: Duration = Duration::from_secs(240);
/// The nested host's start, and its file systems.
const HOST: Duration = Duration::from_secs(300);
/// RAM of the nested host: guests, what the device in memory has, and page cache.
const HOST_MEMORY_MIB: u32 = 3072;
/// The first process of the guest.
const INIT: &str = "#!/bin/sh
/bin/busybox mkdir -p /proc /sys /dev /sbin
/bin/busybox --install -s /bin
ln -s /bin/modprobe /sbin/modprobe
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
modprobe virtio_pci
modprobe virtio_blk
dmesg -n 1
stty -F /dev/ttyS0 raw -echo
/bin/io-load /dev/vda </dev/ttyS0 >/dev/ttyS0 2>&1
poweroff -f
";

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    rounds: u32,
    seconds: f64,
    monitors: Vec<Monitor>,
    stores: Vec<Store>,
    host_cpus: u32,
    /// Of the disk; the guest has as many vCPUs, and a thread that makes requests on each.
    queues: u32,
    /// What is measured beside ours, where the environment names it.
    peer: Option<Peer>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            rounds: 3,
            seconds: 2.0,
            monitors: Monitor::ALL.to_vec(),
            stores: Store::ALL.to_vec(),
            host_cpus: 1,
            queues: 1,
            peer: None,
        }
    }
}

impl Plan {
    /// Reads the options.
    pub(crate) fn parse(parser: &mut lexopt::Parser) -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;
        let mut plan = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("rounds") => plan.rounds = parser.value()?.parse::<NonZeroU32>()?.get(),
                Long("seconds") => plan.seconds = parser.value()?.parse_with(parse_seconds)?,
                Long("only") => {
                    plan.monitors = parser.value()?.parse_with(|text| parse_list(&Monitor::ALL, text))?;
                }
                Long("stores") => {
                    plan.stores = parser.value()?.parse_with(|text| parse_list(&Store::ALL, text))?;
                }
                Long("queues") => plan.queues = parser.value()?.parse_with(parse_queues)?,
                Long("host-cpus") => plan.host_cpus = parser.value()?.parse::<NonZeroU32>()?.get(),
                other => return Err(other.unexpected()),
            }
        }
        plan.peer = Peer::find(std::env::vars())?;
        if plan.peer.is_none() {
            plan.monitors.retain(|monitor| *monitor != Monitor::Peer);
        }
        // The launcher is measured on qcow2 alone, whose queues have one lane.
        if plan.queues > 1 {
            plan.stores.retain(|store| *store != Store::Qcow2);
        }
        Ok(plan)
    }

    /// The command line of `bench` that runs this plan in the nested host.
    fn arguments(&self) -> Vec<String> {
        let names = |list: Vec<String>| list.join(",");
        vec![
            "io-inside".to_owned(),
            format!("--rounds={}", self.rounds),
            format!("--seconds={}", self.seconds),
            format!("--queues={}", self.queues),
            format!("--only={}", names(self.monitors.iter().map(Monitor::to_string).collect())),
            format!("--stores={}", names(self.stores.iter().map(Store::to_string).collect())),
        ]
    }

    /// The guests of a round.
    fn guests(&self) -> impl Iterator<Item = (Store, Monitor)> {
        let of_store = |store: &Store| {
            let store = *store;
            let monitors = self.monitors.iter().copied();
            monitors.filter(move |monitor| monitor.takes(store)).map(move |monitor| (store, monitor))
        };
        self.stores.iter().flat_map(of_store)
    }

    /// For all of it.
    fn deadline(&self) -> Duration {
        let jobs = Duration::from_secs_f64(self.seconds * 2.0 * Workload::ALL.len() as f64);
        let guests = u32::try_from(self.guests().count()).unwrap_or(u32::MAX);
        HOST + (GUEST + jobs) * guests * self.rounds
    }
}

fn parse_queues(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(queues @ 1..=32) => Ok(queues),
        _ => Err(format!("{text}: want 1 to 32 queues")),
    }
}

pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|error| format!("{text:?}: {error}"))?;
    if (0.1..=600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("{text}: want 0.1 to 600 seconds"))
    }
}

/// Starts the nested host, has it measure, and prints the tables.
pub(crate) fn run(plan: &Plan) -> Result<(), Error> {
    let programs = std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default();
    let scratch = tempfile::tempdir()?;
    let host = start_host(&programs, scratch.path(), plan)?;
    eprintln!("bench: io, {} rounds, jobs of {} s, {} queues", plan.rounds, plan.seconds, plan.queues);
    let variable = plan.peer.as_ref().map(Peer::variable);
    let environment = variable.map(|(name, line)| format!("{name}={line}"));
    let command = host.command("env").args(environment).arg("/in/bench").args(plan.arguments());
    let output = command.deadline(plan.deadline()).stream().run()?;
    let text = output.ok();
    let samples: Vec<Sample> = crate::samples(&text)?;
    print!("{}", report::tables(&samples));
    Ok(())
}

fn start_host(programs: &Path, scratch: &Path, plan: &Plan) -> Result<Host, Error> {
    let image = Image::get()?;
    let kernel = image.cloud_kernel()?;
    let initrd = scratch.join("initrd");
    let mut files = Initrd::with_busybox(&image.busybox())?;
    files.modules(&kernel.modules, &kernel.version, &["virtio_pci", "virtio_blk"])?;
    files.file("init", INIT.as_bytes())?;
    files.file("bin/io-load", &std::fs::read(programs.join("io-load"))?)?;
    files.save(&initrd)?;
    let mut builder = HostBuilder::new(programs.join("nested"))
        .to_measure()
        .cpus(plan.host_cpus)
        .memory_mib(HOST_MEMORY_MIB)
        .deadline(plan.deadline())
        .file_as(&kernel.image, "vmlinuz")
        .file_as(initrd, "initrd")
        .file(programs.join("bench"));
    let ours = [
        ([Monitor::Vmm, Monitor::VmmDirect], "vmm"),
        ([Monitor::Launcher, Monitor::LauncherDirect], "virt-launcher"),
    ];
    if let Some(peer) = &plan.peer {
        builder = builder.file_as(peer.program(), "peer");
    }
    for (monitors, program) in ours {
        if monitors.iter().any(|monitor| plan.monitors.contains(monitor)) {
            builder = builder.file(programs.join(program));
        }
    }
    Ok(builder.start()?)
}

/// The part that runs in the nested host: a sample a line on standard output.
pub(crate) fn run_inside(plan: &Plan) -> Result<(), Error> {
    Store::set_up()?;
    for round in 1..=plan.rounds {
        for (store, monitor) in plan.guests() {
            measure(plan, store, monitor)
                .map_err(|error| format!("round {round}, {store}, {monitor}: {error}"))?;
        }
    }
    Ok(())
}

/// All jobs of one guest.
fn measure(plan: &Plan, store: Store, monitor: Monitor) -> Result<(), Error> {
    store.before_guest()?;
    let mut guest = Guest::start(monitor, store, plan)?;
    for workload in Workload::ALL {
        store.before_job()?;
        let measured = guest
            .run(&workload.job(plan.seconds, plan.queues))
            .map_err(|error| format!("{workload}: {error}"))?;
        if let Some(doubt) = measured.doubt() {
            eprintln!("bench: {store}, {workload}, {monitor}: doubtful: {doubt}");
        }
        let outcome = measured.outcome;
        let sample = Sample {
            store,
            workload,
            monitor,
            iops: outcome.requests as f64 / outcome.seconds,
            p50: outcome.p50,
            p99: outcome.p99,
            processor: measured.processor_seconds * 1e6 / outcome.all_requests.max(1) as f64,
        };
        println!("{}", serde_json::to_string(&sample)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_the_command_line() {
        let plan = Plan {
            rounds: 2,
            seconds: 0.5,
            monitors: vec![Monitor::Vmm, Monitor::QemuDirect],
            stores: vec![Store::Null],
            queues: 2,
            ..Plan::default()
        };
        let words = plan.arguments();
        assert_eq!(Plan::parse(&mut lexopt::Parser::from_iter(words)).unwrap(), plan);
        let refused =
            |word| Plan::parse(&mut lexopt::Parser::from_iter(["io", word])).unwrap_err().to_string();
        assert!(
            refused("--only=qemu")
                .contains("vmm, vmm-direct, launcher, launcher-direct, qemu-direct, qemu-cached")
        );
        assert!(refused("--seconds=0").contains("0.1 to 600"));
        assert!(refused("--rounds=0").contains("zero"));
        assert!(refused("--queues=33").contains("1 to 32"));
    }

    #[test]
    fn the_launcher_is_measured_where_vmm_is_not() {
        let guests: Vec<_> = Plan::default().guests().collect();
        // That of the environment, which there is none of, among them.
        assert_eq!(guests.len(), 19);
        assert!(guests.contains(&(Store::Qcow2, Monitor::Launcher)));
        assert!(!guests.contains(&(Store::Qcow2, Monitor::Vmm)));
        assert!(!guests.contains(&(Store::Warm, Monitor::Launcher)));
    }
}
