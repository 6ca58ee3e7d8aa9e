use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use serde_json::json;

use super::*;

/// An image layout under construction.
pub(crate) struct Built {
    dir: tempfile::TempDir,
    manifests: Vec<serde_json::Value>,
}

impl Built {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("layout/blobs/sha256")).unwrap();
        Self { dir, manifests: Vec::new() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    fn layout(&self) -> Layout {
        Layout::Directory(self.dir.path().join("layout"))
    }

    fn images(&self) -> Images {
        Images::new(self.dir.path().join("images/sha256"))
    }

    fn blob(&self, content: &[u8]) -> (String, usize) {
        let hex = hex_of(&Sha256::digest(content));
        fs::write(self.dir.path().join("layout/blobs/sha256").join(&hex), content).unwrap();
        (format!("sha256:{hex}"), content.len())
    }

    pub(crate) fn image(&mut self, tag: &str, layers: &[(&str, Vec<u8>)]) {
        let (config, config_size) = self.blob(b"{}");
        let layers: Vec<_> = layers
            .iter()
            .map(|(media_type, content)| {
                let (digest, size) = self.blob(content);
                json!({"mediaType": media_type, "digest": digest, "size": size})
            })
            .collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": config_size},
            "layers": layers,
        });
        let (digest, size) = self.blob(manifest.to_string().as_bytes());
        self.manifests.push(json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest,
            "size": size,
            "annotations": {"org.opencontainers.image.ref.name": tag},
        }));
        let index = json!({"schemaVersion": 2, "manifests": self.manifests});
        fs::write(self.dir.path().join("layout/index.json"), index.to_string()).unwrap();
        fs::write(self.dir.path().join("layout/oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }
}

pub(crate) const TAR: &str = "application/vnd.oci.image.layer.v1.tar";

pub(crate) fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, *content).unwrap();
    }
    tar.into_inner().unwrap()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn qcow2_of(dir: &Path, content: &[u8]) -> Vec<u8> {
    let (raw, qcow2) = (dir.join("in.raw"), dir.join("in.qcow2"));
    fs::write(&raw, content).unwrap();
    let made = Command::new("qemu-img")
        .args(["convert", "-q", "-c", "-f", "raw", "-O", "qcow2"])
        .args([&raw, &qcow2])
        .status()
        .unwrap();
    assert!(made.success());
    fs::read(qcow2).unwrap()
}

#[test]
fn a_qcow2_disk_becomes_one_shared_raw_image() {
    let mut built = Built::new();
    let mut content = vec![0; 8 << 20];
    content[5_000_000..5_000_005].copy_from_slice(b"hello");
    let qcow2 = qcow2_of(built.dir.path(), &content);
    built.image(
        "v1",
        &[(&format!("{TAR}+gzip"), gzip(&tar_of(&[("disk/guest.qcow2", &qcow2), ("etc/x", b"y")])))],
    );
    let at = built.images().container_disk(&built.layout(), None, None).unwrap();
    assert!(fs::read(&at).unwrap() == content);
    let metadata = fs::metadata(&at).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o444);
    assert!(metadata.blocks() * 512 < 1 << 20, "the image is sparse");
    let again = built.images().container_disk(&built.layout(), Some("v1"), None).unwrap();
    assert_eq!((&again, fs::metadata(&again).unwrap().ino()), (&at, metadata.ino()));
}

#[test]
fn an_archive_serves_as_well_as_a_directory() {
    let mut built = Built::new();
    built.image("v1", &[(TAR, tar_of(&[("./disk/a.img", &[7; 700])]))]);
    let archive = built.dir.path().join("image.tar");
    let mut tar = tar::Builder::new(File::create(&archive).unwrap());
    tar.append_dir_all(".", built.dir.path().join("layout")).unwrap();
    tar.finish().unwrap();
    let at = built.images().container_disk(&Layout::Archive(archive), Some("v1"), None).unwrap();
    let raw = fs::read(at).unwrap();
    assert_eq!(raw.len(), 1024, "padded to whole sectors");
    assert!(raw.starts_with(&[7; 700]));
}

#[test]
fn later_layers_win_and_whiteouts_hide() {
    let mut built = Built::new();
    let zstd =
        zstd::encode_all(tar_of(&[("disk/.wh.old.img", b""), ("boot/k", b"new")]).as_slice(), 1).unwrap();
    built.image(
        "v1",
        &[
            (TAR, tar_of(&[("disk/old.img", &[1; 512]), ("disk/new.img", &[2; 512]), ("boot/k", b"old")])),
            (&format!("{TAR}+zstd"), zstd),
        ],
    );
    let images = built.images();
    let disk = images.container_disk(&built.layout(), None, None).unwrap();
    assert_eq!(fs::read(disk).unwrap(), [2; 512]);
    let kernel = images.boot_file(&built.layout(), None, Path::new("/boot/k")).unwrap();
    assert_eq!(fs::read(kernel).unwrap(), b"new");
    let gone = images.container_disk(&built.layout(), None, Some(Path::new("/disk/old.img")));
    assert!(matches!(gone, Err(ImageError::NoFile(_))));
}

#[test]
fn what_cannot_be_used_is_named_and_leaves_nothing() {
    let mut built = Built::new();
    built.image("two", &[(TAR, tar_of(&[("disk/a", &[1; 512]), ("disk/b", &[2; 512])]))]);
    built.image("none", &[(TAR, tar_of(&[("etc/passwd", b"x")]))]);
    let mut trap = qcow2_of(built.dir.path(), &[0; 1 << 20]);
    trap[15] = 0x70;
    built.image("trap", &[(TAR, tar_of(&[("disk/a", &trap)]))]);
    built.image("odd", &[("application/x-strange", Vec::new())]);
    built.image("torn", &[(TAR, tar_of(&[("disk/a", &[1; 512])])[..700].to_vec())]);
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    tar.append_link(&mut header, "disk/a", "/etc/shadow").unwrap();
    built.image("link", &[(TAR, tar.into_inner().unwrap())]);

    let refusals: BTreeMap<&str, &str> = [
        ("two", "exactly one file below /disk"),
        ("none", "holds: none"),
        ("trap", "cannot be used"),
        ("odd", "media type application/x-strange"),
        ("torn", "cannot unpack layer"),
        ("link", "is a symbolic link"),
        ("absent", "has no tag \"absent\"; it has: two, none, trap"),
    ]
    .into();
    for (tag, words) in refusals {
        let error = built.images().container_disk(&built.layout(), Some(tag), None).unwrap_err().to_string();
        assert!(error.contains(words), "{tag}: {error}");
    }
    let error = built.images().container_disk(&built.layout(), None, None).unwrap_err().to_string();
    assert!(error.contains("add a tag"), "{error}");
    let left: Vec<_> = fs::read_dir(built.dir.path().join("images/sha256"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "lock"))
        .collect();
    assert_eq!(left, Vec::<PathBuf>::new());
}
