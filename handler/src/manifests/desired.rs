//! Computes the desired state of each name from the manifest files: a pure function.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::document::{Accepted, Content, Document};
use super::{Key, Origin, Problem, Rejection};

/// The result of reading one file.
#[derive(Debug, Clone)]
pub enum FileRead {
    /// Its documents.
    Documents(Vec<Document>),
    /// It could not be read at all.
    Unreadable(Problem),
}

/// The desired state of one name.
#[derive(Debug, Clone)]
pub enum Entry {
    /// The VMI is desired.
    Present {
        /// The manifest.
        manifest: Arc<Accepted>,
        /// Where it was found.
        origin: Origin,
        /// Seconds within which its guest is to be shut down, if it is to end while its VMI stays.
        stop: Option<u64>,
    },
    /// Its manifest is invalid: a running guest is left alone.
    Held,
}

/// The desired state of all names.
#[derive(Debug, Clone, Default)]
pub struct DesiredVmis {
    /// By name. A missing name is not desired.
    pub entries: BTreeMap<Key, Entry>,
    /// The rejected manifests, in order of file and document.
    pub rejections: Vec<Rejection>,
    /// Grace periods in seconds of guests that are no longer desired, where they differ from the accepted spec.
    pub graces: BTreeMap<Key, u64>,
}

/// An update of the desired state.
#[derive(Debug, Clone, Default)]
pub struct Update {
    /// The desired state.
    pub desired: DesiredVmis,
    /// The names that the update is limited to; `None` for all names.
    pub only: Option<BTreeSet<Key>>,
}

/// One document that names a VMI.
struct Claim<'a> {
    file: &'a str,
    document: usize,
    content: &'a Content,
}

/// Computes the desired state from the files of the directory.
///
/// `owners` has the file that each existing VMI came from. A name in several files belongs to its owner, else to the
/// first file by name; the others are rejected. A VMI whose own file is invalid is held, since it is unknown whether it
/// is still desired.
pub fn desired_vmis(files: &BTreeMap<String, FileRead>, owners: &BTreeMap<Key, String>) -> DesiredVmis {
    let mut claims: BTreeMap<Key, Vec<Claim<'_>>> = BTreeMap::new();
    let mut rejections = Vec::new();
    let mut unclear: Vec<&str> = Vec::new();
    for (file, read) in files {
        match read {
            FileRead::Unreadable(problem) => {
                unclear.push(file);
                rejections.push(about_file(file, problem.clone()));
            }
            FileRead::Documents(documents) if documents.is_empty() => {
                unclear.push(file);
                rejections.push(about_file(
                    file,
                    Problem::whole("holds no VirtualMachineInstance; delete the file to stop one"),
                ));
            }
            FileRead::Documents(documents) => {
                for Document { index, key, content } in documents {
                    match (key, content) {
                        (Some(key), content) => {
                            claims.entry(key.clone()).or_default().push(Claim {
                                file,
                                document: *index,
                                content,
                            });
                        }
                        (None, Content::Rejected(problems)) => {
                            unclear.push(file);
                            rejections.push(rejection(file, *index, None, problems.clone()));
                        }
                        (None, Content::Accepted(_)) => {}
                    }
                }
            }
        }
    }
    let mut entries = BTreeMap::new();
    for (key, claims) in &claims {
        let owner = owners.get(key);
        let first =
            claims.iter().position(|claim| Some(claim.file) == owner.map(String::as_str)).unwrap_or(0);
        for (position, claim) in claims.iter().enumerate() {
            if position == first {
                entries.insert(key.clone(), entry(claim));
            }
            if let Some(problems) = problems(claims, position, first, key) {
                rejections.push(rejection(claim.file, claim.document, Some(key), problems));
            }
        }
    }
    for (key, file) in owners {
        if !entries.contains_key(key) && unclear.contains(&file.as_str()) {
            entries.insert(key.clone(), Entry::Held);
        }
    }
    rejections.sort_by(|a, b| (&a.file, a.document).cmp(&(&b.file, b.document)));
    DesiredVmis { entries, rejections, graces: BTreeMap::new() }
}

fn entry(claim: &Claim<'_>) -> Entry {
    match claim.content {
        Content::Accepted(manifest) => {
            let origin = Origin::File(claim.file.to_owned());
            Entry::Present { manifest: Arc::clone(manifest), origin, stop: None }
        }
        Content::Rejected(_) => Entry::Held,
    }
}

fn problems(claims: &[Claim<'_>], position: usize, first: usize, key: &Key) -> Option<Vec<Problem>> {
    let claim = claims.get(position)?;
    let mut problems = match claim.content {
        Content::Accepted(_) => Vec::new(),
        Content::Rejected(problems) => problems.clone(),
    };
    if let Some(winner) = claims.get(first).filter(|_| position != first) {
        let message = format!(
            "{key} is already defined by document {} of {}; give one of them another name",
            winner.document, winner.file
        );
        problems.insert(0, Problem { field: "metadata.name".to_owned(), message });
    }
    (!problems.is_empty()).then_some(problems)
}

fn about_file(file: &str, problem: Problem) -> Rejection {
    Rejection {
        file: file.to_owned(),
        document: None,
        namespace: String::new(),
        name: String::new(),
        problems: vec![problem],
    }
}

fn rejection(file: &str, document: usize, key: Option<&Key>, problems: Vec<Problem>) -> Rejection {
    Rejection {
        file: file.to_owned(),
        document: Some(document),
        namespace: key.map(|key| key.namespace.clone()).unwrap_or_default(),
        name: key.map(|key| key.name.clone()).unwrap_or_default(),
        problems,
    }
}

#[cfg(test)]
mod tests;
