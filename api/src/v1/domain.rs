use super::shape::shapes;
use super::{
    Clock, Cpu, Devices, Features, Firmware, IoThreads, LaunchSecurity, Memory, ResourceRequirements,
};

shapes! {
    /// The guest's hardware.
    pub struct DomainSpec {
        /// What the launcher's container is given.
        pub resources: ResourceRequirements,
        /// Processors.
        pub cpu: Option<Cpu>,
        /// Memory.
        pub memory: Option<Memory>,
        /// The board.
        pub machine: Option<MachineType>,
        /// What starts first.
        pub firmware: Option<Firmware>,
        /// Clocks and timers.
        pub clock: Option<Clock>,
        /// Properties of the board and of the hypervisor.
        pub features: Option<Features>,
        /// Everything attached.
        pub devices: Devices,
        /// `shared`, `auto` or `supplementalPool`.
        pub io_threads_policy: Option<String>,
        /// Size of the supplemental pool.
        pub io_threads: Option<IoThreads>,
        /// What the guest reads about its case.
        pub chassis: Option<Chassis>,
        /// Confidential computing.
        pub launch_security: Option<LaunchSecurity>,
        /// `Reboot` or `Terminate`.
        pub reboot_policy: Option<String>,
    }

    /// The board.
    pub struct MachineType {
        /// QEMU's name for it.
        pub r#type: String = "type",
    }

    /// SMBIOS type 3.
    pub struct Chassis {
        /// Who made it.
        pub manufacturer: String,
        /// Its version.
        pub version: String,
        /// Its serial number.
        pub serial: String,
        /// Its asset tag.
        pub asset: String,
        /// Its SKU.
        pub sku: String,
    }
}
