//! The files that Kubernetes projects from its objects into volumes: which a VM has, and which are disks.

use std::collections::BTreeMap;
use std::io;

use vireo_api::names::{access_credential, network_data_secret, projected_files, user_data_secret};
use vireo_api::spec::{
    AccessCredential, AcpiTableRef, CloudInit, CloudInitData, Disk, Field, FilesystemSource, ObjectKind,
    ObjectSource, Projected, ProjectedSource, Vm, VolumeSource,
};
use vireo_client::Kind;
use vireo_vmconfig::{AcpiTable, InvalidAcpiTable};

use super::iso::File;
use super::prepare::StorageError;
use super::registry::CredentialsError;

/// The most files of a volume.
const MOST_FILES: usize = 4096;
/// The most bytes of its files; an object has at most a quarter.
const MOST_BYTES: usize = 4 << 20;
/// The keys of a Secret with user data, as KubeVirt looks for them.
const USER_DATA: [&str; 2] = ["userdata", "userData"];
/// The keys of a Secret with network data.
const NETWORK_DATA: [&str; 2] = ["networkdata", "networkData"];
/// The files in lower case of which the setup of Windows reads one.
const ANSWERS: [&str; 2] = ["autounattend.xml", "unattend.xml"];

/// Projected files by the directories in which a launcher in a Pod has them.
pub type ProjectedFiles = BTreeMap<String, Vec<File>>;

/// Why files could not be projected.
#[derive(Debug, thiserror::Error)]
pub enum ProjectedError {
    /// The object does not exist.
    #[error("{0} does not exist, waiting for it to appear")]
    Absent(Box<AbsentObject>),
    /// The launcher Pod does not exist.
    #[error("the VMI has no launcher Pod")]
    NoPod,
    /// An object lacks the entry for cloud-init.
    #[error("the Secret {name} has no key {}", keys.join(" or "))]
    NoKey {
        /// Its name.
        name: String,
        /// One of these.
        keys: &'static [&'static str],
    },
    /// A Secret lacks the credentials for an image.
    #[error("the Secret {name} has no credentials for images")]
    Credentials {
        /// Its name.
        name: String,
        /// Why.
        source: CredentialsError,
    },
    /// An entry of an object is not text.
    #[error("the entry {0} is not UTF-8")]
    NotText(String),
    /// Answer files lack the one that is read.
    #[error("there is no {}", ANSWERS.join(" or "))]
    NoAnswers,
    /// A request or a limit of a container, where there is none.
    #[error("{0}: without a kubelet, only fields of the Pod are available: use fieldRef")]
    Resource(Field),
    /// There is no API to read from.
    #[error(
        "VMIs of files have no Kubernetes API to read from: use hostDisk, or run the VMI in a cluster or in vireo standalone"
    )]
    NoApi,
    /// A directory of the launcher's container.
    #[error("launchers of a single host have no container: run the VMI in a cluster")]
    NoContainer,
    /// The file system of a claim.
    #[error(
        "claims of a single host are disks, and file systems of claims are shared in clusters: use a disk"
    )]
    ClaimOfHost,
    /// More than is taken.
    #[error("there are more than {MOST_FILES} files, or more than {MOST_BYTES} bytes in them")]
    TooLarge,
    /// A name that no file of a volume has.
    #[error("{0:?} is not the name of a file")]
    Name(String),
    /// The API server did not answer, or denied it.
    #[error("the API server does not give it")]
    Api(#[source] Box<kube::Error>),
    /// The directory in the launcher's Pod cannot be read.
    #[error("cannot read {directory} in the launcher Pod")]
    Read {
        /// The directory.
        directory: String,
        /// Why.
        source: io::Error,
    },
}

impl ProjectedError {
    /// The error of a field of the spec.
    pub(crate) fn at(self, field: Field) -> StorageError {
        StorageError::Projected { field, source: self }
    }
}

impl From<kube::Error> for ProjectedError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// An object that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentObject {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for AbsentObject {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(form, "{} {}/{}", self.kind.kind, self.namespace, self.name)
    }
}

/// A directory of projected files that a VM starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// Where a launcher in a Pod has it.
    pub directory: String,
    /// The field of the spec.
    pub field: Field,
    /// What is in it.
    pub source: ProjectedSource,
}

/// The directories of projected files that a VM starts with.
pub fn projections(vm: &Vm) -> Vec<Projection> {
    let shared = vm.filesystems().iter().filter_map(|filesystem| match filesystem.source() {
        FilesystemSource::Projected(projected) => Some(Projection {
            directory: projected_files(filesystem.name()),
            field: filesystem.source_field().clone(),
            source: projected.source().clone(),
        }),
        FilesystemSource::ContainerPath { .. } | FilesystemSource::Claim { .. } => None,
    });
    let credentials = vm.access_credentials().iter().map(of_credential);
    vm.fixed_disks().flat_map(of_disk).chain(shared).chain(credentials).collect()
}

/// The directory of an access credential.
pub(crate) fn of_credential(credential: &AccessCredential) -> Projection {
    Projection {
        directory: access_credential(credential.index()),
        field: credential.field().clone(),
        source: ProjectedSource::Object(ObjectSource {
            kind: ObjectKind::Secret,
            name: credential.secret().to_owned(),
            optional: false,
        }),
    }
}

/// The public SSH keys in the entries of a Secret: one a line.
///
/// # Errors
/// Names an entry that is not text.
pub(crate) fn ssh_keys(files: &[File]) -> Result<Vec<String>, ProjectedError> {
    let mut keys = Vec::new();
    for file in files {
        let text = std::str::from_utf8(&file.content);
        let text = text.map_err(|_| ProjectedError::NotText(file.path.clone()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        keys.extend(lines.map(str::to_owned));
    }
    Ok(keys)
}

fn of_disk(disk: &Disk) -> Vec<Projection> {
    let (name, field) = (disk.name(), disk.source_field());
    let secret = |data: Option<&CloudInitData>, directory, member| match data {
        Some(CloudInitData::Secret(secret)) => Some(Projection {
            directory,
            field: field.at(member),
            source: ProjectedSource::Object(ObjectSource {
                kind: ObjectKind::Secret,
                name: secret.clone(),
                optional: false,
            }),
        }),
        Some(CloudInitData::Inline(_)) | None => None,
    };
    match disk.source() {
        VolumeSource::Projected(projected) => vec![Projection {
            directory: projected_files(name),
            field: field.clone(),
            source: projected.source().clone(),
        }],
        VolumeSource::CloudInitNoCloud(data) | VolumeSource::CloudInitConfigDrive(data) => {
            let user = secret(data.user_data(), user_data_secret(name), "secretRef");
            let network = secret(data.network_data(), network_data_secret(name), "networkDataSecretRef");
            user.into_iter().chain(network).collect()
        }
        VolumeSource::ContainerDisk { .. }
        | VolumeSource::DownwardMetrics
        | VolumeSource::EmptyDisk { .. }
        | VolumeSource::PersistentVolumeClaim { .. }
        | VolumeSource::Ephemeral { .. }
        | VolumeSource::HostDisk { .. }
        | VolumeSource::NoMedium => Vec::new(),
    }
}

/// The files in a projected directory; none where there is no such directory.
pub(crate) fn files_in<'a>(all: &'a ProjectedFiles, directory: &str) -> &'a [File] {
    all.get(directory).map(Vec::as_slice).unwrap_or_default()
}

/// The files of a disk.
///
/// # Errors
/// When they are not what the setup of Windows reads.
pub(super) fn files(
    disk: &Disk,
    projected: &Projected,
    all: &ProjectedFiles,
) -> Result<Vec<File>, StorageError> {
    let files = files_in(all, &projected_files(disk.name()));
    let has_answers = || files.iter().any(|file| ANSWERS.contains(&&*file.path.to_ascii_lowercase()));
    match projected.is_sysprep() && !has_answers() {
        true => Err(ProjectedError::NoAnswers.at(disk.source_field().clone())),
        false => Ok(files.to_vec()),
    }
}

/// Why a Secret has no ACPI table.
#[derive(Debug, thiserror::Error)]
pub enum AcpiTableError {
    /// It has no such entry.
    #[error("the Secret of the volume {volume} has no key {key}")]
    NoKey {
        /// The volume.
        volume: String,
        /// The entry.
        key: &'static str,
    },
    /// The entry is a table of another kind.
    #[error("it is a table of the kind {found:?} and not {expected:?}")]
    Kind {
        /// Its signature.
        found: String,
        /// That of the field.
        expected: String,
    },
    /// The entry is not a table.
    #[error(transparent)]
    Invalid(#[from] InvalidAcpiTable),
}

/// The ACPI tables of a VM's Secrets.
///
/// # Errors
/// Names the field of one that is not there, or is not a table of its kind.
pub(super) fn acpi_tables(vm: &Vm, all: &ProjectedFiles) -> Result<Vec<AcpiTable>, StorageError> {
    let read = |wanted: &AcpiTableRef| {
        acpi_table(wanted, all)
            .map_err(|source| StorageError::AcpiTable { field: wanted.field().clone(), source })
    };
    vm.firmware().acpi_tables().iter().map(read).collect()
}

fn acpi_table(wanted: &AcpiTableRef, all: &ProjectedFiles) -> Result<AcpiTable, AcpiTableError> {
    let (volume, kind) = (wanted.volume(), wanted.kind());
    let files = files_in(all, &projected_files(volume));
    let absent = || AcpiTableError::NoKey { volume: volume.to_owned(), key: kind.entry() };
    let file = files.iter().find(|file| file.path == kind.entry()).ok_or_else(absent)?;
    let table = AcpiTable::try_from(file.content.clone())?;
    if table.signature() != kind.signature() {
        let text = |signature: [u8; 4]| String::from_utf8_lossy(&signature).into_owned();
        let (found, expected) = (text(table.signature()), text(kind.signature()));
        return Err(AcpiTableError::Kind { found, expected });
    }
    Ok(table)
}

/// User data and network data for cloud-init.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct SeedData {
    pub(super) user: Vec<u8>,
    pub(super) network: Option<Vec<u8>>,
    pub(super) keys: Vec<String>,
}

impl std::fmt::Debug for SeedData {
    /// Without the data, which may be secret.
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("SeedData").finish_non_exhaustive()
    }
}

/// What cloud-init is given.
///
/// # Errors
/// Names the member of the source whose Secret lacks it.
pub(super) fn seed_data(
    vm: &Vm,
    disk: &Disk,
    data: &CloudInit,
    all: &ProjectedFiles,
) -> Result<SeedData, StorageError> {
    let (name, field) = (disk.name(), disk.source_field());
    let read = |data: Option<&CloudInitData>, directory: String, keys: &'static [&'static str]| match data {
        None => Ok(None),
        Some(CloudInitData::Inline(data)) => Ok(Some(data.clone())),
        Some(CloudInitData::Secret(secret)) => {
            let files = all.get(&directory).map(Vec::as_slice).unwrap_or_default();
            let mut found = keys.iter().filter_map(|key| files.iter().find(|file| file.path == **key));
            let absent = || ProjectedError::NoKey { name: secret.clone(), keys };
            found.next().map(|file| Some(file.content.clone())).ok_or_else(absent)
        }
    };
    let user = read(data.user_data(), user_data_secret(name), &USER_DATA);
    let network = read(data.network_data(), network_data_secret(name), &NETWORK_DATA);
    let mut keys = Vec::new();
    for credential in vm.access_credentials().iter().filter(|one| one.method().is_in(disk.source())) {
        let files = files_in(all, &access_credential(credential.index()));
        keys.extend(ssh_keys(files).map_err(|error| error.at(credential.field().clone()))?);
    }
    Ok(SeedData {
        keys,
        user: user.map_err(|error| error.at(field.at("secretRef")))?.unwrap_or_default(),
        network: network.map_err(|error| error.at(field.at("networkDataSecretRef")))?,
    })
}

/// Collects files as far as a volume may have them.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    files: Vec<File>,
    bytes: usize,
}

impl Collected {
    /// How many bytes there may still be.
    pub(crate) fn left(&self) -> usize {
        MOST_BYTES - self.bytes
    }

    /// Adds a file.
    ///
    /// # Errors
    /// When it is one too many, or has a name that no file may have.
    pub(crate) fn add(&mut self, path: &str, content: Vec<u8>) -> Result<(), ProjectedError> {
        let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
        if !path.split('/').all(is_name) {
            return Err(ProjectedError::Name(path.to_owned()));
        }
        if self.files.len() >= MOST_FILES || content.len() > self.left() {
            return Err(ProjectedError::TooLarge);
        }
        self.bytes += content.len();
        self.files.push(File::new(path, content));
        Ok(())
    }

    /// The files, in the order of their paths.
    pub(crate) fn into_files(mut self) -> Vec<File> {
        self.files.sort_by(|one, other| one.path.cmp(&other.path));
        self.files
    }
}

#[cfg(test)]
mod tests {
    use vireo_api::decode;

    use super::*;

    fn vm(volumes: &str) -> Vm {
        let manifest = format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
             metadata: {{name: web, uid: 5d307ca9-b3ef-428c-8861-06e72d69f223}}\n\
             spec: {{domain: {{memory: {{guest: 64Mi}}, devices: {{}}}}, volumes: {volumes}}}\n"
        );
        decode::manifest(&manifest).unwrap().remove(0).check().unwrap()
    }

    #[test]
    fn directories_are_those_of_volumes_that_are_projected() {
        let vm = vm("[{name: a, configMap: {name: map}}, {name: scratch, emptyDisk: {capacity: 1Mi}}, \
             {name: seed, cloudInitNoCloud: {secretRef: {name: user}, networkData: x}}, \
             {name: drive, cloudInitConfigDrive: {userData: x, networkDataSecretRef: {name: net}}}]");
        let found = projections(&vm);
        let found: Vec<_> =
            found.iter().map(|one| (one.directory.rsplit_once('/').unwrap().1, one.field.as_str())).collect();
        let expected = [
            ("a", "spec.volumes[0].configMap"),
            ("seed", "spec.volumes[2].cloudInitNoCloud.secretRef"),
            ("drive", "spec.volumes[3].cloudInitConfigDrive.networkDataSecretRef"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_first_of_kubevirts_keys_is_taken() {
        let vm = vm("[{name: seed, cloudInitNoCloud: {secretRef: {name: s}, networkData: net}}]");
        let disk = vm.fixed_disks().next().unwrap();
        let VolumeSource::CloudInitNoCloud(data) = disk.source() else { panic!("{vm:?}") };
        let with = |keys: &[&str]| {
            let files = keys.iter().map(|key| File::new(*key, *key)).collect();
            seed_data(&vm, disk, data, &ProjectedFiles::from([(user_data_secret("seed"), files)]))
        };
        let taken =
            |user: &str| SeedData { user: user.into(), network: Some(b"net".to_vec()), keys: Vec::new() };
        assert_eq!(with(&["userData", "userdata"]).unwrap(), taken("userdata"));
        assert_eq!(with(&["other", "userData"]).unwrap(), taken("userData"));
        let error = with(&["other"]).unwrap_err();
        assert_eq!(error.field().unwrap().as_str(), "spec.volumes[0].cloudInitNoCloud.secretRef");
        assert_eq!(cause(&error), "the Secret s has no key userdata or userData");
    }

    #[test]
    fn metadata_has_the_keys_of_its_kind() {
        let vm = vm("[{name: seed, cloudInitNoCloud: {userData: x}}, \
             {name: drive, cloudInitConfigDrive: {userData: x}}], accessCredentials: [\
             {sshPublicKey: {source: {secret: {secretName: a}}, propagationMethod: {configDrive: {}}}}, \
             {sshPublicKey: {source: {secret: {secretName: b}}, propagationMethod: {noCloud: {}}}}, \
             {userPassword: {source: {secret: {secretName: c}}, propagationMethod: {qemuGuestAgent: {}}}}]");
        let names: Vec<_> = projections(&vm).into_iter().map(|one| one.field.to_string()).collect();
        let of = |index: usize, kind: &str| format!("spec.accessCredentials[{index}].{kind}.source.secret");
        assert_eq!(names, [of(0, "sshPublicKey"), of(1, "sshPublicKey"), of(2, "userPassword")]);
        let secret = |index, content: &[u8]| (access_credential(index), vec![File::new("key", content)]);
        let mut all = ProjectedFiles::from([
            secret(0, b"ssh-rsa A\n\n# comment\n ssh-rsa B \n"),
            secret(1, b"ssh-rsa C"),
            secret(2, b"password"),
        ]);
        let keys = |all: &ProjectedFiles| {
            let of_disk = |disk: &Disk| match disk.source() {
                VolumeSource::CloudInitNoCloud(data) | VolumeSource::CloudInitConfigDrive(data) => {
                    Ok(seed_data(&vm, disk, data, all)?.keys)
                }
                _ => panic!("{disk:?}"),
            };
            vm.fixed_disks().map(of_disk).collect::<Result<Vec<_>, StorageError>>()
        };
        assert_eq!(keys(&all).unwrap(), [vec!["ssh-rsa C"], vec!["ssh-rsa A", "ssh-rsa B"]]);
        all.extend([secret(1, &[0xff])]);
        let error = keys(&all).unwrap_err();
        assert_eq!(error.field().unwrap().as_str(), of(1, "sshPublicKey"));
        assert_eq!(cause(&error), "the entry key is not UTF-8");
    }

    fn cause(error: &StorageError) -> String {
        std::error::Error::source(error).unwrap().to_string()
    }

    /// A table of 40 bytes.
    fn table(signature: &[u8; 4]) -> Vec<u8> {
        let mut bytes = [signature.as_slice(), &[40], &[0; 35]].concat();
        bytes[9] = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)).wrapping_neg();
        bytes
    }

    #[test]
    fn an_acpi_table_is_of_its_kind() {
        let manifest = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
             metadata: {name: web, uid: 5d307ca9-b3ef-428c-8861-06e72d69f223}\n\
             spec: {domain: {memory: {guest: 64Mi}, devices: {}, firmware: {acpi: {slicNameRef: t, msdmNameRef: t}}}, \
             volumes: [{name: t, secret: {secretName: s}}]}\n";
        let vm = decode::manifest(manifest).unwrap().remove(0).check().unwrap();
        let with = |slic: &[u8], msdm: &[u8]| {
            let files = vec![File::new("msdm.bin", msdm), File::new("slic.bin", slic)];
            acpi_tables(&vm, &ProjectedFiles::from([(projected_files("t"), files)]))
        };
        let tables = with(&table(b"SLIC"), &table(b"MSDM")).unwrap();
        assert_eq!(tables.iter().map(AcpiTable::signature).collect::<Vec<_>>(), [*b"SLIC", *b"MSDM"]);
        let refused = |slic: &[u8]| {
            let error = with(slic, &table(b"MSDM")).unwrap_err();
            assert_eq!(error.field().unwrap().as_str(), "spec.domain.firmware.acpi.slicNameRef");
            cause(&error)
        };
        assert_eq!(refused(&table(b"MSDM")), "it is a table of the kind \"MSDM\" and not \"SLIC\"");
        assert_eq!(refused(b"short"), "it has 5 bytes: an ACPI table has 36 to 16384");
        let error = acpi_tables(&vm, &ProjectedFiles::new()).unwrap_err();
        assert_eq!(cause(&error), "the Secret of the volume t has no key slic.bin");
    }

    #[test]
    fn windows_needs_answers() {
        let vm = vm("[{name: a, sysprep: {secret: {name: s}}}]");
        let disk = vm.fixed_disks().next().unwrap();
        let VolumeSource::Projected(projected) = disk.source() else { panic!("{vm:?}") };
        let with = |name: &str| {
            let all = ProjectedFiles::from([(projected_files("a"), vec![File::new(name, "x")])]);
            files(disk, projected, &all)
        };
        assert_eq!(with("AutoUnattend.xml").unwrap(), [File::new("AutoUnattend.xml", "x")]);
        let error = with("answers.xml").unwrap_err();
        assert_eq!(cause(&error), "there is no autounattend.xml or unattend.xml");
    }

    #[test]
    fn a_volume_has_limits() {
        let mut all = Collected::default();
        all.add("b", vec![0; MOST_BYTES]).unwrap();
        all.add("a", Vec::new()).unwrap();
        assert!(matches!(all.add("c", vec![0]), Err(ProjectedError::TooLarge)));
        for path in ["", "..", "a/../b", "a//b", "/a", "a\0"] {
            assert!(matches!(all.add(path, Vec::new()), Err(ProjectedError::Name(_))), "{path}");
        }
        for number in 2..MOST_FILES {
            all.add(&number.to_string(), Vec::new()).unwrap();
        }
        assert!(matches!(all.add("c", Vec::new()), Err(ProjectedError::TooLarge)));
        assert_eq!(all.into_files().last().unwrap().path, "b");
    }
}
