//! What the controller receives of a drive and leaves in the guest's memory (AHCI 1.3.1, section 4.2.1; SATA 3.0,
//! section 10.3).

/// Where each kind goes in the receive area.
pub(super) const PIO_SETUP_AT: u64 = 0x20;
pub(super) const REGISTER_AT: u64 = 0x40;
pub(super) const SET_BITS_AT: u64 = 0x58;

const INTERRUPT: u8 = 1 << 6;
const TO_HOST: u8 = 1 << 5;

/// The registers of a drive after a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Shadow {
    pub(super) status: u8,
    pub(super) error: u8,
    /// 48 bits.
    pub(super) lba: u64,
    pub(super) count: u16,
    pub(super) device: u8,
}

impl Shadow {
    /// As PxTFD shows them.
    pub(super) fn task_file(self) -> u32 {
        u32::from(self.error) << 8 | u32::from(self.status)
    }

    /// As PxSIG shows them after a reset.
    pub(super) fn signature(self) -> u32 {
        let [a, b, c, ..] = self.lba.to_le_bytes();
        let [count, _] = self.count.to_le_bytes();
        u32::from_le_bytes([count, a, b, c])
    }

    /// Register FIS, device to host.
    pub(super) fn register(self) -> [u8; 20] {
        let [a, b, c, d, e, f, ..] = self.lba.to_le_bytes();
        let [low, high] = self.count.to_le_bytes();
        let Self { status, error, device, .. } = self;
        [0x34, INTERRUPT, status, error, a, b, c, device, d, e, f, 0, low, high, 0, 0, 0, 0, 0, 0]
    }

    /// PIO setup FIS for data to the host: the status during the transfer, and the one after it.
    pub(super) fn pio_setup(self, during: u8, transferred: u16) -> [u8; 20] {
        let mut fis = self.register();
        let [low, high] = transferred.to_le_bytes();
        fis[0] = 0x5f;
        fis[1] = INTERRUPT | TO_HOST;
        fis[2] = during;
        fis[15] = self.status;
        fis[16] = low;
        fis[17] = high;
        fis
    }

    /// Set device bits FIS: the queued commands that are complete.
    pub(super) fn set_bits(self, complete: u32) -> [u8; 8] {
        let [a, b, c, d] = complete.to_le_bytes();
        [0xa1, INTERRUPT, self.status & 0x77, self.error, a, b, c, d]
    }
}
