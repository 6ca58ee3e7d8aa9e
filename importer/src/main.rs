//! `virt-importer`: reads a request, and writes answers.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::process::ExitCode;

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use vireo_importer::{Answer, Files, ReadRequest, Task, Work, sandbox};

/// The largest request: it has certificates.
const LARGEST_REQUEST: u64 = 4 << 20;

fn main() -> ExitCode {
    match run(std::env::args().nth(1).as_deref() == Some(sandbox::CONFINED)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("virt-importer: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(is_confined: bool) -> io::Result<ExitCode> {
    sandbox::limit()?;
    let Task { user, work } = task()?;
    let missing = |what: &str| say(Answer::Unconfined(what.to_owned()));
    let last = match work {
        Work::Registry(request) => {
            sandbox::limit_pull()?;
            sandbox::give_up(user, missing)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(vireo_importer::run(request, &mut say))
        }
        Work::Read(_) if !is_confined => {
            let ended = sandbox::run_confined(missing)?;
            return Ok(match ended.code() {
                Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
                None => Err(io::Error::other(format!("the process that reads the image ended: {ended}")))?,
            });
        }
        Work::Read(request) => {
            let files = files(&request)?;
            sandbox::give_up(user, missing)?;
            vireo_importer::read(&request.action, files, request.most_bytes)
        }
    };
    let has_failed = matches!(last, Answer::Failed(_));
    say(last);
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn task() -> io::Result<Task> {
    let mut text = String::new();
    io::stdin().take(LARGEST_REQUEST).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// The files that this process has inherited for a request.
fn files(request: &ReadRequest) -> io::Result<Files> {
    let mut taken = Vec::new();
    let mut take = |number: i32| -> io::Result<OwnedFd> {
        if number <= 2 || taken.contains(&number) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        taken.push(number);
        // SAFETY: it is only asked whether the number is that of an open file.
        #[expect(unsafe_code, reason = "descriptors are inherited by number")]
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        fcntl_getfd(borrowed)?;
        // What this process starts inherits none.
        fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
        // SAFETY: it is open, was inherited and is taken once: nothing else in this process owns it.
        #[expect(unsafe_code, reason = "descriptors are inherited by number")]
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    };
    Ok(Files {
        source: take(request.source)?,
        output: request.output.map(&mut take).transpose()?.map(File::from),
        scratch: request.scratch.map(&mut take).transpose()?.map(File::from),
    })
}

fn say(answer: Answer) {
    let line = serde_json::to_string(&answer).unwrap_or_default();
    // Without a reader, the node agent is gone, and this process is killed.
    let _ = writeln!(io::stdout(), "{line}");
}
