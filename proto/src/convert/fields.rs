use vireo_vmconfig::FieldPaths;

use crate::launcher as wire;

macro_rules! convert {
    ($from:ty => $to:ty) => {
        impl From<$from> for $to {
            fn from(fields: $from) -> Self {
                Self {
                    memory: fields.memory,
                    cpu_model: fields.cpu_model,
                    cpu_features: fields.cpu_features,
                    firmware: fields.firmware,
                    bootloader: fields.bootloader,
                    bios: fields.bios,
                    efi: fields.efi,
                    secure_boot: fields.secure_boot,
                    kernel_boot: fields.kernel_boot,
                    devices: fields.devices,
                    disks: fields.disks,
                    video: fields.video,
                }
            }
        }
    };
}

convert!(FieldPaths => wire::FieldPaths);
convert!(wire::FieldPaths => FieldPaths);
