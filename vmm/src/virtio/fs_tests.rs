use std::time::{Duration, Instant};

use vm_memory::{Bytes as _, GuestAddress};

use super::super::testing::{BUFFERS, EVENT_IDX, Guest, MEMORY, VECTOR_DATA, VERSION_1};
use super::*;
use crate::config::MemorySize;
use crate::memory;
use crate::pci::Function as _;
use crate::sys::vhost_user::testing::{
    Answers, BackEnd, GET_VRING_BASE, MARK, RESET_DEVICE, SET_MEM_TABLE, SET_VRING_ENABLE,
};

const FIRST: usize = 0;
const REQUEST: usize = 1;
/// Long enough for an answer, and not for a test to wait for.
const SOON: Duration = Duration::from_millis(300);

fn guest(answers: Answers) -> (Guest, BackEnd) {
    let (backend, socket) = BackEnd::start(answers);
    let config =
        FilesystemConfig::connected("config", VhostUser::with_timeout(socket, QUEUES, SOON).unwrap());
    let memory = memory::create_shared(MemorySize::from_bytes(MEMORY).unwrap(), None).unwrap();
    (Guest::in_memory(Box::new(Filesystem::new(&config).unwrap()), memory), backend)
}

/// A request on a queue, its answer, and what the process has written.
fn request(guest: &mut Guest, queue: usize) {
    guest.memory.write_slice(&[0; 64], GuestAddress(BUFFERS)).unwrap();
    let head = guest.add(queue, &[(BUFFERS + 64, 40, false), (BUFFERS, 64, true)]);
    guest.kick(queue);
    assert_eq!(wait(guest, queue), [(head.into(), 64)]);
    take_interrupt(guest, queue);
    let mut bytes = [0; 64];
    guest.memory.read_slice(&mut bytes, GuestAddress(BUFFERS)).unwrap();
    assert_eq!(bytes, [MARK + u8::try_from(queue).unwrap(); 64]);
}

/// Waits for an answer. The process signals the vector's eventfd itself, of which only KVM learns.
fn wait(guest: &mut Guest, queue: usize) -> Vec<(u32, u32)> {
    let begin = Instant::now();
    loop {
        let answers = guest.answers(queue);
        if !answers.is_empty() {
            return answers;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "no answer");
        std::thread::yield_now();
    }
}

/// Waits until the eventfd of the queue's vector was signalled, which is looked at when the vector is unmasked.
fn take_interrupt(guest: &Guest, queue: usize) {
    let (entry, data) =
        (0x400c + 16 * u64::try_from(queue).unwrap(), VECTOR_DATA + u32::try_from(queue).unwrap());
    let begin = Instant::now();
    while !guest.router.delivered().iter().any(|message| message.1 == data) {
        assert!(begin.elapsed() < Duration::from_secs(20), "no interrupt");
        [1_u32, 0].into_iter().for_each(|masked| guest.write(entry, &masked.to_le_bytes()));
    }
    guest.router.take(data);
}

/// Waits until the process has had so many of a request.
fn wait_for(backend: &BackEnd, request: u32, count: usize) {
    let begin = Instant::now();
    while backend.count(request) < count {
        assert!(begin.elapsed() < Duration::from_secs(20), "request {request} does not come");
        std::thread::yield_now();
    }
    assert_eq!(backend.count(request), count);
}

#[test]
fn the_driver_reads_its_tag_and_the_number_of_queues() {
    let (guest, _backend) = guest(Answers::default());
    let mut config = [0; 40];
    config[..6].copy_from_slice(b"config");
    config[36] = 1;
    assert_eq!(guest.read::<40>(0x2000), config);
    guest.write(0x2000, &[9; 8]);
    assert_eq!(guest.read::<40>(0x2000), config);
    assert_eq!(guest.read_config32(0) >> 16, 0x105a);
}

#[test]
fn another_process_answers_on_every_queue() {
    let (mut guest, backend) = guest(Answers::default());
    guest.start(VERSION_1 | EVENT_IDX, 8);
    // More than fit at once, so that positions go round.
    for _ in 0..20 {
        request(&mut guest, REQUEST);
        request(&mut guest, FIRST);
    }
    assert_eq!((backend.count(SET_MEM_TABLE), backend.count(SET_VRING_ENABLE)), (1, 2));
}

#[test]
fn a_pause_and_a_function_that_may_not_access_memory_take_the_rings_back() {
    let (mut guest, backend) = guest(Answers::default());
    guest.start(VERSION_1 | EVENT_IDX, 8);
    request(&mut guest, REQUEST);
    assert!(guest.device.pause());
    wait_for(&backend, GET_VRING_BASE, 2);
    guest.add(REQUEST, &[(BUFFERS, 64, true)]);
    guest.kick(REQUEST);
    assert_eq!(guest.answers(REQUEST), []);
    guest.device.resume();
    assert_eq!(wait(&mut guest, REQUEST).len(), 1);

    guest.write_config(4, &[2, 0]);
    wait_for(&backend, GET_VRING_BASE, 4);
    guest.add(REQUEST, &[(BUFFERS, 64, true)]);
    guest.kick(REQUEST);
    assert_eq!(guest.answers(REQUEST), []);
    guest.write_config(4, &[6, 0]);
    assert_eq!(wait(&mut guest, REQUEST).len(), 1);
    request(&mut guest, REQUEST);
    assert_eq!(backend.count(RESET_DEVICE), 0);
}

#[test]
fn the_next_driver_begins_with_new_rings() {
    let (mut guest, backend) = guest(Answers::default());
    for drivers in 1..4 {
        guest.start(VERSION_1, 8);
        request(&mut guest, REQUEST);
        request(&mut guest, FIRST);
        guest.reset();
        assert_eq!(backend.count(RESET_DEVICE), drivers);
    }
}

/// As firmware has it.
#[test]
fn a_driver_may_use_one_queue_alone() {
    let (mut guest, backend) = guest(Answers::default());
    guest.negotiate(VERSION_1, 8);
    guest.write(0x14, &[0]);
    while guest.status() != 0 {}
    for status in [1, 3] {
        guest.write(0x14, &[status]);
    }
    guest.accept(VERSION_1);
    guest.write(0x14, &[0xb]);
    let ring = guest.ring(REQUEST);
    guest.write(0x16, &1_u16.to_le_bytes());
    guest.write(0x18, &ring.size.to_le_bytes());
    guest.write(0x1a, &1_u16.to_le_bytes());
    guest.write(0x20, &ring.descriptors.to_le_bytes());
    guest.write(0x28, &ring.available.to_le_bytes());
    guest.write(0x30, &ring.used.to_le_bytes());
    guest.write(0x1c, &1_u16.to_le_bytes());
    guest.write(0x14, &[0xf]);
    request(&mut guest, REQUEST);
    assert_eq!(backend.count(SET_VRING_ENABLE), 1);
    guest.reset();
}

#[test]
fn a_process_that_dies_makes_the_device_ask_for_a_reset() {
    let (mut guest, mut backend) = guest(Answers::default());
    guest.start(VERSION_1, 8);
    request(&mut guest, REQUEST);
    backend.die();
    guest.wait_for_plea();
    assert!(guest.device.pause());
    guest.device.resume();
    // The next driver is told, too.
    guest.negotiate(VERSION_1, 8);
    guest.write(0x14, &[0xf]);
    guest.wait_for_plea();
    guest.reset();
}

#[test]
fn a_process_that_speaks_out_of_turn_is_not_listened_to() {
    let (mut guest, backend) = guest(Answers::default());
    guest.start(VERSION_1, 8);
    request(&mut guest, REQUEST);
    backend.speak();
    guest.wait_for_plea();
    guest.reset();
}

#[test]
fn a_process_that_misbehaves_at_the_start_makes_the_device_ask_for_a_reset() {
    for request in [SET_MEM_TABLE, SET_VRING_ENABLE] {
        let request = Some(request);
        for answers in [
            Answers { silent: request, ..Answers::default() },
            Answers { close: request, ..Answers::default() },
            Answers { wrong: request, ..Answers::default() },
            Answers { refuse: request, ..Answers::default() },
        ] {
            let (mut guest, _backend) = guest(answers);
            guest.negotiate(VERSION_1, 8);
            guest.write(0x14, &[0xf]);
            guest.wait_for_plea();
            guest.reset();
        }
    }
}

#[test]
fn a_process_that_does_not_give_a_ring_back_holds_no_pause_up() {
    let (mut guest, _backend) = guest(Answers { silent: Some(GET_VRING_BASE), ..Answers::default() });
    guest.start(VERSION_1, 8);
    request(&mut guest, REQUEST);
    let begin = Instant::now();
    assert!(guest.device.pause());
    assert!(begin.elapsed() < Duration::from_secs(5));
    guest.wait_for_plea();
    guest.reset();
}

#[test]
fn it_is_not_saved() {
    use crate::state::{AnySection as _, SectionError};
    let (guest, _backend) = guest(Answers::default());
    assert!(matches!(guest.device.encode(), Err(SectionError::Unsavable(_))));
}
