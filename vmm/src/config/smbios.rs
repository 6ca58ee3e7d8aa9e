/// What the guest is told about the machine it runs on (SMBIOS 3.x types 1 and 2). Empty fields are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Smbios {
    /// Sixteen bytes in the order people write them.
    pub uuid: [u8; 16],
    /// System serial number.
    pub serial: String,
    /// System manufacturer.
    pub manufacturer: String,
    /// System product name.
    pub product: String,
    /// System version.
    pub version: String,
    /// System SKU.
    pub sku: String,
    /// System family.
    pub family: String,
    /// The case.
    pub chassis: Chassis,
}

/// What the guest reads about the machine's case. Empty texts are not told, but for the manufacturer, which is then the
/// system's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chassis {
    /// Manufacturer.
    pub manufacturer: String,
    /// Version.
    pub version: String,
    /// Serial number.
    pub serial: String,
    /// Asset tag.
    pub asset: String,
    /// SKU.
    pub sku: String,
}
