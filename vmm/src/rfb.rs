//! A display for viewers: the Remote Framebuffer protocol (RFC 6143 and the community's `rfbproto`), server side.
//!
//! Security is None: who may connect is decided by who may reach the socket. Use a unix socket, or a loopback address
//! on a host with one user.
//!
//! Viewers are hostile until proven otherwise. Each has two threads and a bounded share of memory; each message is
//! checked where it is read, and an invalid one ends only its viewer. A viewer is sent updates only on request, with
//! the display's content of that moment: a slow viewer skips frames and never holds up other viewers or the guest. All
//! of them share one copy of the screen; a viewer has the pixels of the rectangle that it is being sent, and no others.

mod compose;
mod encode;
mod format;
mod handshake;
mod message;
mod server;
mod stream;
mod tight;
mod update;
mod viewer;
mod zrle;

pub use server::{Address, ParseAddressError, Server};
pub use stream::Stream;

/// For fuzzing: with an even first byte a viewer's handshake; with an odd one its messages after it, answered
/// after each message.
#[cfg(fuzzing)]
pub(crate) fn fuzz(script: &[u8]) {
    use crate::display::{Band, Canvas, Cursor, Display, Next};

    struct Wire<'a>(&'a [u8]);
    impl std::io::Read for Wire<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buffer)
        }
    }
    impl std::io::Write for Wire<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let Some((kind, script)) = script.split_first() else { return };
    let mut wire = Wire(script);
    if kind & 1 == 0 {
        let _let_in = handshake::greet(&mut wire);
        return;
    }
    let requests = viewer::SharedRequests::default();
    let mut handler = viewer::MessageHandler::new(Display::default(), requests.clone());
    let (mut session, mut composer) = (update::Session::default(), compose::Composer::new(Band::default()));
    let (mut canvas, mut seen) = (Canvas::default(), 0);
    let mut round = 0;
    while let Ok(message) = message::read(&mut wire) {
        handler.apply(message);
        round += 1;
        // Sizes, colours and cursors come and go.
        canvas.begin();
        canvas.resize(100 + round % 3, 40);
        let row: Vec<u32> = (0..100).map(|x| (x * u32::from(round)) & 0xff_ffff).collect();
        canvas.put(0, usize::from(round % 40), &row);
        let cursor =
            Cursor { width: round % 9, height: 1, hot: (0, 0), pixels: vec![!0; usize::from(round % 9)] };
        canvas.set_cursor(Some(&std::sync::Arc::new(cursor)));
        let next = session.next(&canvas, seen, &mut viewer::lock(&requests));
        if let Next::Done { seen: now, value } = next {
            seen = now;
            let copy = |area, band: &mut Band| band.fill(&canvas, area);
            composer.send(value, copy, &mut wire).expect("a wire that takes everything");
        }
    }
}
