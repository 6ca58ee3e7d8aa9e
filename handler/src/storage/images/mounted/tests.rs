use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use vireo_api::spec::ImageRef;

use super::super::tests::{Built, qcow2_of};
use super::*;
use crate::launcher::link::chain;

const NAMESPACE: &str = "default";

fn disk() -> Source {
    Source::container_disk(&ImageRef::Registry("example.com/d:1".to_owned()), None)
}

async fn got(images: &Images, source: Source, path: &Path) -> Result<PathBuf, ImageError> {
    images.get_opened(&Jobs::default(), NAMESPACE, source, File::open(path).unwrap()).await
}

#[tokio::test]
async fn a_disk_becomes_a_raw_image_once() {
    let built = Built::new();
    let (images, dir) = (built.images(), built.path());
    let mut content = vec![0; 4 << 20];
    content[1_000_000..1_000_005].copy_from_slice(b"hello");
    let (one, other) = (dir.join("one"), dir.join("other"));
    let qcow2 = qcow2_of(dir, &content);
    fs::write(&one, &qcow2).unwrap();
    fs::write(&other, &qcow2).unwrap();
    let at = got(&images, disk(), &one).await.unwrap();
    assert!(fs::read(&at).unwrap() == content);
    let inode = fs::metadata(&at).unwrap().ino();
    let again = got(&images, disk(), &other).await.unwrap();
    assert_eq!((&again, fs::metadata(&again).unwrap().ino()), (&at, inode), "of another image");
    // The same bytes as a kernel are not a disk.
    let image = ImageRef::Registry("example.com/k:1".to_owned());
    let kernel = got(&images, Source::boot_file(&image, "/boot/vmlinuz"), &one).await.unwrap();
    assert!(fs::read(kernel).unwrap() == qcow2);
    content[0] = 1;
    fs::write(&one, &content).unwrap();
    assert_ne!(got(&images, disk(), &one).await.unwrap(), at);
}

#[tokio::test]
async fn what_needs_another_file_is_refused_and_leaves_nothing() {
    let built = Built::new();
    let (images, dir) = (built.images(), built.path());
    let hostile = dir.join("hostile");
    fs::write(dir.join("secret"), "secret").unwrap();
    for options in [&["-b", "secret", "-F", "raw"][..], &["-o", "data_file=data"]] {
        let mut command = std::process::Command::new("qemu-img");
        command.current_dir(dir).args(["create", "-q", "-f", "qcow2"]).args(options);
        assert!(command.args(["hostile", "1M"]).status().unwrap().success());
        let refused = got(&images, disk(), &hostile).await.unwrap_err();
        assert!(chain(&refused).contains("must hold all of its content"), "{}", chain(&refused));
        fs::remove_file(&hostile).unwrap();
    }
    let empty = dir.join("empty");
    fs::write(&empty, "").unwrap();
    assert!(got(&images, disk(), &empty).await.is_err());
    assert!(got(&images, disk(), dir).await.is_err(), "a directory");
    let left = fs::read_dir(dir.join("images/sha256")).unwrap().filter_map(Result::ok);
    let left: Vec<_> = left
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_none_or(|is| is != "lock"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
