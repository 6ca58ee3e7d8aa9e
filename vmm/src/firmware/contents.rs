use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// A file's name in the directory, with its NUL.
const NAME: usize = 56;
/// The first key of a file.
const FIRST_FILE: u16 = 0x20;
/// Files have keys below the one where architecture's own begin.
const LAST_FILE: u16 = 0x3fff;

/// Keys with a fixed meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub(crate) enum Key {
    /// `QEMU`, by which the device is recognised.
    Signature = 0x00,
    /// What the device can do.
    Id = 0x01,
    /// The VM's UUID.
    Uuid = 0x02,
    /// Whether the console is the serial port.
    NoGraphics = 0x04,
    /// vCPUs at start.
    VcpuPool = 0x05,
    /// Whether to offer a boot menu.
    BootMenu = 0x0e,
    /// One more than the highest local APIC id.
    MaxCpus = 0x0f,
    /// The list of files.
    Directory = 0x19,
}

/// What a file is rejected for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FileError {
    /// Its name does not fit.
    #[error("the name {0:?} of a firmware configuration file is longer than 55 bytes")]
    Name(String),
    /// It does not fit.
    #[error("the firmware configuration file {0:?} is larger than 4 GiB")]
    Size(String),
    /// No key is left for it.
    #[error("too many firmware configuration files")]
    Full,
}

/// Everything that firmware can read, by key.
pub(crate) struct Contents {
    items: BTreeMap<u16, Item>,
    files: Vec<Entry>,
}

enum Item {
    Bytes(Vec<u8>),
    Made { by: Arc<Lazy>, index: usize },
}

/// A line of the directory.
struct Entry {
    name: String,
    key: u16,
    size: u32,
}

/// Files that are made together, when the first of them is read.
struct Lazy {
    make: Box<dyn Fn() -> Vec<Vec<u8>> + Send + Sync>,
    made: OnceLock<Vec<Vec<u8>>>,
}

impl Contents {
    /// The device's own keys and an empty directory.
    pub(crate) fn new() -> Self {
        /// The ports, and DMA.
        const FEATURES: u32 = 0b11;
        let mut contents = Self { items: BTreeMap::new(), files: Vec::new() };
        contents.item(Key::Signature, b"QEMU");
        contents.item(Key::Id, &FEATURES.to_le_bytes());
        contents.list();
        contents
    }

    /// Sets what is behind `key`.
    pub(crate) fn item(&mut self, key: Key, bytes: &[u8]) {
        self.items.insert(key as u16, Item::Bytes(bytes.to_vec()));
    }

    /// Adds a file.
    pub(crate) fn file(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), FileError> {
        let size = u32::try_from(bytes.len()).map_err(|_| FileError::Size(name.to_owned()))?;
        self.add(name, size, Item::Bytes(bytes))
    }

    /// Adds files that `make` makes when the first of them is read; it is called once. The directory names the
    /// sizes before that: what `make` gives is cut or filled with zeros to them.
    pub(crate) fn files_made_late(
        &mut self,
        files: &[(&str, u32)],
        make: impl Fn() -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Result<(), FileError> {
        let sizes: Vec<_> = files.iter().map(|(_, size)| usize::try_from(*size).unwrap_or(0)).collect();
        let sized = move || {
            let mut made = make();
            made.iter_mut().zip(&sizes).for_each(|(bytes, size)| bytes.resize(*size, 0));
            made
        };
        let by = Arc::new(Lazy { make: Box::new(sized), made: OnceLock::new() });
        for (index, (name, size)) in files.iter().enumerate() {
            self.add(name, *size, Item::Made { by: by.clone(), index })?;
        }
        Ok(())
    }

    /// What is behind `key`; an unknown key has nothing.
    pub(super) fn bytes(&self, key: u16) -> &[u8] {
        match self.items.get(&key) {
            Some(Item::Bytes(bytes)) => bytes,
            Some(Item::Made { by, index }) => {
                by.made.get_or_init(|| (by.make)()).get(*index).map_or(&[], Vec::as_slice)
            }
            None => &[],
        }
    }

    fn add(&mut self, name: &str, size: u32, item: Item) -> Result<(), FileError> {
        if name.len() >= NAME {
            return Err(FileError::Name(name.to_owned()));
        }
        let key = u16::try_from(self.files.len()).ok().and_then(|count| FIRST_FILE.checked_add(count));
        let key = key.filter(|key| *key <= LAST_FILE).ok_or(FileError::Full)?;
        self.items.insert(key, item);
        self.files.push(Entry { name: name.to_owned(), key, size });
        self.list();
        Ok(())
    }

    /// The directory: big-endian, unlike everything else.
    fn list(&mut self) {
        let count = u32::try_from(self.files.len()).unwrap_or(0);
        let mut bytes = count.to_be_bytes().to_vec();
        for Entry { name, key, size } in &self.files {
            bytes.extend(size.to_be_bytes());
            bytes.extend(key.to_be_bytes());
            bytes.extend([0; 2]);
            let mut field = [0; NAME];
            field.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
            bytes.extend(field);
        }
        self.item(Key::Directory, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_directory_leads_to_every_file() {
        let mut contents = Contents::new();
        contents.file("etc/one", vec![1; 300]).unwrap();
        contents.file("etc/two", vec![]).unwrap();
        let directory = contents.bytes(0x19);
        assert_eq!(directory.len(), 4 + 2 * 64);
        assert_eq!(directory[..4], [0, 0, 0, 2]);
        assert_eq!(directory[4..12], [0, 0, 1, 44, 0, 0x20, 0, 0]);
        assert_eq!(&directory[12..20], b"etc/one\0");
        assert_eq!(contents.bytes(0x20), [1; 300]);
        assert_eq!(directory[4 + 64 + 4..][..2], [0, 0x21]);
        assert_eq!(contents.bytes(0x22), [0; 0]);
    }

    #[test]
    fn late_files_are_made_together_once_and_have_the_size_they_were_said_to_have() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let mut contents = Contents::new();
        let make = || {
            CALLS.fetch_add(1, Ordering::Relaxed);
            vec![vec![1, 2, 3, 4, 5], vec![6]]
        };
        contents.files_made_late(&[("a", 4), ("b", 3)], make).unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
        assert_eq!(contents.bytes(0x21), [6, 0, 0]);
        assert_eq!(contents.bytes(0x20), [1, 2, 3, 4]);
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        let mut contents = Contents::new();
        assert!(contents.file(&"x".repeat(55), vec![]).is_ok());
        assert_eq!(contents.file(&"x".repeat(56), vec![]), Err(FileError::Name("x".repeat(56))));
    }
}
