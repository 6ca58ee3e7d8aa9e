//! Metrics as others read them: by the strict parser of PyPI's `prometheus_client`.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::python;

const PACKAGE: &str = "prometheus_client==0.26.0";
const PARSE: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families
print(json.dumps([
    {'name': s.name, 'kind': f.type, 'labels': s.labels, 'value': s.value}
    for f in families(sys.stdin.read()) for s in f.samples
]))";

/// One line.
#[derive(Debug, Clone, Deserialize)]
pub struct Sample {
    /// As it is printed.
    pub name: String,
    /// `counter`, `gauge`, ...
    pub kind: String,
    /// By their names.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// Reads a text.
///
/// # Errors
/// What is wrong with it, or why it cannot be read.
pub fn parse(text: &str) -> io::Result<Vec<Sample>> {
    let mut python = Command::new(python::with(PACKAGE)?)
        .args(["-c", PARSE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = python.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let output = python.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("{said}\nof:\n{text}")));
    }
    serde_json::from_slice(&output.stdout).map_err(io::Error::other)
}
