//! The nested-KVM harness and what scenarios share.
//!
//! A *nested host* is a QEMU VM with emulated SVM that boots Debian's kernel with `kvm-amd` in seconds, so that
//! the monitor meets a real KVM with nested paging wherever QEMU runs. Its image is made from Debian packages on
//! first use and cached (see [`cache::directory`]).
//!
//! # By hand
//!
//! ```text
//! cargo build -p vireo-vmm                                  # binaries are static: they run in the host as they are
//! cargo run -p vireo-tests --bin nested -- bash -c 'dmesg | tail; ls -l /dev/kvm'
//! cargo run -p vireo-tests --bin nested -- --file vmlinuz --file initrd \
//!     target/x86_64-unknown-linux-gnu/debug/vmm --kernel vmlinuz --initrd initrd --memory 256M
//! ```
//!
//! An argument that is exactly a `--file` source (or the command itself, where it is a file here) is replaced by its
//! path in the host, `/in/NAME`. `--out DIR` shares a writable directory as `/out`. Everything else in the host is
//! thrown away. Standard output and error come through live, the exit code is the command's, 125 means the host
//! itself failed: then the end of its console is printed. Debian's kernels with a RAM disk for guests are in the
//! cache: `nested/<key>/{cloud,full}/vmlinuz`.
//!
//! As a cargo runner, for the tests of another crate that need a usable `/dev/kvm`:
//!
//! ```text
//! cargo build -p vireo-tests --bin nested
//! CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='target/x86_64-unknown-linux-gnu/debug/nested --' \
//!     cargo test -p vireo-vmm --lib -- --ignored kvm
//! ```
//!
//! # In a test
//!
//! ```no_run
//! # fn main() -> Result<(), vireo_tests::HostError> {
//! let host = vireo_tests::HostBuilder::new("the nested binary").memory_mib(1024).start()?;
//! assert_eq!(host.shell("uname").run()?.ok().trim(), "Linux");
//! # Ok(())
//! # }
//! ```

#[doc(hidden)]
pub mod agent;
pub mod archive;
pub mod audit;
pub mod cache;
pub mod cluster;
mod debian;
pub mod eventually;
pub mod font;
#[cfg(test)]
mod fuzz_targets;
pub mod guest;
pub mod helm;
mod host;
mod image;
mod initrd;
pub mod installed;
pub mod io_load;
pub mod kernel;
pub mod kubectl;
pub mod memory;
pub mod metrics;
pub mod net_load;
pub mod oci;
pub mod picture;
pub mod programs;
pub mod python;
pub mod qemu_cpu;
pub mod reader;
pub mod registry;
pub mod relay;
pub mod scenario;
pub mod signed;
pub mod systemd;
pub mod terminal;
pub mod usb_device;
mod vmlinux;
pub mod vnc;
mod wire;

pub use debian::SourcesError;
pub use host::{Host, HostBuilder, HostError};
pub use host::{Invocation, Output, Process};
pub use image::{Image, ImageError, Kernel};
pub use initrd::Initrd;
pub use wire::Status;
