use std::sync::Arc;

use super::encode::{self, BAND, CURSOR, MAX_WIDTH};
use super::format::PixelFormat;
use crate::display::{Area, Canvas, Cursor, Next, Suggestion};

/// Pseudo-encodings: what a viewer understands beside pixels (`rfbproto`).
const DESKTOP_SIZE: i32 = -223;
const EXTENDED_DESKTOP_SIZE: i32 = -308;
const EXTENDED_KEYS: i32 = -258;

/// Why an `ExtendedDesktopSize` rectangle is sent, and the result of the viewer's own request.
const BY_SERVER: u16 = 0;
const BY_THIS_VIEWER: u16 = 1;
const PROHIBITED: u16 = 1;
const NO_LAYOUT: u16 = 3;
/// The guest was notified, and may or may not follow.
const FORWARDED: u16 = 4;

/// Outstanding requests of a viewer. Written by its reading thread.
#[derive(Debug, Default)]
pub(super) struct ViewerRequests {
    pub(super) format: Option<PixelFormat>,
    pub(super) encodings: Option<Vec<i32>>,
    /// An update of what changed, and of this area even if it did not.
    pub(super) update: Option<Area>,
    /// The answer to its request for another size.
    pub(super) resize: Option<Suggestion>,
    /// The size it believes the display has.
    pub(super) size: (u16, u16),
    /// It is gone.
    pub(super) over: bool,
}

/// What is to be sent next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) format: Option<PixelFormat>,
    pub(super) encodings: Option<Vec<i32>>,
    /// Rectangles without pixels, whole.
    pub(super) notes: Vec<Vec<u8>>,
    /// What the pointer looks like now.
    pub(super) cursor: Option<Arc<Cursor>>,
    /// Rectangles with pixels, none of them higher than a band or wider than may be. The pixels are copied one rectangle
    /// at a time, when it is sent.
    pub(super) areas: Vec<Area>,
    /// Nothing more will come.
    pub(super) over: bool,
}

/// The viewer's encodings and the state it was sent.
#[derive(Debug, Default)]
pub(super) struct Session {
    resizes: bool,
    resizes_well: bool,
    /// What has to be confirmed once: the pseudo-encoding was named and nothing was sent yet.
    confirm_keys: bool,
    confirm_size: bool,
    /// It draws the pointer, which it was last sent as of this generation.
    cursor: bool,
    cursor_seen: u64,
    /// Size of the display that the viewer was last sent.
    drawn: (u16, u16),
}

impl Session {
    /// The part of `requests` that the canvas can satisfy, for [`crate::display::Watch::wait`].
    pub(super) fn next(&mut self, canvas: &Canvas, seen: u64, requests: &mut ViewerRequests) -> Next<Step> {
        let mut step = Step { over: requests.over, ..Step::default() };
        if step.over {
            return Next::Done { seen, value: step };
        }
        let Some(also) = requests.update else { return Next::Alarm };
        if let Some(encodings) = &requests.encodings {
            self.learn(encodings);
        }
        let size = (canvas.width(), canvas.height());
        let moved = size != requests.size && self.resizes;
        step.notes = self.notes(size, moved, requests.resize);
        if step.notes.is_empty() {
            step.areas = self.pixels(canvas, seen, also, requests.size);
            step.cursor = canvas.cursor_since(self.cursor_seen).filter(|_| self.cursor).cloned();
        }
        if step.notes.is_empty() && step.areas.is_empty() && step.cursor.is_none() {
            return Next::Changed;
        }
        step.format = requests.format.take();
        step.encodings = requests.encodings.take();
        requests.update = None;
        if step.notes.is_empty() {
            self.cursor_seen = canvas.generation();
            return Next::Done { seen: canvas.generation(), value: step };
        }
        (self.confirm_keys, self.confirm_size, requests.resize) = (false, false, None);
        if self.resizes {
            requests.size = size;
        }
        // A viewer whose display has a new size begins with nothing on it.
        Next::Done { seen: if moved { 0 } else { seen }, value: step }
    }

    fn learn(&mut self, encodings: &[i32]) {
        let (well, keys) = (encodings.contains(&EXTENDED_DESKTOP_SIZE), encodings.contains(&EXTENDED_KEYS));
        self.confirm_size |= well && !self.resizes_well;
        self.confirm_keys |= keys;
        let cursor = encodings.contains(&CURSOR);
        if cursor && !self.cursor {
            self.cursor_seen = 0;
        }
        self.cursor = cursor;
        self.resizes_well = well;
        self.resizes = well || encodings.contains(&DESKTOP_SIZE);
    }

    fn notes(&self, size: (u16, u16), moved: bool, resize: Option<Suggestion>) -> Vec<Vec<u8>> {
        let mut notes = Vec::new();
        if self.confirm_keys {
            notes.push(rectangle((0, 0), (0, 0), EXTENDED_KEYS));
        }
        if let Some(asked) = resize.filter(|_| self.resizes_well) {
            let status = match asked {
                Suggestion::Taken => FORWARDED,
                Suggestion::NotMine => PROHIBITED,
                Suggestion::Impossible => NO_LAYOUT,
            };
            notes.push(extended_size((BY_THIS_VIEWER, status), size));
        } else if self.confirm_size || (moved && self.resizes_well) {
            notes.push(extended_size((BY_SERVER, 0), size));
        } else if moved {
            notes.push(rectangle((0, 0), size, DESKTOP_SIZE));
        }
        notes
    }

    /// A viewer that cannot follow a change of size keeps its own: it sees what fits, on black.
    fn pixels(&mut self, canvas: &Canvas, seen: u64, also: Area, size: (u16, u16)) -> Vec<Area> {
        let whole = Area::sized(size.0, size.1);
        let drawn = (canvas.width(), canvas.height());
        let areas = if std::mem::replace(&mut self.drawn, drawn) == drawn {
            canvas.changes(seen, also)
        } else {
            vec![whole]
        };
        areas.into_iter().flat_map(|area| bands(area.and(whole))).collect()
    }
}

/// `area` in pieces that are encoded one at a time.
fn bands(area: Area) -> impl Iterator<Item = Area> {
    let end = area.y.saturating_add(area.height);
    let right = area.x.saturating_add(area.width);
    (area.y..end).step_by(usize::from(BAND)).flat_map(move |y| {
        let lefts = (area.x..right).step_by(usize::from(MAX_WIDTH));
        lefts.map(move |x| Area { x, y, width: (right - x).min(MAX_WIDTH), height: (end - y).min(BAND) })
    })
}

/// The header of a rectangle, which is all of most pseudo-rectangles.
fn rectangle(at: (u16, u16), size: (u16, u16), encoding: i32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(12);
    encode::header(&mut bytes, Area { x: at.0, y: at.1, width: size.0, height: size.1 }, encoding);
    bytes
}

/// One screen of that size (ExtendedDesktopSize).
fn extended_size(why: (u16, u16), size: (u16, u16)) -> Vec<u8> {
    let mut bytes = rectangle(why, size, EXTENDED_DESKTOP_SIZE);
    bytes.extend([1, 0, 0, 0]);
    bytes.extend([0; 4]);
    for value in [0, 0, size.0, size.1] {
        bytes.extend(value.to_be_bytes());
    }
    bytes.extend([0; 4]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(size: (u16, u16)) -> ViewerRequests {
        ViewerRequests { update: Some(Area::default()), size, ..ViewerRequests::default() }
    }

    fn canvas(width: u16, height: u16) -> Canvas {
        let mut canvas = Canvas::default();
        canvas.resize(width, height);
        canvas
    }

    fn done(next: Next<Step>) -> (u64, Step) {
        match next {
            Next::Done { seen, value } => (seen, value),
            Next::Changed => panic!("waits for a change"),
            Next::Alarm => panic!("waits for the alarm"),
        }
    }

    #[test]
    fn nothing_is_sent_that_was_not_asked_for() {
        let (mut session, mut requests) = (Session::default(), requests((100, 50)));
        let canvas = canvas(100, 50);
        requests.update = None;
        assert!(matches!(session.next(&canvas, 0, &mut requests), Next::Alarm));
        requests.update = Some(Area::default());
        let (seen, step) = done(session.next(&canvas, 0, &mut requests));
        assert_eq!(step.areas, [Area::sized(100, 50)]);
        assert!(
            matches!(session.next(&canvas, seen, &mut requests), Next::Alarm),
            "one answer to one request"
        );
        requests.update = Some(Area::default());
        assert!(matches!(session.next(&canvas, seen, &mut requests), Next::Changed));
        requests.update = Some(Area::sized(1, 1));
        let (_, step) = done(session.next(&canvas, seen, &mut requests));
        assert_eq!(step.areas, [Area::sized(64, 16)]);
    }

    #[test]
    fn pixels_come_in_bands() {
        let (_, step) = done(Session::default().next(&canvas(10, 150), 0, &mut requests((10, 150))));
        let lines: Vec<_> = step.areas.iter().map(|area| (area.y, area.height)).collect();
        assert_eq!(lines, [(0, 64), (64, 64), (128, 22)]);
        assert!(step.areas.iter().all(|area| (area.x, area.width) == (0, 10)));
    }

    #[test]
    fn rectangles_are_no_wider_than_tight_allows() {
        let (_, step) = done(Session::default().next(&canvas(5000, 64), 0, &mut requests((5000, 64))));
        let columns: Vec<_> = step.areas.iter().map(|area| (area.x, area.width)).collect();
        assert_eq!(columns, [(0, 2048), (2048, 2048), (4096, 904)]);
    }

    #[test]
    fn a_cursor_is_sent_once_to_who_draws_it() {
        let mut canvas = canvas(64, 16);
        canvas.begin();
        canvas.set_cursor(Some(&Arc::new(Cursor::default())));
        for (encodings, sent) in [(vec![0], false), (vec![CURSOR], true)] {
            let (mut session, mut requests) = (Session::default(), requests((64, 16)));
            requests.encodings = Some(encodings);
            let (seen, step) = done(session.next(&canvas, 0, &mut requests));
            assert_eq!((step.cursor.is_some(), step.areas.len()), (sent, 1));
            requests.update = Some(Area::default());
            assert!(matches!(session.next(&canvas, seen, &mut requests), Next::Changed));
        }
    }

    #[test]
    fn a_viewer_that_follows_gets_the_size_and_then_sent_everything() {
        for (encoding, len) in [(DESKTOP_SIZE, 12), (EXTENDED_DESKTOP_SIZE, 12 + 4 + 16)] {
            let (mut session, mut requests) = (Session::default(), requests((640, 480)));
            let canvas = canvas(100, 50);
            requests.encodings = Some(vec![encoding]);
            let (seen, step) = done(session.next(&canvas, 9, &mut requests));
            assert_eq!((seen, step.notes.len(), step.areas.len()), (0, 1, 0));
            assert_eq!(step.notes[0].len(), len);
            assert_eq!(step.notes[0][..12], rectangle((0, 0), (100, 50), encoding));
            assert_eq!(requests.size, (100, 50));
            requests.update = Some(Area::default());
            let (_, step) = done(session.next(&canvas, seen, &mut requests));
            assert_eq!(step.areas, [Area::sized(100, 50)]);
        }
    }

    #[test]
    fn a_viewer_that_does_not_follow_keeps_its_size() {
        let (mut session, mut requests) = (Session::default(), requests((64, 32)));
        let (_, step) = done(session.next(&canvas(100, 10), 0, &mut requests));
        assert_eq!(step.areas, [Area::sized(64, 32)]);
        assert!(step.notes.is_empty());
        assert_eq!(requests.size, (64, 32));
    }

    #[test]
    fn what_a_viewer_names_is_confirmed_once() {
        let (mut session, mut requests) = (Session::default(), requests((100, 50)));
        let canvas = canvas(100, 50);
        requests.encodings = Some(vec![16, EXTENDED_KEYS, EXTENDED_DESKTOP_SIZE]);
        let (seen, step) = done(session.next(&canvas, 5, &mut requests));
        assert_eq!((seen, step.notes.len()), (5, 2));
        assert_eq!(step.encodings, Some(vec![16, EXTENDED_KEYS, EXTENDED_DESKTOP_SIZE]));
        requests.update = Some(Area::default());
        assert!(done(session.next(&canvas, 0, &mut requests)).1.notes.is_empty());
    }

    #[test]
    fn a_wish_for_a_size_is_answered() {
        for (asked, status) in [
            (Suggestion::NotMine, PROHIBITED),
            (Suggestion::Taken, FORWARDED),
            (Suggestion::Impossible, NO_LAYOUT),
        ] {
            let (mut session, mut requests) = (Session::default(), requests((100, 50)));
            requests.encodings = Some(vec![EXTENDED_DESKTOP_SIZE]);
            requests.resize = Some(asked);
            let (_, step) = done(session.next(&canvas(100, 50), 1, &mut requests));
            assert_eq!(step.notes, [extended_size((BY_THIS_VIEWER, status), (100, 50))]);
            assert_eq!(requests.resize, None);
        }
    }

    #[test]
    fn who_is_gone_is_sent_nothing() {
        let mut requests = ViewerRequests { over: true, ..requests((100, 50)) };
        let (_, step) = done(Session::default().next(&canvas(100, 50), 0, &mut requests));
        assert!(step.over && step.areas.is_empty());
    }
}
