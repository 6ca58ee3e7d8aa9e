use super::shape::shapes;

shapes! {
    /// Something that is on when it is named, unless it says otherwise.
    pub struct FeatureState {
        /// True when absent.
        pub enabled: Option<bool>,
    }

    /// Properties of the board and of the hypervisor.
    pub struct Features {
        /// ACPI tables.
        pub acpi: Option<FeatureState>,
        /// The local interrupt controllers.
        pub apic: Option<FeatureApic>,
        /// Hyper-V enlightenments.
        pub hyperv: Option<FeatureHyperv>,
        /// Every Hyper-V enlightenment the host has.
        pub hyperv_passthrough: Option<FeatureState>,
        /// System management mode.
        pub smm: Option<FeatureState>,
        /// KVM's own.
        pub kvm: Option<FeatureKvm>,
        /// Paravirtual spinlocks.
        pub pvspinlock: Option<FeatureState>,
    }

    /// The local interrupt controllers.
    pub struct FeatureApic {
        /// True when absent.
        pub enabled: Option<bool>,
        /// Paravirtual end of interrupt.
        pub end_of_interrupt: Option<bool>,
    }

    /// KVM's own features.
    pub struct FeatureKvm {
        /// The guest does not see that it runs on KVM.
        pub hidden: Option<bool>,
    }

    /// Hyper-V enlightenments.
    pub struct FeatureHyperv {
        /// No watchdog on vCPUs.
        pub relaxed: Option<FeatureState>,
        /// Virtual APIC.
        pub vapic: Option<FeatureState>,
        /// Spin counts.
        pub spinlocks: Option<FeatureSpinlocks>,
        /// Virtual processor index.
        pub vpindex: Option<FeatureState>,
        /// Run time counter.
        pub runtime: Option<FeatureState>,
        /// Synthetic interrupt controller.
        pub synic: Option<FeatureState>,
        /// Synthetic timer.
        pub synictimer: Option<SyNicTimer>,
        /// Reset register.
        pub reset: Option<FeatureState>,
        /// Vendor text.
        pub vendorid: Option<FeatureVendorId>,
        /// Frequency registers.
        pub frequencies: Option<FeatureState>,
        /// Told after a migration.
        pub reenlightenment: Option<FeatureState>,
        /// Paravirtual TLB flush.
        pub tlbflush: Option<TlbFlush>,
        /// Paravirtual IPIs.
        pub ipi: Option<FeatureState>,
        /// Enlightened VMCS.
        pub evmcs: Option<FeatureState>,
    }

    /// Spin counts.
    pub struct FeatureSpinlocks {
        /// True when absent.
        pub enabled: Option<bool>,
        /// Retries.
        pub spinlocks: Option<u32>,
    }

    /// Synthetic timer.
    pub struct SyNicTimer {
        /// True when absent.
        pub enabled: Option<bool>,
        /// Direct mode.
        pub direct: Option<FeatureState>,
    }

    /// Vendor text.
    pub struct FeatureVendorId {
        /// True when absent.
        pub enabled: Option<bool>,
        /// At most 12 characters.
        pub vendorid: String,
    }

    /// Paravirtual TLB flush.
    pub struct TlbFlush {
        /// True when absent.
        pub enabled: Option<bool>,
        /// Direct mode.
        pub direct: Option<FeatureState>,
        /// Extended mode.
        pub extended: Option<FeatureState>,
    }

    /// Clocks and timers.
    pub struct Clock {
        /// The clock tells UTC.
        pub utc: Option<ClockUtc>,
        /// The clock tells this zone's time.
        pub timezone: Option<String>,
        /// Timers.
        pub timer: Option<Timer>,
    }

    /// The clock tells UTC.
    pub struct ClockUtc {
        /// Ahead of UTC by this.
        pub offset_seconds: Option<i64>,
    }

    /// Timers.
    pub struct Timer {
        /// HPET.
        pub hpet: Option<TickTimer>,
        /// kvmclock.
        pub kvm: Option<PresentTimer>,
        /// i8254.
        pub pit: Option<TickTimer>,
        /// MC146818.
        pub rtc: Option<RtcTimer>,
        /// Hyper-V reference clock.
        pub hyperv: Option<PresentTimer>,
    }

    /// A timer that is there or not.
    pub struct PresentTimer {
        /// True when absent.
        pub present: Option<bool>,
    }

    /// A timer with a policy for lost ticks.
    pub struct TickTimer {
        /// True when absent.
        pub present: Option<bool>,
        /// `delay`, `catchup`, `merge` or `discard`.
        pub tick_policy: String,
    }

    /// MC146818.
    pub struct RtcTimer {
        /// True when absent.
        pub present: Option<bool>,
        /// `delay` or `catchup`.
        pub tick_policy: String,
        /// `guest` or `wall`.
        pub track: String,
    }
}
