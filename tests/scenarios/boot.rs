//! Debian's kernels as packaged, on VMs small and large.

use vireo_tests::guest::{Flavour, Guest, GuestConfig, Monitor};
use vireo_tests::{Host, HostError, Status, scenario};

use crate::{SOON, host_for_guests, power_off};

/// Errors that this emulated CPU causes in a guest of any monitor.
const EXPECTED: &[&str] = &["unchecked MSR access", "RETBleed", "Speculative Return Stack Overflow", "TSA:"];

/// Signs of a broken VM that kernels log as mere warnings or less.
const SIGNS: &[&str] = &[
    "BUG:",
    "WARNING: CPU",
    "Call Trace",
    "soft lockup",
    "hung_task",
    "ACPI Error",
    "ACPI BIOS Error",
    "ACPI Warning",
    "nobody cared",
    "can't claim BAR",
    "no compatible bridge window",
    "not responding",
    "probe failed",
    "Unknown symbol",
    "I/O error",
    "firmware bug",
    "[Firmware Bug]",
];

fn check(guest: &mut Guest<'_>, config: &GuestConfig) -> Result<(), HostError> {
    let cpus = guest.run("grep -c ^processor /proc/cpuinfo", SOON)?;
    assert_eq!(cpus.trim(), config.cpus.to_string(), "CPUs");

    let total = guest.run("awk '/^MemTotal/ { print $2 }' /proc/meminfo", SOON)?;
    let total: u64 = total.trim().parse().expect("a number of KiB");
    let whole = u64::from(config.memory_mib) << 10;
    // The kernel keeps its own image, page structures and the first megabyte.
    let least = whole - whole / 20 - (60 << 10);
    assert!((least..=whole).contains(&total), "{total} KiB of {whole}");

    no_kernel_errors(guest)
}

/// Nothing in the kernel's log is a sign of a broken VM.
pub(crate) fn no_kernel_errors(guest: &mut Guest<'_>) -> Result<(), HostError> {
    let log = guest.run(&kernel_errors_command(), SOON)?;
    let wrong = kernel_errors(&log);
    assert!(wrong.is_empty(), "the guest's kernel has errors:\n{}", wrong.join("\n"));
    Ok(())
}

/// What prints the lines of `dmesg -r` that may be errors: the whole of it takes a serial line a minute.
pub(crate) fn kernel_errors_command() -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || " :_".contains(c) { c } else { '.' };
    let signs: Vec<String> = SIGNS.iter().map(|sign| sign.chars().map(plain).collect()).collect();
    format!("dmesg -r | grep -E '^<([0-3]|[0-9][0-9]+)>|{}' || true", signs.join("|"))
}

/// The lines of `dmesg -r` that are errors.
pub(crate) fn kernel_errors(log: &str) -> Vec<&str> {
    log.lines().filter(|line| is_wrong(line)).collect()
}

/// Whether a line of `dmesg -r` (`<priority>[time] text`) is an error.
fn is_wrong(line: &str) -> bool {
    let priority =
        line.trim_start_matches('<').split('>').next().and_then(|number| number.parse::<u8>().ok());
    let error = priority.is_some_and(|number| number & 7 <= 3);
    let known = EXPECTED.iter().any(|text| line.contains(text));
    (error && !known) || SIGNS.iter().any(|text| line.contains(text))
}

fn boots(name: &str, host_mib: u32, config: &GuestConfig) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let load = |host: &Host, monitor: Monitor| {
        let mut guest = config.start(host, monitor)?;
        let ready = guest.ready()?;
        eprintln!("{name}: {monitor}: guest up, boot id {}", ready.boot_id);
        check(&mut guest, config)?;
        power_off(guest)
    };
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(host_mib)), load);
}

#[test]
fn nested_cloud_kernel_one_cpu_128_mib() {
    let config = GuestConfig { memory_mib: 128, ..GuestConfig::default() };
    boots("cloud kernel, 1 CPU, 128 MiB", 1024, &config);
}

#[test]
fn nested_cloud_kernel_four_cpus_6_gib() {
    let config = GuestConfig { cpus: 4, memory_mib: 6 << 10, ..GuestConfig::default() };
    boots("cloud kernel, 4 CPUs, 6 GiB", 8 << 10, &config);
}

#[test]
fn nested_full_kernel_one_cpu_6_gib() {
    let config = GuestConfig { kernel: Flavour::Full, memory_mib: 6 << 10, ..GuestConfig::default() };
    boots("full kernel, 1 CPU, 6 GiB", 8 << 10, &config);
}

#[test]
fn nested_full_kernel_four_cpus_128_mib() {
    let config = GuestConfig { kernel: Flavour::Full, cpus: 4, memory_mib: 128, ..GuestConfig::default() };
    boots("full kernel, 4 CPUs, 128 MiB", 1024, &config);
}

/// As in a launcher Pod. QEMU gets it in the way that the launcher gives it.
#[test]
fn nested_monitors_that_may_open_nothing_run_on_a_kvm_that_they_inherit() {
    let config = GuestConfig { unprivileged: true, ..GuestConfig::default() };
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let load = |host: &Host, monitor: Monitor| {
        let denied = "chroot --userspec=107:107 --groups= / sh -c ': <>/dev/kvm'";
        assert_ne!(host.shell(denied).run()?.status, Status::Code(0), "the user may open it");
        for monitor in [monitor, Monitor::Qemu] {
            let mut guest = config.start(host, monitor)?;
            guest.ready()?;
            power_off(guest)?;
        }
        Ok(())
    };
    scenario::run("unprivileged monitors", || Ok(host_for_guests(scratch.path())?.memory_mib(1024)), load);
}

#[test]
fn what_may_tell_of_an_error_is_asked_for() -> Result<(), std::io::Error> {
    let log = "<6>[    0.1] all is well\n<4>[    0.2] can't claim BAR 0\n<3>[    0.3] bad\n<12>[    0.4] init: slow\n<28>x\n";
    let command = kernel_errors_command().replace("dmesg -r", &format!("printf %s {}", shell_words(log)));
    let reported = std::process::Command::new("sh").args(["-c", &command]).output()?;
    let reported = String::from_utf8_lossy(&reported.stdout).into_owned();
    assert_eq!(kernel_errors(&reported), kernel_errors(log));
    assert_eq!((reported.lines().count(), kernel_errors(log).len()), (4, 2), "{reported}");
    Ok(())
}

fn shell_words(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
