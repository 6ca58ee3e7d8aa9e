use vm_memory::Bytes;

use super::super::testing::{BUFFERS, Guest, VERSION_1};
use super::*;

const FEATURES: u64 = VERSION_1 | STATS_VQ | PAGE_REPORTING;
/// Free pages, beyond rings and buffers.
const FREE: u64 = BUFFERS + 0x10_0000;

fn guest(features: u64) -> (Guest, Balloon) {
    let balloon = Balloon::default();
    let mut guest = Guest::new(Box::new(BalloonDevice::new(&balloon).unwrap()));
    guest.start(features, 16);
    (guest, balloon)
}

fn report(guest: &mut Guest, values: &[(u16, u64)]) {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|(tag, value)| tag.to_le_bytes().into_iter().chain(value.to_le_bytes()))
        .collect();
    guest.memory.write_slice(&bytes, GuestAddress(BUFFERS)).unwrap();
    guest.add(STATISTICS, &[(BUFFERS, u32::try_from(bytes.len()).unwrap(), false)]);
    guest.kick(STATISTICS);
}

fn reported(balloon: &Balloon, count: u64) -> MemoryStatistics {
    loop {
        if let (reports, Some(statistics)) = balloon.reported()
            && reports >= count
        {
            return statistics;
        }
        std::thread::yield_now();
    }
}

/// Whether pages have their content, and then none.
fn content(guest: &Guest, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; 0x2000];
    guest.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
    bytes
}

#[test]
fn statistics_come_on_request() {
    let (mut guest, balloon) = guest(FEATURES);
    report(&mut guest, &[(4, 5000), (5, 9000), (0, UNKNOWN), (700, 1)]);
    let expected = MemoryStatistics { free: Some(5000), total: Some(9000), ..MemoryStatistics::default() };
    assert_eq!(reported(&balloon, 1), expected);
    assert!(guest.answers(STATISTICS).is_empty(), "the buffer is kept until a report is requested");
    balloon.request();
    guest.wait(STATISTICS, 1);
    report(&mut guest, &[(6, 7)]);
    assert_eq!(reported(&balloon, 2).available, Some(7));
    guest.reset();
    assert_eq!(balloon.reported(), (2, None), "the driver is gone");
}

#[test]
fn a_driver_with_two_reports_gets_the_first_back() {
    let (mut guest, balloon) = guest(FEATURES);
    report(&mut guest, &[(4, 1)]);
    reported(&balloon, 1);
    report(&mut guest, &[(4, 2)]);
    assert_eq!(guest.wait(STATISTICS, 1), [(0, 0)]);
    assert_eq!(reported(&balloon, 2).free, Some(2));
}

#[test]
fn free_pages_are_the_hosts() {
    let (mut guest, _balloon) = guest(FEATURES);
    guest.memory.write_slice(&[7; 0x6000], GuestAddress(FREE)).unwrap();
    // Whole pages alone: what is beside them on a page stays.
    guest.add(REPORTING, &[(FREE + 0x1000, 0x1000, true), (FREE + 0x2800, 0x1800, true)]);
    guest.kick(REPORTING);
    guest.wait(REPORTING, 1);
    assert_eq!(content(&guest, FREE), [[7; 0x1000], [0; 0x1000]].concat());
    assert_eq!(content(&guest, FREE + 0x2000), [[7; 0x1000], [0; 0x1000]].concat());
    assert_eq!(content(&guest, FREE + 0x4000), [7; 0x2000]);
}

#[test]
fn free_pages_are_reported_unless_they_are_to_be_kept() {
    for reports in [true, false] {
        let info = BalloonDevice::new(&Balloon::new(!reports)).unwrap().info();
        let has = |feature: u64| info.features & feature != 0;
        assert_eq!((has(PAGE_REPORTING), has(PAGE_POISON), has(STATS_VQ)), (reports, reports, true));
        assert_eq!(info.queues.len(), if reports { 4 } else { 3 });
    }
}

#[test]
fn pages_in_the_balloon_are_the_hosts() {
    let (mut guest, balloon) = guest(FEATURES);
    guest.memory.write_slice(&[7; 0x6000], GuestAddress(FREE)).unwrap();
    let first = u32::try_from(FREE / BALLOON_PAGE).unwrap();
    // Neighbours, one beyond RAM, the largest, and one alone.
    let numbers = [first, first + 1, 0xffff_ff00, u32::MAX, first + 4];
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    guest.memory.write_slice(&bytes, GuestAddress(BUFFERS)).unwrap();
    guest.add(INFLATE, &[(BUFFERS, u32::try_from(bytes.len()).unwrap(), false)]);
    guest.kick(INFLATE);
    guest.wait(INFLATE, 1);
    assert_eq!(content(&guest, FREE), [0; 0x2000]);
    assert_eq!(content(&guest, FREE + 0x2000), [7; 0x2000]);
    assert_eq!(content(&guest, FREE + 0x4000), [[0; 0x1000], [7; 0x1000]].concat());
    guest.write(0x2000 + ACTUAL as u64, &3_u32.to_le_bytes());
    assert_eq!(balloon.inflated(), 3 * BALLOON_PAGE);
    guest.add(DEFLATE, &[(BUFFERS, 4, false)]);
    guest.kick(DEFLATE);
    guest.wait(DEFLATE, 1);
}

#[test]
fn free_pages_that_the_driver_fills_stay() {
    let (mut guest, _balloon) = guest(FEATURES | PAGE_POISON);
    guest.memory.write_slice(&[0xaa; 0x2000], GuestAddress(FREE)).unwrap();
    for (poison, expected) in [(0xaa, 0xaa), (0, 0)] {
        guest.write(0x2000 + POISON as u64, &u32::to_le_bytes(poison));
        guest.add(REPORTING, &[(FREE, 0x2000, true)]);
        guest.kick(REPORTING);
        guest.wait(REPORTING, 1);
        assert_eq!(content(&guest, FREE), [expected; 0x2000]);
    }
}

#[test]
fn it_is_saved_and_loaded() {
    let (mut guest, before) = guest(FEATURES | PAGE_POISON);
    guest.write(0x2000 + ACTUAL as u64, &3_u32.to_le_bytes());
    guest.write(0x2000 + POISON as u64, &9_u32.to_le_bytes());
    report(&mut guest, &[(4, 1)]);
    reported(&before, 1);
    let balloon = Balloon::default();
    let mut guest = guest.loaded_into(Box::new(BalloonDevice::new(&balloon).unwrap()));
    assert_eq!(guest.wait(STATISTICS, 1).len(), 1, "the report's buffer is given back before");
    assert_eq!(
        (guest.read(0x2000 + ACTUAL as u64), guest.read(0x2000 + POISON as u64)),
        ([3, 0, 0, 0], [9, 0, 0, 0])
    );
    assert_eq!(balloon.inflated(), 3 * BALLOON_PAGE);
    report(&mut guest, &[(4, 8)]);
    assert_eq!(reported(&balloon, 1).free, Some(8));
}
