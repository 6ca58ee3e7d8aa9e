//! The objects and the last revision in a redb file.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redb::{Builder, Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde_json::Value;
use thiserror::Error;
use tracing::warn;

use super::object::Shared;
use super::reserve::{Reserve, Space};
use super::{Excess, Key, Limits, Object, unreadable};

/// `resource \0 namespace \0 name` to revision and JSON.
const OBJECTS: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("objects");
/// `revision`: the last write; `format`: how all this is laid out.
const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
const FORMAT: u64 = 1;
/// Bytes of pages that redb keeps in memory. It is read only when it is opened: all objects are in memory.
const CACHE: usize = 8 << 20;
/// How soon it is tried again whether a disk can be written that could not.
const PAUSE: Duration = Duration::from_secs(1);

/// Why the file cannot be used.
#[derive(Debug, Error)]
pub enum DiskError {
    /// It is locked, unreadable, unwritable or full.
    #[error("{path}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of redb.
        #[source]
        source: Box<redb::Error>,
    },
    /// The object exceeds what the store takes; nothing was written.
    #[error("{} {:?} cannot be stored", .key.resource, .key.name)]
    Excess {
        /// Which object.
        key: Key,
        /// What is too much.
        #[source]
        excess: Excess,
    },
    /// It holds what this release does not write.
    #[error("{path} is not from this release: {what}", path = path.display())]
    Strange {
        /// The file.
        path: PathBuf,
        /// Where it stops making sense.
        what: String,
    },
}

impl DiskError {
    /// Whether another process has the file open.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::File { source, .. } if matches!(**source, redb::Error::DatabaseAlreadyOpen))
    }

    /// Whether the file system has no space for it.
    fn is_no_space(&self) -> bool {
        let Self::File { source, .. } = self else { return false };
        let redb::Error::Io(error) = &**source else { return false };
        matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// A write of an object, or of its removal.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub(super) object: Arc<Object>,
    pub(super) stays: bool,
}

/// What a file holds when it is opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) disk: Disk,
    /// The last one.
    pub(super) revision: u64,
    pub(super) objects: Vec<Object>,
    /// What they share.
    pub(super) shared: Arc<Shared>,
    /// Objects that cannot be read, now and at earlier starts.
    pub(super) unreadable: BTreeSet<Key>,
}

/// The file.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    /// Absent after a failed write, until it can be opened again.
    database: Option<Database>,
    reserve: Reserve,
    /// The last revision that a write was tried with, whatever became of it.
    attempted: u64,
    /// The writes of a commit that failed, and may be on disk all the same.
    doubt: Vec<Attempt>,
    /// Why it could not be written when that was tried last, and when.
    failed: Option<(Instant, Arc<DiskError>)>,
}

/// What is known of a disk whose last write failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was just tried again, and failed so.
    Known(Arc<DiskError>),
    /// It is to be tried again.
    Ask,
}

impl Disk {
    /// The file with the last revision and all objects.
    pub(super) fn open(path: &Path) -> Result<Opened, DiskError> {
        let mut reserve = Reserve::of(path);
        let database = match create(path).map_err(failed(path)) {
            Err(error) if error.is_no_space() && reserve.release() => {
                let database = create(path).map_err(failed(path));
                reserve.take();
                database
            }
            database => database,
        };
        Self::with_reserve(path, database?, reserve)
    }

    /// The same with a database that is open already.
    #[cfg(test)]
    pub(super) fn over(path: &Path, database: Database) -> Result<Opened, DiskError> {
        Self::with_reserve(path, database, Reserve::of(path))
    }

    fn with_reserve(path: &Path, database: Database, reserve: Reserve) -> Result<Opened, DiskError> {
        let (format, revision, rows) = rows(&database).map_err(failed(path))?;
        if format != FORMAT {
            let what = format!("its format is {format}, not {FORMAT}");
            return Err(DiskError::Strange { path: path.to_owned(), what });
        }
        let (mut objects, mut moved) = (Vec::new(), Vec::new());
        let shared = Arc::default();
        let directory = unreadable::directory(path);
        let mut unreadable = unreadable::keys(&directory);
        for (name, revision, json) in rows {
            match object(&name, revision, &json, &shared) {
                Ok(object) => objects.push(object),
                Err((key, why)) => {
                    if unreadable::set_aside(&directory, &key, revision, &json, &why) {
                        moved.push(name);
                    }
                    unreadable.insert(key);
                }
            }
        }
        let database = match remove(&database, &moved) {
            Ok(()) => Some(database),
            Err(error) => {
                warn!(%error, "objects that cannot be read stay in the store as well");
                None
            }
        };
        let path = path.to_owned();
        let disk = Self { path, database, reserve, attempted: revision, doubt: Vec::new(), failed: None };
        Ok(Opened { disk, revision, objects, shared, unreadable })
    }

    /// The revision of the next write. One that was tried is never used again: readers may have seen it on disk.
    pub(super) fn next_revision(&self) -> u64 {
        self.attempted + 1
    }

    /// Opens the file again if a commit failed. Its writes, if they are there all the same.
    pub(super) fn settle(&mut self, space: Space) -> Result<Vec<Attempt>, DiskError> {
        if self.database.is_some() {
            return Ok(Vec::new());
        }
        self.within(space, Self::reopen)
    }

    fn reopen(&mut self) -> Result<Vec<Attempt>, DiskError> {
        let database = builder().open(&self.path).map_err(|error| failed(&self.path)(error.into()))?;
        let revision = revision(&database).map_err(failed(&self.path))?;
        self.database = Some(database);
        let doubt = std::mem::take(&mut self.doubt);
        let is_there = doubt.last().is_some_and(|last| last.object.revision == revision);
        Ok(if is_there { doubt } else { Vec::new() })
    }

    /// What is wrong, if the last write failed.
    pub(super) fn failure(&self) -> Option<Failure> {
        if self.database.is_some() {
            return None;
        }
        let recent = self.failed.as_ref().filter(|(when, _)| when.elapsed() < PAUSE);
        Some(recent.map_or(Failure::Ask, |(_, error)| Failure::Known(Arc::clone(error))))
    }

    /// Takes note of why it could not be written.
    pub(super) fn remember(&mut self, error: DiskError) -> Arc<DiskError> {
        let error = Arc::new(error);
        self.failed = Some((Instant::now(), Arc::clone(&error)));
        error
    }

    /// Writes what is there already.
    pub(super) fn probe(&mut self) -> Result<(), DiskError> {
        let Some(database) = self.database.take() else { return Ok(()) };
        touch(&database).map_err(failed(&self.path))?;
        self.database = Some(database);
        Ok(())
    }

    /// Writes objects or their removal in one commit, with the revision of the last as the last one.
    pub(super) fn write(&mut self, attempts: &[Attempt], space: Space) -> Result<(), DiskError> {
        let Some(last) = attempts.last() else { return Ok(()) };
        let revision = last.object.revision;
        self.within(space, |disk| disk.try_write(attempts, revision))?;
        self.reserve.refill();
        Ok(())
    }

    /// Retries an operation with the reserve's space, if it may use that and the disk is full.
    fn within<T>(
        &mut self,
        space: Space,
        mut operation: impl FnMut(&mut Self) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        match operation(self) {
            Err(error) if space == Space::Reserved && error.is_no_space() && self.reserve.release() => {
                let done = operation(self);
                self.reserve.take();
                done
            }
            done => done,
        }
    }

    fn try_write(&mut self, attempts: &[Attempt], revision: u64) -> Result<(), DiskError> {
        // redb serves nothing after an input or output error until it is opened again.
        let database = match self.database.take() {
            Some(database) => database,
            None => builder().open(&self.path).map_err(|error| failed(&self.path)(error.into()))?,
        };
        self.attempted = revision;
        self.doubt = attempts.to_vec();
        write(&database, attempts, revision).map_err(failed(&self.path))?;
        self.doubt.clear();
        self.database = Some(database);
        Ok(())
    }
}

#[expect(clippy::type_complexity, reason = "used once, just above")]
fn rows(database: &Database) -> Result<(u64, u64, Vec<(String, u64, Vec<u8>)>), redb::Error> {
    let reading = database.begin_read()?;
    let format = reading.open_table(FACTS)?.get("format")?.map(|value| value.value());
    let mut rows = Vec::new();
    for row in reading.open_table(OBJECTS)?.iter()? {
        let (name, row) = row?;
        let (revision, json) = row.value();
        rows.push((name.value().to_owned(), revision, json.to_vec()));
    }
    Ok((format.unwrap_or_default(), revision(database)?, rows))
}

fn revision(database: &Database) -> Result<u64, redb::Error> {
    let facts = database.begin_read()?.open_table(FACTS)?;
    Ok(facts.get("revision")?.map(|value| value.value()).unwrap_or_default())
}

fn failed(path: &Path) -> impl FnOnce(redb::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError::File { path, source: Box::new(source) }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

fn create(path: &Path) -> Result<Database, redb::Error> {
    let database = builder().create(path)?;
    let writing = database.begin_write()?;
    {
        writing.open_table(OBJECTS)?;
        let mut facts = writing.open_table(FACTS)?;
        if facts.get("format")?.is_none() {
            facts.insert("format", FORMAT)?;
        }
    }
    writing.commit()?;
    Ok(database)
}

fn write(database: &Database, attempts: &[Attempt], revision: u64) -> Result<(), redb::Error> {
    // Durability::Immediate is redb's default: the commit returns when it is on disk.
    let writing = database.begin_write()?;
    {
        let mut objects = writing.open_table(OBJECTS)?;
        for Attempt { object, stays } in attempts {
            let name = name(&object.key);
            if *stays {
                objects.insert(name.as_str(), (object.revision, object.json().as_bytes()))?;
            } else {
                objects.remove(name.as_str())?;
            }
        }
        writing.open_table(FACTS)?.insert("revision", revision)?;
    }
    writing.commit()?;
    Ok(())
}

/// Commits the last revision once more.
fn touch(database: &Database) -> Result<(), redb::Error> {
    let last = revision(database)?;
    let writing = database.begin_write()?;
    writing.open_table(FACTS)?.insert("revision", last)?;
    writing.commit()?;
    Ok(())
}

fn name(key: &Key) -> String {
    format!("{}\0{}\0{}", key.resource, key.namespace, key.name)
}

/// The object of a row; else its key, and why it cannot be read.
fn object(name: &str, revision: u64, json: &[u8], shared: &Arc<Shared>) -> Result<Object, (Key, String)> {
    let mut parts = name.splitn(3, '\0');
    let mut part = || parts.next().unwrap_or_default();
    let key = Key::new(part(), part(), part());
    let depth = Limits { bytes: usize::MAX, ..Limits::STORED };
    match serde_json::from_slice(json) {
        Ok(value @ Value::Object(_)) => match depth.check(&value) {
            Ok(size) => Ok(Object::sized(key, revision, value, size, shared)),
            Err(excess) => Err((key, excess.to_string())),
        },
        Ok(_) => Err((key, "it is not an object".to_owned())),
        Err(error) => Err((key, error.to_string())),
    }
}

/// Removes rows.
fn remove(database: &Database, names: &[String]) -> Result<(), redb::Error> {
    if names.is_empty() {
        return Ok(());
    }
    let writing = database.begin_write()?;
    {
        let mut objects = writing.open_table(OBJECTS)?;
        for name in names {
            objects.remove(name.as_str())?;
        }
    }
    writing.commit()?;
    Ok(())
}
