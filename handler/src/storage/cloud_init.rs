//! The `cidata` disk that cloud-init's NoCloud source reads.

use std::fs;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hadris_iso::joliet::JolietLevel;
use hadris_iso::read::PathSeparator;
use hadris_iso::rrip::RripOptions;
use hadris_iso::write::options::{BaseIsoLevel, CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{File as IsoFile, InputFiles, IsoImageWriter};
use serde::Serialize;

/// What a guest reads about itself and what it is told to do.
#[derive(Clone, Debug)]
pub struct NoCloud<'a> {
    /// Changes when the machine is another one: the firmware's UUID.
    pub instance_id: &'a str,
    /// The guest's host name.
    pub hostname: &'a str,
    /// `user-data`, as given.
    pub user_data: &'a [u8],
    /// `network-config`, as given.
    pub network_data: Option<&'a [u8]>,
}

/// Why the disk could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CloudInitError {
    /// The file system.
    #[error("cannot lay out the cloud-init disk")]
    Iso(#[source] hadris_iso::write::Error),
    /// The file.
    #[error("cannot write the cloud-init disk {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[derive(Serialize)]
struct MetaData<'a> {
    #[serde(rename = "instance-id")]
    instance_id: &'a str,
    #[serde(rename = "local-hostname")]
    local_hostname: &'a str,
}

/// Writes the disk, replacing an older one: the manifest is what counts.
pub fn write(at: &Path, data: &NoCloud<'_>) -> Result<(), CloudInitError> {
    let write = |source| CloudInitError::Write { path: at.to_owned(), source };
    let image = image(data)?;
    let partial = at.with_extension("partial");
    fs::write(&partial, image).and_then(|()| fs::rename(&partial, at)).map_err(|error| {
        // Nothing half-written stays; that it may not exist at all is fine.
        let _ = fs::remove_file(&partial);
        write(error)
    })
}

fn image(data: &NoCloud<'_>) -> Result<Vec<u8>, CloudInitError> {
    let meta = MetaData { instance_id: data.instance_id, local_hostname: data.hostname };
    let meta = serde_json::to_vec(&meta).unwrap_or_default();
    let file = |name: &str, contents: &[u8]| IsoFile::File {
        name: Arc::new(name.to_owned()),
        contents: contents.to_vec(),
    };
    let mut files = vec![file("meta-data", &meta), file("user-data", data.user_data)];
    files.extend(data.network_data.map(|network| file("network-config", network)));
    let options = IsoFormatOptions {
        // Lower case as cloud-init looks for it, although ISO 9660 asks for upper case.
        volume_name: "cidata".to_owned(),
        strict_charset: false,
        sector_size: 2048,
        path_separator: PathSeparator::ForwardSlash,
        features: CreationFeatures {
            filenames: BaseIsoLevel::Level1 { supports_lowercase: true, supports_rrip: true },
            joliet: Some(JolietLevel::Level3),
            rock_ridge: Some(RripOptions::default()),
            ..CreationFeatures::default()
        },
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: None,
    };
    let files = InputFiles { path_separator: PathSeparator::ForwardSlash, files };
    let mut image = Cursor::new(Vec::new());
    IsoImageWriter::create(&mut image, files, options).map_err(CloudInitError::Iso)?;
    Ok(image.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the names that a guest's kernel shows; the demo's guest reads them by Linux's own driver.
    #[test]
    fn the_files_are_found_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("ci.iso");
        let network = vec![b'n'; 5000];
        let data = NoCloud {
            instance_id: "8a1c",
            hostname: "web",
            user_data: b"#cloud-config\n",
            network_data: Some(&network),
        };
        write(&at, &data).unwrap();
        let image = fs::read(&at).unwrap();
        assert_eq!(&image[16 * 2048 + 40..16 * 2048 + 46], b"cidata", "the primary volume's name");
        let mut read = hadris_iso::read::IsoReader::open(Cursor::new(image)).unwrap();
        for (name, content) in [
            ("user-data", b"#cloud-config\n".as_slice()),
            ("meta-data", br#"{"instance-id":"8a1c","local-hostname":"web"}"#),
            ("network-config", &network),
        ] {
            let entry = read.find_path(name).unwrap().unwrap_or_else(|| panic!("no {name}"));
            let mut file = read.open_file(&entry).unwrap();
            let mut bytes = Vec::new();
            let mut chunk = [0; 1024];
            loop {
                let n = file.read_chunk(&mut chunk).unwrap();
                if n == 0 {
                    break;
                }
                bytes.extend_from_slice(&chunk[..n]);
            }
            assert_eq!(bytes, content, "{name}");
        }
    }
}
