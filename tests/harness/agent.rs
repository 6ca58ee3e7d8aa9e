//! The host's side of the control channel: starts commands and reports what becomes of them.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::wire::{Frame, PIECE, Start, Status};

/// The name of the virtio-serial port that is the channel.
pub(crate) const PORT: &str = "vireo.agent";

/// Where the channel is.
#[derive(Clone, Copy, Debug)]
pub enum Channel {
    /// The virtio-serial port of a nested host.
    Port,
    /// Standard input and output: the agent of the test host.
    Stdio,
}

/// Serves the channel until it breaks.
pub fn serve(channel: Channel) -> io::Result<()> {
    let (mut reader, writer) = match channel {
        Channel::Port => {
            let port = open_port()?;
            (port.try_clone()?, port)
        }
        Channel::Stdio => {
            let (input, output) = (io::stdin(), io::stdout());
            (
                File::from(input.as_fd().try_clone_to_owned()?),
                File::from(output.as_fd().try_clone_to_owned()?),
            )
        }
    };
    let writer = Writer(Arc::new(Mutex::new(writer)));
    writer.send(&Frame::Ready)?;
    let mut commands: HashMap<u32, Running> = HashMap::new();
    loop {
        match Frame::read(&mut reader)? {
            Frame::Start(id, start) => match Running::start(id, &start, writer.clone()) {
                Ok(command) => drop(commands.insert(id, command)),
                Err(error) => writer.send(&Frame::Exit(id, Status::NotStarted(error.to_string())))?,
            },
            Frame::Stdin(id, bytes) => {
                if let Some(command) = commands.get_mut(&id) {
                    command.feed(bytes);
                }
            }
            Frame::Signal(id, number) => {
                if let (Some(command), Some(signal)) = (commands.get(&id), Signal::from_named_raw(number)) {
                    // Fails only where the group is gone already, which its exit status shows.
                    let _ = kill_process_group(command.group, signal);
                }
            }
            other => return Err(io::Error::other(format!("not for an agent: {other:?}"))),
        }
    }
}

/// Carries standard input to `address` and what comes back to standard output, until the other side is done.
pub fn relay(address: &str) -> io::Result<()> {
    let stream = TcpStream::connect(address)?;
    let mut up = stream.try_clone()?;
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    thread::spawn(move || {
        // Ends with either side; the other direction reports it.
        let _ = pump(&input, &mut up).and_then(|()| up.shutdown(Shutdown::Write));
    });
    pump(&stream, &mut File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Hands on what comes as it comes; [`io::copy`] would splice, and the kernel then waits for more to send.
fn pump(mut from: impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = vec![0; PIECE];
    loop {
        match from.read(&mut bytes)? {
            0 => return Ok(()),
            count => to.write_all(bytes.get(..count).unwrap_or_default())?,
        }
    }
}

fn open_port() -> io::Result<File> {
    for port in fs::read_dir("/sys/class/virtio-ports")? {
        let port = port?;
        if fs::read_to_string(port.path().join("name"))?.trim() == PORT {
            let device = std::path::Path::new("/dev").join(port.file_name());
            return OpenOptions::new().read(true).write(true).open(device);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no virtio-serial port named {PORT}")))
}

#[derive(Clone)]
struct Writer(Arc<Mutex<File>>);

impl Writer {
    fn send(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Running {
    group: Pid,
    stdin: Option<Sender<Vec<u8>>>,
}

impl Running {
    fn start(id: u32, start: &Start, writer: Writer) -> io::Result<Self> {
        let (program, args) = start.argv.split_first().ok_or_else(|| io::Error::other("empty command"))?;
        let mut command = Command::new(program);
        command.args(args).envs(start.env.iter().cloned()).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = &start.directory {
            command.current_dir(directory);
        }
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        let stdin = child.stdin.take().map(feeder);
        thread::spawn(move || {
            let status = follow(id, &mut child, &writer).unwrap_or_else(|error| {
                let _ = kill_process_group(group, Signal::KILL);
                Status::NotStarted(format!("lost track of it: {error}"))
            });
            // A broken channel ends the agent through its reader.
            let _ = writer.send(&Frame::Exit(id, status));
        });
        Ok(Self { group, stdin })
    }

    fn feed(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() {
            self.stdin = None;
        } else if let Some(stdin) = &self.stdin {
            // Fails once the command closed its input or is gone.
            let _ = stdin.send(bytes);
        }
    }
}

/// A command that does not read must not stop the agent: its input waits in a queue.
fn feeder(mut stdin: ChildStdin) -> Sender<Vec<u8>> {
    let (sender, receiver) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        for bytes in receiver {
            if stdin.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    sender
}

/// Forwards output until the command has exited, and then what is left in its pipes: a descendant that keeps them
/// open (a daemon) is not waited for.
fn follow(id: u32, child: &mut Child, writer: &Writer) -> io::Result<Status> {
    let exited = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut stdout = child.stdout.take();
    let mut stderr = child.stderr.take();
    loop {
        let mut fds = vec![PollFd::new(&exited, PollFlags::IN)];
        fds.extend(stdout.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        fds.extend(stderr.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let gone = fds.first().is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        let mut more = forward(&mut stdout, |bytes| Frame::Stdout(id, bytes), writer)?;
        more |= forward(&mut stderr, |bytes| Frame::Stderr(id, bytes), writer)?;
        if gone && !more {
            break;
        }
    }
    let status = child.wait()?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => Status::Code(code),
        (None, signal) => Status::Signal(signal.unwrap_or_default()),
    })
}

/// Forwards one piece if there is one; whether there was.
fn forward<P: Read + AsFd>(
    pipe: &mut Option<P>,
    frame: impl Fn(Vec<u8>) -> Frame,
    writer: &Writer,
) -> io::Result<bool> {
    let Some(open) = pipe else { return Ok(false) };
    let mut ready = [PollFd::new(open, PollFlags::IN)];
    if poll(&mut ready, Some(&rustix::event::Timespec::default()))? == 0 {
        return Ok(false);
    }
    let mut bytes = vec![0; PIECE];
    let count = open.read(&mut bytes)?;
    bytes.truncate(count);
    if bytes.is_empty() {
        *pipe = None;
        return Ok(false);
    }
    writer.send(&frame(bytes))?;
    Ok(true)
}
