use std::fmt;

/// Where the length is in the header of a table, and its checksum (ACPI 6.5, table 5.4).
const LENGTH: std::ops::Range<usize> = 4..8;
/// The size of the header.
const HEADER: usize = 36;

/// An ACPI table that is given as a whole: its length and its checksum are right.
#[derive(Clone, PartialEq, Eq)]
pub struct AcpiTable(Vec<u8>);

/// Why bytes are not an ACPI table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidAcpiTable {
    /// Shorter than a header, or longer than is taken.
    Size(usize),
    /// The header has another length than the table.
    Length {
        /// In the header.
        said: u32,
        /// The bytes that there are.
        has: usize,
    },
    /// The bytes do not sum up to zero.
    Checksum,
}

impl fmt::Display for InvalidAcpiTable {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(bytes) => {
                write!(form, "it has {bytes} bytes: an ACPI table has {HEADER} to {}", AcpiTable::MAX)
            }
            Self::Length { said, has } => {
                write!(form, "it has {has} bytes: by its header, the ACPI table has {said}")
            }
            Self::Checksum => form.write_str("the checksum of the ACPI table is wrong"),
        }
    }
}

impl std::error::Error for InvalidAcpiTable {}

impl AcpiTable {
    /// The longest table that is taken, in bytes. Two of them fit beside those of a VM.
    pub const MAX: usize = 16 << 10;

    /// The name of the kind of table.
    pub fn signature(&self) -> [u8; 4] {
        self.0.first_chunk().copied().unwrap_or_default()
    }

    /// The whole table.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for AcpiTable {
    type Error = InvalidAcpiTable;

    fn try_from(bytes: Vec<u8>) -> Result<Self, InvalidAcpiTable> {
        let has = bytes.len();
        if !(HEADER..=Self::MAX).contains(&has) {
            return Err(InvalidAcpiTable::Size(has));
        }
        let length = bytes.get(LENGTH).and_then(|length| length.try_into().ok()).unwrap_or_default();
        let said = u32::from_le_bytes(length);
        if usize::try_from(said) != Ok(has) {
            return Err(InvalidAcpiTable::Length { said, has });
        }
        match bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) {
            0 => Ok(Self(bytes)),
            _ => Err(InvalidAcpiTable::Checksum),
        }
    }
}

impl fmt::Debug for AcpiTable {
    /// Without the content, which may be secret.
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(form, "{} ({} bytes)", String::from_utf8_lossy(&self.signature()), self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_length_and_checksum() {
        let mut bytes = vec![0; 40];
        bytes[..4].copy_from_slice(b"SLIC");
        bytes[4] = 40;
        let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        bytes[9] = sum.wrapping_neg();
        let table = AcpiTable::try_from(bytes.clone()).unwrap();
        assert_eq!((table.signature(), table.bytes()), (*b"SLIC", &*bytes));
        assert_eq!(format!("{table:?}"), "SLIC (40 bytes)");
        let refused = |bytes: Vec<u8>| AcpiTable::try_from(bytes).unwrap_err();
        assert_eq!(refused(Vec::new()), InvalidAcpiTable::Size(0));
        assert_eq!(refused(vec![0; AcpiTable::MAX + 1]), InvalidAcpiTable::Size(AcpiTable::MAX + 1));
        let longer = [bytes.clone(), vec![0]].concat();
        assert_eq!(refused(longer), InvalidAcpiTable::Length { said: 40, has: 41 });
        bytes[39] = 1;
        assert_eq!(refused(bytes), InvalidAcpiTable::Checksum);
    }
}
