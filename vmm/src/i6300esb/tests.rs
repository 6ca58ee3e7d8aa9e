use super::*;
use crate::bus::Bus;
use crate::layout::ECAM_START;
use crate::memory::RamRange;
use crate::pci::Root;
use crate::pci::tests::FakePins;

const CONFIG_SPACE: u64 = ECAM_START + (1 << 15);

#[derive(Default)]
struct Power(Mutex<u32>, Condvar);

impl PowerEvents for Power {
    fn press_power_button(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }
    fn rtc_alarm(&self) {}
}

/// A driver, as Linux' is.
struct Guest {
    mmio: Arc<Bus>,
    root: Root,
    _pio: Arc<Bus>,
    device: Arc<I6300Esb>,
    outcome: Arc<Outcome>,
    power: Arc<Power>,
    bar: u64,
}

fn guest(config: &WatchdogConfig) -> Guest {
    let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
    let ram = [RamRange { start: 0, len: 16 << 20 }];
    let root = Root::new((&mmio, &pio), &ram, Arc::new(FakePins::default())).unwrap();
    let (outcome, power) = (Arc::new(Outcome::default()), Arc::new(Power::default()));
    let device = Arc::new(I6300Esb::new(config, outcome.clone(), power.clone()).unwrap());
    root.add(device.clone()).unwrap();
    root.set_running(true);
    let mut word = [0; 4];
    mmio.read(CONFIG_SPACE + 0x10, &mut word);
    mmio.write(CONFIG_SPACE + 4, &[2, 0]);
    let bar = u64::from(u32::from_le_bytes(word) & !0xf);
    Guest { mmio, root, _pio: pio, device, outcome, power, bar }
}

impl Guest {
    fn config<const N: usize>(&self, at: u16) -> [u8; N] {
        let mut data = [0xee; N];
        self.mmio.read(CONFIG_SPACE + u64::from(at), &mut data);
        data
    }

    fn set_config(&self, at: u16, data: &[u8]) {
        self.mmio.write(CONFIG_SPACE + u64::from(at), data);
    }

    fn unlock(&self) {
        self.mmio.write(self.bar + RELOAD, &[0x80, 0]);
        self.mmio.write(self.bar + RELOAD, &[0x86, 0]);
    }

    fn preload(&self, value: u32) {
        for timer in [0, 4] {
            self.unlock();
            self.mmio.write(self.bar + timer, &value.to_le_bytes());
        }
    }

    fn ping(&self) {
        self.unlock();
        self.mmio.write(self.bar + RELOAD, &[0, 1]);
    }

    fn status(&self) -> u16 {
        let mut data = [0; 2];
        self.mmio.read(self.bar + RELOAD, &mut data);
        u16::from_le_bytes(data)
    }

    fn left(&self) -> Option<Duration> {
        self.device.save().unwrap().left
    }
}

const RELOAD: u64 = registers::RELOAD;

#[test]
fn it_is_what_a_driver_looks_for() {
    let guest = guest(&WatchdogConfig::new(WatchdogAction::Reset));
    assert_eq!(guest.config(0), [0x86, 0x80, 0xab, 0x25]);
    guest.set_config(CONFIG, &[0xff, 0xff]);
    assert_eq!(guest.config(CONFIG), [0x27, 0]);
    guest.set_config(LOCK, &[0xff]);
    assert_eq!(guest.config(LOCK), [7]);
    guest.set_config(LOCK, &[0]);
    assert_eq!(guest.config(LOCK), [7], "it is locked");
    assert_eq!(guest.left(), None, "its end would lead to nothing");
    guest.set_config(CONFIG, &[3, 0]);
    assert!(guest.left().is_some());
}

#[test]
fn a_stage_that_is_over_ends_when_the_vm_runs() {
    let config = WatchdogConfig::new(WatchdogAction::Reset);
    let guest = self::guest(&config);
    guest.root.set_running(false);
    guest.preload(0);
    guest.set_config(LOCK, &[2]);
    let saved = guest.device.save().unwrap();
    assert_eq!((saved.left, guest.outcome.is_over()), (Some(Duration::ZERO), false));
    let loaded = self::guest(&config);
    loaded.root.set_running(false);
    loaded.device.load(saved).unwrap();
    assert_eq!((loaded.device.timer.state().left(), loaded.outcome.is_over()), (None, false));
    loaded.root.set_running(true);
    assert!(matches!(loaded.outcome.wait(), Exit::Reset));
    guest.root.set_running(true);
    assert!(matches!(guest.outcome.wait(), Exit::Reset));
}

#[test]
fn the_second_stage_leads_to_the_action() {
    let reset = WatchdogConfig::new(WatchdogAction::Reset);
    let guest = self::guest(&reset);
    assert_eq!(guest.status(), 0);
    guest.preload(2);
    guest.set_config(LOCK, &[2]);
    assert!(matches!(guest.outcome.wait(), Exit::Reset));
    assert_eq!(guest.config(LOCK), [0], "it is as after a reset");
    // The next boot of the guest learns of it.
    let guest = self::guest(&reset);
    assert_eq!(guest.status() & 1 << 9, 1 << 9);
    guest.mmio.write(guest.bar + RELOAD, &[0, 2]);
    assert_ne!(guest.status(), 0, "it is not unlocked");
    guest.unlock();
    guest.mmio.write(guest.bar + RELOAD, &[0, 2]);
    assert_eq!(guest.status(), 0);

    let guest = self::guest(&WatchdogConfig::new(WatchdogAction::PowerOff));
    guest.preload(0);
    guest.set_config(LOCK, &[2]);
    assert!(matches!(guest.outcome.wait(), Exit::WatchdogExpired));

    let guest = self::guest(&WatchdogConfig::new(WatchdogAction::Shutdown));
    guest.set_config(CONFIG, &[4, 0]);
    guest.preload(0xff);
    guest.set_config(LOCK, &[2]);
    let presses = guest.power.0.lock().unwrap();
    let presses = guest.power.1.wait_while(presses, |presses| *presses == 0).unwrap();
    assert_eq!(*presses, 1);
    assert!(!guest.outcome.is_over());
}

#[test]
fn a_driver_that_answers_keeps_it_quiet() {
    let guest = guest(&WatchdogConfig::new(WatchdogAction::Reset));
    guest.preload(0xf_ffff);
    guest.set_config(LOCK, &[2]);
    let first = guest.left().unwrap();
    assert!(first <= Registers::longest_stage() && first > Duration::from_secs(1000));
    while guest.left().unwrap() >= first {}
    guest.root.set_running(false);
    let low = guest.left().unwrap();
    guest.ping();
    assert!(guest.left().unwrap() > low);
    guest.set_config(LOCK, &[0]);
    assert_eq!(guest.left(), None);
    guest.ping();
    assert_eq!(guest.left(), None, "it is off");
}

#[test]
fn it_stands_still_with_the_vm() {
    let guest = guest(&WatchdogConfig::new(WatchdogAction::Reset));
    guest.root.set_running(false);
    guest.preload(1);
    guest.set_config(LOCK, &[2]);
    let left = guest.left().unwrap();
    let begin = Instant::now();
    while begin.elapsed() < 4 * left {
        assert_eq!(guest.left(), Some(left));
    }
    assert!(!guest.outcome.is_over());
    guest.root.set_running(true);
    assert!(matches!(guest.outcome.wait(), Exit::Reset));
}

#[test]
fn it_is_saved_with_the_time_that_is_left() {
    let guest = guest(&WatchdogConfig::new(WatchdogAction::Reset));
    guest.preload(0x4_0000);
    guest.set_config(CONFIG, &[3, 0]);
    guest.set_config(LOCK, &[2]);
    guest.mmio.write(guest.bar + RELOAD, &[0x80]);
    guest.root.set_running(false);
    let saved = guest.device.save().unwrap();
    assert!(saved.left.is_some());
    let other = self::guest(&WatchdogConfig::new(WatchdogAction::Reset));
    other.root.set_running(false);
    other.device.load(guest.device.save().unwrap()).unwrap();
    assert_eq!(other.device.save().unwrap(), saved);
    other.mmio.write(other.bar + RELOAD, &[0x86]);
    other.mmio.write(other.bar, &[2]);
    other.mmio.write(other.bar + RELOAD, &[0, 1]);
    assert_eq!(other.left(), saved.left, "that write was not unlocked");

    let long = WatchdogState { left: Some(Duration::from_secs(100_000)), ..guest.device.save().unwrap() };
    assert!(other.device.load(long).is_err());
    let none = WatchdogState { left: None, ..guest.device.save().unwrap() };
    assert!(other.device.load(none).is_err());
}
