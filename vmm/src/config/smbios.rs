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
}
