//! ISO 9660 images with files for a guest: with long names, by Rock Ridge for Linux and by Joliet for Windows.

use std::fs;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hadris_iso::joliet::JolietLevel;
use hadris_iso::read::PathSeparator;
use hadris_iso::rrip::RripOptions;
use hadris_iso::write::options::{BaseIsoLevel, CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{File as IsoFile, InputFiles, IsoImageWriter};

/// A file of an image.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Its path, without a slash at its beginning, and without `.` and `..`.
    pub path: String,
    /// What it has.
    pub content: Vec<u8>,
}

impl File {
    /// A file.
    pub fn new(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), content: content.into() }
    }
}

impl std::fmt::Debug for File {
    /// Without the content, which may be secret.
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(form, "{} ({} bytes)", self.path, self.content.len())
    }
}

/// Why an image could not be made.
#[derive(Debug, thiserror::Error)]
pub enum IsoError {
    /// The file system.
    #[error("cannot lay out the disk")]
    Layout(#[source] hadris_iso::write::Error),
    /// Names that cannot be on a disk together.
    #[error("the disk cannot have names as long as those in {0:?} beside each other: choose a shorter one")]
    Names(String),
    /// The file.
    #[error("cannot write the disk {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Writes an image and replaces an older one. Only its owner can read it, as it may have secrets.
///
/// # Errors
/// When it cannot be made or written. Nothing half-made is left.
pub fn write(at: &Path, label: &str, files: &[File]) -> Result<(), IsoError> {
    let has_times =
        [true, false].into_iter().find(|times| !files.iter().any(|file| fills_record(&file.path, *times)));
    let Some(has_times) = has_times else {
        let fills = |file: &&File| fills_record(&file.path, false);
        return Err(IsoError::Names(
            files.iter().find(fills).map(|file| file.path.clone()).unwrap_or_default(),
        ));
    };
    let image = image(label, files, has_times).map_err(IsoError::Layout)?;
    let partial = at.with_extension("partial");
    write_private(&partial, &image).and_then(|()| fs::rename(&partial, at)).map_err(|source| {
        // Remove a partial file, if there is one.
        let _ = fs::remove_file(&partial);
        IsoError::Write { path: at.to_owned(), source }
    })
}

fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(content)
}

/// Directories deeper than this are moved to another one (ECMA-119, section 6.8.2.1), which their records mention.
const DEEPEST: usize = 7;

/// Whether a name of a path may fill a directory record to its last byte, or the one before. Such a record has 256 bytes, one
/// more than its length can say, and `hadris-iso` 2.5 panics. With Rock Ridge's times or without, names of other lengths do.
fn fills_record(path: &str, has_times: bool) -> bool {
    // 256 bytes less 36 to 48 before the system use, and in that 49 beside the name (PX and NM), and 19 of times (TF).
    let (shortest, longest) = if has_times { (139, 152) } else { (158, 171) };
    let steps: Vec<&str> = path.split('/').collect();
    // CL and RE of a directory that is moved.
    let moved = if steps.len() > DEEPEST { 16 } else { 0 };
    steps.iter().any(|step| (shortest - moved..=longest).contains(&step.len()))
}

fn image(label: &str, files: &[File], has_times: bool) -> Result<Vec<u8>, hadris_iso::write::Error> {
    let mut root = Vec::new();
    for File { path, content } in files {
        insert(&mut root, path, content);
    }
    let options = IsoFormatOptions {
        volume_name: label.to_owned(),
        strict_charset: false,
        sector_size: 2048,
        path_separator: PathSeparator::ForwardSlash,
        features: CreationFeatures {
            filenames: BaseIsoLevel::Level1 { supports_lowercase: true, supports_rrip: true },
            joliet: Some(JolietLevel::Level3),
            rock_ridge: Some(RripOptions { preserve_timestamps: has_times, ..RripOptions::default() }),
            ..CreationFeatures::default()
        },
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: None,
    };
    let files = InputFiles { path_separator: PathSeparator::ForwardSlash, files: root };
    let mut image = Cursor::new(Vec::new());
    IsoImageWriter::create(&mut image, files, options)?;
    Ok(image.into_inner())
}

/// Adds a file below a directory. The directories on its path are made once.
fn insert(directory: &mut Vec<IsoFile>, path: &str, content: &[u8]) {
    let Some((first, rest)) = path.split_once('/') else {
        directory.push(IsoFile::File { name: Arc::new(path.to_owned()), contents: content.to_vec() });
        return;
    };
    for entry in directory.iter_mut() {
        if let IsoFile::Directory { name, children } = entry
            && name.as_str() == first
        {
            return insert(children, rest, content);
        }
    }
    let mut children = Vec::new();
    insert(&mut children, rest, content);
    directory.push(IsoFile::Directory { name: Arc::new(first.to_owned()), children });
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What `isoinfo` (Debian package genisoimage) prints, a reader by others.
    fn isoinfo(image: &Path, arguments: &[&str]) -> String {
        let run = Command::new("isoinfo").arg("-i").arg(image).args(arguments).output();
        let output = run.expect("isoinfo of the Debian package genisoimage");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn names_labels_and_content_are_what_other_readers_see() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("files.iso");
        let long = |length: usize| format!("{}.properties", "n".repeat(length - 11));
        let names = ["tls.crt", "UPPER_and-lower.YAML", "a.b.c.d", &long(64), &long(253)];
        let mut files: Vec<File> =
            names.iter().map(|name| File::new(*name, format!("of {name}\n"))).collect();
        files.push(File::new("deep/er/empty", ""));
        files.push(File::new("deep/er/large", vec![b'x'; 1 << 20]));
        write(&at, "App data 1", &files).unwrap();

        assert!(isoinfo(&at, &["-d"]).contains("Volume id: App data 1\n"));
        let listed = isoinfo(&at, &["-R", "-f"]);
        for File { path, content } in &files {
            assert!(listed.lines().any(|line| line == format!("/{path}")), "{path} is not in {listed}");
            let read = isoinfo(&at, &["-R", "-x", &format!("/{path}")]);
            assert_eq!(read.as_bytes(), content, "{path}");
        }
        // Joliet has 64 characters.
        let joliet = isoinfo(&at, &["-J", "-f"]);
        for name in &names[..4] {
            assert!(joliet.lines().any(|line| line == format!("/{name}")), "{name} is not in {joliet}");
        }
    }

    #[test]
    fn names_of_every_length_are_on_a_disk() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("files.iso");
        for length in 1..=253 {
            let name = "n".repeat(length);
            let dotted = format!("{}.d", "n".repeat(length.max(3) - 2));
            for path in [&name, &dotted, &format!("{name}/x"), &format!(".{name}")] {
                write(&at, "files", &[File::new(path, "x")]).unwrap();
            }
            // A directory that is moved may have two kinds of record.
            let deep = write(&at, "files", &[File::new(format!("a/b/c/d/e/f/g/h/{name}/x"), "x")]);
            assert_eq!(deep.is_err(), (142..=152).contains(&length), "{length}: {deep:?}");
        }
        // Both kinds of image would have a record of 256 bytes.
        let both = [File::new("n".repeat(144), "x"), File::new("m".repeat(163), "x")];
        let error = write(&at, "files", &both).unwrap_err();
        assert!(matches!(error, IsoError::Names(_)), "{error}");
    }

    #[test]
    fn a_disk_may_be_empty() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("none.iso");
        write(&at, "cfgdata", &[]).unwrap();
        assert!(isoinfo(&at, &["-d"]).contains("Volume id: cfgdata\n"));
        assert_eq!(isoinfo(&at, &["-R", "-f"]), "");
    }
}
