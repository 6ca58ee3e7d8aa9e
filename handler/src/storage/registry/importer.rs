//! `virt-importer`, a process for each image.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use tracing::debug;
use vireo_importer::{Action, Answer, Endpoint, FailureKind, Request};

use super::RegistrySettings;
use crate::jobs::{JobContext, child};
use crate::storage::images::ImageError;

/// The most bytes of an answer that are kept.
const LONGEST_ANSWER: usize = 1 << 16;

/// An image of a registry, and where it may be.
#[derive(Debug, Clone)]
pub(in crate::storage) struct Importer {
    pub(in crate::storage) settings: RegistrySettings,
    pub(in crate::storage) image: String,
    pub(in crate::storage) endpoints: Vec<Endpoint>,
}

impl Importer {
    /// The digest of its manifest. Blocks.
    pub(in crate::storage) fn resolve(&self, job: &JobContext) -> Result<String, ImageError> {
        match self.run(Action::Resolve, job, &mut |_, _| {})? {
            Answer::Resolved(digest) => Ok(digest),
            other => Err(unexpected(&other)),
        }
    }

    /// Downloads it into an image layout. Blocks. `progress` gets bytes that are there, and bytes of all.
    pub(in crate::storage) fn pull(
        &self,
        (digest, layout, most_bytes): (&str, &Path, u64),
        job: &JobContext,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, ImageError> {
        let action = Action::Pull { digest: digest.to_owned(), layout: layout.to_owned(), most_bytes };
        match self.run(action, job, progress)? {
            Answer::Pulled { bytes } => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }

    fn run(
        &self,
        action: Action,
        job: &JobContext,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Answer, ImageError> {
        let request = Request { image: self.image.clone(), endpoints: self.endpoints.clone(), action };
        let mut command = Command::new(&self.settings.program);
        command.stdin(Stdio::from(input(&request).map_err(ImageError::NoImporter)?));
        let mut lines = Lines::default();
        let mut last = None;
        let mut take = |bytes: &[u8]| {
            for answer in lines.take(bytes) {
                match answer {
                    Answer::Progress { done, total } => progress(done, total),
                    other => last = Some(other),
                }
            }
        };
        let ended = child::run_with_output(&mut command, job, &mut take).map_err(ImageError::NoImporter)?;
        match last {
            Some(Answer::Failed(failure)) if failure.kind == FailureKind::Full => Err(ImageError::Full),
            Some(Answer::Failed(failure)) => Err(failure.into()),
            Some(answer) => Ok(answer),
            None => {
                debug!(status = %ended.status, stderr = ended.stderr, "virt-importer ended without an answer");
                Err(ImageError::ImporterEnded(ended.status))
            }
        }
    }
}

fn unexpected(answer: &Answer) -> ImageError {
    ImageError::NoImporter(io::Error::other(format!("unexpected answer {answer:?}")))
}

/// A file in memory: the request has credentials, and may be longer than a pipe takes.
fn input(request: &Request) -> io::Result<File> {
    let mut file = File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(request)?)?;
    file.rewind()?;
    Ok(file)
}

/// Answers from bytes.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn take(&mut self, bytes: &[u8]) -> Vec<Answer> {
        self.0.extend(bytes);
        let mut answers = Vec::new();
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            answers.extend(serde_json::from_slice::<Answer>(&line).ok());
        }
        // No answer is as long.
        if self.0.len() > LONGEST_ANSWER {
            self.0.clear();
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_lines() {
        let mut lines = Lines::default();
        assert_eq!(lines.take(b"{\"Pulled\":{\"by"), []);
        let answers = lines.take(b"tes\":5}}\nnot JSON\n{\"Resolved\":\"d\"}\n");
        assert_eq!(answers, [Answer::Pulled { bytes: 5 }, Answer::Resolved("d".to_owned())]);
        lines.take(&vec![b' '; LONGEST_ANSWER + 1]);
        assert!(lines.0.is_empty());
    }
}
