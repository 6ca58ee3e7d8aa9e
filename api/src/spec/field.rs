use std::fmt;

use vireo_vmconfig::FieldPaths;

/// A path into a manifest, as KubeVirt writes it: `spec.domain.devices.disks[0].bootOrder`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Field(String);

impl Field {
    /// A path from its text.
    pub fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// The field `name` of the object here.
    #[must_use]
    pub fn at(&self, name: &str) -> Self {
        if self.0.is_empty() { Self::new(name) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// The element `index` of the list here, counted from 0.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `other` or inside it.
    pub fn is_within(&self, other: &Field) -> bool {
        self.0
            .strip_prefix(&other.0)
            .is_some_and(|rest| other.0.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fields of a VMI that set the parts of its VM.
pub fn field_paths() -> FieldPaths {
    let domain = |path: &str| format!("spec.domain.{path}");
    FieldPaths {
        memory: domain("memory.guest"),
        huge_pages: domain("memory.hugepages.pageSize"),
        cpu_model: domain("cpu.model"),
        dedicated_cpus: domain("cpu.dedicatedCpuPlacement"),
        numa: domain("cpu.numa.guestMappingPassthrough"),
        realtime: domain("cpu.realtime"),
        cpu_features: domain("cpu.features"),
        firmware: domain("firmware"),
        bootloader: domain("firmware.bootloader"),
        bios: domain("firmware.bootloader.bios"),
        efi: domain("firmware.bootloader.efi"),
        secure_boot: domain("firmware.bootloader.efi.secureBoot"),
        kernel_boot: domain("firmware.kernelBoot"),
        devices: domain("devices"),
        disks: domain("devices.disks"),
        video: domain("devices.video.type"),
        io_threads: domain("ioThreadsPolicy"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::v1::{Shape as _, VirtualMachineInstance};

    #[test]
    fn the_paths_are_those_of_fields() {
        // Each by name: a new one does not compile until it is checked.
        let FieldPaths {
            memory,
            huge_pages,
            cpu_model,
            dedicated_cpus,
            numa,
            realtime,
            cpu_features,
            firmware,
            bootloader,
            bios,
            efi,
            secure_boot,
            kernel_boot,
            devices,
            disks,
            video,
            io_threads,
        } = field_paths();
        let cpu = [cpu_model, dedicated_cpus, numa, realtime, cpu_features];
        let boot = [firmware, bootloader, bios, efi, secure_boot, kernel_boot];
        let rest = [memory, huge_pages, devices, disks, video, io_threads];
        let paths = cpu.into_iter().chain(boot).chain(rest);
        for path in paths {
            let manifest = path.rsplit('.').fold(Value::Null, |inner, name| json!({ name: inner }));
            let vmi: VirtualMachineInstance = serde_json::from_value(manifest).unwrap();
            let mut unknown = Vec::new();
            vmi.unknown_fields("", &mut unknown);
            assert!(unknown.is_empty(), "{path}: {unknown:?}");
        }
    }

    #[test]
    fn a_path_contains_itself_and_what_is_below_it() {
        let disks = Field::new("spec").at("disks");
        for (path, inside) in [
            ("spec.disks", true),
            ("spec.disks[0].name", true),
            ("spec.disks.x", true),
            ("spec.disksX", false),
            ("spec", false),
        ] {
            assert_eq!(Field::new(path).is_within(&disks), inside, "{path}");
        }
    }
}
