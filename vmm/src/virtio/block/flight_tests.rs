//! Requests in flight, on an engine that completes them when the test has it do so.

use std::fs::File;
use std::io::{self, Write as _};
use std::process::Command;

use proptest::prelude::*;
use proptest::sample::Index;
use vireo_vmconfig::ErrorPolicy;
use vm_memory::{Bytes, GuestAddress};

use super::super::Device as _;
use super::super::testing::{BUFFERS, Guest, VERSION_1};
use super::Block;
use crate::block;
use crate::block::engine::Engine;
use crate::block::engine::manual::Manual;
use crate::config::{Disk, DiskImage};
use crate::pci::Function as _;

const FEATURES: u64 = VERSION_1 | 1 << 9;
const COMMAND: u64 = 4;
const MEMORY: u8 = 2;
const BUS_MASTER: u8 = 4;

fn image() -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[0x5a; 64 << 10]).unwrap();
    file
}

fn guest(engine: &Manual) -> Guest {
    let disk = Disk::new(DiskImage::Raw(image()));
    let mut guest =
        Guest::new(Box::new(Block::new(&disk).unwrap().with_engines(vec![Box::new(engine.clone())])));
    guest.start(FEATURES, 64);
    guest
}

/// Asks for one sector; the head, and where the status will be.
fn read(guest: &mut Guest, sector: u64) -> (u32, GuestAddress) {
    let at = BUFFERS + sector * 0x1000;
    guest.memory.write_obj(0_u32, GuestAddress(at)).unwrap();
    guest.memory.write_obj(sector, GuestAddress(at + 8)).unwrap();
    guest.memory.write_obj(0xee_u8, GuestAddress(at + 16)).unwrap();
    let head = guest.add(0, &[(at, 16, false), (at + 0x200, 512, true), (at + 16, 1, true)]);
    guest.kick(0);
    (head.into(), GuestAddress(at + 16))
}

fn status(guest: &Guest, at: GuestAddress) -> u8 {
    guest.memory.read_obj(at).unwrap()
}

#[test]
fn requests_are_answered_in_the_order_in_which_they_are_over() {
    let engine = Manual::new();
    let mut guest = guest(&engine);
    let asked: Vec<_> = (0..3).map(|sector| read(&mut guest, sector)).collect();
    drop(engine.when(|state| state.running.len() == 3));
    for sector in [1, 0, 2_usize] {
        engine.complete(sector as u64 * 512, Ok(512));
        let (head, at) = asked[sector];
        assert_eq!(guest.wait(0, 1), [(head, 513)]);
        assert_eq!(status(&guest, at), 0);
    }
}

#[test]
fn a_request_that_did_not_do_all_is_carried_out_again() {
    let engine = Manual::new();
    let mut guest = guest(&engine);
    for moved in [Ok(100), Err(io::ErrorKind::Interrupted.into())] {
        let (_, at) = read(&mut guest, 3);
        engine.complete(3 * 512, moved);
        guest.wait(0, 1);
        assert_eq!(status(&guest, at), 0);
        let mut data = [0; 512];
        guest.memory.read_slice(&mut data, GuestAddress(BUFFERS + 3 * 0x1000 + 0x200)).unwrap();
        assert_eq!(data, [0x5a; 512], "from the file");
        guest.memory.write_slice(&[0; 512], GuestAddress(BUFFERS + 3 * 0x1000 + 0x200)).unwrap();
    }
}

#[test]
fn a_paused_disk_has_nothing_in_flight_and_begins_nothing() {
    let engine = Manual::new();
    let mut guest = guest(&engine);
    let (head, _) = read(&mut guest, 0);
    drop(engine.when(|state| state.running.len() == 1));
    let device = guest.device.clone();
    let pausing = std::thread::spawn(move || device.pause());
    // It waits for what is in flight.
    drop(engine.when(|state| state.waited > 0));
    engine.complete(0, Ok(512));
    assert!(pausing.join().unwrap());
    assert_eq!(guest.answers(0), [(head, 513)]);
    let (head, _) = read(&mut guest, 1);
    assert!(engine.when(|_| true).running.is_empty(), "it is paused");
    guest.device.resume();
    engine.complete(512, Ok(512));
    assert_eq!(guest.wait(0, 1), [(head, 513)]);
}

#[test]
fn a_reset_waits_for_what_is_in_flight() {
    let engine = Manual::new();
    let mut guest = guest(&engine);
    let (_, at) = read(&mut guest, 0);
    drop(engine.when(|state| state.running.len() == 1));
    guest.write(0x14, &[0]);
    drop(engine.when(|state| state.waited > 0));
    assert_ne!(guest.status(), 0, "the buffers are still the device's");
    engine.complete(0, Ok(512));
    guest.reset();
    assert_eq!(status(&guest, at), 0xee, "no request is answered");
    guest.start(FEATURES, 64);
    let (head, _) = read(&mut guest, 2);
    engine.complete(1024, Ok(512));
    assert_eq!(guest.wait(0, 1), [(head, 513)]);
}

/// The host answers a request late, or never. Stopping the VM waits for ten seconds.
#[test]
fn a_disk_that_hangs_does_not_keep_its_vm() {
    let engine = Manual::new();
    let mut guest = guest(&engine);
    let (_, at) = read(&mut guest, 0);
    drop(engine.when(|state| state.running.len() == 1));
    let device = guest.device.clone();
    device.stop();
    assert_eq!(status(&guest, at), 0xee);
    // Its thread, which still waits, ends with the answer, and without writing anything.
    engine.complete(0, Ok(512));
}

#[test]
fn without_bus_mastering_no_answer_is_written() {
    let engine = Manual::new();
    let mut guest = guest(&engine);
    let (head, at) = read(&mut guest, 0);
    drop(engine.when(|state| state.running.len() == 1));
    guest.write_config(COMMAND, &[MEMORY, 0]);
    engine.complete(0, Ok(512));
    // It rests with what is over, and without an answer.
    assert!(guest.device.pause());
    assert_eq!((guest.answers(0), status(&guest, at)), (vec![], 0xee));
    guest.device.resume();
    guest.write_config(COMMAND, &[MEMORY | BUS_MASTER, 0]);
    assert_eq!(guest.wait(0, 1), [(head, 513)]);
    assert_eq!(status(&guest, at), 0);
}

/// What happens to a disk.
#[derive(Clone, Debug)]
enum Step {
    /// The driver asks for a sector.
    Read,
    /// One of the reads in flight is over, and did all of it.
    Complete(Index),
    /// One was cut short, and then the others are over, from this one on.
    Fail(Index),
    /// The driver allows it to access memory, or forbids it.
    BusMaster(bool),
    /// Once nothing is in flight.
    Pause,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Read),
        3 => any::<Index>().prop_map(Step::Complete),
        1 => any::<Index>().prop_map(Step::Fail),
        2 => any::<bool>().prop_map(Step::BusMaster),
        1 => Just(Step::Pause),
    ]
}

/// A driver with what it knows of its requests: heads, sectors and where a status will be.
struct Book {
    guest: Guest,
    engine: Manual,
    is_master: bool,
    asked: u64,
    /// In the queue; the device may not look.
    queued: Vec<(u32, u64, GuestAddress)>,
    in_flight: Vec<(u32, u64, GuestAddress)>,
    /// Over, and not answered.
    over: Vec<(u32, u64, GuestAddress)>,
}

impl Book {
    fn complete(&mut self, at: usize, moved: u64) {
        let request = self.in_flight.remove(at);
        self.engine.complete(request.1 * 512, Ok(moved));
        self.over.push(request);
    }

    fn complete_all(&mut self, first: usize) {
        while !self.in_flight.is_empty() {
            self.complete(first % self.in_flight.len(), 512);
        }
    }

    /// What was answered is what was over, each once.
    fn check(&mut self) {
        if !self.is_master {
            assert_eq!(self.guest.answers(0), []);
            return;
        }
        let mut answers = self.guest.wait(0, self.over.len());
        let mut over: Vec<_> = self.over.iter().map(|(head, ..)| (*head, 513)).collect();
        answers.sort_unstable();
        over.sort_unstable();
        assert_eq!(answers, over);
        for (_, _, at) in self.over.drain(..) {
            assert_eq!(status(&self.guest, at), 0);
        }
        for (_, _, at) in self.in_flight.iter().chain(&self.queued) {
            assert_eq!(status(&self.guest, *at), 0xee);
        }
    }

    /// Waits until the device has begun all that it may.
    fn begun(&self) {
        let count = self.in_flight.len();
        drop(self.engine.when(|state| state.running.len() == count));
    }

    fn take(&mut self, step: &Step) {
        match step {
            // The descriptors of a ring.
            Step::Read if self.asked < 20 => {
                let sector = self.asked;
                self.asked += 1;
                let (head, at) = read(&mut self.guest, sector);
                let list = if self.is_master { &mut self.in_flight } else { &mut self.queued };
                list.push((head, sector, at));
                self.begun();
            }
            Step::Complete(index) if !self.in_flight.is_empty() => {
                self.complete(index.index(self.in_flight.len()), 512);
            }
            // Without bus mastering it would be carried out again later, after what is asked for meanwhile.
            Step::Fail(index) if self.is_master && !self.in_flight.is_empty() => {
                let at = index.index(self.in_flight.len());
                self.complete(at, 100);
                self.complete_all(at);
            }
            Step::BusMaster(yes) => {
                self.is_master = *yes;
                self.guest.write_config(COMMAND, &[MEMORY | if *yes { BUS_MASTER } else { 0 }, 0]);
                if *yes {
                    self.in_flight.append(&mut self.queued);
                    self.begun();
                }
            }
            Step::Pause => {
                self.complete_all(0);
                assert!(self.guest.device.pause());
                self.guest.device.resume();
            }
            Step::Read | Step::Complete(_) | Step::Fail(_) => {}
        }
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_request_is_answered_once_and_not_before_it_is_over(steps in prop::collection::vec(step(), 1..40)) {
        let engine = Manual::new();
        let guest = guest(&engine);
        let (queued, in_flight, over) = (Vec::new(), Vec::new(), Vec::new());
        let mut book = Book { guest, engine, is_master: true, asked: 0, queued, in_flight, over };
        for step in &steps {
            book.take(step);
        }
        book.take(&Step::BusMaster(true));
        book.complete_all(0);
        book.check();
    }
}

const MQ: u64 = 1 << 12;

fn block_with_queues(engine: &Manual, queues: u16) -> Box<Block> {
    let disk = Disk::new(DiskImage::Raw(image())).queues(queues);
    Box::new(Block::new(&disk).unwrap().with_engines(vec![Box::new(engine.clone())]))
}

/// Asks for one sector through a queue, without a kick; where the status will be.
fn ask(guest: &mut Guest, queue: usize, sector: u64) -> GuestAddress {
    let at = BUFFERS + sector * 0x1000;
    guest.memory.write_obj(0_u32, GuestAddress(at)).unwrap();
    guest.memory.write_obj(sector, GuestAddress(at + 8)).unwrap();
    guest.memory.write_obj(0xee_u8, GuestAddress(at + 16)).unwrap();
    guest.add(queue, &[(at, 16, false), (at + 0x200, 512, true), (at + 16, 1, true)]);
    GuestAddress(at + 16)
}

#[test]
fn each_queue_gets_the_answers_to_its_requests() {
    let engine = Manual::new();
    let mut guest = Guest::new(block_with_queues(&engine, 3));
    assert_eq!(guest.offered() & MQ, MQ);
    assert_eq!(u16::from_le_bytes(guest.read(0x2000 + 34)), 3, "num_queues");
    guest.start(FEATURES | MQ, 64);
    let asked: Vec<_> = [(0, 5), (1, 6), (2, 7), (1, 8)]
        .map(|(queue, sector)| {
            let status = ask(&mut guest, queue, sector);
            guest.kick(queue);
            (queue, sector, status)
        })
        .into();
    drop(engine.when(|state| state.running.len() == 4));
    for at in [3, 0, 2, 1_usize] {
        let (queue, sector, status) = asked[at];
        assert_eq!(self::status(&guest, status), 0xee);
        engine.complete(sector * 512, Ok(512));
        guest.wait(queue, 1);
        assert_eq!(self::status(&guest, status), 0);
    }
    assert!((0..3).all(|queue| guest.answers(queue).is_empty()));
}

/// A disk with two queues, each with a lane and an engine of its own.
fn guest_with_two_lanes(engines: &[Manual; 2]) -> Guest {
    let disk = Disk::new(DiskImage::Raw(image())).queues(2);
    let engines = engines.iter().map(|engine| Box::new(engine.clone()) as Box<dyn Engine>).collect();
    let mut guest = Guest::new(Box::new(Block::new(&disk).unwrap().with_engines(engines)));
    guest.start(FEATURES | MQ, 64);
    guest
}

#[test]
fn lanes_do_not_wait_for_each_other() {
    let engines = [Manual::new(), Manual::new()];
    let mut guest = guest_with_two_lanes(&engines);
    let slow = ask(&mut guest, 0, 1);
    guest.kick(0);
    drop(engines[0].when(|state| state.running.len() == 1));
    // Many, while that of the other lane hangs.
    for sector in 2..10 {
        let quick = ask(&mut guest, 1, sector);
        guest.kick(1);
        engines[1].complete(sector * 512, Ok(512));
        guest.wait(1, 1);
        assert_eq!(status(&guest, quick), 0);
    }
    assert_eq!(status(&guest, slow), 0xee);
    engines[0].complete(512, Ok(512));
    guest.wait(0, 1);
    assert_eq!(status(&guest, slow), 0);
}

#[test]
fn a_paused_disk_has_nothing_in_flight_in_any_lane() {
    let engines = [Manual::new(), Manual::new()];
    let mut guest = guest_with_two_lanes(&engines);
    for (queue, engine) in engines.iter().enumerate() {
        ask(&mut guest, queue, 1 + u64::try_from(queue).unwrap());
        guest.kick(queue);
        drop(engine.when(|state| state.running.len() == 1));
    }
    let device = guest.device.clone();
    let pausing = std::thread::spawn(move || device.pause());
    engines.iter().for_each(|engine| drop(engine.when(|state| state.waited > 0)));
    engines[1].complete(1024, Ok(512));
    guest.wait(1, 1);
    assert!(!pausing.is_finished(), "the other lane has a request in flight");
    engines[0].complete(512, Ok(512));
    assert!(pausing.join().unwrap());
    assert_eq!(guest.answers(0).len(), 1);
}

/// The kernel says once that it could not write something.
#[test]
fn what_one_lane_could_not_flush_is_lost_for_all() {
    let image = image();
    let disk = Disk::new(DiskImage::Raw(image)).queues(2).on_error(ErrorPolicy::Report);
    let mut first = block::open(&disk, false).unwrap();
    let mut second = block::open_beside(&disk, &first).unwrap().unwrap();
    second.backend.flush().unwrap();
    first.backend.flush_failed(&io::ErrorKind::StorageFull.into());
    let error = second.backend.flush().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(!second.backend.prepare_flush());
}

#[test]
fn an_image_with_tables_has_one_lane() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.qcow2");
    let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("4M").status();
    assert!(made.unwrap().success());
    let image = File::options().read(true).write(true).open(&path).unwrap();
    let disk = Disk::new(DiskImage::Qcow2 { image, backing: None }).queues(2);
    let first = block::open(&disk, false).unwrap();
    assert!(block::open_beside(&disk, &first).unwrap().is_none());
    assert_eq!(Box::new(Block::new(&disk).unwrap()).into_lanes().len(), 1);
}

#[test]
fn a_disk_with_one_queue_offers_no_more() {
    let engine = Manual::new();
    let guest = Guest::new(block_with_queues(&engine, 1));
    assert_eq!(guest.offered() & MQ, 0);
    assert_eq!(u16::from_le_bytes(guest.read(0x12)), 1);
    let guest = Guest::new(block_with_queues(&engine, 1000));
    assert_eq!(u16::from_le_bytes(guest.read(0x12)), crate::config::MAX_DISK_QUEUES);
}

#[test]
fn requests_that_do_not_all_fit_are_answered_in_every_queue() {
    const COUNT: usize = 3 * 64 + 1;
    let engine = Manual::new();
    let mut guest = Guest::new(block_with_queues(&engine, 4));
    guest.start(FEATURES | MQ, 256);
    for sector in 0..64 {
        ask(&mut guest, 0, sector % 32);
        ask(&mut guest, 1, 32 + sector % 32);
        ask(&mut guest, 2, 64 + sector % 32);
    }
    ask(&mut guest, 3, 100);
    (0..4).for_each(|queue| guest.kick(queue));
    // The place of each that is over is taken by another one, whichever queue that is in.
    for over in 0..COUNT {
        let state = engine.when(|state| state.running.len() == (COUNT - over).min(128));
        let (_, offset) = state.running[0];
        drop(state);
        engine.complete(offset, Ok(512));
    }
    [64, 64, 64, 1].into_iter().enumerate().for_each(|(queue, count)| drop(guest.wait(queue, count)));
}

#[test]
fn every_queue_goes_on_where_it_was() {
    let engine = Manual::new();
    let mut guest = Guest::new(block_with_queues(&engine, 2));
    guest.start(FEATURES | MQ, 64);
    for sector in 0..3 {
        let queue = usize::try_from(sector % 2).unwrap();
        ask(&mut guest, queue, sector);
        guest.kick(queue);
        engine.complete(sector * 512, Ok(512));
        guest.wait(queue, 1);
    }
    let mut guest = guest.loaded_into(block_with_queues(&engine, 2));
    for (queue, sector) in [(1, 7), (0, 8)] {
        let status = ask(&mut guest, queue, sector);
        guest.kick(queue);
        engine.complete(sector * 512, Ok(512));
        guest.wait(queue, 1);
        assert_eq!(self::status(&guest, status), 0);
    }
}
