//! What a nested host boots from, made from Debian packages once and kept in the cache.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::cache;
use crate::debian::{Sources, SourcesError};
use crate::initrd::Initrd;
use crate::vmlinux;

const PACK: &str = include_str!("image/pack");
const HOST_INIT: &str = include_str!("image/host-init");
const HOST_RUN: &str = include_str!("image/host-run");
const ROOT_MIB: &str = "1200";

/// With what a node of Kubernetes needs beside Kubernetes' own programs.
const PACKAGES: &str = "bash,bsdutils,busybox-static,ca-certificates,conntrack,containerd,containernetworking-plugins,coreutils,\
    curl,dash,e2fsprogs,findutils,iproute2,iptables,iputils-ping,kmod,linux-image-amd64,linux-image-cloud-amd64,nftables,openssh-client,\
    procps,qemu-system-x86,qemu-utils,runc,seabios,util-linux";

/// QEMU 7.2's emulated SVM double-faults guests under load: where the release has it, backports replaces it.
const PIN: &str = "Package: qemu* seabios ipxe-qemu\nPin: release n=*-backports\nPin-Priority: 900\n";

const HOST_MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "crc32c",
    "crc32c_generic",
    "overlay",
    "virtio_console",
    "9pnet_virtio",
    "9p",
];

/// Why there is no image of a host.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Nowhere to get packages from.
    #[error("package sources")]
    Sources(#[from] SourcesError),
    /// A program of the test host is missing.
    #[error("cannot run {program}: install the Debian package {package}")]
    Missing {
        /// What was to be run.
        program: &'static str,
        /// Where it is.
        package: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// mmdebstrap printed the reason on standard error.
    #[error("mmdebstrap failed ({0}); its messages are above")]
    Mmdebstrap(std::process::ExitStatus),
    /// Files could not be written or read.
    #[error("the image's files")]
    Io(#[from] io::Error),
}

/// A Debian kernel as packaged, with its modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The bzImage.
    pub image: PathBuf,
    /// The module tree.
    pub modules: PathBuf,
    /// The release of `uname -r`.
    pub version: String,
}

/// The files of an image.
#[derive(Clone, Debug)]
pub struct Image {
    directory: PathBuf,
    host_kernel: PathBuf,
}

impl Image {
    /// The image, built first if need be: some 30 seconds and 250 MB of downloads, reported on standard error.
    pub fn get() -> Result<Self, ImageError> {
        let key = cache::key(&[PACK, PACKAGES, PIN, ROOT_MIB]);
        let directory = cache::once("nested", &key, make)?;
        let host_kernel = cache::once("nested", &format!("{key}-kernel"), |scratch| {
            let elf = vmlinux::extract(&fs::read(kernel(&directory.join("full"))?.image)?)?;
            fs::write(scratch.join("vmlinux"), elf)
        })?;
        Ok(Self { directory, host_kernel: host_kernel.join("vmlinux") })
    }

    /// The host's root file system, an ext4 image that is never written.
    pub fn root(&self) -> PathBuf {
        self.directory.join("root.ext4")
    }

    /// The host's kernel, an ELF image.
    pub fn host_kernel(&self) -> &Path {
        &self.host_kernel
    }

    /// Writes the host's initial RAM disk.
    pub fn write_host_initrd(&self, path: &Path) -> io::Result<()> {
        let kernel = self.full_kernel()?;
        let mut initrd = Initrd::with_busybox(&self.busybox())?;
        initrd.modules(&kernel.modules, &kernel.version, HOST_MODULES)?;
        initrd.file("init", HOST_INIT.as_bytes())?;
        initrd.file("host-run", HOST_RUN.as_bytes())?;
        initrd.save(path)
    }

    /// A static busybox.
    pub fn busybox(&self) -> PathBuf {
        self.directory.join("busybox")
    }

    /// Debian's `linux-image-amd64`, which the host runs too.
    pub fn full_kernel(&self) -> io::Result<Kernel> {
        kernel(&self.directory.join("full"))
    }

    /// Debian's `linux-image-cloud-amd64`.
    pub fn cloud_kernel(&self) -> io::Result<Kernel> {
        kernel(&self.directory.join("cloud"))
    }
}

fn kernel(directory: &Path) -> io::Result<Kernel> {
    Ok(Kernel {
        image: directory.join("vmlinuz"),
        modules: directory.join("modules"),
        version: fs::read_to_string(directory.join("version"))?.trim().to_owned(),
    })
}

fn make(directory: &Path) -> Result<(), ImageError> {
    let started = Instant::now();
    let sources = Sources::of_this_machine()?;
    eprintln!("nested: making the host's image in {} (once)", directory.display());
    // Without root, mmdebstrap runs the hook as another user.
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777))?;
    let scripts = tempfile::tempdir()?;
    fs::set_permissions(scripts.path(), fs::Permissions::from_mode(0o755))?;
    let pack = scripts.path().join("pack");
    let pin = scripts.path().join("pin");
    fs::write(&pack, PACK)?;
    fs::write(&pin, PIN)?;
    let preferences = format!(
        "mkdir -p \"$1/etc/apt/preferences.d\" && cp {} \"$1/etc/apt/preferences.d/nested\"",
        pin.display()
    );
    let status = Command::new("mmdebstrap")
        .args(["--variant=extract", "--format=directory", "--aptopt=Acquire::Retries \"3\""])
        .args(
            ["doc", "man", "locale", "info", "bug"]
                .map(|dir| format!("--dpkgopt=path-exclude=/usr/share/{dir}/*")),
        )
        .arg(format!("--include={PACKAGES}"))
        .arg(format!("--setup-hook={preferences}"))
        .arg(format!("--extract-hook=sh {} \"$1\"", pack.display()))
        .arg(&sources.codename)
        .arg(scripts.path().join("root"))
        .args(&sources.lines)
        .env("OUT", directory)
        .env("ROOT_MIB", ROOT_MIB)
        .stdout(std::io::stderr())
        .status()
        .map_err(|source| ImageError::Missing { program: "mmdebstrap", package: "mmdebstrap", source })?;
    if !status.success() {
        return Err(ImageError::Mmdebstrap(status));
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    eprintln!("nested: image made in {} s", started.elapsed().as_secs());
    Ok(())
}
