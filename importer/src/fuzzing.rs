//! Entry points for fuzz targets (`fuzz`): archives, layers of images, and disk images.

use std::fs::File;
use std::io::Write as _;

use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;

use crate::WantedFile;
use crate::blobs::{Blobs, Location};
use crate::format::{self, Format};
use crate::layout::{digest_of, hex_of};
use crate::names::ImageSelector;
use crate::oci::{self, Image};
use crate::sparse::{self, Budget};

/// What may be written of an image.
const SPACE: u64 = 4 << 20;

fn file(content: &[u8]) -> File {
    let mut file = File::from(memfd_create("image", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.write_all(content).expect("memory");
    file
}

fn unpack(archive: File, wanted: &WantedFile) {
    let Ok(blobs) = Blobs::open(Location::Archive(archive)) else { return };
    let _ = oci::named(&blobs);
    let Ok(image) = Image::open(blobs, &ImageSelector::Only) else { return };
    let mut output = file(&[]);
    if image.unpack(wanted, &mut output, &mut Budget(SPACE)).is_ok() {
        disk_of(&output);
    }
}

/// An image as an archive.
pub fn archive(script: &[u8]) {
    unpack(file(script), &WantedFile::disk(None));
}

/// The last layer of an image that is valid otherwise, above one with a disk: compressed, and with a file wanted, as the first
/// byte says.
pub fn layer(script: &[u8]) {
    let Some((kind, layer)) = script.split_first() else { return };
    let wanted = match kind & 4 {
        0 => WantedFile::disk(None),
        _ => WantedFile::boot("/boot/vmlinuz"),
    };
    let suffix = ["", "+gzip", "+zstd", ""][usize::from(kind & 3)];
    let below = seed_layer();
    let descriptor = |bytes: &[u8], kind: &str| json!({"mediaType": kind, "digest": digest_of(bytes), "size": bytes.len()});
    let layers = [
        descriptor(&below, "application/vnd.oci.image.layer.v1.tar"),
        descriptor(layer, &format!("application/vnd.oci.image.layer.v1.tar{suffix}")),
    ];
    let config = descriptor(b"{}", "application/vnd.oci.image.config.v1+json");
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
    let entry = descriptor(manifest.as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
    let mut archive = tar::Builder::new(Vec::new());
    put(&mut archive, "index.json", index.as_bytes());
    for blob in [manifest.as_bytes(), &below, layer] {
        let digest = digest_of(blob);
        put(&mut archive, &format!("blobs/sha256/{}", hex_of(&digest).unwrap_or_default()), blob);
    }
    unpack(file(&archive.into_inner().expect("memory")), &wanted);
}

fn put(archive: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, name, content).expect("memory");
}

/// A layer with a disk.
fn seed_layer() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    put(&mut archive, "disk/image", b"QFI\xfb\0\0\0\x03");
    archive.into_inner().expect("memory")
}

/// A disk image.
pub fn disk(script: &[u8]) {
    disk_of(&file(script));
}

fn disk_of(image: &File) {
    match format::probe(image) {
        Ok(Format::Raw) => {
            let mut source = image;
            let _ = std::io::Seek::rewind(&mut source);
            let _ = sparse::copy(&mut source, &mut file(&[]), SPACE, &mut Budget(SPACE));
        }
        Ok(Format::Qcow2 { virtual_size }) => {
            assert!((1..=16 << 40).contains(&virtual_size), "a disk of {virtual_size} bytes");
        }
        Err(error) => drop(error.to_string()),
    }
}

/// A manifest or an index that a registry sends, and which image of an index is chosen.
pub fn registry(script: &[u8]) {
    crate::pull::fuzz(script);
}

/// Inputs to begin with.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let layer = seed_layer();
    let gzip = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&layer).expect("memory");
        encoder.finish().expect("memory")
    };
    let zstd = zstd::encode_all(layer.as_slice(), 1).expect("memory");
    let mut long = tar::Builder::new(Vec::new());
    put(&mut long, &"boot/".repeat(40), b"a name in a header of its own");
    put(&mut long, "disk/.wh..wh..opq", b"");
    let long = long.into_inner().expect("memory");
    let mut seeds: Vec<_> = (0_u8..)
        .zip([layer.as_slice(), &gzip, &zstd, &long])
        .map(|(kind, layer)| ("oci_layer", [&[kind], layer].concat()))
        .collect();
    seeds.push(("oci_archive", layer));
    let mut qcow2 = b"QFI\xfb\0\0\0\x03".to_vec();
    qcow2.resize(104, 0);
    seeds.push(("disk_image", qcow2));
    let descriptor = |kind: &str, size: u64| json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest_of(b"x"), "size": size});
    let mut for_platform = descriptor("manifest.v1+json", 7);
    if let Some(fields) = for_platform.as_object_mut() {
        let platform = json!({"architecture": "amd64", "os": "linux", "os.version": "1", "variant": "v8"});
        fields.insert("platform".to_owned(), platform);
        fields.insert("annotations".to_owned(), json!({"a": "b"}));
    }
    let layers = [descriptor("layer.v1.tar+gzip", 1 << 40), descriptor("layer.v1.tar+zstd", u64::MAX)];
    for document in [
        json!({"schemaVersion": 2, "manifests": [descriptor("manifest.v1+json", 1), for_platform]}),
        json!({"schemaVersion": 2, "config": descriptor("config.v1+json", 2), "layers": layers, "subject": layers[0]}),
    ] {
        seeds.push(("registry", document.to_string().into_bytes()));
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_and_its_neighbours_run() {
        vireo_seeds::run(
            &[("oci_archive", archive), ("oci_layer", layer), ("disk_image", disk), ("registry", registry)],
            &seeds(),
        );
    }
}
