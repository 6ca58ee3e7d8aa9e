//! The root directory of a process: empty but for what it needs.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::fs::Mode;
use rustix::process::umask;
use vireo_privileges::root::{DirectoryAccess, Root, RootError};

use super::Profile;

/// Where a new root directory is mounted until it is the root: one of these exists.
const MOUNT_POINTS: [&str; 4] = ["/sys", "/tmp", "/mnt", "/dev"];
/// Where the directory of an image is.
const IMAGE: &str = "/image";
/// What names of hosts are looked up with.
const NAMES: [&str; 4] = ["/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf"];
/// By files and DNS: other ways need other programs of the node, or modules of libc.
const NAME_SERVICES: (&str, &[u8]) = ("/etc/nsswitch.conf", b"hosts: files dns\n");
/// Where rustls looks for authorities, in the form of one file.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The variables of the environment that say where else they are.
const AUTHORITIES_VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
/// The most bytes of a file of the node that is copied.
const LARGEST_COPY: u64 = 1 << 20;

/// What a process that has its own root directory uses of it.
#[derive(Debug)]
pub struct OwnRoot {
    /// The directory of the image.
    pub image: PathBuf,
}

impl OwnRoot {
    /// Changes the root directory of this process, which is in namespaces of its own. Its working directory is that of the image,
    /// if it has one. `None` where the node does not let it.
    ///
    /// # Errors
    /// When the kernel refuses what it allowed before, or a file cannot be copied.
    pub fn enter(profile: Profile, has_image: bool, qemu_img: Option<&Path>) -> io::Result<Option<Self>> {
        let at = MOUNT_POINTS.map(Path::new).into_iter().find(|path| path.is_dir());
        let at = at.ok_or_else(|| io::Error::other("there is no directory to mount a root directory at"))?;
        let authorities = match profile {
            Profile::Pull => Some(authorities()),
            Profile::Read | Profile::Convert => None,
        };
        let names: Vec<(&str, Vec<u8>)> = match profile {
            Profile::Pull => {
                NAMES.into_iter().filter_map(|path| Some((path, copy(Path::new(path))?))).collect()
            }
            Profile::Read | Profile::Convert => Vec::new(),
        };
        let root = match Root::mount(at) {
            Ok(root) => root,
            Err(error) if error.cause().kind() == ErrorKind::PermissionDenied => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let make = || -> Result<(), RootError> {
            match profile {
                Profile::Pull => {
                    for (path, content) in &names {
                        root.write(Path::new(path), content)?;
                    }
                    root.write(Path::new(NAME_SERVICES.0), NAME_SERVICES.1)?;
                    root.write(Path::new(AUTHORITIES), authorities.as_deref().unwrap_or_default())?;
                }
                // Both open files that are open anew.
                Profile::Read => root.mount_proc()?,
                Profile::Convert => {
                    root.show_system(qemu_img.map(Path::to_owned).as_slice())?;
                    root.mount_proc()?;
                }
            }
            if has_image {
                let access = match profile {
                    Profile::Pull => DirectoryAccess::Writable,
                    Profile::Read | Profile::Convert => DirectoryAccess::ReadOnly,
                };
                root.show_directory(Path::new("."), Path::new(IMAGE), access)?;
            }
            Ok(())
        };
        // What is made is for its user to read.
        let mask = umask(Mode::from_raw_mode(0o022));
        let made = make().and_then(|()| root.enter()).map_err(failed);
        umask(mask);
        made?;
        Ok(Some(Self { image: IMAGE.into() }))
    }
}

fn failed(error: RootError) -> io::Error {
    io::Error::other(format!("{error}: {}", error.cause()))
}

/// What a file of the node has. Nothing where it is absent: its readers have defaults.
fn copy(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read as _;
    let mut content = Vec::new();
    File::open(path).ok()?.take(LARGEST_COPY).read_to_end(&mut content).ok()?;
    Some(content)
}

/// The authorities that this node trusts, as it is set up and as the environment says.
fn authorities() -> Vec<u8> {
    let mut pem = Vec::new();
    let certificates = rustls_native_certs::load_native_certs().certs;
    for variable in AUTHORITIES_VARIABLES {
        // SAFETY: this process has one thread.
        #[expect(unsafe_code, reason = "what the variables name is not in the new root directory")]
        unsafe {
            std::env::remove_var(variable)
        };
    }
    for certificate in certificates {
        pem.extend(b"-----BEGIN CERTIFICATE-----\n");
        for line in BASE64_STANDARD.encode(&certificate).as_bytes().chunks(64) {
            pem.extend(line);
            pem.push(b'\n');
        }
        pem.extend(b"-----END CERTIFICATE-----\n");
    }
    pem
}
