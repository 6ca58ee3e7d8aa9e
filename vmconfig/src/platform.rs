use std::fmt;

/// A property of the board, of its clocks or of KVM's interface to the guest that differs from the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlatformFeature {
    /// No ACPI tables.
    AcpiOff,
    /// No high precision event timer.
    HpetOff,
    /// No clock of KVM.
    KvmClockOff,
    /// The guest does not see that KVM runs it.
    KvmHidden,
    /// No programmable interval timer.
    PitOff,
    /// Ticks that the interval timer has missed are dropped.
    PitDiscardsTicks,
    /// No paravirtual end of interrupt.
    PvEoiOff,
    /// No paravirtual spinlocks.
    PvSpinlockOff,
    /// Ticks that the real-time clock has missed are made up for at a higher rate.
    RtcCatchesUp,
    /// The real-time clock stands still while the guest does.
    RtcTracksGuest,
    /// No system management mode.
    SmmOff,
    /// Virtio devices that drivers from before virtio 1.0 can use.
    VirtioTransitional,
}

impl PlatformFeature {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::AcpiOff,
        Self::HpetOff,
        Self::KvmClockOff,
        Self::KvmHidden,
        Self::PitOff,
        Self::PitDiscardsTicks,
        Self::PvEoiOff,
        Self::PvSpinlockOff,
        Self::RtcCatchesUp,
        Self::RtcTracksGuest,
        Self::SmmOff,
        Self::VirtioTransitional,
    ];

    /// Whether a hypervisor without optional devices has it by itself: it is about the absence of one.
    pub const fn is_absence(self) -> bool {
        matches!(self, Self::HpetOff | Self::SmmOff)
    }
}

/// The property, for error messages: "requests ...".
impl fmt::Display for PlatformFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AcpiOff => "a board without ACPI",
            Self::HpetOff => "a board without HPET",
            Self::KvmClockOff => "a guest without kvmclock",
            Self::KvmHidden => "KVM to be hidden",
            Self::PitOff => "a board without PIT",
            Self::PitDiscardsTicks => "a PIT that discards lost ticks",
            Self::PvEoiOff => "a guest without paravirtual end of interrupt",
            Self::PvSpinlockOff => "a guest without paravirtual spinlocks",
            Self::RtcCatchesUp => "a real-time clock that catches up on lost ticks",
            Self::RtcTracksGuest => "a real-time clock that tracks the guest",
            Self::SmmOff => "a board without system management mode",
            Self::VirtioTransitional => "transitional virtio devices",
        })
    }
}
