//! Entry points for fuzz targets (`fuzz`): what a launcher that a guest has taken over answers, and what users have
//! put on disks.

use std::fs;

use crate::storage::cloud_init::{self, Layout, Seed};
use crate::storage::iso::{self, File};

pub use crate::reconcile::fuzzing::launcher_answers;

/// Where a disk is written.
fn scratch() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    directory.expect("a directory")
}

/// The disks of files and of cloud-init. The first byte says which; then come texts, each of which ends with a zero:
/// paths and contents of files in turn, or the host name, the user data, the network data and keys.
pub fn iso(script: &[u8]) {
    let Some((kind, script)) = script.split_first() else { return };
    let mut texts = script.split(|byte| *byte == 0);
    let directory = scratch();
    let at = directory.path().join("disk.iso");
    if kind & 1 == 0 {
        let mut files: Vec<File> = Vec::new();
        while let (Some(path), Some(content)) = (texts.next(), texts.next()) {
            // As projected volumes and ConfigMaps have them: relative, and without `.` and `..`.
            let Ok(path) = std::str::from_utf8(path) else { return };
            let is_step = |step: &str| !matches!(step, "" | "." | "..") && step.len() <= 253;
            let is_new = !files.iter().any(|file| {
                let (one, other) = (format!("{}/", file.path), format!("{path}/"));
                one.starts_with(&other) || other.starts_with(&one)
            });
            if path.split('/').all(is_step) && is_new {
                files.push(File::new(path, content));
            }
        }
        let _ = iso::write(&at, "cfgdata", &files);
    } else {
        let mut text = || texts.next().unwrap_or_default();
        let hostname = String::from_utf8_lossy(text()).into_owned();
        let (user_data, network_data) = (text(), text());
        let keys: Vec<String> = texts.map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        let seed = Seed {
            layout: if kind & 2 == 0 { Layout::NoCloud } else { Layout::ConfigDrive },
            uuid: "5d307ca9-b3ef-428c-8861-06e72d69f223".to_owned(),
            name: "web.default".to_owned(),
            hostname: &hostname,
            user_data,
            network_data: (!network_data.is_empty()).then_some(network_data),
            public_keys: &keys,
            devices: Vec::new(),
        };
        cloud_init::write(&at, &seed).expect("any data fits on a disk");
    }
    if let Ok(written) = fs::metadata(&at) {
        // Sectors, and two directories for each name.
        let most = (1 << 20) + script.len() as u64 * 16384;
        assert!(
            written.len().is_multiple_of(2048) && written.len() < most,
            "a disk of {} bytes",
            written.len()
        );
    }
}

/// Inputs to begin with.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let long = format!("\0{}.properties\0content", "n".repeat(200));
    let mut seeds = vec![
        ("iso", b"\0tls.crt\0of tls\0a/b/c.d\0x\0a/b/e\0y".to_vec()),
        ("iso", long.into_bytes()),
        ("iso", b"\x01web\0#cloud-config\npassword: x\n\0version: 2\n\0ssh-ed25519 AAAA".to_vec()),
        ("iso", b"\x03web\0#cloud-config\n\0{}\0ssh-ed25519 AAAA".to_vec()),
    ];
    seeds.extend(crate::reconcile::fuzzing::seeds().into_iter().map(|seed| ("launcher_answers", seed)));
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_and_its_neighbours_run() {
        vireo_seeds::run(&[("iso", iso), ("launcher_answers", launcher_answers)], &seeds());
    }
}
