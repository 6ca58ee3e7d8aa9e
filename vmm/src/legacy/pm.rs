use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::bus::BusDevice;
use crate::exit::{Exit, Outcome};
use crate::irq::IrqLine;
use crate::layout;
use crate::state::{Section, SectionError};

/// PM1 status and enable (ACPI 6.5, section 4.8.3.1.1).
const PM1_STATUS: u64 = 0x0;
const PM1_ENABLE: u64 = 0x2;
/// PM1 control (ACPI 6.5, section 4.8.3.2.1).
const PM1_CONTROL: u64 = 0x4;
/// PM timer: 32 bits (FADT flag TMR_VAL_EXT).
const PM_TIMER: u64 = 0x8;

/// GPE0 status and enable (ACPI 6.5, section 4.8.4.1), of which only the first bytes have events.
const GPE0_STATUS: u64 = layout::GPE0_OFFSET as u64;
const GPE0_ENABLE: u64 = GPE0_STATUS + layout::GPE0_LENGTH as u64 / 2;
const GPE0_END: u64 = GPE0_STATUS + layout::GPE0_LENGTH as u64;
const GPE_HOTPLUG: u8 = 1 << layout::HOTPLUG_GPE;

/// SMI enable (ICH9 datasheet, section 13.8.3.8).
const SMI_ENABLE: u64 = 0x30;
/// Firmware takes this for a sign that system management mode has been set up already. There is none.
const SMI_ENABLE_APMC: u32 = 1 << 5;

const POWER_BUTTON: u16 = 1 << 8;
/// The clock's alarm, which wakes a guest that has enabled it.
const RTC_ALARM: u16 = 1 << 10;
/// Timer, bus master, global lock, power button, sleep button, RTC and wake status.
const STATUS_BITS: u16 = 0x8731;
const ENABLE_BITS: u16 = 0x0721;

const SCI_ENABLE: u16 = 1 << 0;
const SLEEP_TYPE: u16 = 0b111 << 10;
const SLEEP_ENABLE: u16 = 1 << 13;
/// The sleep type that `\_S5` declares; the one ICH9 firmware uses too.
const SLEEP_TYPE_S5: u16 = 0;

/// Ticks of the PM timer in a second (ACPI 6.5, section 4.8.2.1).
const TIMER_HZ: u128 = 3_579_545;

/// What the outside, and the clock, can do to the VM's power.
pub(crate) trait PowerEvents: Send + Sync {
    /// Presses the power button.
    fn press_power_button(&self);
    /// The clock's alarm goes off.
    fn rtc_alarm(&self);
}

/// The power management block of an ICH9, as far as ACPI names it: PM1 event and control, the PM timer and GPE0.
/// Of the general-purpose events there is that of PCI hotplug; the others read as zero.
pub(crate) struct PowerManagement {
    registers: Mutex<Registers>,
    sci: Arc<dyn IrqLine>,
    outcome: Arc<Outcome>,
    built: Instant,
}

/// The registers and the timer, as they are saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PowerState {
    status: u16,
    enable: u16,
    control: u16,
    gpe_status: u8,
    gpe_enable: u8,
    timer: Duration,
}

#[derive(Default)]
struct Registers {
    status: u16,
    enable: u16,
    control: u16,
    gpe_status: u8,
    gpe_enable: u8,
    /// What the line was last set to.
    level: bool,
    /// What the timer had counted when the VM was loaded.
    timer: Duration,
}

impl PowerManagement {
    /// Interrupts on `sci` (level, active high) and reports a power-off to `outcome`.
    pub(crate) fn new(sci: Arc<dyn IrqLine>, outcome: Arc<Outcome>) -> Self {
        Self { registers: Mutex::default(), sci, outcome, built: Instant::now() }
    }

    fn registers(&self) -> MutexGuard<'_, Registers> {
        self.registers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line follows the registers; it is set inside the lock so that two changes cannot swap.
    fn update_line(&self, registers: &mut Registers) {
        let gpe = registers.gpe_status & registers.gpe_enable != 0;
        let level = registers.status & registers.enable != 0 || gpe;
        if level == registers.level {
            return;
        }
        match self.sci.set_level(level) {
            Ok(()) => registers.level = level,
            Err(error) => tracing::warn!(%error, level, "cannot set the ACPI interrupt line"),
        }
    }

    fn raise(&self, event: u16) {
        let mut registers = self.registers();
        registers.status |= event;
        self.update_line(&mut registers);
    }

    /// Raises the event of PCI hotplug.
    pub(crate) fn raise_hotplug(&self) {
        let mut registers = self.registers();
        registers.gpe_status |= GPE_HOTPLUG;
        self.update_line(&mut registers);
    }

    /// ACPI writes GPE registers byte by byte.
    fn write_gpe(&self, offset: u64, data: &[u8]) {
        let mut registers = self.registers();
        for (at, byte) in (offset..).zip(data) {
            match at {
                GPE0_STATUS => registers.gpe_status &= !byte,
                GPE0_ENABLE => registers.gpe_enable = byte & GPE_HOTPLUG,
                _ => {}
            }
        }
        self.update_line(&mut registers);
    }

    /// How long the timer has counted.
    fn counted(&self) -> Duration {
        let before = self.registers().timer;
        before.saturating_add(self.built.elapsed())
    }

    fn timer(&self) -> u32 {
        let ticks = self.counted().as_nanos().saturating_mul(TIMER_HZ) / 1_000_000_000;
        u32::try_from(ticks & u128::from(u32::MAX)).unwrap_or(0)
    }

    /// The 32 bits at `offset`, which is a multiple of four.
    fn read_word(&self, offset: u64) -> u32 {
        match offset {
            PM1_STATUS => {
                let registers = self.registers();
                u32::from(registers.status) | u32::from(registers.enable) << 16
            }
            // The guest is always in ACPI mode: there is no SMI to switch with.
            PM1_CONTROL => u32::from(self.registers().control | SCI_ENABLE),
            PM_TIMER => self.timer(),
            GPE0_STATUS => self.registers().gpe_status.into(),
            GPE0_ENABLE => self.registers().gpe_enable.into(),
            SMI_ENABLE => SMI_ENABLE_APMC,
            _ => 0,
        }
    }

    fn write_control(&self, value: u16) {
        self.registers().control = value & (SLEEP_TYPE | SCI_ENABLE);
        if value & SLEEP_ENABLE == 0 {
            return;
        }
        match (value & SLEEP_TYPE) >> 10 {
            SLEEP_TYPE_S5 => self.outcome.report(Exit::PowerOff),
            other => {
                tracing::warn!(sleep_type = other, "the guest requested an unsupported sleep state")
            }
        }
    }
}

impl Section for PowerManagement {
    const TAG: &'static str = "ich9-pm";
    const VERSION: u16 = 2;
    type State = PowerState;

    fn save(&self) -> Result<PowerState, SectionError> {
        let timer = self.counted();
        let registers = self.registers();
        let Registers { status, enable, control, gpe_status, gpe_enable, .. } = *registers;
        Ok(PowerState { status, enable, control, gpe_status, gpe_enable, timer })
    }

    fn load(&self, state: PowerState) -> Result<(), SectionError> {
        let mut registers = self.registers();
        registers.status = state.status & STATUS_BITS;
        registers.enable = state.enable & ENABLE_BITS;
        registers.control = state.control & (SLEEP_TYPE | SCI_ENABLE);
        registers.gpe_status = state.gpe_status & GPE_HOTPLUG;
        registers.gpe_enable = state.gpe_enable & GPE_HOTPLUG;
        registers.timer = state.timer;
        self.update_line(&mut registers);
        Ok(())
    }
}

impl PowerEvents for PowerManagement {
    fn press_power_button(&self) {
        self.raise(POWER_BUTTON);
    }

    fn rtc_alarm(&self) {
        self.raise(RTC_ALARM);
    }
}

impl BusDevice for PowerManagement {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let word = self.read_word(offset & !3).to_le_bytes();
        let skip = usize::try_from(offset & 3).unwrap_or(0);
        // An access that runs past its register reads zeros, as the rest of the block does.
        let register = word.iter().skip(skip).copied().chain(std::iter::repeat(0));
        data.iter_mut().zip(register).for_each(|(to, from)| *to = from);
    }

    /// Registers of PM1 are written in the widths ACPI uses: 16 bits each, or 32 over status and enable.
    fn write(&self, offset: u64, data: &[u8]) {
        if (GPE0_STATUS..GPE0_END).contains(&offset) {
            return self.write_gpe(offset, data);
        }
        let (low, high) = match *data {
            [a, b] => (u16::from_le_bytes([a, b]), None),
            [a, b, c, d] => (u16::from_le_bytes([a, b]), Some(u16::from_le_bytes([c, d]))),
            _ => return,
        };
        match offset {
            PM1_STATUS => {
                let mut registers = self.registers();
                registers.status &= !(low & STATUS_BITS);
                if let Some(enable) = high {
                    registers.enable = enable & ENABLE_BITS;
                }
                self.update_line(&mut registers);
            }
            PM1_ENABLE => {
                let mut registers = self.registers();
                registers.enable = low & ENABLE_BITS;
                self.update_line(&mut registers);
            }
            PM1_CONTROL => self.write_control(low),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Default)]
    struct Level(AtomicBool);

    impl IrqLine for Level {
        fn pulse(&self) -> io::Result<()> {
            Ok(())
        }
        fn set_level(&self, high: bool) -> io::Result<()> {
            self.0.store(high, Ordering::Relaxed);
            Ok(())
        }
    }

    fn block() -> (PowerManagement, Arc<Level>, Arc<Outcome>) {
        let (line, outcome) = (Arc::new(Level::default()), Arc::new(Outcome::default()));
        (PowerManagement::new(line.clone(), outcome.clone()), line, outcome)
    }

    fn read16(pm: &PowerManagement, offset: u64) -> u16 {
        let mut data = [0; 2];
        pm.read(offset, &mut data);
        u16::from_le_bytes(data)
    }

    #[test]
    fn the_button_interrupts_once_enabled_until_it_is_acknowledged() {
        let (pm, line, _) = block();
        pm.press_power_button();
        assert!(!line.0.load(Ordering::Relaxed), "the guest has not asked for it");
        pm.write(PM1_ENABLE, &POWER_BUTTON.to_le_bytes());
        assert!(line.0.load(Ordering::Relaxed), "a press before that is not lost");
        assert_eq!(read16(&pm, PM1_STATUS), POWER_BUTTON);
        assert_eq!(read16(&pm, PM1_ENABLE), POWER_BUTTON);
        pm.write(PM1_STATUS, &POWER_BUTTON.to_le_bytes());
        assert!(!line.0.load(Ordering::Relaxed));
        assert_eq!(read16(&pm, PM1_STATUS), 0);
        pm.press_power_button();
        assert!(line.0.load(Ordering::Relaxed), "it works a second time");
    }

    #[test]
    fn the_alarm_interrupts_only_a_guest_that_wants_to_be_woken() {
        let (pm, line, _) = block();
        pm.rtc_alarm();
        assert_eq!(read16(&pm, PM1_STATUS), RTC_ALARM);
        assert!(!line.0.load(Ordering::Relaxed));
        pm.write(PM1_STATUS, &RTC_ALARM.to_le_bytes());
        pm.write(PM1_ENABLE, &RTC_ALARM.to_le_bytes());
        assert!(!line.0.load(Ordering::Relaxed), "the alarm of before is acknowledged");
        pm.rtc_alarm();
        assert!(line.0.load(Ordering::Relaxed));
        pm.write(PM1_STATUS, &RTC_ALARM.to_le_bytes());
        assert!(!line.0.load(Ordering::Relaxed));
    }

    #[test]
    fn a_hotplug_event_interrupts_once_enabled_until_it_is_acknowledged() {
        let (pm, line, _) = block();
        pm.raise_hotplug();
        assert!(!line.0.load(Ordering::Relaxed), "the guest has not enabled it");
        pm.write(GPE0_ENABLE, &[0xff]);
        assert!(line.0.load(Ordering::Relaxed));
        assert_eq!((read16(&pm, GPE0_STATUS), read16(&pm, GPE0_ENABLE)), (2, 2), "there is no other event");
        pm.write(PM1_STATUS, &u16::MAX.to_le_bytes());
        assert!(line.0.load(Ordering::Relaxed), "PM1 is another register");
        pm.write(GPE0_STATUS, &[2]);
        assert!(!line.0.load(Ordering::Relaxed));
        pm.raise_hotplug();
        let saved = pm.save().unwrap();
        let (loaded, line, _) = block();
        loaded.load(saved).unwrap();
        assert!(line.0.load(Ordering::Relaxed), "an event that is pending is saved");
        loaded.write(GPE0_ENABLE, &[0; 8]);
        assert!(!line.0.load(Ordering::Relaxed));
    }

    #[test]
    fn only_soft_off_powers_off() {
        let (pm, _, outcome) = block();
        pm.write(PM1_CONTROL, &(SLEEP_ENABLE | 1 << 10).to_le_bytes());
        pm.write(PM1_CONTROL, &0_u16.to_le_bytes());
        pm.write(PM1_CONTROL, &[0x20]);
        assert!(!outcome.is_over());
        assert_eq!(read16(&pm, PM1_CONTROL) & SCI_ENABLE, SCI_ENABLE);
        pm.write(PM1_CONTROL, &SLEEP_ENABLE.to_le_bytes());
        assert!(matches!(outcome.wait(), Exit::PowerOff));
    }

    #[test]
    fn the_timer_runs() {
        let (pm, ..) = block();
        let first = pm.timer();
        while pm.timer() == first {}
        let mut data = [0; 4];
        pm.read(PM_TIMER, &mut data);
        assert!(u32::from_le_bytes(data) > first);
    }

    #[test]
    fn every_width_at_every_offset_is_answered() {
        let (pm, _, outcome) = block();
        for offset in 0..0x80 {
            for len in 1..=8 {
                let mut data = vec![0xaa; len];
                pm.read(offset, &mut data);
                if offset != PM1_CONTROL {
                    pm.write(offset, &data);
                }
            }
        }
        assert!(!outcome.is_over());
    }
}
