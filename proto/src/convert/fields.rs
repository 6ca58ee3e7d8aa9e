use vireo_vmconfig::FieldPaths;

use crate::launcher as wire;

impl From<FieldPaths> for wire::FieldPaths {
    fn from(fields: FieldPaths) -> Self {
        let FieldPaths { memory, cpu_model, cpu_features, firmware, bootloader, bios, efi, .. } = fields;
        let FieldPaths { secure_boot, kernel_boot, devices, disks, video, .. } = fields;
        Self {
            memory,
            cpu_model,
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
        }
    }
}

impl From<wire::FieldPaths> for FieldPaths {
    fn from(fields: wire::FieldPaths) -> Self {
        let wire::FieldPaths { memory, cpu_model, cpu_features, firmware, bootloader, bios, efi, .. } =
            fields;
        let wire::FieldPaths { secure_boot, kernel_boot, devices, disks, video, .. } = fields;
        Self {
            memory,
            cpu_model,
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
        }
    }
}
