//! `demo-check`: what a user of `hack/demo` does by hand, without the user. Applies the manifest, follows the console
//! to the login prompt, logs in, has the guest compute something, powers it off, and reports the result in one line.

use std::fmt;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use vireo_tests::memory::{self, Ram};

const USAGE: &str = "usage: demo-check --bin DIR --manifest FILE     (KUBECONFIG names the server, VIREO_STATE_DIR its state)";
/// The instance in examples/demo.yaml, its user, and its memory.
const NAME: &str = "demo";
const USER: &str = "vireo";
const PASSWORD: &str = "vireo";
const GUEST_RAM: u64 = 256 << 20;
/// An emulated guest on a busy host reaches its login prompt in this time.
const BOOT: Duration = Duration::from_secs(240);
const ANSWER: Duration = Duration::from_secs(60);
const TAIL_LINES: usize = 40;

type Error = Box<dyn std::error::Error>;

/// What was being done when something went wrong.
struct Failed {
    step: &'static str,
    cause: Error,
    console: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "demo: FAILED at step \"{}\": {}", self.step, self.cause)?;
        let lines: Vec<&str> = self.console.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default();
        match tail {
            [] => write!(f, "demo: the guest's console said nothing"),
            lines => write!(f, "demo: the end of the guest's console:\n{}", lines.join("\n")),
        }
    }
}

fn main() -> ExitCode {
    let mut check = match Check::from_args() {
        Ok(check) => check,
        Err(error) => {
            eprintln!("demo-check: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match check.run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(cause) => {
            let console = check.console.take().map(|console| console.text()).unwrap_or_default();
            eprintln!("{}", Failed { step: check.step, cause, console });
            ExitCode::FAILURE
        }
    }
}

struct Check {
    bin: PathBuf,
    manifest: PathBuf,
    state: PathBuf,
    step: &'static str,
    console: Option<Console>,
}

impl Check {
    fn from_args() -> Result<Self, Error> {
        use lexopt::prelude::*;
        let (mut bin, mut manifest) = (None, None);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("bin") => bin = Some(PathBuf::from(parser.value()?)),
                Long("manifest") => manifest = Some(PathBuf::from(parser.value()?)),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(Self {
            bin: bin.ok_or("--bin is missing")?,
            manifest: manifest.ok_or("--manifest is missing")?,
            state: std::env::var_os("VIREO_STATE_DIR").ok_or("VIREO_STATE_DIR is not set")?.into(),
            step: "start",
            console: None,
        })
    }

    fn run(&mut self) -> Result<String, Error> {
        self.begin("apply the manifest");
        let start = Instant::now();
        kubectl(&["apply", "-f", &self.manifest.to_string_lossy()])?;

        self.begin("wait for the guest's login prompt");
        kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", &format!("vmi/{NAME}")])?;
        self.console = Some(Console::open(&self.bin)?);
        // The seed is read and its script run before a login is possible.
        self.expect("user-data: hello from demo", BOOT)?;
        self.expect("login: ", BOOT)?;
        let to_login = start.elapsed();

        self.begin("log in over the console");
        self.type_line(USER)?;
        self.expect("Password: ", ANSWER)?;
        self.type_line(PASSWORD)?;
        self.expect("# ", ANSWER)?;

        self.begin("run a command in the guest");
        // The answer is not in the command, which the console echoes.
        self.type_line("echo \"$(uname -s) says $((6 * 7))\"")?;
        self.expect("Linux says 42", ANSWER)?;

        self.begin("read the status");
        let vmi = status()?;
        let hypervisor = hypervisor(&vmi)?;
        let memory = self.memory_beside_the_guest(&hypervisor)?;

        self.begin("shut the guest down");
        self.type_line("poweroff")?;
        let vmi = wait_for("the guest is off", ANSWER, |phase| matches!(phase, "Succeeded" | "Failed"))?;
        if phase(&vmi) != "Succeeded" {
            return Err(format!("the instance is {}", vmi["status"]).into());
        }
        Ok(format!(
            "demo: guest reached login in {:.1} s (hypervisor {hypervisor}, monitor+launcher memory {:.1} MiB)",
            to_login.as_secs_f64(),
            memory as f64 / 1024.0,
        ))
    }

    fn begin(&mut self, step: &'static str) {
        self.step = step;
        eprintln!("demo: {step}");
    }

    fn expect(&mut self, text: &str, deadline: Duration) -> Result<(), Error> {
        self.console.as_mut().ok_or("no console is open")?.expect(text, deadline)
    }

    fn type_line(&mut self, line: &str) -> Result<(), Error> {
        let console = self.console.as_mut().ok_or("no console is open")?;
        console.keys.write_all(format!("{line}\r").as_bytes())?;
        Ok(console.keys.flush()?)
    }

    /// KiB that the launcher and the QEMU it may have started hold beside the guest's RAM.
    fn memory_beside_the_guest(&self, hypervisor: &str) -> Result<u64, Error> {
        let sockets = self.state.join("vmis");
        let launchers = processes(|_, command| command.contains(&*sockets.to_string_lossy()))?;
        let [launcher] = launchers.as_slice() else {
            return Err(format!("one launcher was expected, found {launchers:?}").into());
        };
        if hypervisor == "native" {
            return Ok(memory::beside(*launcher, Ram::Ours)?);
        }
        let mut total = memory::beside(*launcher, Ram::None)?;
        for child in processes(|parent, _| parent == *launcher)? {
            total += memory::beside(child, Ram::Anonymous { bytes: GUEST_RAM })?;
        }
        Ok(total)
    }
}

/// What `kubectl` prints when it is content.
fn kubectl(line: &[&str]) -> Result<Vec<u8>, Error> {
    let output = Command::new("kubectl").args(line).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
    }
    Ok(output.stdout)
}

/// The instance as the API has it.
fn status() -> Result<Value, Error> {
    Ok(serde_json::from_slice(&kubectl(&["get", "vmi", NAME, "-o", "json"])?)?)
}

/// Polls the status until the phase is a wanted one.
fn wait_for(what: &str, deadline: Duration, wanted: impl Fn(&str) -> bool) -> Result<Value, Error> {
    let end = Instant::now() + deadline;
    loop {
        let seen = status();
        match &seen {
            Ok(vmi) if wanted(phase(vmi)) => return seen,
            _ if Instant::now() < end => thread::sleep(Duration::from_millis(100)),
            Ok(vmi) => return Err(format!("{what}: not within {deadline:?}: {}", vmi["status"]).into()),
            Err(error) => return Err(format!("{what}: not within {deadline:?}: {error}").into()),
        }
    }
}

fn phase(vmi: &Value) -> &str {
    vmi.pointer("/status/phase").and_then(Value::as_str).unwrap_or("Pending")
}

/// The hypervisor that runs it, by the status' condition.
fn hypervisor(vmi: &Value) -> Result<String, Error> {
    let conditions = vmi.pointer("/status/conditions").and_then(Value::as_array);
    let chosen = conditions.into_iter().flatten().find(|one| one["type"] == "vireo.io/hypervisor");
    let name = chosen.and_then(|condition| condition["reason"].as_str());
    Ok(name.ok_or("the status does not say which hypervisor runs the guest")?.to_lowercase())
}

/// Processes by parent and command line.
fn processes(wanted: impl Fn(u32, &str) -> bool) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let directory = Path::new("/proc").join(format!("{pid}"));
        // A process may end between being listed and being read.
        let (Ok(command), Ok(stat)) = (
            std::fs::read_to_string(directory.join("cmdline")),
            std::fs::read_to_string(directory.join("stat")),
        ) else {
            continue;
        };
        // The name in parentheses may hold anything; the state and the parent follow it.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if parent.is_some_and(|parent| wanted(parent, &command)) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// A `virtctl console` and all it showed. Dropping it ends the command.
struct Console {
    virtctl: Child,
    keys: ChildStdin,
    output: Receiver<Vec<u8>>,
    shown: Vec<u8>,
    /// Where the text that was not waited for yet begins.
    read: usize,
}

impl Console {
    fn open(bin: &Path) -> Result<Self, Error> {
        let mut virtctl = Command::new(bin.join("virtctl"))
            .args(["console", NAME, "--history"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let keys = virtctl.stdin.take().ok_or("virtctl has no standard input")?;
        let mut stdout = virtctl.stdout.take().ok_or("virtctl has no standard output")?;
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                if sender.send(buffer.get(..count).unwrap_or_default().to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { virtctl, keys, output, shown: Vec::new(), read: 0 })
    }

    /// Waits until the guest prints this, after what was waited for before.
    fn expect(&mut self, text: &str, deadline: Duration) -> Result<(), Error> {
        let end = Instant::now() + deadline;
        loop {
            let fresh = self.shown.get(self.read..).unwrap_or_default();
            if let Some(at) = fresh.windows(text.len()).position(|window| window == text.as_bytes()) {
                self.read += at + text.len();
                return Ok(());
            }
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.shown.extend(bytes),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("the guest did not print {text:?} within {deadline:?}").into());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.virtctl.wait()?;
                    return Err(format!("virtctl ended ({status}) before the guest printed {text:?}").into());
                }
            }
        }
    }

    /// All it showed, without what only a terminal understands.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).replace('\r', "").replace("\u{1b}[6n", "")
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.virtctl.kill();
        let _ = self.virtctl.wait();
    }
}
