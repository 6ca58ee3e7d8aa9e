//! What `virt-launcher` is in the containers of images: the first process, which has to handle the signal that ends it.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a program may take to do what it does at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for a condition.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_offer_that_is_not_taken_fails_at_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (directory.path().join("image.sock"), directory.path().join("kernel"));
    std::fs::write(&file, "kernel").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virt-launcher"));
    command.arg("offer-files").arg("--socket").arg(&socket).arg(&file);
    let mut offer = Killed(command.spawn().unwrap());
    // It handles the signal by then.
    until("it offers the file", || socket.exists());
    kill_process(Pid::from_child(&offer.0), Signal::TERM).unwrap();
    let mut status = None;
    until("it ends", || {
        status = offer.0.try_wait().unwrap();
        status.is_some()
    });
    // Without a handler it would be killed, which is a signal and no code, and which the first process is not.
    assert_eq!(status.unwrap().code(), Some(1));
}
