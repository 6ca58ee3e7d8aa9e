use super::shape::shapes;
use super::{
    Clock, Cpu, Devices, Features, Firmware, IoThreads, LaunchSecurity, Memory, ResourceRequirements,
};

shapes! {
    /// Virtual hardware of the VMI.
    pub struct DomainSpec {
        /// Resource requirements of the VMI, such as its memory.
        pub resources: ResourceRequirements,
        /// CPU topology and features of the guest.
        pub cpu: Option<Box<Cpu>>,
        /// Memory of the guest.
        pub memory: Option<Box<Memory>>,
        /// Machine type of the guest.
        pub machine: Option<MachineType>,
        /// Firmware of the guest.
        pub firmware: Option<Box<Firmware>>,
        /// Clock and timers of the guest.
        pub clock: Option<Box<Clock>>,
        /// Features of the hypervisor, such as ACPI, APIC and Hyper-V enlightenments.
        pub features: Option<Box<Features>>,
        /// Disks, network interfaces and other devices.
        pub devices: Devices,
        /// How IOThreads are assigned to disks: `shared`, `auto` or `supplementalPool`.
        pub io_threads_policy: Option<String>,
        /// Options of the IOThreads.
        pub io_threads: Option<IoThreads>,
        /// Chassis information that is passed to the guest by SMBIOS.
        pub chassis: Option<Box<Chassis>>,
        /// Launch security (confidential computing) of the VMI.
        pub launch_security: Option<Box<LaunchSecurity>>,
        /// What happens when the guest reboots: `Reboot` resets the VMI; `Terminate` ends it. Defaults to `Reboot`.
        pub reboot_policy: Option<String>,
    }

    /// Machine type of the guest.
    pub struct MachineType {
        /// QEMU machine type, such as `q35`.
        pub r#type: String = "type",
    }

    /// Chassis information that is passed to the guest by SMBIOS (type 3).
    pub struct Chassis {
        /// Manufacturer of the chassis.
        pub manufacturer: String,
        /// Version of the chassis.
        pub version: String,
        /// Serial number of the chassis.
        pub serial: String,
        /// Asset tag of the chassis.
        pub asset: String,
        /// SKU number of the chassis.
        pub sku: String,
    }
}
