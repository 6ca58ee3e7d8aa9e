//! From files to what is wanted of each name: a pure function of what was read and who came first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::document::{Accepted, Content, Document};
use super::{Key, Origin, Problem, Refusal};

/// What was found in one file.
#[derive(Debug, Clone)]
pub enum FileRead {
    /// Its documents, each for itself.
    Documents(Vec<Document>),
    /// It could not be read at all.
    Unreadable(Problem),
}

/// What the manifests say about one name.
#[derive(Debug, Clone)]
pub enum Entry {
    /// This is wanted.
    Present {
        /// The manifest.
        manifest: Arc<Accepted>,
        /// Where it was found.
        origin: Origin,
        /// Seconds within which its guest is to be shut down, if it is to end while its VMI stays.
        stop: Option<u64>,
    },
    /// Its manifest is broken: leave what runs alone.
    Held,
}

/// Everything the manifests say.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// By name. A name that is missing is wanted no more.
    pub entries: BTreeMap<Key, Entry>,
    /// What was refused, in order of file and document.
    pub refusals: Vec<Refusal>,
    /// Seconds that guests which are wanted no more get to shut down, where that is not what was accepted.
    pub graces: BTreeMap<Key, u64>,
}

/// What a source says since it was asked last.
#[derive(Debug, Clone, Default)]
pub struct Update {
    /// What is wanted.
    pub catalog: Catalog,
    /// The names that it is about; absent where it is about all.
    pub only: Option<BTreeSet<Key>>,
}

/// One document that names a VMI.
struct Claim<'a> {
    file: &'a str,
    document: usize,
    content: &'a Content,
}

/// Reads the directory's meaning.
///
/// `owners` says which file each existing VMI came from. A name claimed twice belongs to the file that had it first,
/// else to the first by file name; the others are refused. A VMI whose own file cannot be understood is held, since
/// nobody can tell whether it is still wanted.
pub fn catalog(files: &BTreeMap<String, FileRead>, owners: &BTreeMap<Key, String>) -> Catalog {
    let mut claims: BTreeMap<Key, Vec<Claim<'_>>> = BTreeMap::new();
    let mut refusals = Vec::new();
    let mut unclear: Vec<&str> = Vec::new();
    for (file, read) in files {
        match read {
            FileRead::Unreadable(problem) => {
                unclear.push(file);
                refusals.push(about_file(file, problem.clone()));
            }
            FileRead::Documents(documents) if documents.is_empty() => {
                unclear.push(file);
                refusals.push(about_file(
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
                        (None, Content::Refused(problems)) => {
                            unclear.push(file);
                            refusals.push(refusal(file, *index, None, problems.clone()));
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
                refusals.push(refusal(claim.file, claim.document, Some(key), problems));
            }
        }
    }
    for (key, file) in owners {
        if !entries.contains_key(key) && unclear.contains(&file.as_str()) {
            entries.insert(key.clone(), Entry::Held);
        }
    }
    refusals.sort_by(|a, b| (&a.file, a.document).cmp(&(&b.file, b.document)));
    Catalog { entries, refusals, graces: BTreeMap::new() }
}

fn entry(claim: &Claim<'_>) -> Entry {
    match claim.content {
        Content::Accepted(manifest) => {
            let origin = Origin::File(claim.file.to_owned());
            Entry::Present { manifest: Arc::clone(manifest), origin, stop: None }
        }
        Content::Refused(_) => Entry::Held,
    }
}

fn problems(claims: &[Claim<'_>], position: usize, first: usize, key: &Key) -> Option<Vec<Problem>> {
    let claim = claims.get(position)?;
    let mut problems = match claim.content {
        Content::Accepted(_) => Vec::new(),
        Content::Refused(problems) => problems.clone(),
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

fn about_file(file: &str, problem: Problem) -> Refusal {
    Refusal {
        file: file.to_owned(),
        document: None,
        namespace: String::new(),
        name: String::new(),
        problems: vec![problem],
    }
}

fn refusal(file: &str, document: usize, key: Option<&Key>, problems: Vec<Problem>) -> Refusal {
    Refusal {
        file: file.to_owned(),
        document: Some(document),
        namespace: key.map(|key| key.namespace.clone()).unwrap_or_default(),
        name: key.map(|key| key.name.clone()).unwrap_or_default(),
        problems,
    }
}

#[cfg(test)]
mod tests;
