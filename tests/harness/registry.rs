//! A registry of images: Debian's `docker-registry`, with TLS and one user.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The user.
pub const USER: &str = "puller";
/// The password.
pub const PASSWORD: &str = "secret-of-puller";
/// Its hash by bcrypt.
const HASH: &str = "$2b$05$abcdefghijklmnopqrstuuXiw5xSQ/V.XlFf00cDd8UazdUcav8qK";

/// The files of a registry.
#[derive(Debug)]
pub struct Registry {
    directory: PathBuf,
}

impl Registry {
    /// Writes the configuration of a registry that is `localhost` with a port.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn new(directory: &Path, port: u16) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let registry = Self { directory: directory.to_owned() };
        let certified =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(io::Error::other)?;
        fs::write(registry.authority(), certified.cert.pem())?;
        fs::write(registry.at("key.pem"), certified.signing_key.serialize_pem())?;
        fs::write(registry.at("users"), format!("{USER}:{HASH}\n"))?;
        let at = directory.display();
        let configuration = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {at}/store}}}}\n\
             http: {{addr: 'localhost:{port}', tls: {{certificate: {at}/ca.pem, key: {at}/key.pem}}}}\n\
             auth: {{htpasswd: {{realm: test, path: {at}/users}}}}\n"
        );
        fs::write(registry.configuration(), configuration)?;
        Ok(registry)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// What `docker-registry serve` reads.
    pub fn configuration(&self) -> PathBuf {
        self.at("config.yml")
    }

    /// The certificate that its own is verified with.
    pub fn authority(&self) -> PathBuf {
        self.at("ca.pem")
    }

    /// Has the only image of a layout as `repository:tag`.
    ///
    /// # Errors
    /// When the layout cannot be read, or a file not be written.
    pub fn put(&self, repository: &str, tag: &str, layout: &Path) -> io::Result<()> {
        let store = self.at("store/docker/registry/v2");
        let repository = store.join("repositories").join(repository);
        let blobs = layout.join("blobs/sha256");
        let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
        let manifest = hex(&index["manifests"][0])?;
        let document: Value = serde_json::from_slice(&fs::read(blobs.join(manifest))?)?;
        let links = |directory: &str, hex: &str| link(&repository.join(directory), hex);
        links("_manifests/revisions/sha256/HEX", manifest)?;
        links(&format!("_manifests/tags/{tag}/index/sha256/HEX"), manifest)?;
        links(&format!("_manifests/tags/{tag}/current"), manifest)?;
        let layers = document["layers"].as_array().into_iter().flatten();
        for descriptor in layers.chain([&document["config"]]) {
            links("_layers/sha256/HEX", hex(descriptor)?)?;
        }
        for blob in fs::read_dir(&blobs)? {
            let blob = blob?;
            let name = blob.file_name().into_string().unwrap_or_default();
            let at = store.join(format!("blobs/sha256/{}/{name}", name.get(..2).unwrap_or_default()));
            fs::create_dir_all(&at)?;
            fs::copy(blob.path(), at.join("data"))?;
        }
        Ok(())
    }
}

fn hex(descriptor: &Value) -> io::Result<&str> {
    let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    digest.ok_or_else(|| io::Error::other("a descriptor without a digest"))
}

fn link(directory: &Path, hex: &str) -> io::Result<()> {
    let directory = PathBuf::from(directory.to_string_lossy().replace("HEX", hex));
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("link"), format!("sha256:{hex}"))
}
