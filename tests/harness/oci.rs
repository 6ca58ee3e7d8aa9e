//! OCI image layouts: the least that a `containerDisk` or a `kernelBoot` container needs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Writes an image of one layer, tagged `latest`, with these files: path in the image, source.
pub fn write_layout(directory: &Path, files: &[(&str, &Path)]) -> io::Result<()> {
    fs::create_dir_all(directory.join("blobs/sha256"))?;
    let mut layer = tar::Builder::new(Vec::new());
    for (path, source) in files {
        layer.append_file(path, &mut File::open(source)?)?;
    }
    let layer = layer.into_inner()?;
    let layer = blob(directory, LAYER, &layer)?;
    let rootfs = json!({ "type": "layers", "diff_ids": [layer["digest"]] });
    let config = json!({ "architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs });
    let config = blob(directory, CONFIG, &serde_json::to_vec(&config)?)?;
    let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer] });
    let mut manifest = blob(directory, MANIFEST, &serde_json::to_vec(&manifest)?)?;
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "latest" });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest] });
    fs::write(directory.join("index.json"), serde_json::to_vec(&index)?)?;
    fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)
}

/// Stores the bytes and returns their descriptor.
fn blob(directory: &Path, media_type: &str, bytes: &[u8]) -> io::Result<Value> {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    File::create(directory.join("blobs/sha256").join(&digest))?.write_all(bytes)?;
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
}
