//! `virt-importer`: reads a request, and writes answers.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use vireo_importer::{Answer, Request};

/// The largest request: it has certificates.
const LARGEST_REQUEST: u64 = 4 << 20;

fn main() -> ExitCode {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    match request().and_then(|request| Ok((request, runtime()?))) {
        Ok((request, runtime)) => {
            let last = runtime.block_on(vireo_importer::run(request, &mut say));
            let has_failed = matches!(last, Answer::Failed(_));
            say(last);
            if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("virt-importer: {error}");
            ExitCode::from(2)
        }
    }
}

fn request() -> io::Result<Request> {
    vireo_importer::confine()?;
    let mut text = String::new();
    io::stdin().take(LARGEST_REQUEST).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

fn say(answer: Answer) {
    let line = serde_json::to_string(&answer).unwrap_or_default();
    // Without a reader, the node agent is gone, and this process is killed.
    let _ = writeln!(io::stdout(), "{line}");
}
