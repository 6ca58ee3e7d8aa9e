use vireo_vmconfig::FieldPaths;

use crate::launcher as wire;

macro_rules! convert {
    ($from:ty => $to:ty) => {
        impl From<$from> for $to {
            fn from(fields: $from) -> Self {
                Self {
                    memory: fields.memory,
                    huge_pages: fields.huge_pages,
                    cpu_model: fields.cpu_model,
                    dedicated_cpus: fields.dedicated_cpus,
                    numa: fields.numa,
                    realtime: fields.realtime,
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
                    io_threads: fields.io_threads,
                }
            }
        }
    };
}

convert!(FieldPaths => wire::FieldPaths);
convert!(wire::FieldPaths => FieldPaths);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_path_survives_the_message() {
        let expected = FieldPaths {
            memory: "1".to_owned(),
            cpu_model: "2".to_owned(),
            cpu_features: "3".to_owned(),
            firmware: "4".to_owned(),
            bootloader: "5".to_owned(),
            bios: "6".to_owned(),
            efi: "7".to_owned(),
            secure_boot: "8".to_owned(),
            kernel_boot: "9".to_owned(),
            devices: "10".to_owned(),
            disks: "11".to_owned(),
            video: "12".to_owned(),
            io_threads: "13".to_owned(),
            dedicated_cpus: "15".to_owned(),
            huge_pages: "14".to_owned(),
            numa: "16".to_owned(),
            realtime: "17".to_owned(),
        };
        assert_eq!(FieldPaths::from(wire::FieldPaths::from(expected.clone())), expected);
    }
}
