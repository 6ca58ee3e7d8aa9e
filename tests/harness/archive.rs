//! OCI archives as other programs than containerd read them, where they are installed.

use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What skopeo finds in the only image of an archive, or nothing where there is no skopeo.
///
/// # Errors
/// If skopeo cannot read it.
pub fn inspect(archive: &Path) -> io::Result<Option<Value>> {
    let source = format!("oci-archive:{}", archive.display());
    let found = output(Command::new("skopeo").arg("inspect").arg(source))?;
    Ok(found.map(|text| serde_json::from_str(&text)).transpose()?)
}

/// The name and tag of the image that `podman load` makes of an archive, or nothing where there is no podman. What it loads is
/// kept in a directory that is removed.
///
/// # Errors
/// If podman cannot load it.
pub fn load(archive: &Path) -> io::Result<Option<String>> {
    let storage = tempfile::tempdir()?;
    let mut podman = Command::new("podman");
    podman.args(["--storage-driver", "vfs", "--root"]).arg(storage.path().join("root"));
    podman.arg("--runroot").arg(storage.path().join("run"));
    let loaded = output(podman.args(["load", "--quiet", "--input"]).arg(archive))?;
    let name = |text: String| text.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    Ok(loaded.map(name))
}

/// What a program prints, or nothing where it is not installed.
fn output(command: &mut Command) -> io::Result<Option<String>> {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !output.status.success() {
        let program = command.get_program().display().to_string();
        return Err(io::Error::other(format!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        )));
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "localhost/vireo/small:1";

    /// Made as Vireo's images are.
    fn image(directory: &Path) -> std::path::PathBuf {
        let root = directory.join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/false\n").unwrap();
        let archive = directory.join("small.oci.tar");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/oci-image");
        let made = Command::new(script).arg(&archive).arg(&root).args(["0", NAME]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        archive
    }

    #[test]
    fn skopeo_reads_an_image_of_ours() {
        let directory = tempfile::tempdir().unwrap();
        let Some(found) = inspect(&image(directory.path())).unwrap() else {
            return eprintln!("skipped: there is no skopeo");
        };
        assert_eq!((&found["Architecture"], &found["Os"]), (&"amd64".into(), &"linux".into()), "{found:#}");
        assert_eq!(found["Layers"].as_array().map(Vec::len), Some(1), "{found:#}");
    }

    #[test]
    fn podman_loads_an_image_of_ours_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        match load(&image(directory.path())).unwrap() {
            Some(name) => assert_eq!(name, NAME),
            None => eprintln!("skipped: there is no podman"),
        }
    }
}
