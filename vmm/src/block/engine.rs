//! Reads, writes and flushes of files that run beside each other: by io_uring, else by threads.

#[cfg(test)]
pub(crate) mod manual;
mod threads;
mod uring;

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use crate::memory::{GuestMemory, Segments};

/// How many operations an engine runs at the same time.
pub(crate) const CAPACITY: usize = 128;

/// The files of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageFile {
    /// The image itself.
    Image,
    /// What it is an overlay of.
    Backing,
}

impl ImageFile {
    /// Its index among the files of the image, as [`super::files`] has them.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Image => 0,
            Self::Backing => 1,
        }
    }
}

/// An operation on a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileOperation<'a> {
    /// Reads from a byte offset.
    Read {
        /// Where.
        offset: u64,
        /// Into these buffers.
        to: &'a Segments,
    },
    /// Writes at a byte offset.
    Write {
        /// Where.
        offset: u64,
        /// These buffers.
        from: &'a Segments,
        /// It is on stable storage when it completes.
        durable: bool,
    },
    /// What was written before is on stable storage when it completes.
    Sync,
}

/// An operation is over: that of `tag`, with the bytes that it moved.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) tag: usize,
    pub(crate) moved: io::Result<u64>,
}

/// Runs operations beside each other. Dropping it waits until none runs.
pub(crate) trait Engine: Send {
    /// Prepares an operation on one of the files that the engine was made with, which begins with the next [`Self::commit`].
    /// `tag` is below [`CAPACITY`], and that of no operation that is not over.
    ///
    /// # Errors
    /// When it cannot be run; nothing was begun.
    fn prepare(&mut self, tag: usize, file: usize, operation: FileOperation<'_>) -> io::Result<()>;

    /// Begins what was prepared.
    ///
    /// # Errors
    /// When the host's means fail. Nothing more can be done with it.
    fn commit(&mut self) -> io::Result<()>;

    /// Takes what is over by now.
    fn take_completed(&mut self, completed: &mut Vec<Completion>);

    /// Waits until an operation is over. Returns at once where none runs.
    ///
    /// # Errors
    /// As [`Self::commit`].
    fn wait(&mut self) -> io::Result<()>;

    /// Readable when an operation is over.
    fn source(&self) -> BorrowedFd<'_>;
}

/// An engine for these files.
///
/// # Errors
/// When the host has no file descriptors or memory for it.
pub(crate) fn start(files: Vec<File>, memory: &GuestMemory) -> io::Result<Box<dyn Engine>> {
    match uring::Uring::new(memory.clone()) {
        Ok(mut ring) => {
            ring.files = files;
            Ok(Box::new(ring))
        }
        // Container runtimes and administrators may forbid it.
        Err(error) => {
            tracing::info!(%error, "no io_uring: threads serve a disk");
            Ok(Box::new(threads::Threads::new(files, memory.clone())?))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    const MEMORY: usize = 1 << 20;
    const IMAGE: usize = 0;
    const BACKING: usize = 1;

    fn memory() -> GuestMemory {
        GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY / 2), (GuestAddress(1 << 19), MEMORY / 2)])
            .unwrap()
    }

    fn segments(memory: &GuestMemory, parts: &[(u64, u32)]) -> Segments {
        let mut segments = Segments::default();
        for &(at, len) in parts {
            segments.push(memory, GuestAddress(at), len).unwrap();
        }
        segments
    }

    fn engines(files: &[&File], memory: &GuestMemory) -> Vec<Box<dyn Engine>> {
        let copies = || files.iter().map(|file| file.try_clone().unwrap()).collect::<Vec<_>>();
        let threads: Box<dyn Engine> = Box::new(threads::Threads::new(copies(), memory.clone()).unwrap());
        match uring::Uring::new(memory.clone()) {
            Ok(mut ring) => {
                ring.files = copies();
                vec![threads, Box::new(ring)]
            }
            Err(error) => {
                eprintln!("not tested: io_uring ({error})");
                vec![threads]
            }
        }
    }

    fn all(engine: &mut dyn Engine, count: usize) -> Vec<(usize, io::Result<u64>)> {
        let mut completed = Vec::new();
        while completed.len() < count {
            engine.wait().unwrap();
            engine.take_completed(&mut completed);
        }
        completed.sort_by_key(|completion| completion.tag);
        completed.into_iter().map(|completion| (completion.tag, completion.moved)).collect()
    }

    #[test]
    fn operations_on_both_files_complete_with_what_they_moved() {
        let (image, backing, memory) =
            (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap(), memory());
        image.write_all_at(b"0123456789abcdef", 0).unwrap();
        backing.write_all_at(b"ghijklmnopqrstuv", 0).unwrap();
        for mut engine in engines(&[&image, &backing], &memory) {
            // Across the seam of two mappings.
            let seam = segments(&memory, &[((1 << 19) - 2, 4), (64, 2)]);
            let other = segments(&memory, &[(0, 4)]);
            let mut begin = |tag, file, operation| engine.prepare(tag, file, operation).unwrap();
            begin(7, IMAGE, FileOperation::Read { offset: 3, to: &seam });
            begin(0, BACKING, FileOperation::Read { offset: 12, to: &other });
            engine.commit().unwrap();
            let done: Vec<_> =
                all(&mut *engine, 2).into_iter().map(|(tag, moved)| (tag, moved.unwrap())).collect();
            assert_eq!(done, [(0, 4), (7, 6)]);
            let mut read = [0; 6];
            memory.read_slice(&mut read[..4], GuestAddress((1 << 19) - 2)).unwrap();
            memory.read_slice(&mut read[4..], GuestAddress(64)).unwrap();
            assert_eq!(&read, b"345678");
            memory.read_slice(&mut read[..4], GuestAddress(0)).unwrap();
            assert_eq!(&read[..4], b"stuv");

            let write = FileOperation::Write { offset: 16, from: &seam, durable: true };
            engine.prepare(1, IMAGE, write).unwrap();
            engine.prepare(2, IMAGE, FileOperation::Sync).unwrap();
            engine.commit().unwrap();
            let done = all(&mut *engine, 2);
            assert_eq!((done[0].1.as_ref().unwrap(), done[1].1.as_ref().unwrap()), (&6, &0));
            image.read_exact_at(&mut read, 16).unwrap();
            assert_eq!(&read, b"345678");
            image.set_len(16).unwrap();
        }
    }

    #[test]
    fn what_a_file_cannot_do_is_of_that_operation() {
        let (full, memory) = (File::options().write(true).open("/dev/full").unwrap(), memory());
        for mut engine in engines(&[&full], &memory) {
            let buffer = segments(&memory, &[(0, 512)]);
            let write = FileOperation::Write { offset: 0, from: &buffer, durable: false };
            engine.prepare(0, IMAGE, write).unwrap();
            engine.prepare(1, IMAGE, FileOperation::Read { offset: 0, to: &buffer }).unwrap();
            engine.commit().unwrap();
            let done = all(&mut *engine, 2);
            assert_eq!(done[0].1.as_ref().unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert!(done[1].1.is_err(), "it is not open for reading");
            let absent = FileOperation::Read { offset: 0, to: &buffer };
            assert!(engine.prepare(0, BACKING, absent).is_err());
        }
    }

    #[test]
    fn nothing_runs_when_an_engine_is_gone() {
        use std::io::Write;
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = File::from(std::os::fd::OwnedFd::from(reader));
        let memory = memory();
        // A pipe has no offsets: threads are refused at once, io_uring reads nothing until something comes.
        for mut engine in engines(&[&reader], &memory) {
            let to = segments(&memory, &[(0, 4)]);
            engine.prepare(0, IMAGE, FileOperation::Read { offset: 0, to: &to }).unwrap();
            engine.commit().unwrap();
            writer.write_all(b"late").unwrap();
            drop(engine);
            memory.write_slice(b"kept", GuestAddress(0)).unwrap();
        }
        let mut now = [0; 4];
        memory.read_slice(&mut now, GuestAddress(0)).unwrap();
        assert_eq!(&now, b"kept");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Each operation is answered once, whatever is in flight at the same time.
        #[test]
        fn each_operation_is_over_once(
            batches in prop::collection::vec(prop::collection::vec((0_u64..60, 1_u32..2000), 1..40), 1..6),
        ) {
            let (file, memory) = (tempfile::tempfile().unwrap(), memory());
            file.set_len(1 << 18).unwrap();
            for mut engine in engines(&[&file], &memory) {
                let mut free: Vec<usize> = (0..CAPACITY).collect();
                let mut expected = vec![None; CAPACITY];
                let mut completed = Vec::new();
                let mut left = 0;
                for batch in &batches {
                    for &(block, len) in batch {
                        let Some(tag) = free.pop() else { break };
                        let at = u64::try_from(tag).unwrap() * 2000;
                        let buffer = segments(&memory, &[(at, len)]);
                        let operation = if block % 2 == 0 {
                            FileOperation::Read { offset: block * 4096, to: &buffer }
                        } else {
                            FileOperation::Write { offset: block * 4096, from: &buffer, durable: false }
                        };
                        engine.prepare(tag, IMAGE, operation).unwrap();
                        expected[tag] = Some(u64::from(len));
                        left += 1;
                    }
                    engine.commit().unwrap();
                    engine.take_completed(&mut completed);
                    for Completion { tag, moved } in completed.drain(..) {
                        prop_assert_eq!(expected[tag].take(), Some(moved.unwrap()));
                        free.push(tag);
                        left -= 1;
                    }
                }
                for (tag, moved) in all(&mut *engine, left) {
                    prop_assert_eq!(expected[tag].take(), Some(moved.unwrap()));
                }
                prop_assert!(expected.iter().all(Option::is_none));
            }
        }
    }
}
