//! A disk that starts with Secure Boot: Debian's shim and GRUB with their signatures, and a kernel of Debian.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::cache;
use crate::image::Kernel;

const PACKAGES: [&str; 2] = ["shim-signed", "grub-efi-amd64-signed"];
/// Files of the packages, and where the firmware looks for the first, and the first for the second.
const SHIM: (&str, &str) = ("usr/lib/shim/shimx64.efi.signed", "EFI/BOOT/BOOTX64.EFI");
const GRUB: (&str, &str) = ("usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed", "EFI/BOOT/grubx64.efi");
/// Where Debian's GRUB looks for its configuration.
const CONFIGURATION: &str = "EFI/debian/grub.cfg";
const SIZE: u64 = 64 << 20;

/// Writes the disk: a file system of FAT without a partition table.
///
/// # Errors
/// When a package cannot be had, or a file cannot be written.
pub fn write_disk(kernel: &Kernel, initrd: &Path, command_line: &str, disk: &Path) -> io::Result<()> {
    let packages = cache::once("signed", &cache::key(&PACKAGES), unpack)?;
    let tree = tempfile::tempdir()?;
    let configuration = format!("linux /vmlinuz {command_line}\ninitrd /initrd\nboot\n");
    let at = |path: &str| tree.path().join(path);
    for directory in ["EFI/BOOT", "EFI/debian"] {
        fs::create_dir_all(at(directory))?;
    }
    for (file, path) in [SHIM, GRUB] {
        fs::copy(packages.join(file), at(path))?;
    }
    fs::write(at(CONFIGURATION), configuration)?;
    fs::copy(&kernel.image, at("vmlinuz"))?;
    fs::copy(initrd, at("initrd"))?;
    fs::File::create(disk)?.set_len(SIZE)?;
    run(Command::new("/usr/sbin/mkfs.vfat").arg(disk))?;
    let roots = ["EFI", "vmlinuz", "initrd"].map(at);
    run(Command::new("mcopy").args(["-s", "-i"]).arg(disk).args(roots).arg("::/"))
}

/// Has the packages' files in a directory.
fn unpack(directory: &Path) -> io::Result<()> {
    let download = tempfile::tempdir()?;
    let mut apt = Command::new("apt-get");
    // Apt's own user cannot write there and need not: the files are checked against signed lists all the same.
    apt.args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(PACKAGES);
    run(apt.current_dir(download.path()))?;
    for package in fs::read_dir(download.path())? {
        run(Command::new("dpkg-deb").arg("-x").arg(package?.path()).arg(directory))?;
    }
    Ok(())
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let (program, why) = (command.get_program().display(), String::from_utf8_lossy(&output.stderr));
    Err(io::Error::other(format!("{program}: {}", why.trim_end())))
}
