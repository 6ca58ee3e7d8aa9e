//! The file systems that guests share, where no kubelet mounts them.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use vireo_api::names::projected_files;
use vireo_api::spec::{Filesystem, FilesystemSource, Vm};

use super::iso::File;
use super::prepare::StorageError;
use super::projected::{ProjectedError, ProjectedFiles, files_in};

/// A file system by its name, with its files.
pub(crate) type Files = (String, Vec<File>);

/// The files of a VM's file systems.
///
/// # Errors
/// Names the field of one that only a kubelet mounts.
pub(crate) fn files(vm: &Vm, projected: &ProjectedFiles) -> Result<Vec<Files>, StorageError> {
    let of = |filesystem: &Filesystem| match filesystem.source() {
        FilesystemSource::Projected(_) => {
            let files = files_in(projected, &projected_files(filesystem.name()));
            Ok((filesystem.name().to_owned(), files.to_vec()))
        }
        FilesystemSource::ContainerPath { .. } => {
            Err(ProjectedError::NoContainer.at(filesystem.source_field().clone()))
        }
        FilesystemSource::Claim { .. } => {
            Err(ProjectedError::ClaimOfHost.at(filesystem.source_field().clone()))
        }
    };
    vm.filesystems().iter().map(of).collect()
}

/// Makes the directories of file systems in one that nothing else writes to yet. The launcher may read them.
///
/// # Errors
/// When one cannot be made.
pub(crate) fn write(directory: &Path, all: &[Files]) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    if all.is_empty() {
        return Ok(());
    }
    make_directory(directory)?;
    for (name, files) in all {
        let root = directory.join(name);
        make_directory(&root)?;
        for File { path, content } in files {
            let mut at = root.clone();
            let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
            for parent in parents.split('/').filter(|parent| !parent.is_empty()) {
                at.push(parent);
                make_directory(&at)?;
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(at.join(name))?;
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(content)?;
        }
    }
    Ok(())
}

/// One that everyone may read who gets to it.
fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::decode;
    use vireo_api::v1::VirtualMachineInstance;

    use super::*;

    fn vm(volume: serde_json::Value) -> Vm {
        let vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5d307ca9-b3ef-428c-8861-06e72d69f223"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"},
                    "devices": {"filesystems": [{"name": "shared", "virtiofs": {}}]}},
                "volumes": [volume],
            },
        });
        decode::object::<VirtualMachineInstance>(vmi).check().unwrap()
    }

    #[test]
    fn only_projected_files_are_shared_without_a_kubelet() {
        let projected = ProjectedFiles::from([(projected_files("shared"), vec![File::new("key", "value")])]);
        let found = files(&vm(json!({"name": "shared", "configMap": {"name": "c"}})), &projected).unwrap();
        assert_eq!(found, [("shared".to_owned(), vec![File::new("key", "value")])]);
        let claim = vm(json!({"name": "shared", "persistentVolumeClaim": {"claimName": "c"}}));
        let error = files(&claim, &projected).unwrap_err();
        assert_eq!(
            error.field().map(ToString::to_string).as_deref(),
            Some("spec.volumes[0].persistentVolumeClaim")
        );
    }

    #[test]
    fn files_of_an_earlier_start_are_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("filesystems");
        let of = |file: File| vec![("one".to_owned(), vec![file])];
        write(&directory, &of(File::new("old", "x"))).unwrap();
        write(&directory, &of(File::new("a/b/new", "text"))).unwrap();
        assert!(!directory.join("one/old").exists());
        let new = directory.join("one/a/b/new");
        assert_eq!(fs::read_to_string(&new).unwrap(), "text");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&new), mode(&directory.join("one/a"))), (0o644, 0o755));
        write(&directory, &[]).unwrap();
        assert!(!directory.exists());
    }
}
