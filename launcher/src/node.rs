//! The session's view of this node.

use std::path::PathBuf;

use vireo_privileges::seccomp::Seccomp;
use vireo_proto::files::KVM;
use vireo_vmm::kvm::KvmUnusable;

use crate::fault::chain;
use crate::files::PassedFiles;
use crate::firmware;
use crate::hypervisor::native::Native;
use crate::hypervisor::qemu::{Qemu, find_binary};
use crate::hypervisor::{Hypervisor, KvmState, Probe};
use crate::launch::Kind;
use crate::session::Node;

/// The node this process runs on.
#[derive(Debug)]
pub struct LocalNode {
    /// QEMU: a path, or a name to look up.
    pub qemu: PathBuf,
    /// Firmware that is not where distributions have it.
    pub firmware: firmware::Paths,
    /// What the node agent opened.
    pub files: PassedFiles,
    /// What becomes of system calls that a launcher does not need.
    pub seccomp: Seccomp,
}

impl Node for LocalNode {
    fn probe(&self) -> Probe {
        Probe { kvm: self.kvm(), qemu: find_binary(&self.qemu).map(drop) }
    }

    fn firmware(&self) -> &firmware::Paths {
        &self.firmware
    }

    fn files(&self) -> &PassedFiles {
        &self.files
    }

    fn hypervisor(&self, kind: Kind) -> Box<dyn Hypervisor> {
        match kind {
            Kind::Native => Box::new(Native { seccomp: self.seccomp }),
            Kind::Qemu => Box::new(Qemu {
                binary: find_binary(&self.qemu).unwrap_or_else(|_| self.qemu.clone()),
                kvm: self.kvm() == KvmState::Usable,
                seccomp: self.seccomp,
            }),
        }
    }
}

impl LocalNode {
    fn kvm(&self) -> KvmState {
        match vireo_vmm::kvm::probe(self.files.duplicate(KVM).as_ref()) {
            Ok(()) => KvmState::Usable,
            Err(error @ KvmUnusable::SoftwareOnly) => KvmState::SoftwareOnly(chain(&error)),
            Err(error) => KvmState::Unusable(chain(&error)),
        }
    }
}
