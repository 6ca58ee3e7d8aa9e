use std::io::{self, BufReader, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::compose::Composer;
use super::handshake::{self, HandshakeError};
use super::message::{self, Message, MessageError};
use super::stream::Stream;
use super::update::{Session, ViewerRequests};
use crate::display::{Area, Display, InputState, Key, Pointing, Watch};

/// Time limits of a viewer for the handshake, and for reading the data it requested.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Zlib wants the most of it.
const STACK: usize = 256 << 10;

/// Why a viewer's connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum ViewerError {
    #[error("it could not be greeted")]
    Handshake(#[from] HandshakeError),
    #[error("it cannot be understood")]
    Message(#[from] MessageError),
    #[error("it could not be served")]
    Io(#[from] io::Error),
}

pub(super) type SharedRequests = Arc<Mutex<ViewerRequests>>;

pub(super) fn lock(requests: &SharedRequests) -> MutexGuard<'_, ViewerRequests> {
    requests.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves a viewer until it leaves or is to be rejected. On a thread of its own; a second one writes.
pub(super) fn serve(mut stream: Stream, display: &Display) -> Result<(), ViewerError> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(TIMEOUT)?;
    handshake::greet(&mut stream)?;
    let mut watch = display.watch();
    let size = watch.size();
    stream.write_all(&handshake::server_init(size))?;
    stream.set_read_timeout(None)?;

    let requests = Arc::new(Mutex::new(ViewerRequests { size, ..ViewerRequests::default() }));
    let composer = Composer::new(display.band());
    let mut writer = Writer { stream: stream.try_clone()?, session: Session::default(), composer };
    let theirs = requests.clone();
    let builder = std::thread::Builder::new().name("vnc-out".to_owned()).stack_size(STACK);
    let writing = builder.spawn(move || {
        if let Err(error) = writer.run(&mut watch, &theirs) {
            tracing::debug!(%error, "a viewer is sent nothing more");
        }
        // Ends the reading thread too.
        writer.stream.close();
    })?;
    let outcome = listen(&stream, display, &requests);
    lock(&requests).over = true;
    Watch::alarm(display);
    stream.close();
    if writing.join().is_err() {
        tracing::error!("a viewer's thread panicked");
    }
    outcome
}

fn listen(stream: &Stream, display: &Display, requests: &SharedRequests) -> Result<(), ViewerError> {
    let mut handler = MessageHandler::new(display.clone(), requests.clone());
    let mut reader = BufReader::with_capacity(4096, stream.try_clone()?);
    loop {
        match message::read(&mut reader) {
            Err(MessageError::Io(error)) if left(&error) => return Ok(()),
            message => handler.apply(message?),
        }
    }
}

/// Applies a viewer's message.
pub(super) struct MessageHandler {
    display: Display,
    requests: SharedRequests,
    input_state: InputState,
}

impl MessageHandler {
    pub(super) fn new(display: Display, requests: SharedRequests) -> Self {
        Self { input_state: InputState::new(display.clone()), display, requests }
    }

    pub(super) fn apply(&mut self, message: Message) {
        let requests = || lock(&self.requests);
        match message {
            Message::SetPixelFormat(format) => requests().format = Some(format),
            Message::SetEncodings(encodings) => requests().encodings = Some(encodings),
            Message::UpdateRequest { incremental, area } => {
                let area = if incremental { Area::default() } else { area };
                let mut requests = requests();
                requests.update = Some(requests.update.map_or(area, |before| before.or(area)));
                drop(requests);
                Watch::alarm(&self.display);
            }
            Message::Key { symbol, down } => self.input_state.symbol(symbol, down),
            Message::PlacedKey { symbol, code, down } => match Key::from_xt(code) {
                Some(key) => self.input_state.key(key, down),
                None => self.input_state.symbol(symbol, down),
            },
            Message::Pointer { x, y, buttons } => {
                let (width, height) = requests().size;
                let (x, y) = (x.min(width.saturating_sub(1)), y.min(height.saturating_sub(1)));
                self.input_state.point(Pointing { x, y, width, height, buttons });
            }
            Message::SetDesktopSize { width, height } => {
                let asked = self.display.suggest_size(width, height);
                requests().resize = Some(asked);
                Watch::alarm(&self.display);
            }
            Message::Nothing => {}
        }
    }
}

/// Whether this is how a viewer leaves.
fn left(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

struct Writer {
    stream: Stream,
    session: Session,
    composer: Composer,
}

impl Writer {
    fn run(&mut self, watch: &mut Watch, requests: &SharedRequests) -> io::Result<()> {
        loop {
            let session = &mut self.session;
            let step = watch.wait(|canvas, seen| session.next(canvas, seen, &mut lock(requests)));
            if step.over {
                return Ok(());
            }
            self.composer.send(step, |area, band| watch.copy(area, band), &mut self.stream)?;
        }
    }
}
