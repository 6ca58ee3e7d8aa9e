/// Why a command was not carried out (SPC-4, section 4.5): sense key, additional code and its qualifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Sense {
    pub(crate) key: u8,
    code: u8,
    qualifier: u8,
}

impl Sense {
    pub(super) const NONE: Self = Self::new(0x0, 0x00, 0);
    pub(super) const NO_MEDIUM: Self = Self::new(0x2, 0x3a, 0);
    pub(super) const READ_ERROR: Self = Self::new(0x3, 0x11, 0);
    pub(super) const WRITE_ERROR: Self = Self::new(0x3, 0x0c, 0);
    pub(super) const PARAMETER_LENGTH: Self = Self::new(0x5, 0x1a, 0);
    pub(super) const INVALID_OPCODE: Self = Self::new(0x5, 0x20, 0);
    pub(super) const OUT_OF_RANGE: Self = Self::new(0x5, 0x21, 0);
    pub(super) const INVALID_FIELD: Self = Self::new(0x5, 0x24, 0);
    pub(crate) const NO_SUCH_UNIT: Self = Self::new(0x5, 0x25, 0);
    pub(super) const INVALID_PARAMETER: Self = Self::new(0x5, 0x26, 0);
    pub(super) const REMOVAL_PREVENTED: Self = Self::new(0x5, 0x53, 2);
    /// A unit attention: the medium may have changed.
    pub(super) const MEDIUM_CHANGED: Self = Self::new(0x6, 0x28, 0);
    pub(super) const WRITE_PROTECTED: Self = Self::new(0x7, 0x27, 0);
    /// Medium error in what the guest's own memory was to take or give.
    pub(super) const TRANSFER: Self = Self::new(0xb, 0x4b, 0);

    const fn new(key: u8, code: u8, qualifier: u8) -> Self {
        Self { key, code, qualifier }
    }

    /// In fixed format (SPC-4, section 4.5.3).
    pub(crate) fn fixed(self) -> [u8; 18] {
        let mut bytes = [0; 18];
        bytes[0] = 0x70;
        bytes[2] = self.key;
        bytes[7] = 10;
        bytes[12] = self.code;
        bytes[13] = self.qualifier;
        bytes
    }
}
