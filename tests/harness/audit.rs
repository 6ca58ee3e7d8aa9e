//! Requests to a Kubernetes API server, by its audit log.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// An audit log of JSON lines, from some place on.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    position: u64,
}

/// A request that may have changed an object, whether it succeeded or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    /// Who sent it, for example `system:serviceaccount:kubevirt:kubevirt-controller`.
    pub user: String,
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The resource, followed by a slash and the subresource if there is one.
    pub resource: String,
    /// The namespace of the object, or nothing.
    pub namespace: String,
}

impl AuditLog {
    /// What is logged from now on.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn begin(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), position: std::fs::metadata(path)?.len() })
    }

    /// The writes since then. The server logs a request before it answers.
    ///
    /// # Errors
    /// If the file cannot be read, or has a line that is no audit event.
    pub fn writes(&self) -> io::Result<Vec<Write>> {
        let mut log = File::open(&self.path)?;
        log.seek(SeekFrom::Start(self.position))?;
        let mut text = String::new();
        log.read_to_string(&mut text)?;
        parse(&text)
    }
}

fn parse(text: &str) -> io::Result<Vec<Write>> {
    let mut writes = Vec::new();
    // A line without its end is still being written.
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let event: Value = serde_json::from_str(line)?;
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let verb = text("/verb");
        if !["create", "update", "patch", "delete", "deletecollection"].contains(&verb) {
            continue;
        }
        let mut resource = text("/objectRef/resource").to_owned();
        let subresource = text("/objectRef/subresource");
        if !subresource.is_empty() {
            resource = format!("{resource}/{subresource}");
        }
        writes.push(Write {
            user: text("/user/username").to_owned(),
            verb: verb.to_owned(),
            resource,
            namespace: text("/objectRef/namespace").to_owned(),
        });
    }
    Ok(writes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;

    fn line(verb: &str, object: &Value) -> String {
        json!({"kind": "Event", "stage": "ResponseComplete", "verb": verb, "user": {"username": "one"}, "objectRef": object})
            .to_string()
    }

    fn write(verb: &str, resource: &str) -> Write {
        Write {
            user: "one".into(),
            verb: verb.into(),
            resource: resource.into(),
            namespace: "default".into(),
        }
    }

    #[test]
    fn reads_are_not_writes_and_subresources_are_told_apart() {
        let vmi = json!({"resource": "virtualmachineinstances", "namespace": "default", "name": "demo"});
        let status =
            json!({"resource": "pods", "namespace": "default", "name": "a", "subresource": "status"});
        let lines = [line("get", &vmi), line("patch", &vmi), line("watch", &status), line("update", &status)];
        let text = lines.join("\n") + "\n";
        let expected = [write("patch", "virtualmachineinstances"), write("update", "pods/status")];
        assert_eq!(parse(&text).unwrap(), expected);
    }

    #[test]
    fn a_log_is_read_from_where_it_began_and_up_to_its_last_whole_line() {
        let vmi = line("create", &json!({"resource": "virtualmachineinstances", "namespace": "default"}));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{vmi}").unwrap();
        let log = AuditLog::begin(file.path()).unwrap();
        assert_eq!(log.writes().unwrap(), []);
        write!(file, "{vmi}\n{}", &vmi[..20]).unwrap();
        assert_eq!(log.writes().unwrap(), [write("create", "virtualmachineinstances")]);
    }

    #[test]
    fn a_line_that_is_not_json_is_an_error() {
        assert!(parse("audit\n").is_err());
    }
}
