use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};

use kvm_ioctls::{Cap, Kvm};

use crate::config::VmConfig;

/// The only API version there has been since Linux 2.6.22.
const API_VERSION: i32 = 12;

/// What a VM cannot do without.
const REQUIRED: [(Cap, &str); 12] = [
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::Irqchip, "KVM_CAP_IRQCHIP"),
    (Cap::IrqRouting, "KVM_CAP_IRQ_ROUTING"),
    (Cap::Irqfd, "KVM_CAP_IRQFD"),
    (Cap::Ioeventfd, "KVM_CAP_IOEVENTFD"),
    (Cap::SignalMsi, "KVM_CAP_SIGNAL_MSI"),
    (Cap::Pit2, "KVM_CAP_PIT2"),
    (Cap::SetTssAddr, "KVM_CAP_SET_TSS_ADDR"),
    (Cap::SetIdentityMapAddr, "KVM_CAP_SET_IDENTITY_MAP_ADDR"),
    (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    (Cap::MpState, "KVM_CAP_MP_STATE"),
];

/// Doorbells match a write of any width. `kvm_ioctls` has no name for it.
const ANY_LENGTH: (u32, &str) = (kvm_bindings::KVM_CAP_IOEVENTFD_ANY_LENGTH, "KVM_CAP_IOEVENTFD_ANY_LENGTH");

/// Why VMs cannot run on this host's KVM.
#[derive(Debug, thiserror::Error)]
pub enum KvmUnusable {
    /// There is no `/dev/kvm`.
    #[error(
        "this host has no /dev/kvm: load kvm_intel or kvm_amd, and enable virtualization in the firmware (or nested virtualization if this is a VM)"
    )]
    NoDevice,
    /// `/dev/kvm` is there, for others.
    #[error("no permission to open /dev/kvm: join the group that owns it (often \"kvm\")")]
    NoPermission,
    /// The CPU has no hardware virtualization, so this KVM interprets guest kernels, thousands of times slower.
    #[error(
        "/dev/kvm on this host runs guests in software: the CPU shows neither vmx nor svm in /proc/cpuinfo"
    )]
    SoftwareOnly,
    /// The kernel's KVM lacks something.
    #[error("this host's KVM is too old: it lacks {missing}")]
    TooOld {
        /// The capability, as the kernel's documentation names it.
        missing: &'static str,
    },
    /// The device could not be opened or questioned.
    #[error("cannot use /dev/kvm")]
    Broken(#[source] io::Error),
}

impl VmConfig {
    /// Whether VMs can run on its KVM.
    ///
    /// # Errors
    /// Why they cannot.
    pub fn probe(&self) -> Result<(), KvmUnusable> {
        probe(self.kvm.as_ref())
    }
}

/// Whether VMs can run here; on an open `/dev/kvm` if one is given.
///
/// # Errors
/// Why they cannot.
pub fn probe(device: Option<&OwnedFd>) -> Result<(), KvmUnusable> {
    let kvm = open(device)?;
    let cpuinfo = File::open("/proc/cpuinfo").map_err(KvmUnusable::Broken)?;
    if !has_hardware_virtualization(BufReader::new(cpuinfo)) {
        return Err(KvmUnusable::SoftwareOnly);
    }
    drop(kvm);
    Ok(())
}

/// Opens `/dev/kvm`, unless it is open already, and checks that it can do what a VM needs.
pub(crate) fn open(device: Option<&OwnedFd>) -> Result<Kvm, KvmUnusable> {
    let kvm = match device {
        Some(device) => duplicate(device).map_err(KvmUnusable::Broken)?,
        None => Kvm::new().map_err(|errno| match errno.errno() {
            libc::ENOENT | libc::ENXIO | libc::ENODEV => KvmUnusable::NoDevice,
            libc::EACCES | libc::EPERM => KvmUnusable::NoPermission,
            other => KvmUnusable::Broken(io::Error::from_raw_os_error(other)),
        })?,
    };
    if kvm.get_api_version() != API_VERSION {
        return Err(KvmUnusable::TooOld { missing: "API version 12" });
    }
    if kvm.check_extension_raw(ANY_LENGTH.0.into()) <= 0 {
        return Err(KvmUnusable::TooOld { missing: ANY_LENGTH.1 });
    }
    match REQUIRED.into_iter().find(|&(cap, _)| !kvm.check_extension(cap)) {
        Some((_, missing)) => Err(KvmUnusable::TooOld { missing }),
        None => Ok(kvm),
    }
}

fn duplicate(device: &OwnedFd) -> io::Result<Kvm> {
    let own = device.try_clone()?.into_raw_fd();
    // SAFETY: the descriptor is open, and nothing else owns it: it was just made.
    #[expect(unsafe_code, reason = "kvm_ioctls has no safe constructor")]
    let kvm = unsafe { Kvm::from_raw_fd(own) };
    Ok(kvm)
}

/// The first CPU is representative, and reading on costs time on a large host.
fn has_hardware_virtualization(cpuinfo: impl BufRead) -> bool {
    cpuinfo
        .lines()
        .map_while(Result::ok)
        .find_map(|line| {
            let (name, flags) = line.split_once(':')?;
            (name.trim_end() == "flags")
                .then(|| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
        })
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_virtualization_is_a_whole_word_among_the_flags() {
        for (cpuinfo, want) in [
            ("vCPU\t: 0\nflags\t\t: fpu vme svm sse\n", true),
            ("flags\t\t: fpu vmx\n", true),
            ("model name\t: vmx svm\nflags\t\t: fpu svm_lock vmxx\n", false),
            ("vmx flags\t: vnmi\n", false),
            ("", false),
        ] {
            assert_eq!(has_hardware_virtualization(cpuinfo.as_bytes()), want, "{cpuinfo:?}");
        }
    }
}
