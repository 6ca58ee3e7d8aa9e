//! `virt-importer`: reads a request, and writes answers.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use vireo_importer::sandbox::{self, OwnRoot, Paths, Profile};
use vireo_importer::{Answer, ConvertRequest, Files, ReadRequest, Request, Task, Work};
use vireo_privileges::landlock::Rights;
use vireo_privileges::seccomp::Seccomp;

/// The largest request: it has certificates.
const LARGEST_REQUEST: u64 = 4 << 20;
/// Where a process without a root directory of its own finds programs, and what it looks up names and certificates with.
const SYSTEM: [&str; 7] = ["/etc", "/usr", "/bin", "/lib", "/lib64", "/proc", "/nix/store"];

fn main() -> ExitCode {
    match run(sandbox::confinement(std::env::args_os().nth(1).as_deref())) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("virt-importer: {error}");
            ExitCode::from(2)
        }
    }
}

/// `has_namespaces` is set in the process that does the work: whether it may have a root directory of its own.
fn run(has_namespaces: Option<bool>) -> io::Result<ExitCode> {
    sandbox::limit()?;
    let seccomp = sandbox::seccomp()?;
    let Task { user, work } = task()?;
    let profile = match &work {
        Work::Registry(_) => Profile::Pull,
        Work::Read(_) => Profile::Read,
        Work::Convert(_) => Profile::Convert,
    };
    let mut taken = Taken::default();
    let directory = work.directory().map(|number| taken.take(number)).transpose()?;
    let Some(may_have_root) = has_namespaces else {
        // The process that it starts inherits it once more.
        directory.iter().try_for_each(|directory| fcntl_setfd(directory, FdFlags::empty()))?;
        let directory = directory.as_ref().map(|directory| directory.as_fd());
        let arguments = |confined: &str| vec![confined.to_owned()];
        let ended = sandbox::run_confined(profile, directory, arguments, missing)?;
        return Ok(match ended.code() {
            Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
            None => Err(io::Error::other(format!("the process that reads the image ended: {ended}")))?,
        });
    };
    sandbox::limit_further(profile)?;
    let qemu_img = (profile == Profile::Convert).then(vireo_importer::qemu_img).flatten();
    let root = match may_have_root {
        true => OwnRoot::enter(profile, directory.is_some(), qemu_img.as_deref())?,
        false => None,
    };
    if root.is_none() {
        missing("a root directory of its own");
    }
    let work_directory = Directory { opened: directory, root };
    let last = match work {
        Work::Registry(request) => pull(request, user, work_directory, seccomp)?,
        Work::Read(request) => read(&request, user, work_directory, &mut taken, seccomp)?,
        Work::Convert(request) => {
            let program = Program { path: qemu_img, has_root: work_directory.root.is_some() };
            convert(request, user, &program, &mut taken, seccomp)?
        }
    };
    let has_failed = matches!(last, Answer::Failed(_));
    say(last);
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The directory of an image: as it was inherited, and where it is in a root directory of this process's own.
struct Directory {
    opened: Option<OwnedFd>,
    root: Option<OwnRoot>,
}

fn pull(request: Request, user: Option<u32>, at: Directory, seccomp: Seccomp) -> io::Result<Answer> {
    let Directory { opened, root } = at;
    let layout = match (&opened, &root) {
        (None, _) => PathBuf::new(),
        (Some(opened), None) => sandbox::by_number(std::os::fd::AsRawFd::as_raw_fd(opened)),
        (Some(_), Some(root)) => root.image.clone(),
    };
    // Where there is a root directory, what is above the inherited one would be seen by it.
    let opened = opened.filter(|_| root.is_none());
    sandbox::give_up(user, missing)?;
    let mut paths = Paths::default();
    match &root {
        Some(_) => paths.directories.push((PathBuf::from("/etc"), Rights::Read)),
        None => paths.directories.extend(SYSTEM.map(|path| (PathBuf::from(path), Rights::ReadAndExecute))),
    }
    if !layout.as_os_str().is_empty() {
        paths.directories.push((layout.clone(), Rights::All));
    }
    sandbox::restrict_files(&paths, missing)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    sandbox::restrict_calls(Profile::Pull, seccomp)?;
    let last = runtime.block_on(vireo_importer::run(request, &layout, &mut say));
    drop(opened);
    Ok(last)
}

fn read(
    request: &ReadRequest,
    user: Option<u32>,
    at: Directory,
    taken: &mut Taken,
    seccomp: Seccomp,
) -> io::Result<Answer> {
    let source = match (at.opened, &at.root) {
        (None, _) => taken.take(request.source)?,
        (Some(opened), None) => opened,
        (Some(_inherited), Some(root)) => open_directory(&root.image)?,
    };
    let output = request.output.map(|number| taken.take(number)).transpose()?;
    let scratch = request.scratch.map(|number| taken.take(number)).transpose()?;
    sandbox::give_up(user, missing)?;
    let mut paths = Paths::default();
    // A directory, or what is opened anew.
    paths.files.push((source.as_fd(), Rights::Read));
    paths.files.extend(scratch.iter().map(|file| (file.as_fd(), Rights::Read)));
    sandbox::restrict_files(&paths, missing)?;
    sandbox::restrict_calls(Profile::Read, seccomp)?;
    let files = Files { source, output: output.map(File::from), scratch: scratch.map(File::from) };
    Ok(vireo_importer::read(&request.action, files, request.most_bytes))
}

/// `qemu-img`, and whether all that this process sees is there for it.
struct Program {
    path: Option<PathBuf>,
    has_root: bool,
}

fn convert(
    request: ConvertRequest,
    user: Option<u32>,
    program: &Program,
    taken: &mut Taken,
    seccomp: Seccomp,
) -> io::Result<Answer> {
    let (source, output) = (File::from(taken.take(request.source)?), File::from(taken.take(request.output)?));
    sandbox::give_up(user, missing)?;
    let mut paths = Paths {
        directories: vec![("/dev".into(), Rights::Device)],
        files: vec![(source.as_fd(), Rights::Read), (output.as_fd(), Rights::ReadAndWrite)],
    };
    let shown: &[&str] = if program.has_root { &["/"] } else { &SYSTEM };
    paths.directories.extend(shown.iter().map(|path| (path.into(), Rights::ReadAndExecute)));
    sandbox::restrict_files(&paths, missing)?;
    let filters = sandbox::qemu_img(seccomp).map_err(io::Error::other)?;
    let started = vireo_importer::start_qemu_img(
        program.path.as_deref(),
        (&source, &output),
        request.virtual_size,
        filters,
    );
    let running = match started {
        Ok(running) => running,
        Err(answer) => return Ok(answer),
    };
    sandbox::restrict_calls(Profile::Convert, seccomp)?;
    Ok(running.finish(request.most_bytes))
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn task() -> io::Result<Task> {
    let mut text = String::new();
    io::stdin().take(LARGEST_REQUEST).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// The numbers of inherited files that were taken.
#[derive(Default)]
struct Taken(Vec<i32>);

impl Taken {
    /// An inherited file.
    fn take(&mut self, number: i32) -> io::Result<OwnedFd> {
        if number <= 2 || self.0.contains(&number) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.0.push(number);
        // SAFETY: it is only asked whether the number is that of an open file.
        #[expect(unsafe_code, reason = "descriptors are inherited by number")]
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_getfd(borrowed)?;
        // What this process starts inherits none.
        fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
        // SAFETY: it is open, was inherited and is taken once: nothing else in this process owns it.
        #[expect(unsafe_code, reason = "descriptors are inherited by number")]
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

fn missing(what: &str) {
    say(Answer::Unconfined(what.to_owned()));
}

fn say(answer: Answer) {
    let line = serde_json::to_string(&answer).unwrap_or_default();
    // Without a reader, the node agent is gone, and this process is killed.
    let _ = writeln!(io::stdout(), "{line}");
}
