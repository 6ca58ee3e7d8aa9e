use super::shape::shapes;

shapes! {
    /// A feature that is enabled if it is present, unless `enabled` is false.
    pub struct FeatureState {
        /// Whether the feature is enabled. Defaults to true.
        pub enabled: Option<bool>,
    }

    /// Features of the hypervisor.
    pub struct Features {
        /// ACPI tables. Defaults to enabled.
        pub acpi: Option<FeatureState>,
        /// Local APIC of each vCPU. Defaults to the machine type's setting.
        pub apic: Option<FeatureApic>,
        /// Hyper-V enlightenments, each set individually.
        pub hyperv: Option<FeatureHyperv>,
        /// Enables all Hyper-V enlightenments that the host supports.
        pub hyperv_passthrough: Option<FeatureState>,
        /// System management mode (SMM).
        pub smm: Option<FeatureState>,
        /// How KVM presents itself to the guest.
        pub kvm: Option<FeatureKvm>,
        /// Paravirtualized spinlocks. Defaults to enabled.
        pub pvspinlock: Option<FeatureState>,
    }

    /// Local APIC of each vCPU.
    pub struct FeatureApic {
        /// Whether the feature is enabled. Defaults to true.
        pub enabled: Option<bool>,
        /// Whether the guest is notified of the end of interrupts by paravirtualization. Defaults to false.
        pub end_of_interrupt: Option<bool>,
    }

    /// How KVM presents itself to the guest.
    pub struct FeatureKvm {
        /// Hides the KVM hypervisor from standard MSR-based discovery. Defaults to false.
        pub hidden: Option<bool>,
    }

    /// Hyper-V enlightenments, which improve the performance of Windows guests.
    pub struct FeatureHyperv {
        /// Tells the guest to disable its watchdog timeouts. Defaults to disabled.
        pub relaxed: Option<FeatureState>,
        /// Paravirtualized access to registers of the APIC. Defaults to disabled.
        pub vapic: Option<FeatureState>,
        /// Number of attempts to acquire a spinlock before the guest notifies the hypervisor.
        pub spinlocks: Option<FeatureSpinlocks>,
        /// vCPU index, which identifies each vCPU. Defaults to disabled.
        pub vpindex: Option<FeatureState>,
        /// Counter of the time for which the vCPUs have run. Defaults to disabled.
        pub runtime: Option<FeatureState>,
        /// Synthetic interrupt controller (SynIC). Defaults to disabled.
        pub synic: Option<FeatureState>,
        /// Synthetic timers, which reduce CPU load. Defaults to disabled.
        pub synictimer: Option<SyNicTimer>,
        /// Register by which the guest resets itself. Defaults to disabled.
        pub reset: Option<FeatureState>,
        /// Hypervisor vendor ID that the guest reads.
        pub vendorid: Option<FeatureVendorId>,
        /// MSRs with the frequencies of the TSC and the APIC. Defaults to disabled.
        pub frequencies: Option<FeatureState>,
        /// Notification when the frequency of the TSC changes, such as by migration. Defaults to disabled.
        pub reenlightenment: Option<FeatureState>,
        /// Paravirtualized TLB flush, which improves performance on overcommitted hosts. Defaults to disabled.
        pub tlbflush: Option<TlbFlush>,
        /// Paravirtualized inter-processor interrupts (IPIs), which improve performance on overcommitted hosts.
        /// Defaults to disabled.
        pub ipi: Option<FeatureState>,
        /// Enlightened VMCS, which improves nested virtualization on Intel hosts. Defaults to disabled.
        pub evmcs: Option<FeatureState>,
    }

    /// Spinlock enlightenment.
    pub struct FeatureSpinlocks {
        /// Whether the feature is enabled. Defaults to true.
        pub enabled: Option<bool>,
        /// Number of retries before the hypervisor is notified; at least 4096. Defaults to 4096.
        pub spinlocks: Option<u32>,
    }

    /// Synthetic timers.
    pub struct SyNicTimer {
        /// Whether the feature is enabled. Defaults to true.
        pub enabled: Option<bool>,
        /// Direct mode, in which timers deliver interrupts directly to the vCPU.
        pub direct: Option<FeatureState>,
    }

    /// Hypervisor vendor ID.
    pub struct FeatureVendorId {
        /// Whether the feature is enabled. Defaults to true.
        pub enabled: Option<bool>,
        /// Vendor ID of at most 12 characters.
        pub vendorid: String,
    }

    /// Paravirtualized TLB flush.
    pub struct TlbFlush {
        /// Whether the feature is enabled. Defaults to true.
        pub enabled: Option<bool>,
        /// Direct mode, in which the hypervisor handles the flushes of nested guests directly.
        pub direct: Option<FeatureState>,
        /// Extended mode, in which a flush names ranges of addresses.
        pub extended: Option<FeatureState>,
    }

    /// Clock and timers of the guest. The offset is one of `utc` and `timezone`.
    pub struct Clock {
        /// Sets the guest's clock to UTC on each boot.
        pub utc: Option<ClockUtc>,
        /// Sets the guest's clock to the local time of this time zone, such as `America/New_York`.
        pub timezone: Option<String>,
        /// Timers that are attached to the VMI.
        pub timer: Option<Timer>,
    }

    /// Sets the guest's clock to UTC on each boot.
    pub struct ClockUtc {
        /// Seconds that are added to UTC.
        pub offset_seconds: Option<i64>,
    }

    /// Timers that are attached to the VMI.
    pub struct Timer {
        /// High Precision Event Timer (HPET): multiple timers with periodic interrupts.
        pub hpet: Option<TickTimer>,
        /// KVM clock (kvmclock): lets the guest read the host's wall clock time.
        pub kvm: Option<PresentTimer>,
        /// Programmable Interval Timer (PIT, i8254): a timer with periodic interrupts.
        pub pit: Option<TickTimer>,
        /// Real Time Clock (RTC): a continuously running timer with periodic interrupts.
        pub rtc: Option<RtcTimer>,
        /// Hyper-V reference clock (Hypervclock): lets the guest read the host's wall clock time, for Windows guests.
        pub hyperv: Option<PresentTimer>,
    }

    /// A timer without further options.
    pub struct PresentTimer {
        /// Whether the timer is present. Defaults to true.
        pub present: Option<bool>,
    }

    /// A timer with a policy for missed ticks.
    pub struct TickTimer {
        /// Whether the timer is present. Defaults to true.
        pub present: Option<bool>,
        /// What happens when ticks are missed: `delay`, `catchup`, `merge` or `discard`.
        pub tick_policy: String,
    }

    /// The RTC timer.
    pub struct RtcTimer {
        /// Whether the timer is present. Defaults to true.
        pub present: Option<bool>,
        /// What happens when ticks are missed: `delay` or `catchup`.
        pub tick_policy: String,
        /// What the timer tracks: `guest` or `wall`.
        pub track: String,
    }
}
