/// The SMBIOS strings of a VM (DSP0134, types 1 and 3). Empty strings are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Smbios {
    /// The UUID of the system, in the order in which it is written.
    pub uuid: Option<[u8; 16]>,
    /// The serial number of the system.
    pub serial: String,
    /// The manufacturer of the system.
    pub manufacturer: String,
    /// The product name of the system.
    pub product: String,
    /// The version of the system.
    pub version: String,
    /// The SKU of the system.
    pub sku: String,
    /// The family of the system.
    pub family: String,
    /// The chassis.
    pub chassis: Chassis,
}

/// The SMBIOS strings of the chassis (DSP0134, type 3). Empty strings are left out; the manufacturer defaults to that of
/// the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chassis {
    /// The manufacturer.
    pub manufacturer: String,
    /// The version.
    pub version: String,
    /// The serial number.
    pub serial: String,
    /// The asset tag.
    pub asset: String,
    /// The SKU.
    pub sku: String,
}
