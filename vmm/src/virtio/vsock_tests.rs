use std::sync::{Condvar, Mutex};

use super::super::GuestMemory;
use super::super::testing::{BUFFERS, EVENT_IDX, Guest, VERSION_1};
use super::*;
use crate::pci::Function as _;
use crate::sys::vhost::{Ring, RingFds};

const EVENT: usize = 2;

/// What the host's kernel was asked for, and what it would answer.
#[derive(Default)]
struct Requests {
    served: bool,
    features: u64,
    /// Where each ring began, the last time.
    begun: [u16; 2],
    /// How far each has come.
    positions: [u16; 2],
    calls: usize,
}

#[derive(Clone, Default)]
struct Fake(Arc<(Mutex<Requests>, Condvar)>);

impl Fake {
    fn change(&self, change: impl FnOnce(&mut Requests)) -> io::Result<()> {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        Ok(())
    }

    /// Waits until the kernel serves the rings, or no longer.
    fn wait(&self, served: bool) -> [u16; 2] {
        let requests = self.0.0.lock().unwrap();
        self.0.1.wait_while(requests, |requests| requests.served != served).unwrap().begun
    }
}

impl HostRings for Fake {
    fn features(&self, wanted: u64) -> u64 {
        (RING_FEATURES | SEQPACKET) & wanted
    }

    fn set_features(&self, features: u64) -> io::Result<()> {
        self.change(|requests| requests.features = features)
    }

    fn set_memory(&self, memory: &GuestMemory) -> io::Result<()> {
        let _ = memory;
        Ok(())
    }

    fn set_ring(&self, index: u32, ring: Ring, fds: &RingFds<'_>) -> io::Result<()> {
        assert!([fds.kick, fds.call, fds.error].iter().all(|fd| fd.as_raw_fd() >= 0));
        self.change(|requests| requests.begun[usize::try_from(index).unwrap()] = ring.position)
    }

    fn position(&self, index: u32) -> io::Result<u16> {
        Ok(self.0.0.lock().unwrap().positions[usize::try_from(index).unwrap()])
    }
}

impl Backend<Fake> for Kernel {
    fn serve(&self, vhost: &Fake) -> io::Result<()> {
        vhost.change(|requests| {
            requests.served = true;
            requests.calls += 1;
        })
    }

    fn release(&self, vhost: &Fake) -> io::Result<()> {
        vhost.change(|requests| requests.served = false)
    }
}

struct Faked(Sockets<Fake>);

impl Device for Faked {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![Box::new(self.0)]
    }
}

fn guest() -> (Guest, Fake) {
    let fake = Fake::default();
    let sockets = Sockets::new(fake.clone(), 0x1_0203).unwrap();
    (Guest::new(Box::new(Faked(sockets))), fake)
}

#[test]
fn the_driver_reads_its_context_id() {
    let (guest, _fake) = guest();
    assert_eq!(guest.read(0x2000), 0x1_0203_u64.to_le_bytes());
    guest.write(0x2000, &[9; 8]);
    assert_eq!(guest.read(0x2000), 0x1_0203_u64.to_le_bytes());
    assert_eq!(guest.offered() & SEQPACKET, SEQPACKET);
}

#[test]
fn the_kernel_serves_both_rings_while_the_device_may() {
    let (mut guest, fake) = guest();
    guest.start(VERSION_1 | EVENT_IDX | SEQPACKET, 8);
    assert_eq!(fake.wait(true), [0, 0]);
    assert_eq!(fake.0.0.lock().unwrap().features, VERSION_1 | EVENT_IDX | SEQPACKET);

    // A pause takes the positions over, and they are where the kernel goes on.
    fake.change(|requests| requests.positions = [5, 7]).unwrap();
    assert!(guest.device.pause());
    fake.wait(false);
    guest.device.resume();
    assert_eq!(fake.wait(true), [5, 7]);

    // Without bus mastering nothing is moved.
    fake.change(|requests| requests.positions = [6, 8]).unwrap();
    guest.write_config(4, &[2, 0]);
    fake.wait(false);
    guest.write_config(4, &[6, 0]);
    assert_eq!(fake.wait(true), [6, 8]);

    guest.reset();
    fake.wait(false);
    guest.start(VERSION_1, 8);
    assert_eq!(fake.wait(true), [0, 0], "the next driver begins with new rings");
    assert_eq!(fake.0.0.lock().unwrap().calls, 4);
}

#[test]
fn the_event_queue_keeps_its_buffers() {
    let (mut guest, fake) = guest();
    guest.start(VERSION_1, 8);
    guest.add(EVENT, &[(BUFFERS, 4, true)]);
    guest.kick(EVENT);
    fake.wait(true);
    assert!(guest.device.pause());
    assert_eq!(guest.answers(EVENT), []);
}

#[test]
fn it_is_not_saved() {
    use crate::state::AnySection as _;
    let (guest, _fake) = guest();
    assert!(guest.device.encode().is_err());
}

#[test]
fn a_file_that_is_no_vhost_is_an_error() {
    let device = std::fs::File::open("/dev/null").unwrap().into();
    assert!(Vsock::new(&VsockConfig::new(device, 3).unwrap()).is_err());
}
