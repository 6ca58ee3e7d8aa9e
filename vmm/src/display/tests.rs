use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

/// One colour over a small display.
#[derive(Default)]
struct Wall {
    colour: AtomicU32,
    asked: AtomicUsize,
}

impl Source for Wall {
    fn refresh(&self, canvas: &mut Canvas, _whole: bool) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        canvas.resize(100, 50);
        let row = [self.colour.load(Ordering::Relaxed); 100];
        (0..50).for_each(|y| canvas.put(0, y, &row));
    }
}

fn wall() -> (Display, Arc<Wall>) {
    let display = Display::default();
    let wall = Arc::new(Wall::default());
    display.attach(&(wall.clone() as Arc<dyn Source>));
    (display, wall)
}

fn colour(watch: &mut Watch) -> u32 {
    watch.wait(|canvas, seen| {
        if canvas.width() == 100 && canvas.changed_since(seen) {
            return Next::Done { seen: canvas.generation(), value: canvas.copy(Area::sized(1, 1))[0] };
        }
        Next::Changed
    })
}

#[test]
fn a_display_without_viewers_is_not_refreshed() {
    let (display, wall) = wall();
    display.key(Key::PAUSE, true);
    assert_eq!(wall.asked.load(Ordering::Relaxed), 0);
    wall.colour.store(7, Ordering::Relaxed);
    assert_eq!(display.picture().pixels, vec![7; 5000]);
    assert_eq!(wall.asked.load(Ordering::Relaxed), 1);
    assert!(lock(&display.0.state).canvas.is_none(), "the frame took its canvas with it");
}

#[test]
fn every_viewer_sees_a_change_once() {
    let (display, wall) = wall();
    let (mut one, mut other) = (display.watch(), display.watch());
    assert_eq!((colour(&mut one), colour(&mut other)), (0, 0));
    wall.colour.store(9, Ordering::Relaxed);
    let (done, first) = mpsc::channel();
    std::thread::scope(|scope| {
        for mut watch in [one, other] {
            let done = done.clone();
            scope.spawn(move || done.send(colour(&mut watch)).unwrap());
        }
        assert_eq!((first.recv(), first.recv()), (Ok(9), Ok(9)));
    });
}

#[test]
fn a_viewer_that_wants_nothing_sleeps_until_the_alarm() {
    let (display, wall) = wall();
    let mut watch = display.watch();
    let (report, reported) = mpsc::channel();
    let wanted = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let asked = wanted.clone();
        scope.spawn(move || {
            watch.wait(|_, seen| {
                report.send(()).unwrap();
                match asked.load(Ordering::Relaxed) {
                    0 => Next::Alarm,
                    _ => Next::Done { seen, value: () },
                }
            });
        });
        reported.recv().unwrap();
        assert_eq!(wall.asked.load(Ordering::Relaxed), 0);
        wanted.store(1, Ordering::Relaxed);
        Watch::alarm(&display);
    });
    assert_eq!(wall.asked.load(Ordering::Relaxed), 0);
}

#[test]
fn the_last_picture_of_a_source_stays_until_the_next_source_draws() {
    let (display, wall) = wall();
    let mut watch = display.watch();
    wall.colour.store(3, Ordering::Relaxed);
    assert_eq!(colour(&mut watch), 3);
    drop(wall);
    assert_eq!(display.picture().pixels[0], 3);
    let next = Arc::new(Wall { colour: AtomicU32::new(4), ..Wall::default() });
    display.attach(&(next.clone() as Arc<dyn Source>));
    assert_eq!(colour(&mut watch), 4);
}

#[test]
fn an_idle_display_is_refreshed_less_often() {
    let (display, _wall) = wall();
    let _watch = display.watch();
    let mut state = lock(&display.0.state);
    let pauses: Vec<_> = (0..6)
        .map(|_| {
            state.refresh();
            state.pause
        })
        .collect();
    assert_eq!(pauses[0], LIVELY);
    assert!(pauses.is_sorted());
    assert_eq!(pauses[5], IDLE);
    drop(state);
    display.key(Key::PAUSE, true);
    assert_eq!(lock(&display.0.state).pause, LIVELY);
}
