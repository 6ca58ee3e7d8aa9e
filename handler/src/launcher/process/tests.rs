use super::*;

fn sleeper<'a>(log: &'a Path, stamp: &'a Path) -> Start<'a> {
    Start {
        program: Path::new("/bin/sh"),
        arguments: vec!["-c".into(), "echo started; exec sleep 600".into()],
        log,
        stamp,
        namespace: None,
        cgroups: &[],
        oom_score_adj: None,
        confinement: None,
    }
}

#[test]
fn births_are_read_past_any_command_name() {
    let fields = (3..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
    for name in ["sleep", "a b", ") R 1 (", "(((", ""] {
        let birth = ProcessIdentity::parse(&format!("42 ({name}) {fields}\n")).unwrap();
        assert_eq!((birth.pid.as_raw_nonzero().get(), birth.start), (42, 22), "{name}");
    }
    for broken in ["", "42", "42 (x", "x (y) 1 2 3", "42 (x) R 1 2", "0 (x) R 1"] {
        assert_eq!(ProcessIdentity::parse(broken), None, "{broken}");
    }
}

#[tokio::test]
async fn a_launcher_is_found_by_its_stamp_until_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (log, stamp) = (dir.path().join("log"), dir.path().join("stamp"));
    assert!(matches!(find(&stamp).unwrap(), Found::Unstarted));
    let pid = spawn(&sleeper(&log, &stamp)).unwrap();

    let Found::Running(process) = find(&stamp).unwrap() else { panic!("it was just started") };
    assert_eq!(process.pid, pid);
    // Its own session: a terminal's Ctrl+C for the handler does not reach it.
    assert_eq!(rustix::process::getsid(Some(pid)).unwrap(), pid);

    process.kill().unwrap();
    assert_eq!(process.gone().await, Ending::Signal(9));
    assert!(matches!(find(&stamp).unwrap(), Found::Gone));
    process.kill().unwrap();
}

#[tokio::test]
async fn nothing_open_is_inherited() {
    let dir = tempfile::tempdir().unwrap();
    let (log, stamp) = (dir.path().join("log"), dir.path().join("stamp"));
    let leaked = File::create(dir.path().join("lock")).unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let pid = spawn(&sleeper(&log, &stamp)).unwrap();
    let open: Vec<_> = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|target| !matches!(target.to_str(), Some("/dev/null")) && *target != log)
        .collect();
    let Found::Running(process) = find(&stamp).unwrap() else { panic!("it was just started") };
    process.kill().unwrap();
    process.gone().await;
    // A shell may hold its script or terminal; what was leaked it must not.
    assert!(!open.iter().any(|target| target.starts_with(dir.path())), "{open:?}");
}

/// A launcher that is stopped, with a child, a grandchild that left the session, and an orphan that did not; the
/// ids of all of them.
async fn family(dir: &Path, cgroups: &[PathBuf]) -> (Process, Vec<i32>) {
    let (log, stamp) = (dir.join("log"), dir.join("stamp"));
    let line = "sleep 600 & echo $!; sh -c 'setsid sleep 601 & echo $!; wait' & echo $!; \
                (sleep 602 & echo $!); echo ready; kill -STOP $$; wait";
    spawn(&Start { arguments: vec!["-c".into(), line.into()], cgroups, ..sleeper(&log, &stamp) }).unwrap();
    let Found::Running(process) = find(&stamp).unwrap() else { panic!("it was just started") };
    let pids = loop {
        let text = fs::read_to_string(&log).unwrap();
        let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        if pids.len() == 4 && text.contains("ready") {
            break pids;
        }
        tokio::task::yield_now().await;
    };
    (process, pids)
}

/// Waits until none of them exists, or only as a zombie.
async fn are_gone(pids: &[i32]) {
    let lives =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while pids.iter().any(lives) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn nothing_of_a_launcher_survives_its_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (process, pids) = family(dir.path(), &[]).await;
    process.kill_all(None).unwrap();
    assert_eq!(process.gone().await, Ending::Signal(9));
    are_gone(&pids).await;
    process.kill_all(None).unwrap();
}

#[tokio::test]
async fn a_cgroup_is_killed_whole_and_removed() {
    let Ok(cgroups) = super::super::cgroup::Cgroups::find() else {
        eprintln!("skipped: this test may not make cgroups");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for is_killed in [true, false] {
        let uid = uuid::Uuid::new_v4();
        let made = cgroups.create(uid).unwrap();
        let unified = cgroups.of(uid);
        assert!(unified.iter().all(|path| made.contains(path)), "{made:?}");
        let (process, pids) = family(dir.path(), &made).await;
        if is_killed {
            process.kill_all(unified.as_deref()).unwrap();
        } else {
            process.kill().unwrap();
        }
        process.gone().await;
        // What a launcher left behind goes with its cgroup.
        cgroups.remove(uid, Vec::new()).unwrap();
        are_gone(&pids).await;
        assert!(made.iter().all(|path| !path.exists()), "{made:?}");
        cgroups.remove(uid, made).unwrap();
        fs::remove_file(dir.path().join("log")).unwrap();
    }
}

#[tokio::test]
async fn a_stamp_of_another_boot_or_start_matches_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let (log, stamp) = (dir.path().join("log"), dir.path().join("stamp"));
    spawn(&sleeper(&log, &stamp)).unwrap();
    let Found::Running(process) = find(&stamp).unwrap() else { panic!("it was just started") };
    let text = fs::read_to_string(&stamp).unwrap();
    let (boot, stat) = text.split_once('\n').unwrap();
    let birth = ProcessIdentity::parse(stat).unwrap();

    fs::write(&stamp, format!("another-boot\n{stat}")).unwrap();
    assert!(matches!(find(&stamp).unwrap(), Found::Gone));
    fs::write(&stamp, format!("{boot}\n{}", stat.replace(&birth.start.to_string(), "1"))).unwrap();
    assert!(matches!(find(&stamp).unwrap(), Found::Gone));
    fs::write(&stamp, boot).unwrap();
    assert!(matches!(find(&stamp).unwrap(), Found::Unstarted));

    process.kill().unwrap();
    process.gone().await;
}

#[tokio::test]
async fn a_missing_program_is_an_error_without_a_process() {
    let dir = tempfile::tempdir().unwrap();
    let (log, stamp) = (dir.path().join("log"), dir.path().join("stamp"));
    let start = Start { program: Path::new("/nonexistent/virt-launcher"), ..sleeper(&log, &stamp) };
    assert_eq!(spawn(&start).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(matches!(find(&stamp).unwrap(), Found::Unstarted));
}

#[test]
fn a_launcher_that_cannot_be_isolated_is_not_started() {
    let dir = tempfile::tempdir().unwrap();
    let (log, stamp, program) =
        (dir.path().join("log"), dir.path().join("stamp"), dir.path().join("launcher"));
    // The error is what it reports, or, of a test that may not make namespaces, what the kernel answers.
    fs::write(&program, "#!/bin/sh\necho Operation not permitted: why >&0\n").unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let confinement = Confinement { user: 7, directory: dir.path(), sockets: dir.path(), show: vec![] };
    let start = Start { program: &program, confinement: Some(confinement), ..sleeper(&log, &stamp) };
    let error = spawn(&start).unwrap_err().to_string();
    assert!(error.contains("Operation not permitted"), "{error}");
    assert!(error.contains("--launcher-isolation=none"), "{error}");
    assert!(!stamp.exists(), "nothing is found later");
}

#[test]
fn an_isolated_launcher_is_told_what_it_sees() {
    let confinement = Confinement {
        user: 7,
        directory: Path::new("/vmi"),
        sockets: Path::new("/vmi/sockets"),
        show: vec!["/opt/qemu".into()],
    };
    let words: Vec<String> =
        confinement.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let expected = "confine --user 7 --directory /vmi --sockets /vmi/sockets --show /opt/qemu --";
    assert_eq!(words.join(" "), expected);
}
