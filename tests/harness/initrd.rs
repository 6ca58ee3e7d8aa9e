//! Initial RAM disks: busybox, kernel modules in the order they depend on each other, and scripts.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cpio::newc;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const SYMLINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An initial RAM disk under construction.
#[derive(Debug, Default)]
pub struct Initrd {
    archive: Vec<u8>,
    directories: BTreeSet<PathBuf>,
    inodes: u32,
}

impl Initrd {
    /// Busybox as `/bin/busybox` and `/bin/sh`, and a console for the first process.
    pub fn with_busybox(busybox: &Path) -> io::Result<Self> {
        let mut initrd = Self::default();
        initrd.file("bin/busybox", &fs::read(busybox)?)?;
        initrd.entry("bin/sh", SYMLINK, b"busybox")?;
        initrd.directory(Path::new("dev"))?;
        let console = newc::Builder::new("dev/console").mode(CHARACTER_DEVICE).rdev_major(5).rdev_minor(1);
        let inode = initrd.next_inode();
        console.ino(inode).nlink(1).write(&mut initrd.archive, 0).finish()?;
        Ok(initrd)
    }

    /// An executable file, its directories made as needed.
    pub fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        if let Some(parent) = Path::new(path).parent() {
            self.directory(parent)?;
        }
        self.entry(path, PROGRAM, content)
    }

    /// The named modules of the tree (`modules.dep` and all) that the kernel called `version` loads from, with
    /// everything they depend on. Names the tree does not have are taken to be built in.
    pub fn modules(&mut self, tree: &Path, version: &str, names: &[&str]) -> io::Result<()> {
        let index = fs::read_to_string(tree.join("modules.dep"))?;
        let base = format!("lib/modules/{version}");
        let mut wanted = BTreeSet::new();
        for line in index.lines() {
            let Some((module, needs)) = line.split_once(':') else { continue };
            if names.iter().any(|name| is_module(module, name)) {
                wanted.insert(module);
                wanted.extend(needs.split_whitespace());
            }
        }
        for module in &wanted {
            self.file(&format!("{base}/{module}"), &fs::read(tree.join(module))?)?;
        }
        for list in ["modules.dep", "modules.alias", "modules.builtin", "modules.softdep"] {
            self.file(&format!("{base}/{list}"), &fs::read(tree.join(list))?)?;
        }
        Ok(())
    }

    /// Writes it all.
    pub fn save(mut self, path: &Path) -> io::Result<()> {
        newc::trailer(&mut self.archive)?;
        fs::write(path, &self.archive)
    }

    fn directory(&mut self, path: &Path) -> io::Result<()> {
        let missing: Vec<_> = path
            .ancestors()
            .filter(|part| !part.as_os_str().is_empty() && !self.directories.contains(*part))
            .map(Path::to_owned)
            .collect();
        for part in missing.into_iter().rev() {
            self.entry(&part.to_string_lossy(), DIRECTORY, &[])?;
            self.directories.insert(part);
        }
        Ok(())
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let size = u32::try_from(content.len()).map_err(|_| io::Error::other("file over 4 GiB"))?;
        let header = newc::Builder::new(path).ino(self.next_inode()).mode(mode).nlink(1);
        let mut writer = header.write(&mut self.archive, size);
        writer.write_all(content)?;
        writer.finish()?;
        Ok(())
    }

    fn next_inode(&mut self) -> u32 {
        self.inodes += 1;
        self.inodes
    }
}

/// Whether `path` (`kernel/fs/ext4/ext4.ko.xz`) is the module `name`; `-` and `_` are the same letter there.
fn is_module(path: &str, name: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.split(".ko").next().unwrap_or(file);
    stem.replace('-', "_") == name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_bring_what_they_need_and_nothing_else() {
        let tree = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("modules.dep", "k/a-b.ko: k/c.ko\nk/c.ko:\nk/d.ko:\n");
        for list in ["modules.alias", "modules.builtin", "modules.softdep", "k/a-b.ko", "k/c.ko", "k/d.ko"] {
            write(list, list);
        }
        let mut initrd = Initrd::default();
        initrd.modules(tree.path(), "6.1", &["a_b", "builtin"]).unwrap();
        let text = String::from_utf8_lossy(&initrd.archive);
        assert!(text.contains("lib/modules/6.1/k/a-b.ko") && text.contains("lib/modules/6.1/k/c.ko"));
        assert!(!text.contains("k/d.ko\0"));
    }
}
