use std::io::{self, BufReader, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::compose::Composer;
use super::handshake::{self, HandshakeError};
use super::message::{self, Message, MessageError};
use super::stream::Stream;
use super::update::{Session, Wishes};
use crate::display::{Area, Display, Key, Pointing, Typist, Watch};

/// How long a viewer may take to introduce itself, and to take what it asked for.
const PATIENCE: Duration = Duration::from_secs(30);
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

pub(super) type SharedWishes = Arc<Mutex<Wishes>>;

pub(super) fn lock(wishes: &SharedWishes) -> MutexGuard<'_, Wishes> {
    wishes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves a viewer until it leaves or is to be refused. On a thread of its own; a second one writes.
pub(super) fn serve(mut stream: Stream, display: &Display) -> Result<(), ViewerError> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(PATIENCE)?;
    handshake::greet(&mut stream)?;
    let mut watch = display.watch();
    let size = watch.size();
    stream.write_all(&handshake::server_init(size))?;
    stream.set_read_timeout(None)?;

    let wishes = Arc::new(Mutex::new(Wishes { size, ..Wishes::default() }));
    let mut writer =
        Writer { stream: stream.try_clone()?, session: Session::default(), composer: Composer::new() };
    let theirs = wishes.clone();
    let builder = std::thread::Builder::new().name("vnc-out".to_owned()).stack_size(STACK);
    let writing = builder.spawn(move || {
        if let Err(error) = writer.run(&mut watch, &theirs) {
            tracing::debug!(%error, "a viewer is sent nothing more");
        }
        // So that nobody listens to it any longer either.
        writer.stream.close();
    })?;
    let outcome = listen(&stream, display, &wishes);
    lock(&wishes).over = true;
    Watch::alarm(display);
    stream.close();
    if writing.join().is_err() {
        tracing::error!("a viewer's thread panicked");
    }
    outcome
}

fn listen(stream: &Stream, display: &Display, wishes: &SharedWishes) -> Result<(), ViewerError> {
    let mut ear = Ear::new(display.clone(), wishes.clone());
    let mut reader = BufReader::with_capacity(4096, stream.try_clone()?);
    loop {
        match message::read(&mut reader) {
            Err(MessageError::Io(error)) if left(&error) => return Ok(()),
            message => ear.hear(message?),
        }
    }
}

/// Takes to heart what a viewer says.
pub(super) struct Ear {
    display: Display,
    wishes: SharedWishes,
    typist: Typist,
}

impl Ear {
    pub(super) fn new(display: Display, wishes: SharedWishes) -> Self {
        Self { typist: Typist::new(display.clone()), display, wishes }
    }

    pub(super) fn hear(&mut self, message: Message) {
        let wishes = || lock(&self.wishes);
        match message {
            Message::SetPixelFormat(format) => wishes().format = Some(format),
            Message::SetEncodings(encodings) => wishes().encodings = Some(encodings),
            Message::UpdateRequest { incremental, area } => {
                let area = if incremental { Area::default() } else { area };
                let mut wishes = wishes();
                wishes.update = Some(wishes.update.map_or(area, |before| before.or(area)));
                drop(wishes);
                Watch::alarm(&self.display);
            }
            Message::Key { symbol, down } => self.typist.symbol(symbol, down),
            Message::PlacedKey { symbol, code, down } => match Key::from_xt(code) {
                Some(key) => self.typist.key(key, down),
                None => self.typist.symbol(symbol, down),
            },
            Message::Pointer { x, y, buttons } => {
                let (width, height) = wishes().size;
                let (x, y) = (x.min(width.saturating_sub(1)), y.min(height.saturating_sub(1)));
                self.typist.point(Pointing { x, y, width, height, buttons });
            }
            Message::SetDesktopSize { width, height } => {
                let asked = self.display.suggest_size(width, height);
                wishes().resize = Some(asked);
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
    fn run(&mut self, watch: &mut Watch, wishes: &SharedWishes) -> io::Result<()> {
        loop {
            let session = &mut self.session;
            let step = watch.wait(|canvas, seen| session.next(canvas, seen, &mut lock(wishes)));
            if step.over {
                return Ok(());
            }
            self.composer.send(step, &mut self.stream)?;
        }
    }
}
