//! Splits the text of a file into documents and validates each of them.

use std::sync::Arc;

use uuid::Uuid;
use vireo_api::decode::{self, Decoded};
use vireo_api::spec::{Binding, Interface, Notice, Report, Vm, single_host_notices};
use vireo_api::v1::VirtualMachineInstance;

use super::{Key, Problem};

/// A valid manifest.
#[derive(Debug)]
pub struct Accepted {
    /// As it was written, with its namespace filled in.
    pub vmi: VirtualMachineInstance,
    /// Fields that are accepted without effect.
    pub notices: Vec<Problem>,
}

/// The content of one document.
#[derive(Debug, Clone)]
pub enum Content {
    /// A VMI.
    Accepted(Arc<Accepted>),
    /// Invalid, with all its problems.
    Rejected(Vec<Problem>),
}

/// One document of a file.
#[derive(Debug, Clone)]
pub struct Document {
    /// Which of the file, from 1.
    pub index: usize,
    /// Namespace and name of the VMI, if they could be read.
    pub key: Option<Key>,
    /// Its content.
    pub content: Content,
}

/// Reads every document of a text. Empty ones are left out.
pub fn read(text: &str) -> Vec<Document> {
    let mut documents = Vec::new();
    for part in parts(text) {
        match decode::documents(&part) {
            Ok(values) => {
                for value in values {
                    documents.push(validate(documents.len() + 1, decode::object(value)));
                }
            }
            Err(error) => {
                let content = Content::Rejected(vec![Problem::whole(error.to_string())]);
                documents.push(Document { index: documents.len() + 1, key: None, content });
            }
        }
    }
    documents
}

fn validate(index: usize, mut decoded: Decoded<VirtualMachineInstance>) -> Document {
    let metadata = &mut decoded.object.metadata;
    if metadata.namespace.is_empty() {
        metadata.namespace = "default".to_owned();
    }
    let key = (!metadata.name.is_empty())
        .then(|| Key { namespace: metadata.namespace.clone(), name: metadata.name.clone() });
    // Server-set fields are dropped from the manifest. Validation needs a UID; the real one is set on acceptance.
    metadata.uid = Uuid::nil().to_string();
    let checked = decoded.check();
    decoded.object.metadata.uid.clear();
    decoded.object.status = Default::default();
    let content = match checked {
        Ok(vm) if vm.interfaces().iter().any(is_bridged) => Content::Rejected(bridges(&vm)),
        Ok(vm) => {
            // A directory is the source of a single host.
            let notices =
                [notices(vm.notices()), notices(&single_host_notices(&decoded.object.spec))].concat();
            Content::Accepted(Arc::new(Accepted { notices, vmi: decoded.object }))
        }
        Err(report) => Content::Rejected(problems(&report)),
    };
    Document { index, key, content }
}

impl Accepted {
    /// A VMI that has its UID from an API. Its status is dropped: this node computes it.
    ///
    /// # Errors
    /// All its problems: the API rejects such a VMI, but an older release may have accepted it.
    pub fn object(mut vmi: VirtualMachineInstance) -> Result<Self, Report> {
        vmi.status = Default::default();
        let vm = Vm::try_from(&vmi)?;
        Ok(Self { notices: notices(vm.notices()), vmi })
    }
}

fn notices(notices: &[Notice]) -> Vec<Problem> {
    let problem = |notice: &Notice| Problem {
        field: notice.field().as_str().to_owned(),
        message: format!("has no effect: {}", notice.why()),
    };
    notices.iter().map(problem).collect()
}

fn is_bridged(interface: &Interface) -> bool {
    matches!(interface.binding(), Binding::Bridge)
}

/// No CNI plugin gives a VMI of a manifest in a directory an interface to take over.
fn bridges(vm: &Vm) -> Vec<Problem> {
    let bridged = vm.interfaces().iter().filter(|interface| is_bridged(interface));
    let problem = |interface: &Interface| Problem {
        field: interface.field().at("bridge").to_string(),
        message: "is available in clusters only: use masquerade: {} on the pod network".to_owned(),
    };
    bridged.map(problem).collect()
}

fn problems(report: &Report) -> Vec<Problem> {
    let problem = |problem: &vireo_api::spec::Problem| Problem {
        field: problem.field().as_str().to_owned(),
        message: problem.message().to_owned(),
    };
    report.problems().iter().map(problem).collect()
}

/// Splits a YAML stream at its document markers, so that a parse error affects one document only. Every part keeps its
/// line numbers: messages name the line of the file. JSON has no markers.
fn parts(text: &str) -> Vec<String> {
    if text.trim_start().starts_with('{') {
        return vec![text.to_owned()];
    }
    let mut parts = Vec::new();
    let mut part = String::new();
    for (line, content) in text.split_inclusive('\n').enumerate() {
        // At the start of a line the marker is one even inside a scalar (YAML 1.2, 9.1.2).
        if content
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
        {
            parts.push(std::mem::replace(&mut part, "\n".repeat(line)));
        }
        part.push_str(content);
    }
    parts.push(part);
    parts.retain(|part| {
        part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    });
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: NAME}\nspec:\n  domain:\n    memory: {guest: 128Mi}\n    devices: {}\n";

    fn good(name: &str) -> String {
        GOOD.replace("NAME", name)
    }

    /// "name" for an accepted document, "!name: fields" for a rejected one.
    fn outcomes(text: &str) -> Vec<String> {
        let describe = |document: &Document| {
            let name = document.key.as_ref().map_or("?", |key| key.name.as_str());
            match &document.content {
                Content::Accepted(_) => name.to_owned(),
                Content::Rejected(problems) => {
                    let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
                    format!("!{name}: {}", fields.join(" "))
                }
            }
        };
        read(text).iter().map(describe).collect()
    }

    #[test]
    fn every_document_is_validated_for_itself() {
        let text = format!("# two\n---\n{}---\nspec: [broken\n---\n\n---\n{}", good("one"), good("two"));
        assert_eq!(outcomes(&text), ["one", "!?: ", "two"]);
        let Content::Rejected(problems) = &read(&text)[1].content else { panic!("the second is broken") };
        assert!(
            problems[0].message.contains("line 1"),
            "the file's own line, 11 or 12: {}",
            problems[0].message
        );
    }

    #[test]
    fn every_problem_is_reported_at_once_and_the_name_is_known() {
        let text = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: bad, namespace: prod}\nspec:\n  domain:\n    cpu: {cores: many}\n    devices: {disks: [{name: root}]}\n";
        let documents = read(text);
        assert_eq!(documents[0].key, Some(Key { namespace: "prod".to_owned(), name: "bad".to_owned() }));
        let outcome = outcomes(text).remove(0);
        for field in ["spec.domain.cpu.cores", "spec.domain.memory.guest", "spec.domain.devices.disks[0]"] {
            assert!(outcome.contains(field), "{field} is missing in {outcome}");
        }
    }

    #[test]
    fn nothing_is_nothing() {
        for text in ["", "\n\n", "# comment only\n", "---\n---\n"] {
            assert!(read(text).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn json_is_read_and_what_the_server_sets_is_dropped() {
        let text = r#"{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance",
            "metadata":{"name":"j","uid":"5a2f6b1e-0000-4000-8000-000000000000"},
            "spec":{"domain":{"memory":{"guest":"128Mi"},"devices":{}}},"status":{"phase":"Running"}}"#;
        let Content::Accepted(accepted) = &read(text)[0].content else { panic!("{:?}", read(text)) };
        assert_eq!(accepted.vmi.metadata.uid, "");
        assert_eq!(accepted.vmi.status.phase, "");
    }
}
