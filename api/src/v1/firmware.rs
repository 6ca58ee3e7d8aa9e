use super::shape::shapes;

shapes! {
    /// Firmware of the guest.
    pub struct Firmware {
        /// UUID that SMBIOS reports. Defaults to a generated value that is stable for the VM.
        pub uuid: String,
        /// Boot loader of the guest: BIOS or EFI.
        pub bootloader: Option<Bootloader>,
        /// System serial number that SMBIOS reports.
        pub serial: String,
        /// Boots a kernel directly, without a boot loader of the guest.
        pub kernel_boot: Option<KernelBoot>,
        /// ACPI tables that are passed to the guest.
        pub acpi: Option<Acpi>,
    }

    /// Boot loader of the guest: one of its members must be set.
    pub struct Bootloader {
        /// Boots by BIOS (SeaBIOS).
        pub bios: Option<Bios>,
        /// Boots by UEFI (OVMF).
        pub efi: Option<Efi>,
    }

    /// Boot by BIOS.
    pub struct Bios {
        /// Whether the BIOS output is sent to the serial console.
        pub use_serial: Option<bool>,
    }

    /// Boot by UEFI.
    pub struct Efi {
        /// Whether Secure Boot is enabled, which requires SMM. Defaults to true.
        pub secure_boot: Option<bool>,
        /// Whether the UEFI variables (NVRAM) are kept when the VM stops. Defaults to false.
        pub persistent: Option<bool>,
    }

    /// Direct boot of a kernel.
    pub struct KernelBoot {
        /// Arguments that are passed to the kernel on boot.
        pub kernel_args: String,
        /// Container image that contains the kernel and the initrd.
        pub container: Option<KernelBootContainer>,
    }

    /// Container image that contains a kernel and an initrd.
    pub struct KernelBootContainer {
        /// Container image that contains the files.
        pub image: String,
        /// Name of the Docker registry Secret that is required to pull the image. The Secret must exist already.
        pub image_pull_secret: String,
        /// When the image is pulled: `Always`, `Never` or `IfNotPresent`. Defaults to `Always` if the tag is `latest`,
        /// else to `IfNotPresent`.
        pub image_pull_policy: String,
        /// Fully qualified path of the kernel in the image.
        pub kernel_path: String,
        /// Fully qualified path of the initial ramdisk in the image.
        pub initrd_path: String,
    }

    /// ACPI tables that are passed to the guest.
    pub struct Acpi {
        /// Name of the volume with the SLIC table: it must be a Secret with the key `slic.bin`.
        pub slic_name_ref: String,
        /// Name of the volume with the MSDM table: it must be a Secret with the key `msdm.bin`.
        pub msdm_name_ref: String,
    }
}
