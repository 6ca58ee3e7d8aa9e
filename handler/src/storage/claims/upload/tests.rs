use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use super::*;

const SIZE: u64 = 4 << 20;

struct World {
    _dir: tempfile::TempDir,
    claims: Claims,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::below(dir.path().to_owned(), ImageReader::InProcess);
        claims.provide("a", "data", SIZE).unwrap();
        Self { _dir: dir, claims }
    }

    fn send(&self, image: &[u8]) -> Result<(), UploadError> {
        let mut upload = self.claims.begin_upload("a", "data")?;
        image.chunks(10_000).try_for_each(|part| upload.write(part))?;
        upload.finish(&JobContext::default())?.put()
    }

    fn disk(&self) -> Vec<u8> {
        fs::read(self.claims.path("a", "data")).unwrap()
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.claims.directory("a", "data")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// A disk of 2 MiB with something in it.
fn raw() -> Vec<u8> {
    let mut image = vec![0; 2 << 20];
    image[1_000_000..1_000_005].copy_from_slice(b"hello");
    image
}

fn qcow2(size: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("raw"), dir.path().join("qcow2"));
    fs::write(&from, raw()).unwrap();
    let qemu_img = |args: &[&str]| assert!(Command::new("qemu-img").args(args).status().unwrap().success());
    qemu_img(&["convert", "-O", "qcow2", from.to_str().unwrap(), to.to_str().unwrap()]);
    qemu_img(&["resize", "-q", to.to_str().unwrap(), size]);
    fs::read(to).unwrap()
}

fn gz(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn xz(data: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn images_of_all_kinds_become_the_disk() {
    for image in [raw(), qcow2("2M"), qcow2("4M"), gz(&raw()), xz(&raw()), gz(&qcow2("2M")), xz(&qcow2("2M"))]
    {
        let world = World::new();
        world.send(&image).unwrap();
        let disk = world.disk();
        assert_eq!((disk.len() as u64, &disk[1_000_000..1_000_005]), (SIZE, &b"hello"[..]));
        assert!(disk[1_000_005..].iter().all(|byte| *byte == 0));
        assert_eq!(world.files(), ["disk.img"]);
        let blocks = fs::metadata(world.claims.path("a", "data")).unwrap().blocks();
        assert!(blocks * 512 < 1 << 20, "zeros take no room: {blocks}");
    }
}

#[test]
fn what_is_not_taken_changes_nothing() {
    let mut backed = qcow2("2M");
    backed[15] = 1;
    let mut broken = qcow2("2M");
    broken[40..48].fill(0xff);
    let half = &gz(&raw())[..500];
    let large = vec![1; usize::try_from(SIZE).unwrap() + 1];
    for (image, said) in [
        (&b""[..], "empty"),
        (b"KDMV....", "VMDK"),
        (&gz(b"vhdxfile"), "VHDX"),
        (&backed, "backing file"),
        (&broken, "cannot be converted"),
        (half, "damaged"),
        (&xz(&raw())[..300], "damaged"),
        (&large, "make a larger one"),
        (&qcow2("5M"), "make a larger one"),
        (&gz(&vec![0; 100 << 20]), "make a larger one"),
    ] {
        let world = World::new();
        let error = world.send(image).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
        assert!(world.disk().iter().all(|byte| *byte == 0), "{said}");
        assert_eq!(world.files(), ["disk.img"], "{said}");
    }
}

#[test]
fn one_upload_at_a_time_and_none_leaves_anything() {
    let world = World::new();
    let mut upload = world.claims.begin_upload("a", "data").unwrap();
    upload.write(b"some").unwrap();
    assert!(matches!(world.claims.begin_upload("a", "data"), Err(UploadError::Busy)));
    assert!(matches!(upload.expect(1 << 30), Err(UploadError::TooLarge { .. })));
    drop(upload);
    assert_eq!(world.files(), ["disk.img"]);
    world.send(&raw()).unwrap();
    let filled = world.claims.begin_upload("a", "data").unwrap();
    world.claims.remove("a", "data").unwrap();
    assert!(filled.finish(&JobContext::default()).is_err(), "the claim has gone");
    assert!(matches!(world.claims.begin_upload("a", "none"), Err(UploadError::Claim(_))));
}

#[test]
fn what_a_crash_left_is_swept() {
    let world = World::new();
    let upload = world.claims.begin_upload("a", "data").unwrap();
    std::mem::forget(upload);
    assert_eq!(world.files().len(), 2);
    world.claims.sweep_uploads().unwrap();
    assert_eq!(world.files(), ["disk.img"]);
    Claims::below("/nonexistent".into(), ImageReader::InProcess).sweep_uploads().unwrap();
}
