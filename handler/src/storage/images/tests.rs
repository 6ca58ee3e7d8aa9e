use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use serde_json::json;

use super::*;
use crate::launcher::link::chain;
use crate::storage::AllowedDirectories;

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

    /// A store for images below the directory of this layout, and no others.
    pub(crate) fn images(&self) -> Images {
        let images = AllowedDirectories::Below(vec![self.dir.path().to_owned()]);
        let allowed = AllowedPaths { images, ..AllowedPaths::any() };
        Images::new(self.dir.path().join("images/sha256"), allowed, None, ImageReader::InProcess)
    }

    fn reference(&self, tag: Option<&str>) -> ImageRef {
        let tag = tag.map(|tag| format!(":{tag}")).unwrap_or_default();
        format!("oci:{}/layout{tag}", self.dir.path().display()).parse().unwrap()
    }

    fn disk(&self, tag: Option<&str>, path: Option<&str>) -> Result<PathBuf, ImageError> {
        let source = Source::container_disk(&self.reference(tag), path);
        self.images().import(&source, &JobContext::default())
    }

    fn layer(&mut self, tag: &str, files: &[(&str, &[u8])]) {
        self.image(tag, &[(TAR, tar_of(files))]);
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

/// Blocks the import of the only disk of an image, as an abandoned job that hangs does.
pub(crate) fn hold(images: &Images, image: &str) -> File {
    let (source, job) = (Source::container_disk(&image.parse().unwrap(), None), JobContext::default());
    let opened = images.open(&source.image, &job).unwrap();
    let name = source.name(&images.identify(&opened, &job).unwrap());
    fs::create_dir_all(&images.0.directory).unwrap();
    lock(&images.0.directory.join(format!("{name}.lock")), &job).unwrap()
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

pub(crate) fn qcow2_of(dir: &Path, content: &[u8]) -> Vec<u8> {
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
    let at = built.disk(None, None).unwrap();
    assert!(fs::read(&at).unwrap() == content);
    let metadata = fs::metadata(&at).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o444);
    assert!(metadata.blocks() * 512 < 1 << 20, "the image is sparse");
    let again = built.disk(Some("v1"), None).unwrap();
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
    let image = format!("oci-archive:{}:v1", archive.display()).parse().unwrap();
    let source = Source::container_disk(&image, None);
    let at = built.images().import(&source, &JobContext::default()).unwrap();
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
    let disk = built.disk(None, None).unwrap();
    assert_eq!(fs::read(disk).unwrap(), [2; 512]);
    let kernel = Source::boot_file(&built.reference(None), "/boot/k");
    let kernel = built.images().import(&kernel, &JobContext::default()).unwrap();
    assert_eq!(fs::read(kernel).unwrap(), b"new");
    let gone = built.disk(None, Some("/disk/old.img")).unwrap_err();
    assert_eq!(gone.to_string(), "the image has no file /disk/old.img");
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

    let problems: BTreeMap<&str, &str> = [
        ("two", "exactly one file below /disk"),
        ("none", "holds 0"),
        ("trap", "cannot be used"),
        ("odd", "layer 1 of the image has an unsupported media type"),
        ("torn", "layer 1 of the image is damaged"),
        ("link", "is a symbolic link"),
        ("absent", "none of the 6 images in the layout has the tag \"absent\""),
    ]
    .into();
    for (tag, words) in problems {
        let error = built.disk(Some(tag), None).unwrap_err().to_string();
        assert!(error.contains(words), "{tag}: {error}");
    }
    let error = built.disk(None, None).unwrap_err().to_string();
    assert!(error.contains("6 images: add a tag"), "{error}");
    let left: Vec<_> = fs::read_dir(built.dir.path().join("images/sha256"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "lock"))
        .collect();
    assert_eq!(left, Vec::<PathBuf>::new());
}

/// Content that must not appear in a message. It is short enough for every field of a header.
const SECRET: &str = "s3cr3t";

/// The error of an image that cannot be used.
fn error_text(images: &Images, image: &str) -> String {
    let image = image.parse().unwrap();
    let [disk, kernel] =
        [Source::container_disk(&image, None), Source::boot_file(&image, "/boot/k")].map(|source| {
            let error = images.import(&source, &JobContext::default()).unwrap_err();
            format!("{}\n{error:?}", chain(&error))
        });
    assert!(!disk.contains(SECRET) && !kernel.contains(SECRET), "{image}: {disk}\n{kernel}");
    disk
}

#[test]
fn nothing_of_a_file_that_is_no_image_is_quoted() {
    let built = Built::new();
    let at = |path: &str| built.path().join(path);
    let text = format!("root:{SECRET}:19000:0:99999:7:::\n").repeat(40);
    // Every field of a header holds it.
    let header: Vec<u8> = SECRET.bytes().cycle().take(1024).collect();
    for content in [text.as_bytes(), header.as_slice(), b"", &[0; 10240]] {
        fs::write(at("file"), content).unwrap();
        error_text(&built.images(), &format!("oci-archive:{}", at("file").display()));
    }
    let error_text = |index: &str| {
        fs::write(at("layout/index.json"), index).unwrap();
        error_text(&built.images(), &format!("oci:{}:{}", at("layout").display(), "v1"))
    };
    error_text(&text);
    error_text(&format!("{{\"schemaVersion\": \"{SECRET}\"}}"));
    let entry = json!({"mediaType": SECRET, "digest": SECRET, "size": SECRET});
    error_text(&json!({"schemaVersion": 2, "manifests": [entry]}).to_string());
    for digest in [SECRET.to_owned(), format!("sha256:{SECRET}")] {
        let name = json!({"org.opencontainers.image.ref.name": "v1"});
        let entry = json!({"mediaType": SECRET, "digest": digest, "size": 1, "annotations": name});
        error_text(&json!({"schemaVersion": 2, "manifests": [entry]}).to_string());
    }
}

#[test]
fn nothing_that_is_in_an_image_is_quoted() {
    let error_text = |layers: &[(&str, Vec<u8>)]| {
        let mut built = Built::new();
        built.image("v1", layers);
        error_text(&built.images(), &format!("oci:{}/layout:v1", built.path().display()))
    };
    error_text(&[(SECRET, Vec::new())]);
    error_text(&[(TAR, SECRET.bytes().cycle().take(2048).collect())]);
    error_text(&[(&format!("{TAR}+gzip"), SECRET.into()), (&format!("{TAR}+zstd"), SECRET.into())]);
    let two: [(&str, &[u8]); 2] = [(&format!("disk/{SECRET}"), b"a"), (&format!("disk/{SECRET}2"), b"b")];
    error_text(&[(TAR, tar_of(&two))]);
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    let mut link = tar::Builder::new(Vec::new());
    link.append_link(&mut header, format!("disk/{SECRET}"), format!("/{SECRET}")).unwrap();
    error_text(&[(TAR, link.into_inner().unwrap())]);

    let scratch = tempfile::tempdir().unwrap();
    let whole = qcow2_of(scratch.path(), &[7; 1 << 20]);
    let changed = |change: &dyn Fn(&mut [u8])| {
        let mut disk = whole.clone();
        change(&mut disk);
        error_text(&[(TAR, tar_of(&[("disk/a", &disk)]))])
    };
    changed(&|disk| disk[8..16].copy_from_slice(format!("{SECRET}__").as_bytes()));
    changed(&|disk| disk[24..32].copy_from_slice(format!("{SECRET}__").as_bytes()));
    changed(&|disk| disk[72..80].copy_from_slice(format!("{SECRET}__").as_bytes()));
    // Where its tables are: qemu-img prints such numbers.
    let message = changed(&|disk| disk[40..48].copy_from_slice(format!("{SECRET}__").as_bytes()));
    assert!(message.contains("qemu-img cannot convert"), "{message}");
}

#[test]
fn paths_elsewhere_are_neither_opened_nor_reported() {
    let mut built = Built::new();
    built.layer("v1", &[("disk/a", &[7; 512]), ("boot/k", b"kernel")]);
    let (outside, inside) = (tempfile::tempdir().unwrap(), built.path());
    fs::write(outside.path().join("file"), SECRET).unwrap();
    fs::create_dir(outside.path().join("directory")).unwrap();
    let error_text = |path: &Path| {
        let texts = ["oci", "oci-archive"].map(|kind| {
            let message = error_text(&built.images(), &format!("{kind}:{}", path.display()));
            message.replace(path.to_str().unwrap(), "PATH")
        });
        assert!(texts.iter().all(|message| message.contains("PATH")), "{texts:?}");
        texts
    };
    let absent = error_text(&outside.path().join("absent"));
    assert!(absent[0].contains("is not below a directory of --images"), "{absent:?}");
    for path in ["file", "directory", "file/below", "directory/below"] {
        assert_eq!(error_text(&outside.path().join(path)), absent, "{path}");
    }
    for path in ["/etc/shadow", "/proc/self/environ", "/absent"] {
        assert_eq!(error_text(Path::new(path)), absent, "{path}");
    }

    // Nor by a link that leads there.
    let link = |to: &str| {
        let _ = fs::remove_file(inside.join("link"));
        std::os::unix::fs::symlink(outside.path().join(to), inside.join("link")).unwrap();
        error_text(&inside.join("link"))
    };
    let link_error = link("absent");
    assert!(link_error[0].contains("symbolic link"), "{link_error:?}");
    assert_eq!((link("file"), link("directory")), (link_error.clone(), link_error.clone()));
    assert_eq!(error_text(&inside.join("link/below")), link_error);

    // Nor from inside an image.
    let blobs = fs::read_dir(inside.join("layout/blobs/sha256")).unwrap();
    let mut files: Vec<_> = blobs.map(|entry| entry.unwrap().path()).collect();
    files.push(inside.join("layout/index.json"));
    for file in files {
        let kept = file.with_extension("kept");
        fs::rename(&file, &kept).unwrap();
        std::os::unix::fs::symlink(outside.path().join("file"), &file).unwrap();
        if built.disk(Some("v1"), None).is_err() {
            self::error_text(&built.images(), &format!("oci:{}/layout:v1", inside.display()));
        }
        fs::remove_file(&file).unwrap();
        fs::rename(&kept, &file).unwrap();
    }
    assert!(built.disk(Some("v1"), None).is_ok());
}

#[test]
fn a_fifo_does_not_block() {
    let mut built = Built::new();
    built.layer("v1", &[("disk/a", &[7; 512])]);
    let make = |path: &Path| {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
    };
    make(&built.path().join("fifo")).unwrap();
    let message = error_text(&built.images(), &format!("oci-archive:{}/fifo", built.path().display()));
    assert!(message.contains("it is not a regular file"), "{message}");
    fs::remove_file(built.path().join("layout/index.json")).unwrap();
    make(&built.path().join("layout/index.json")).unwrap();
    let message = error_text(&built.images(), &format!("oci:{}/layout", built.path().display()));
    assert!(message.contains("it is not a regular file"), "{message}");
}

#[tokio::test]
async fn who_waits_for_the_same_image_gets_it_once_and_who_gives_up_does_not_hold_others() {
    let mut built = Built::new();
    built.layer("v1", &[("disk/a", &[7; 512])]);
    let (images, jobs) = (built.images(), Jobs::default());
    let source = Source::container_disk(&built.reference(None), None);
    let held = hold(&images, &source.image.to_string());
    let get = || images.get(&jobs, "default", source.clone());
    let gives_up = tokio::time::timeout(Duration::from_millis(200), get()).await;
    assert!(gives_up.is_err(), "another job imports it");
    let both = async { tokio::join!(get(), get()) };
    let (both, ()) = tokio::join!(both, async { drop(held) });
    let (first, second) = (both.0.unwrap(), both.1.unwrap());
    assert_eq!(first, second);
    assert_eq!(fs::read(first).unwrap(), [7; 512]);
    assert!(images.0.turns.lock().unwrap().values().all(|turn| turn.strong_count() == 0));
}

#[test]
fn a_second_disk_ends_the_import_at_once() {
    // What comes after it is damaged.
    let mut layer = tar_of(&[("disk/a", &[1; 512]), ("disk/b", &[2; 512])]);
    layer.truncate(3 * 512);
    let mut built = Built::new();
    built.image("v1", &[(TAR, layer)]);
    let error = built.disk(None, None).unwrap_err().to_string();
    assert!(error.contains("exactly one file below /disk"), "{error}");
}

#[test]
fn headers_of_any_length_are_not_read() {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(2 << 20);
    header.set_cksum();
    let mut layer = header.as_bytes().to_vec();
    layer.extend(vec![b'a'; 2 << 20]);
    layer.extend(tar_of(&[("disk/a", &[1; 512])]));
    let mut built = Built::new();
    built.image("v1", &[(TAR, layer)]);
    let error = built.disk(None, None).unwrap_err().to_string();
    assert_eq!(error, "layer 1 of the image has a file whose headers have more than 1 MiB");
}
