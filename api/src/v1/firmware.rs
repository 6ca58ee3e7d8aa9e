use super::shape::shapes;

shapes! {
    /// What starts first.
    pub struct Firmware {
        /// SMBIOS system UUID.
        pub uuid: String,
        /// BIOS or EFI.
        pub bootloader: Option<Bootloader>,
        /// SMBIOS system serial.
        pub serial: String,
        /// A kernel started without firmware.
        pub kernel_boot: Option<KernelBoot>,
        /// ACPI tables handed in.
        pub acpi: Option<Acpi>,
    }

    /// BIOS or EFI.
    pub struct Bootloader {
        /// SeaBIOS.
        pub bios: Option<Bios>,
        /// OVMF.
        pub efi: Option<Efi>,
    }

    /// SeaBIOS.
    pub struct Bios {
        /// Its messages go to the serial port.
        pub use_serial: Option<bool>,
    }

    /// OVMF.
    pub struct Efi {
        /// Only signed code starts; true when absent.
        pub secure_boot: Option<bool>,
        /// Variables survive the machine.
        pub persistent: Option<bool>,
    }

    /// A kernel started without firmware.
    pub struct KernelBoot {
        /// Its command line.
        pub kernel_args: String,
        /// The image it is in.
        pub container: Option<KernelBootContainer>,
    }

    /// An image with a kernel in it.
    pub struct KernelBootContainer {
        /// Which image.
        pub image: String,
        /// The secret to pull it with.
        pub image_pull_secret: String,
        /// When to pull it.
        pub image_pull_policy: String,
        /// The kernel's absolute path in the image.
        pub kernel_path: String,
        /// The initial ramdisk's absolute path in the image.
        pub initrd_path: String,
    }

    /// ACPI tables handed in, each a secret volume's name.
    pub struct Acpi {
        /// The SLIC table.
        pub slic_name_ref: String,
        /// The MSDM table.
        pub msdm_name_ref: String,
    }
}
