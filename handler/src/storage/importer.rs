//! `virt-importer`, a process for each image: it gets images from registries, and reads what is in them.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown, lchown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustix::fs::{MemfdFlags, memfd_create, statvfs};
use rustix::io::{FdFlags, fcntl_setfd};
use tracing::warn;
use vireo_importer::{
    Action, Answer, ConvertRequest, Endpoint, FailureKind, Files, LayoutKind, NamedImage, Qcow2Image,
    ReadAction, ReadRequest, Request, Task, Work, convert, read,
};
use vireo_privileges::seccomp::{self, rejected_call};

use super::images::ImageError;
use super::node_file;
use crate::jobs::{JobContext, child};
use crate::launcher::users::ImporterUsers;

/// The variables of the environment that virt-importer gets.
const KEPT_VARIABLES: [&str; 13] = [
    "PATH",
    "RUST_BACKTRACE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    seccomp::VARIABLE,
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "all_proxy",
    "https_proxy",
    "http_proxy",
    "no_proxy",
];

/// The most bytes of an answer that are kept.
const LONGEST_ANSWER: usize = 1 << 16;
/// What an import leaves free: this part of the file system in percent, and not more than so many bytes.
const KEPT_FREE: (u64, u64) = (5, 1 << 30);

/// The virt-importer to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImporterSettings {
    /// The program.
    pub program: PathBuf,
    /// The users and groups that it becomes, which have no other processes.
    pub users: ImporterUsers,
}

/// Who reads what is in images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageReader {
    /// A process without privileges.
    Process(ImporterSettings),
    /// This one, in tests.
    InProcess,
}

/// An image of a registry, and where it may be.
#[derive(Debug, Clone)]
pub(super) struct RegistryImage {
    pub(super) importer: ImporterSettings,
    pub(super) image: String,
    pub(super) endpoints: Vec<Endpoint>,
}

impl RegistryImage {
    /// The digest of its manifest. Blocks.
    pub(super) fn resolve(&self, job: &JobContext) -> Result<String, ImageError> {
        let user = self.importer.users.lend(job).map_err(ImageError::NoImporter)?;
        match self.run(Action::Resolve, &[], Some(user.number()), job, &mut |_, _| {})? {
            Answer::Resolved(digest) => Ok(digest),
            other => Err(unexpected(&other)),
        }
    }

    /// Downloads it into the image layout in a directory, which belongs to the importer meanwhile. Blocks. `progress` gets
    /// bytes that are there, and bytes of all.
    pub(super) fn pull(
        &self,
        (digest, directory, most_bytes): (&str, &Path, u64),
        job: &JobContext,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, ImageError> {
        let store = |source| ImageError::Store { path: directory.to_owned(), source };
        let user = self.importer.users.lend(job).map_err(ImageError::NoImporter)?;
        // What an earlier one has left belongs to its user.
        let given = give_tree(directory, user.number()).map_err(store)?;
        let opened = OwnedFd::from(File::open(directory).map_err(store)?);
        let action = Action::Pull { digest: digest.to_owned(), layout: opened.as_raw_fd(), most_bytes };
        let answer = self.run(action, &[opened.as_fd()], given.then_some(user.number()), job, progress)?;
        // Who reads it is another user.
        publish_tree(directory).map_err(store)?;
        match answer {
            Answer::Pulled { bytes } => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }

    fn run(
        &self,
        action: Action,
        files: &[BorrowedFd<'_>],
        user: Option<u32>,
        job: &JobContext,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Answer, ImageError> {
        let request = Request { image: self.image.clone(), endpoints: self.endpoints.clone(), action };
        let task = Task { user, work: Work::Registry(request) };
        run(&self.importer.program, &task, files, job, progress)
    }
}

impl ImageReader {
    /// The digest of the manifest of an image. Blocks.
    pub(super) fn identify(
        &self,
        action: &ReadAction,
        source: OwnedFd,
        job: &JobContext,
    ) -> Result<String, ImageError> {
        match self.run(action, Files { source, output: None, scratch: None }, 0, job)? {
            Answer::Resolved(digest) => Ok(digest),
            other => Err(unexpected(&other)),
        }
    }

    /// The images of a layout that have names. Blocks.
    pub(super) fn list(
        &self,
        layout: LayoutKind,
        source: OwnedFd,
        job: &JobContext,
    ) -> Result<Vec<NamedImage>, ImageError> {
        let files = Files { source, output: None, scratch: None };
        match self.run(&ReadAction::List { layout }, files, 0, job)? {
            Answer::Named(images) => Ok(images),
            other => Err(unexpected(&other)),
        }
    }

    /// Writes what is wanted of an image to an empty file. Files in between are in `directory`, on the same file system.
    /// Returns whether the source is what is wanted, and nothing was written. Blocks.
    pub(super) fn unpack(
        &self,
        action: &ReadAction,
        source: OwnedFd,
        (output, directory): (&File, &Path),
        job: &JobContext,
    ) -> Result<bool, ImageError> {
        let store = |source: io::Error| ImageError::Store { path: directory.to_owned(), source };
        let scratch = tempfile::tempfile_in(directory).map_err(store)?;
        let most_bytes = free_space(directory)?;
        let files = Files {
            source: source.try_clone().map_err(store)?,
            output: Some(output.try_clone().map_err(store)?),
            scratch: Some(scratch.try_clone().map_err(store)?),
        };
        let mut answer = self.run(action, files, most_bytes, job)?;
        if let Answer::Convert { image, virtual_size } = answer {
            if matches!(action, ReadAction::Upload { size } if virtual_size > *size) {
                return Err(unexpected(&answer));
            }
            let image = match image {
                Qcow2Image::Source => File::from(source),
                Qcow2Image::Scratch => scratch,
            };
            let most_bytes = free_space(directory)?;
            answer = self.convert(action, (&image, output), (virtual_size, most_bytes), job)?;
        }
        let is_source = match answer {
            Answer::Unpacked => false,
            Answer::AsIs => true,
            other => return Err(unexpected(&other)),
        };
        take_back(output).map_err(store)?;
        Ok(is_source)
    }

    fn run(
        &self,
        action: &ReadAction,
        files: Files,
        most_bytes: u64,
        job: &JobContext,
    ) -> Result<Answer, ImageError> {
        let settings = match self {
            Self::Process(settings) => settings,
            Self::InProcess => return finished(read(action, files, most_bytes)),
        };
        let Files { source, output, scratch } = files;
        let user = settings.users.lend(job).map_err(ImageError::NoImporter)?;
        // It opens them anew, too.
        let uploaded = upload(action, &source)?;
        let given = [&output, &scratch, &uploaded].into_iter().flatten();
        let user_id = give_all(given, user.number())?;
        let number = |file: &Option<File>| file.as_ref().map(|file| file.as_raw_fd());
        let request = ReadRequest {
            action: action.clone(),
            source: source.as_raw_fd(),
            output: number(&output),
            scratch: number(&scratch),
            most_bytes,
        };
        let mut passed = vec![source.as_fd()];
        passed.extend([&output, &scratch].into_iter().flatten().map(AsFd::as_fd));
        let task = Task { user: user_id, work: Work::Read(request) };
        run(&settings.program, &task, &passed, job, &mut |_, _| {})
    }

    /// Makes a raw disk of a qcow2 image, which is that of an action.
    fn convert(
        &self,
        action: &ReadAction,
        (image, output): (&File, &File),
        (virtual_size, most_bytes): (u64, u64),
        job: &JobContext,
    ) -> Result<Answer, ImageError> {
        let settings = match self {
            Self::Process(settings) => settings,
            Self::InProcess => return finished(convert((image, output), virtual_size, most_bytes)),
        };
        let user = settings.users.lend(job).map_err(ImageError::NoImporter)?;
        // An image of the node stays as it is: that it can be opened was tried.
        let metadata = image.metadata().map_err(ImageError::NoImporter)?;
        let is_ours = metadata.nlink() == 0 || matches!(action, ReadAction::Upload { .. });
        let given = is_ours.then_some(image).into_iter().chain([output]);
        let user_id = give_all(given, user.number())?;
        let request = ConvertRequest {
            source: image.as_raw_fd(),
            output: output.as_raw_fd(),
            virtual_size,
            most_bytes,
        };
        let task = Task { user: user_id, work: Work::Convert(request) };
        run(&settings.program, &task, &[image.as_fd(), output.as_fd()], job, &mut |_, _| {})
    }
}

/// A file that was received, which belongs to the node agent.
fn upload(action: &ReadAction, source: &OwnedFd) -> Result<Option<File>, ImageError> {
    match action {
        ReadAction::Upload { .. } => {
            source.try_clone().map(|file| Some(File::from(file))).map_err(ImageError::NoImporter)
        }
        ReadAction::List { .. }
        | ReadAction::Identify { .. }
        | ReadAction::Unpack { .. }
        | ReadAction::Copy { .. } => Ok(None),
    }
}

/// Gives files to a user of an importer, who is returned. `None` where this process may not.
fn give_all<'a>(files: impl IntoIterator<Item = &'a File>, user: u32) -> Result<Option<u32>, ImageError> {
    let mut given = Some(user);
    for file in files {
        given = given.and(give(file, user).map_err(ImageError::NoImporter)?);
    }
    Ok(given)
}

/// Gives a directory with all that is in it to a user of an importer. Returns whether this process may. No importer runs that
/// could change it meanwhile.
fn give_tree(at: &Path, user: u32) -> io::Result<bool> {
    match each_below(at, &mut |path, _| lchown(path, Some(user), Some(user))) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a directory that was given this process's again, for all to read who reach it.
fn publish_tree(at: &Path) -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    each_below(at, &mut |path, metadata| {
        lchown(path, Some(user), Some(group))?;
        match (metadata.is_dir(), metadata.is_file()) {
            (true, _) => fs::set_permissions(path, fs::Permissions::from_mode(0o755)),
            (_, true) => fs::set_permissions(path, fs::Permissions::from_mode(0o644)),
            (false, false) => Ok(()),
        }
    })
}

/// The same of one that an earlier release has left to its importer.
pub(super) fn publish_foreign_tree(at: &Path) -> io::Result<()> {
    match fs::metadata(at)?.uid() == rustix::process::geteuid().as_raw() {
        true => Ok(()),
        false => publish_tree(at),
    }
}

/// Does something with a directory and all that is in it. No link is followed, and a file with several names, which may be one
/// that is elsewhere, is an error.
fn each_below(at: &Path, act: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<()>) -> io::Result<()> {
    let metadata = fs::symlink_metadata(at)?;
    if metadata.is_file() && metadata.nlink() != 1 {
        return Err(io::Error::other("a file of the layout has several names"));
    }
    act(at, &metadata)?;
    if metadata.is_dir() {
        for entry in fs::read_dir(at)? {
            each_below(&entry?.path(), act)?;
        }
    }
    Ok(())
}

/// Gives a file to a user of an importer, who is returned. `None` where this process may not.
fn give(file: &File, user: u32) -> io::Result<Option<u32>> {
    match fchown(file, Some(user), Some(user)) {
        Ok(()) => Ok(Some(user)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a file that was given this process's again.
pub(super) fn take_back(file: &File) -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let metadata = file.metadata()?;
    match (metadata.uid(), metadata.gid()) == (user, group) {
        true => Ok(()),
        false => fchown(file, Some(user), Some(group)),
    }
}

/// Runs a virt-importer that inherits these files.
fn run(
    program: &Path,
    task: &Task,
    files: &[BorrowedFd<'_>],
    job: &JobContext,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Answer, ImageError> {
    let mut command = Command::new(program);
    command.stdin(Stdio::from(input(task).map_err(ImageError::NoImporter)?));
    let kept = KEPT_VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(kept);
    let numbers: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
    // SAFETY: between fork and exec only async-signal-safe calls may run, and these are plain system calls. The files are open
    // until the child is gone: they are borrowed.
    #[expect(unsafe_code, reason = "only the child itself can inherit a file that no other child gets")]
    unsafe {
        command.pre_exec(move || numbers.iter().try_for_each(|number| inherit(*number)))
    };
    let mut lines = Lines::default();
    let mut last = None;
    let mut take = |bytes: &[u8]| {
        for answer in lines.take(bytes) {
            match answer {
                Answer::Progress { done, total } => progress(done, total),
                Answer::Unconfined(what) => warn_once(what),
                other => last = Some(other),
            }
        }
    };
    let ended = child::run_with_output(&mut command, job, &mut take).map_err(ImageError::NoImporter)?;
    match last {
        Some(answer) => finished(answer),
        None => {
            warn!(status = %ended.status, stderr = ?ended.stderr, "virt-importer ended without an answer");
            Err(match rejected_call(&ended.stderr) {
                Some(call) => ImageError::ImporterRejected(call.to_owned()),
                None => ImageError::ImporterEnded(ended.status),
            })
        }
    }
}

/// Has the program that this process becomes inherit an open file.
fn inherit(number: RawFd) -> io::Result<()> {
    // SAFETY: who starts the program borrows the file until the program has ended, so that it is open.
    #[expect(unsafe_code, reason = "descriptors are inherited by number")]
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(fcntl_setfd(file, FdFlags::empty())?)
}

fn finished(answer: Answer) -> Result<Answer, ImageError> {
    match answer {
        Answer::Failed(failure) if failure.kind == FailureKind::Full => Err(ImageError::Full),
        Answer::Failed(failure) => Err(failure.into()),
        answer => Ok(answer),
    }
}

/// Says once what an importer does not get here.
fn warn_once(what: String) {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // What an importer says is not trusted.
    if said.len() < 8 && !said.contains(&what) {
        warn!(
            what = what.get(..64).unwrap_or(&what),
            "images are read with less isolation: virt-importer cannot have it here"
        );
        said.push(what);
    }
}

fn unexpected(answer: &Answer) -> ImageError {
    ImageError::NoImporter(io::Error::other(format!("unexpected answer {answer:?}")))
}

/// A file in memory: the request has credentials, and may be longer than a pipe takes.
fn input(task: &Task) -> io::Result<File> {
    let mut file = File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(task)?)?;
    file.rewind()?;
    Ok(file)
}

/// How many bytes an import may write.
pub(super) fn free_space(directory: &Path) -> Result<u64, ImageError> {
    let file_system = statvfs(directory)
        .map_err(|error| ImageError::Store { path: directory.to_owned(), source: error.into() })?;
    let [total, available] = [file_system.f_blocks, file_system.f_bavail]
        .map(|blocks| blocks.saturating_mul(file_system.f_frsize));
    let free = available.saturating_sub((total / 100 * KEPT_FREE.0).min(KEPT_FREE.1));
    if free == 0 { Err(ImageError::Full) } else { Ok(free) }
}

/// A directory or file as the source of a [`ReadAction`].
pub(super) fn directory(path: &Path) -> Result<OwnedFd, ImageError> {
    node_file::directory(path).map_err(|source| ImageError::Open { path: path.to_owned(), source })
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
mod tests;
