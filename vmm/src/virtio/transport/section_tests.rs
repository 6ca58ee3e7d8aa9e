use proptest::prelude::*;

use super::super::rng::Rng;
use super::super::testing::{BUFFERS, EVENT_IDX, Guest, VERSION_1};
use crate::pci::Function as _;
use crate::state::{AnySection as _, SectionError};

fn busy() -> Guest {
    let mut guest = Guest::new(Box::new(Rng));
    guest.start(VERSION_1 | EVENT_IDX, 8);
    for _ in 0..5 {
        guest.add(0, &[(BUFFERS, 16, true)]);
        guest.kick(0);
        guest.wait(0, 1);
    }
    guest
}

#[test]
fn queues_go_on_where_they_were() {
    let mut guest = busy();
    for _ in 0..3 {
        assert!(guest.device.pause());
        guest.add(0, &[(BUFFERS, 16, true)]);
        guest.kick(0);
        guest = guest.loaded_into(Box::new(Rng));
        assert_eq!(guest.wait(0, 1).len(), 1, "what was there when it was saved is served");
        guest.add(0, &[(BUFFERS, 32, true)]);
        guest.kick(0);
        assert_eq!(guest.wait(0, 1)[0].1, 32);
        assert_eq!(guest.status(), 0xf);
    }
    guest.start(VERSION_1, 4);
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    guest.wait(0, 1);
}

#[test]
fn a_driver_that_is_not_ready_goes_on() {
    let mut guest = Guest::new(Box::new(Rng));
    guest.negotiate(VERSION_1, 8);
    let mut guest = guest.loaded_into(Box::new(Rng));
    assert_eq!(guest.status(), 0xb);
    guest.write(0x14, &[0xf]);
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    guest.wait(0, 1);
}

#[test]
fn without_messages_the_line_stays_up() {
    let mut guest = Guest::new(Box::new(Rng));
    guest.write_config(guest.msix() + 3, &[0]);
    guest.start(VERSION_1, 8);
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    guest.pins.wait(21);
    // The thread of the device may be between the pins of the line.
    assert!(guest.device.pause());
    let before = guest.pins.high();
    assert_eq!(before, [10, 21], "of both interrupt controllers");
    let guest = guest.loaded_into(Box::new(Rng));
    assert_eq!(guest.pins.high(), before);
    assert_eq!(guest.read::<1>(0x1000), [1]);
    assert!(guest.pins.high().is_empty());
}

#[test]
fn a_device_that_asked_for_a_reset_still_does() {
    let mut guest = busy();
    guest.put_available(0, 200);
    guest.kick(0);
    guest.wait_for_plea();
    let mut guest = guest.loaded_into(Box::new(Rng));
    assert_eq!(guest.status() & 0x40, 0x40);
    guest.start(VERSION_1, 8);
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    guest.wait(0, 1);
}

#[test]
fn one_that_keeps_an_answer_back_is_not_saved() {
    use super::super::{Device, DeviceInfo, Lane, Queues, RingError};
    struct Keeps;
    impl Device for Keeps {
        fn info(&self) -> DeviceInfo {
            Rng.info()
        }
        fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
            vec![self]
        }
    }
    impl Lane for Keeps {
        fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
            let _kept = queues.get(queue)?.pop()?;
            Ok(())
        }
    }
    let mut guest = Guest::new(Box::new(Keeps));
    guest.start(VERSION_1, 8);
    assert!(guest.device.pause());
    guest.device.encode().unwrap();
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.device.resume();
    // It serves its queues when it continues, and only then pauses again.
    guest.kick(0);
    let refused = || {
        assert!(guest.device.pause());
        let refused = matches!(guest.device.encode(), Err(SectionError::Unsavable(_)));
        guest.device.resume();
        refused
    };
    while !refused() {
        std::thread::yield_now();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_damaged_state_is_survived(changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..12)) {
        let guest = busy();
        prop_assert!(guest.device.pause());
        let mut state = guest.device.encode().unwrap();
        for (at, value) in changes {
            let at = at % state.len();
            state[at] = value;
        }
        let next = Guest::new(Box::new(Rng));
        if next.device.decode(&state).is_ok() {
            next.device.after_load();
            next.device.resume();
            prop_assert!(next.device.pause());
        }
    }
}
