//! A guest's serial line, over which a load generator is given jobs, and the process that runs the guest.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// Of the console, for messages.
const TAIL: usize = 30;
/// `USER_HZ`, in which `/proc/PID/stat` counts.
const TICKS_PER_SECOND: f64 = 100.0;

/// Dropping it kills the process.
pub(crate) struct Serial {
    child: Child,
    input: Box<dyn Write>,
    lines: Receiver<String>,
}

impl Serial {
    /// Of a command whose standard input and output it is.
    pub(crate) fn spawn(words: &[String]) -> Result<Self, Error> {
        let (program, arguments) = words.split_first().ok_or("an empty command")?;
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no standard input")?;
        let output = child.stdout.take().ok_or("no standard output")?;
        Ok(Self::over(child, input, output))
    }

    /// Of a process that has it elsewhere.
    pub(crate) fn over(
        child: Child,
        input: impl Write + 'static,
        output: impl Read + Send + 'static,
    ) -> Self {
        Self { child, input: Box::new(input), lines: read_lines(output) }
    }

    /// Gives the guest a job.
    pub(crate) fn send(&mut self, job: &impl Serialize) -> Result<(), Error> {
        writeln!(self.input, "{}", serde_json::to_string(job)?)?;
        Ok(self.input.flush()?)
    }

    /// The next response; other lines are the kernel's.
    pub(crate) fn response<R: DeserializeOwned>(&self, deadline: Duration) -> Result<R, Error> {
        let end = Instant::now() + deadline;
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => match serde_json::from_str(line.trim()) {
                    Ok(response) => return Ok(response),
                    Err(_) => seen.push(line),
                },
                Err(error) => {
                    let tail = seen.get(seen.len().saturating_sub(TAIL)..).unwrap_or_default().join("\n");
                    let waited = deadline.as_secs();
                    return Err(
                        format!("no response within {waited} s ({error}); the console:\n{tail}").into()
                    );
                }
            }
        }
    }

    /// What the process took so far, with its guest.
    pub(crate) fn processor_seconds(&self) -> Result<f64, Error> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, ticks) = processor_ticks(&text).ok_or_else(|| format!("no processor time in {text:?}"))?;
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }

    /// What kernel threads took so far that move the queues of the process's devices.
    pub(crate) fn vhost_seconds(&self) -> Result<f64, Error> {
        let name = format!("vhost-{}", self.child.id());
        let mut ticks = 0;
        for process in std::fs::read_dir("/proc")? {
            // Other entries have no such file, and processes come and go.
            let Ok(text) = std::fs::read_to_string(process?.path().join("stat")) else { continue };
            if let Some((found, of_process)) = processor_ticks(&text)
                && found == name
            {
                ticks += of_process;
            }
        }
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }
}

impl Drop for Serial {
    fn drop(&mut self) {
        // Both fail only where it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads on in a thread, so that the guest never waits for us.
fn read_lines(serial: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(serial);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    lines
}

/// The name, and `utime` and `stime`, of `/proc/PID/stat`. The name may have anything in it.
fn processor_ticks(stat: &str) -> Option<(&str, u64)> {
    let (start, rest) = stat.rsplit_once(") ")?;
    let (_, name) = start.split_once(" (")?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((name, user + system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_follows_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 123 45 6 7 20 0 3 0 1000 2000 300\n";
        assert_eq!(processor_ticks(stat), Some(("a) b (c", 168)));
        assert_eq!(processor_ticks("7 (a) S 1 7"), None);
    }

    #[test]
    fn lines_of_a_console_are_separated() {
        let lines = read_lines(&b"[ 0.1] kernel\r\n{\"ready\":{\"bytes\":512}}\r\nend"[..]);
        let seen: Vec<String> = lines.iter().collect();
        assert_eq!(seen, ["[ 0.1] kernel", "{\"ready\":{\"bytes\":512}}", "end"]);
    }
}
