//! What the Helm chart has of [`operator_objects`] as it is: what no value of it changes. The rest are templates.

use std::path::PathBuf;

use serde_json::Value;

use super::operator_objects;
use crate::installation::Images;

/// The kinds of a file, below the directory of the chart.
const FILES: [(&str, &[&str]); 2] = [
    ("crds/kubevirts.kubevirt.io.yaml", &["CustomResourceDefinition"]),
    ("files/roles.yaml", &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
];
const HEADER: &str = "# Made by `vireo manifests --chart deploy/chart`.\n";

/// The files of the Helm chart that are made: their paths in it, and what they have.
///
/// # Errors
/// When an object has no YAML form.
pub fn chart_files() -> Result<Vec<(PathBuf, String)>, serde_saphyr::ser::Error> {
    let objects = operator_objects(&Images::default());
    let is_of = |kinds: &[&str], object: &Value| kinds.iter().any(|kind| object["kind"] == *kind);
    FILES
        .iter()
        .map(|(path, kinds)| {
            let mut text = HEADER.to_owned();
            for object in objects.iter().filter(|object| is_of(kinds, object)) {
                text.push_str("---\n");
                text.push_str(&serde_saphyr::to_string(object)?);
            }
            Ok((PathBuf::from(path), text))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_chart_has_the_files_of_this_release() {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart");
        let files = chart_files().unwrap();
        assert_eq!(files.len(), FILES.len());
        for (path, text) in files {
            assert!(text.matches("---\n").count() > 0, "{} has objects", path.display());
            let committed = std::fs::read_to_string(chart.join(&path)).unwrap();
            assert!(committed == text, "{}: run `vireo manifests --chart deploy/chart`", path.display());
        }
    }
}
