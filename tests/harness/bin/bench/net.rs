//! `bench net`: TCP, UDP and round trips between a guest and its host, under `vmm` and QEMU's q35 with and without
//! vhost-net, in one nested host.

mod monitor;
mod peer;
mod report;
mod workload;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use vireo_tests::net_load::{PORT, Response};
use vireo_tests::{Host, HostBuilder, Image, Initrd};

use self::monitor::{Monitor, TAP};
use self::report::Sample;
use self::workload::Workload;
use crate::io::parse_seconds;
use crate::serial::Serial;
use crate::{Error, parse_list};

/// What a guest's start takes, with the emulated host at its slowest, and what its jobs take beside their time.
const GUEST: Duration = Duration::from_secs(240);
/// The nested host's start.
const HOST: Duration = Duration::from_secs(300);
/// What a job may take beside its own time.
const MARGIN: Duration = Duration::from_secs(60);
const HOST_MEMORY_MIB: u32 = 1536;
/// The most by which a job's time may differ between the guest's clock and the host's, in seconds beside a tenth of it.
const CLOCKS_APART: f64 = 0.5;
/// The first process of the guest.
const INIT: &str = "#!/bin/sh
/bin/busybox mkdir -p /proc /sys /dev /sbin
/bin/busybox --install -s /bin
ln -s /bin/modprobe /sbin/modprobe
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
modprobe virtio_pci
modprobe virtio_net
ip link set lo up
ip addr add 10.77.0.2/24 dev eth0
ip link set eth0 up
dmesg -n 1
stty -F /dev/ttyS0 raw -echo
/bin/net-load 10.77.0.1 </dev/ttyS0 >/dev/ttyS0 2>&1
poweroff -f
";

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    rounds: u32,
    seconds: f64,
    monitors: Vec<Monitor>,
    pairs: Vec<u32>,
    host_cpus: u32,
    /// Another build of `vmm`.
    other: Option<PathBuf>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            rounds: 3,
            seconds: 2.0,
            monitors: vec![Monitor::Vmm, Monitor::VmmVhost, Monitor::Qemu, Monitor::QemuVhost],
            pairs: vec![1, 2],
            host_cpus: 1,
            other: None,
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
                Long("queues") => plan.pairs = parser.value()?.parse_with(parse_pairs)?,
                Long("host-cpus") => plan.host_cpus = parser.value()?.parse::<NonZeroU32>()?.get(),
                Long("other") => {
                    plan.other = Some(parser.value()?.into());
                    plan.monitors.push(Monitor::Other);
                }
                other => return Err(other.unexpected()),
            }
        }
        Ok(plan)
    }

    /// The command line of `bench` that runs this plan in the nested host.
    fn arguments(&self) -> Vec<String> {
        let names: Vec<String> = self.monitors.iter().map(Monitor::to_string).collect();
        let pairs: Vec<String> = self.pairs.iter().map(u32::to_string).collect();
        vec![
            "net-inside".to_owned(),
            format!("--rounds={}", self.rounds),
            format!("--seconds={}", self.seconds),
            format!("--only={}", names.join(",")),
            format!("--queues={}", pairs.join(",")),
        ]
    }

    /// The guests of a round.
    fn guests(&self) -> impl Iterator<Item = (u32, Monitor)> {
        self.pairs.iter().flat_map(|pairs| self.monitors.iter().map(|monitor| (*pairs, *monitor)))
    }

    /// For all of it.
    fn deadline(&self) -> Duration {
        let jobs = Duration::from_secs_f64(self.seconds * 2.0 * Workload::ALL.len() as f64);
        let guests = u32::try_from(self.guests().count()).unwrap_or(u32::MAX);
        HOST + (GUEST + jobs) * guests * self.rounds
    }
}

fn parse_pairs(text: &str) -> Result<Vec<u32>, String> {
    let parse = |text: &str| text.parse().ok().filter(|pairs| (1..=8).contains(pairs));
    text.split(',').map(|text| parse(text).ok_or_else(|| format!("{text:?}: want 1 to 8"))).collect()
}

/// Starts the nested host, has it measure, and prints the tables.
pub(crate) fn run(plan: &Plan) -> Result<(), Error> {
    let programs = std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default();
    let scratch = tempfile::tempdir()?;
    let host = start_host(&programs, scratch.path(), plan)?;
    eprintln!("bench: net, {} rounds, jobs of {} s", plan.rounds, plan.seconds);
    let output = host.command("/in/bench").args(plan.arguments()).deadline(plan.deadline()).stream().run()?;
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
    files.modules(&kernel.modules, &kernel.version, &["virtio_pci", "virtio_net"])?;
    files.file("init", INIT.as_bytes())?;
    files.file("bin/net-load", &std::fs::read(programs.join("net-load"))?)?;
    files.save(&initrd)?;
    let mut builder = HostBuilder::new(programs.join("nested"))
        .to_measure()
        .cpus(plan.host_cpus)
        .memory_mib(HOST_MEMORY_MIB)
        .deadline(plan.deadline())
        .file_as(&kernel.image, "vmlinuz")
        .file_as(initrd, "initrd")
        .file(programs.join("bench"))
        .file(programs.join("vmm"));
    if let Some(other) = &plan.other {
        builder = builder.file_as(other, "other");
    }
    Ok(builder.start()?)
}

/// The part that runs in the nested host: a sample a line on standard output.
pub(crate) fn run_inside(plan: &Plan) -> Result<(), Error> {
    command("modprobe tun")?;
    command("modprobe vhost_net")?;
    // Once for all taps, whose address does not last.
    peer::serve(([0, 0, 0, 0], PORT).into())?;
    for round in 1..=plan.rounds {
        for (pairs, monitor) in plan.guests() {
            measure(plan, pairs, monitor)
                .map_err(|error| format!("round {round}, {pairs} queues, {monitor}: {error}"))?;
        }
    }
    Ok(())
}

fn command(line: &str) -> Result<(), Error> {
    let mut words = line.split_whitespace();
    let status = Command::new(words.next().unwrap_or_default()).args(words).status()?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}").into()) }
}

/// All jobs of one guest.
fn measure(plan: &Plan, pairs: u32, monitor: Monitor) -> Result<(), Error> {
    let multi_queue = if pairs > 1 { "multi_queue" } else { "" };
    command(&format!("ip tuntap add {TAP} mode tap vnet_hdr {multi_queue}"))?;
    command(&format!("ip addr add 10.77.0.1/24 dev {TAP}"))?;
    command(&format!("ip link set {TAP} up"))?;
    let mut guest = Serial::spawn(&monitor.command(pairs))?;
    match guest.response(GUEST)? {
        Response::Ready => {}
        other => return Err(format!("{other:?} where the guest is to be ready").into()),
    }
    for workload in Workload::ALL {
        let sample = run_job(&mut guest, plan.seconds, (pairs, workload, monitor))
            .map_err(|error| format!("{workload}: {error}"))?;
        println!("{}", serde_json::to_string(&sample)?);
    }
    drop(guest);
    command(&format!("ip link del {TAP}"))
}

fn run_job(
    guest: &mut Serial,
    seconds: f64,
    (pairs, workload, monitor): (u32, Workload, Monitor),
) -> Result<Sample, Error> {
    let taken = |guest: &Serial| Ok::<_, Error>(guest.processor_seconds()? + guest.vhost_seconds()?);
    let before = taken(guest)?;
    let begin = Instant::now();
    guest.send(&workload.job(seconds, pairs))?;
    let outcome = match guest.response(Duration::from_secs_f64(2.0 * seconds) + MARGIN)? {
        Response::Done(outcome) => outcome,
        Response::Failed { reason } => return Err(reason.into()),
        Response::Ready => return Err("the guest started anew".into()),
    };
    let host_seconds = begin.elapsed().as_secs_f64();
    if (host_seconds - outcome.all_seconds).abs() > CLOCKS_APART + outcome.all_seconds / 10.0 {
        let guest = outcome.all_seconds;
        eprintln!(
            "bench: {pairs} queues, {workload}, {monitor}: doubtful: it took {host_seconds:.1} s by the host's clock, \
             {guest:.1} s by the guest's"
        );
    }
    let operations = outcome.all_count as f64 / workload.unit();
    Ok(Sample {
        pairs,
        workload,
        monitor,
        rate: outcome.count as f64 / workload.unit() / outcome.seconds,
        processor: (taken(guest)? - before) * 1e6 / operations.max(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_the_command_line() {
        let plan = Plan {
            rounds: 2,
            seconds: 0.5,
            monitors: vec![Monitor::Vmm, Monitor::QemuVhost],
            pairs: vec![1, 8],
            ..Plan::default()
        };
        let words = plan.arguments();
        assert_eq!(Plan::parse(&mut lexopt::Parser::from_iter(words)).unwrap(), plan);
        let refused =
            |word| Plan::parse(&mut lexopt::Parser::from_iter(["net", word])).unwrap_err().to_string();
        assert!(refused("--only=kvm").contains("vmm, vmm-vhost, other, qemu, qemu-vhost"));
        assert!(refused("--queues=9").contains("1 to 8"));
    }

    #[test]
    fn a_guest_has_the_queues_of_the_plan() {
        let line = |monitor: Monitor, pairs| monitor.command(pairs).join(" ");
        assert!(line(Monitor::Vmm, 2).contains("--net tap=tap0,queues=2,vhost=off "));
        assert!(line(Monitor::Other, 1).contains("--net tap=tap0 "));
        assert!(line(Monitor::QemuVhost, 2).contains("vhost=on,queues=2"));
        assert!(line(Monitor::Qemu, 1).contains("vhost=off "));
    }
}
