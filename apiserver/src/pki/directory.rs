//! The files of certificates. The server and commands change them while they have the lock of their directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::warn;
use vireo_certificates::{Authorities, Change, Facts, Pair, Rotation, Subject, split};

use super::{AUTHORITY, LEAF, NAME, OVERLAP, PkiError, administrator};
use crate::files::{lock_directory, write_atomically};

/// The certificates that are trusted: first that of the authority that issues.
const TRUSTED: &str = "ca.crt";
/// The key of the authority that issues.
const KEY: &str = "ca.key";
/// The authority that is announced, as two files.
const NEXT: (&str, &str) = ("next-ca.crt", "next-ca.key");
/// A certificate with its key: the server's, and the administrator's.
const SERVER: &str = "server.pem";
const ADMINISTRATOR: &str = "admin.pem";
/// Seconds that each step of the replacement takes.
const OVERLAP_FILE: &str = "ca-overlap.json";

/// All certificates at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    /// The authorities.
    pub authorities: Authorities,
    /// The server's.
    pub server: Pair,
    /// The administrator's.
    pub administrator: Pair,
    /// How long each step of the replacement of an authority takes.
    pub overlap: Duration,
}

/// Makes and replaces the certificates in a directory.
#[derive(Debug, Clone)]
pub struct Certificates {
    directory: PathBuf,
    server: Subject,
}

impl Certificates {
    /// Of a server with these names and addresses.
    pub fn new(directory: &Path, names: Vec<String>) -> Self {
        let server = Subject { name: "vireo".to_owned(), organizations: Vec::new(), names };
        Self { directory: directory.to_owned(), server }
    }

    /// Makes what is missing, and replaces what is due at `now`, in seconds since 1970: of an authority, one step.
    ///
    /// # Errors
    /// When files cannot be read, or the authorities cannot be written.
    pub fn reconcile(&self, now: i64) -> Result<(Current, Option<Change>), PkiError> {
        let _lock = lock(&self.directory)?;
        let leaves = [(SERVER, &self.server), (ADMINISTRATOR, &administrator())];
        let [server, admin] = leaves.map(|(name, subject)| (name, subject, leaf(&self.directory.join(name))));
        let (authorities, change) = match authorities(&self.directory)? {
            None => (Authorities::make(NAME, AUTHORITY, now)?, Some(Change::Made)),
            Some(mut authorities) => {
                let in_use =
                    [&server, &admin].map(|(_, _, pair)| pair.as_ref().map(|p| p.certificate.clone()));
                let propagation = i64::try_from(overlap(&self.directory).as_secs()).unwrap_or(i64::MAX);
                let rotation = Rotation { lifetime: AUTHORITY, propagation };
                let change = authorities.rotate(&in_use, rotation, now)?;
                (authorities, change)
            }
        };
        if change.is_some() {
            store(&self.directory, &authorities)?;
        }
        // What a command has set was for this replacement, and not for those that are due years later.
        if matches!(change, Some(Change::Made | Change::Forgot)) {
            remove(&self.directory.join(OVERLAP_FILE))?;
        }
        let current = |(name, subject, pair): (&str, &Subject, Option<Pair>)| match pair {
            Some(pair) if !authorities.is_due(&pair.certificate, subject, LEAF, now) => Ok(pair),
            _ => {
                let pair = authorities.issue(subject, LEAF, now)?;
                let text = format!("{}{}", pair.certificate, pair.key);
                // On a full disk, the server goes on with what it has in memory.
                if let Err(error) = write_atomically(&self.directory.join(name), text.as_bytes()) {
                    warn!(error = &error as &dyn std::error::Error, name, "a certificate is not kept");
                }
                Ok::<_, PkiError>(pair)
            }
        };
        let (server, administrator) = (current(server)?, current(admin)?);
        let overlap = overlap(&self.directory);
        Ok((Current { authorities, server, administrator, overlap }, change))
    }
}

/// Announces the next authority in a directory; each step after that takes `overlap`. Whether it does: not while an
/// authority is being replaced.
///
/// # Errors
/// When there is none yet, or files cannot be read or written.
pub fn announce_authority(directory: &Path, overlap: Duration, now: i64) -> Result<bool, PkiError> {
    let _lock = lock(directory)?;
    let missing = || PkiError::Read { path: directory.join(TRUSTED), source: io::ErrorKind::NotFound.into() };
    let mut authorities = authorities(directory)?.ok_or_else(missing)?;
    if !authorities.announce(AUTHORITY, now)? {
        return Ok(false);
    }
    write_atomically(&directory.join(OVERLAP_FILE), overlap.as_secs().to_string().as_bytes())?;
    store(directory, &authorities)?;
    Ok(true)
}

/// Has the certificates of the server and of the administrator made anew, by the server that runs or that is started next.
///
/// # Errors
/// When their files cannot be removed.
pub fn renew(directory: &Path) -> Result<(), PkiError> {
    let _lock = lock(directory)?;
    [SERVER, ADMINISTRATOR].into_iter().try_for_each(|name| remove(&directory.join(name)))
}

/// When the certificates in a directory end, in seconds since 1970, each with what it is of.
///
/// # Errors
/// When files cannot be read.
pub fn expirations(directory: &Path) -> Result<Vec<(&'static str, i64)>, PkiError> {
    let mut all = Vec::new();
    for (name, of) in [(TRUSTED, "authority"), (SERVER, "server"), (ADMINISTRATOR, "administrator")] {
        let path = directory.join(name);
        let text = fs::read_to_string(&path).map_err(|source| PkiError::Read { path, source })?;
        all.extend(Facts::all(&text).map(|facts| (of, facts.until)));
    }
    Ok(all)
}

fn lock(directory: &Path) -> Result<File, PkiError> {
    lock_directory(directory).map_err(|source| PkiError::Lock { path: directory.to_owned(), source })
}

fn remove(path: &Path) -> Result<(), PkiError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(PkiError::Remove { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn text(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::Read { path: path.to_owned(), source }),
    }
}

fn overlap(directory: &Path) -> Duration {
    let given = text(&directory.join(OVERLAP_FILE)).ok().flatten();
    given.and_then(|text| text.trim().parse().ok()).map_or(OVERLAP, Duration::from_secs)
}

/// The stored certificate and key of a file, if they are there and fit each other.
fn leaf(path: &Path) -> Option<Pair> {
    let text = text(path).ok()??;
    let certificate = split(&text).next()?.to_owned();
    let pair = Pair { key: text.get(certificate.len()..)?.to_owned(), certificate };
    pair.is_consistent().then_some(pair)
}

/// Those that are stored, if there are any.
fn authorities(directory: &Path) -> Result<Option<Authorities>, PkiError> {
    let path = |name: &str| directory.join(name);
    let damaged = |name: &str, why| PkiError::Damaged { path: directory.join(name), why };
    let Some(trusted) = text(&path(TRUSTED))? else { return Ok(None) };
    let mut certificates = split(&trusted).map(str::to_owned);
    let certificate = certificates.next().ok_or_else(|| damaged(TRUSTED, "it has no certificate"))?;
    let next = text(&path(NEXT.0))?.zip(text(&path(NEXT.1))?);
    let next = next.map(|(certificate, key)| Pair { certificate, key });
    // Where `store` was interrupted, the key of the authority that issues is still that of the next one.
    let (key, announced) = match next {
        Some(next) if next.certificate == certificate => (Some(next.key), None),
        next => (text(&path(KEY))?, next),
    };
    let issuing = Pair { certificate, key: key.unwrap_or_default() };
    if !issuing.is_consistent() {
        return Err(damaged(KEY, "it is not the key of the first certificate in ca.crt"));
    }
    let is_next =
        |certificate: &String| announced.as_ref().is_some_and(|next| next.certificate == *certificate);
    let former = certificates.filter(|certificate| !is_next(certificate)).collect();
    Ok(Some(Authorities { name: NAME, issuing, announced, former }))
}

/// Writes them so that [`authorities`] reads the former or these, wherever it is interrupted.
fn store(directory: &Path, authorities: &Authorities) -> Result<(), PkiError> {
    let write = |name: &str, text: &str| write_atomically(&directory.join(name), text.as_bytes());
    let write_next = |pair: &Pair| {
        // A certificate without its key is not read.
        remove(&directory.join(NEXT.0))?;
        write(NEXT.1, &pair.key)?;
        Ok::<_, PkiError>(write(NEXT.0, &pair.certificate)?)
    };
    let stored = text(&directory.join(KEY))?;
    if stored.as_ref() != Some(&authorities.issuing.key) {
        let next = text(&directory.join(NEXT.0))?;
        if next.as_ref() != Some(&authorities.issuing.certificate) {
            write_next(&authorities.issuing)?;
        }
        write(TRUSTED, &authorities.bundle())?;
        write(KEY, &authorities.issuing.key)?;
    }
    match &authorities.announced {
        Some(next) => write_next(next)?,
        None => {
            remove(&directory.join(NEXT.0))?;
            remove(&directory.join(NEXT.1))?;
        }
    }
    Ok(write(TRUSTED, &authorities.bundle())?)
}

#[cfg(test)]
mod tests;
