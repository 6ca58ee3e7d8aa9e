//! Against the cgroups of this host, in whichever version it has them.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use super::*;

/// Runs a program in the cgroups of a launcher with limits. Returns how it ended and what it printed.
fn run_limited(cgroups: &Cgroups, limits: &Limits, line: &str) -> (std::process::Output, Vec<PathBuf>, Uuid) {
    let uid = Uuid::new_v4();
    let paths = cgroups.create(uid).unwrap();
    cgroups.limit(uid, limits).unwrap();
    let procs: Vec<File> = paths
        .iter()
        .map(|path| File::options().write(true).open(path.join("cgroup.procs")).unwrap())
        .collect();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let join = move || {
        for procs in &procs {
            rustix::io::write(procs, b"0")?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec, `join` makes plain system calls on files that are open.
    #[expect(unsafe_code, reason = "a process joins its cgroups before it is executed")]
    unsafe {
        command.pre_exec(join)
    };
    let ended = command.spawn().unwrap().wait_with_output().unwrap();
    (ended, paths, uid)
}

fn complete() -> Option<Cgroups> {
    match Cgroups::find().and_then(|found| found.complete().map(|()| found)) {
        Ok(cgroups) => Some(cgroups),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

#[test]
fn limits_are_real() {
    let Some(cgroups) = complete() else { return };
    let limits = Limits { memory: 64 << 20, pids: 20, cpu: Some(500), cpu_share: 100 };
    // 200 MiB in a process of their own.
    let grow = "head -c 200000000 /dev/zero | tail >/dev/null";
    let (ended, paths, uid) = run_limited(&cgroups, &limits, grow);
    assert!(oom_kills(&paths) > 0, "{ended:?}");
    cgroups.remove(uid, Vec::new()).unwrap();

    let (ended, paths, uid) =
        run_limited(&cgroups, &limits, "for i in $(seq 40); do sleep 60 >/dev/null 2>&1 & done");
    let said = String::from_utf8_lossy(&ended.stderr).to_lowercase();
    assert!(said.contains("fork"), "{ended:?}");
    assert_eq!(oom_kills(&paths), 0);
    cgroups.remove(uid, Vec::new()).unwrap();

    // Half a CPU: 0.3 s of it take 0.6 s at least, less one period.
    let begin = Instant::now();
    let line = "while read -r a b c < /proc/$$/schedstat && [ ${a:-0} -lt 300000000 ]; do :; done";
    let (ended, _, uid) = run_limited(&cgroups, &limits, line);
    assert!(begin.elapsed() > Duration::from_millis(450), "{:?} {ended:?}", begin.elapsed());
    cgroups.remove(uid, Vec::new()).unwrap();
}

#[test]
fn a_launcher_has_a_share_of_block_io() {
    let Some(cgroups) = complete() else { return };
    let Some(parent) = cgroups.controllers.get(&Controller::Io) else {
        eprintln!("SKIPPED: this host has no controller of block I/O");
        return;
    };
    let limits = Limits { memory: 64 << 20, pids: 20, cpu: None, cpu_share: 100 };
    let (ended, paths, uid) = run_limited(&cgroups, &limits, "cat /proc/self/cgroup");
    let own = parent.join(uid.to_string());
    assert!(paths.contains(&own), "{paths:?}");
    let lines = String::from_utf8_lossy(&ended.stdout).into_owned();
    let is_its = |line: &&str| line.contains(":blkio:") || line.starts_with("0::");
    assert!(lines.lines().filter(is_its).any(|line| line.ends_with(&uid.to_string())), "{lines}");
    // A new cgroup has it as its default, and one that was changed gets it.
    for name in ["io.weight", "io.bfq.weight", "blkio.bfq.weight"].map(|name| own.join(name)) {
        if !name.exists() {
            continue;
        }
        fs::write(&name, "200").unwrap();
        cgroups.limit(uid, &limits).unwrap();
        let weight = fs::read_to_string(&name).unwrap();
        assert_eq!(weight.trim().trim_start_matches("default "), "100", "{}", name.display());
    }
    cgroups.remove(uid, Vec::new()).unwrap();
}

/// The number of a disk of this host.
fn disk() -> Option<String> {
    let disks = fs::read_dir("/sys/block").ok()?.filter_map(Result::ok);
    let disks = disks.filter(|disk| disk.path().join("device").exists());
    disks.filter_map(|disk| fs::read_to_string(disk.path().join("dev")).ok()).next()
}

#[test]
fn a_launcher_has_the_limits_of_block_io_that_are_set() {
    let (Some(cgroups), Some(disk)) = (complete(), disk()) else { return };
    let Some(parent) = cgroups.controllers.get(&Controller::Io).cloned() else {
        eprintln!("SKIPPED: this host has no controller of block I/O");
        return;
    };
    let disk = disk.trim();
    let max = format!("{disk} wbps=1048576 riops=100").parse().unwrap();
    let cgroups = cgroups.with_io_max(vec![max]);
    let limits = Limits { memory: 64 << 20, pids: 20, cpu: None, cpu_share: 100 };
    let (_, _, uid) = run_limited(&cgroups, &limits, "true");
    let read = |name: &str| fs::read_to_string(parent.join(uid.to_string()).join(name)).unwrap_or_default();
    let set =
        ["io.max", "blkio.throttle.write_bps_device", "blkio.throttle.read_iops_device"].map(read).concat();
    let is_set = |value: &str| set.lines().any(|line| line.starts_with(disk) && line.contains(value));
    assert!(is_set("1048576") && is_set("100"), "{set}");
    // A device that is none.
    let absent = cgroups.with_io_max(vec!["0:1 wbps=1".parse().unwrap()]);
    let error = absent.limit(uid, &limits).unwrap_err().to_string();
    assert!(error.contains("io.max") || error.contains("write_bps_device"), "{error}");
    absent.remove(uid, Vec::new()).unwrap();
}

#[test]
fn a_cgroup_of_an_earlier_handler_is_removed_by_its_name() {
    let (dir, uid) = (tempfile::tempdir().unwrap(), Uuid::new_v4());
    let [mine, other] = [uid, Uuid::new_v4()].map(|uid| dir.path().join(uid.to_string()));
    for path in [&mine, &other] {
        fs::create_dir(path).unwrap();
    }
    remove_all(uid, [mine.clone(), other.clone()]).unwrap();
    assert!(!mine.exists() && other.exists());
    let Some(cgroups) = complete() else { return };
    fs::create_dir(&mine).unwrap();
    cgroups.remove(uid, vec![mine.clone(), other.clone()]).unwrap();
    assert!(!mine.exists() && other.exists());
}
