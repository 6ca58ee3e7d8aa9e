use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use super::*;
use crate::display::{Canvas, Key, Keyboard, Leds, Source};

/// One colour over a large display.
struct Wall(AtomicU32);

const SIZE: (u16, u16) = (640, 320);

impl Source for Wall {
    fn refresh(&self, canvas: &mut Canvas, _whole: bool) {
        canvas.resize(SIZE.0, SIZE.1);
        let row = vec![self.0.load(Ordering::Relaxed); SIZE.0.into()];
        (0..SIZE.1).for_each(|y| canvas.put(0, y.into(), &row));
    }
}

struct Keys(Mutex<mpsc::Sender<(u8, bool)>>);

impl Keyboard for Keys {
    fn active(&self) -> bool {
        true
    }
    fn key(&self, key: Key, down: bool) {
        self.0.lock().unwrap().send((key.xt(), down)).unwrap();
    }
    fn leds(&self) -> Leds {
        Leds::default()
    }
}

struct Scene {
    server: Server,
    wall: Arc<Wall>,
    display: Display,
    directory: tempfile::TempDir,
}

fn scene() -> Scene {
    let directory = tempfile::tempdir().unwrap();
    let display = Display::default();
    let wall = Arc::new(Wall(AtomicU32::new(7)));
    display.attach(&(wall.clone() as Arc<dyn Source>));
    let address = Address::Unix(directory.path().join("vnc"));
    let server = Server::listen(&address, display.clone()).unwrap();
    Scene { server, wall, display, directory }
}

impl Scene {
    fn path(&self) -> PathBuf {
        self.directory.path().join("vnc")
    }

    fn viewer(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.path()).unwrap();
        stream.write_all(b"RFB 003.008\n\x01\x00").unwrap();
        let mut greeting = [0; 12 + 2 + 4];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..12], b"RFB 003.008\n");
        let mut init = [0; 24 + 5];
        stream.read_exact(&mut init).unwrap();
        assert_eq!(init[..4], [2, 128, 1, 64]);
        stream
    }
}

fn ask(stream: &mut UnixStream, incremental: u8) {
    stream.write_all(&[3, incremental, 0, 0, 0, 0, 2, 128, 1, 64]).unwrap();
}

/// Reads an update of raw pixels, and returns their number and the first one.
fn update(stream: &mut UnixStream) -> (usize, u32) {
    let mut header = [0; 4];
    stream.read_exact(&mut header).unwrap();
    let (mut total, mut first) = (0, None);
    for _ in 0..u16::from_be_bytes([header[2], header[3]]) {
        let mut header = [0; 12];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(header[8..], [0; 4]);
        let side = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let mut pixels = vec![0; side(4) * side(6) * 4];
        stream.read_exact(&mut pixels).unwrap();
        total += pixels.len() / 4;
        first.get_or_insert(u32::from_le_bytes(pixels[..4].try_into().unwrap()));
    }
    (total, first.unwrap())
}

const WHOLE: usize = 640 * 320;

/// Blocks until the server has closed the connection; what was sent and not read yet makes that a reset.
fn ended(stream: &mut UnixStream) -> bool {
    let outcome = stream.read_to_end(&mut Vec::new());
    outcome.is_ok() || outcome.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

#[test]
fn several_viewers_see_the_same_and_each_change() {
    let scene = scene();
    let mut viewers = [scene.viewer(), scene.viewer(), scene.viewer()];
    for viewer in &mut viewers {
        ask(viewer, 0);
        assert_eq!(update(viewer), (WHOLE, 7));
        ask(viewer, 1);
    }
    scene.wall.0.store(9, Ordering::Relaxed);
    for viewer in &mut viewers {
        assert_eq!(update(viewer), (WHOLE, 9));
    }
}

#[test]
fn a_stalled_viewer_delays_no_other() {
    let scene = scene();
    let (mut stuck, mut quick) = (scene.viewer(), scene.viewer());
    for _ in 0..50 {
        ask(&mut stuck, 0);
    }
    for colour in 10..40 {
        scene.wall.0.store(colour, Ordering::Relaxed);
        ask(&mut quick, 0);
        let (pixels, _) = update(&mut quick);
        assert_eq!(pixels, WHOLE);
    }
    // What it gets at last is old only as far as it was on its way already.
    assert_eq!(update(&mut stuck).0, WHOLE);
}

#[test]
fn stalled_viewers_have_a_band_of_the_screen_each() {
    const BAND: usize = 640 * 64;
    const LAST: u32 = 99;
    let scene = scene();
    let mut viewers: Vec<_> = (0..MAX_VIEWERS).map(|_| scene.viewer()).collect();
    for (viewer, colour) in viewers.iter_mut().zip(50..) {
        // Each begins with another screen, of which more is left than sockets hold.
        scene.wall.0.store(colour, Ordering::Relaxed);
        ask(viewer, 0);
        let mut header = [0; 4 + 12];
        viewer.read_exact(&mut header).unwrap();
    }
    assert_eq!(scene.display.copied(), MAX_VIEWERS * BAND);
    scene.wall.0.store(LAST, Ordering::Relaxed);
    for viewer in &mut viewers {
        let mut rest = vec![0; (WHOLE * 4) + (320 / 64 - 1) * 12];
        viewer.read_exact(&mut rest).unwrap();
    }
    // What changed after an update had begun comes with a later one, whatever was sent of it before.
    for viewer in &mut viewers {
        loop {
            ask(viewer, 1);
            let (pixels, colour) = update(viewer);
            assert_eq!(pixels, WHOLE);
            if colour == LAST {
                break;
            }
        }
    }
    assert_eq!(scene.display.copied(), MAX_VIEWERS * BAND);
    drop(viewers);
    drop(scene.server);
    while scene.display.copied() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_hostile_viewer_ends_only_itself() {
    let scene = scene();
    let mut good = scene.viewer();
    for evil in [&[99][..], &[6, 0, 0, 0, 0xff, 0, 0, 0], &[0; 20], &[255, 9]] {
        let mut viewer = scene.viewer();
        viewer.write_all(evil).unwrap();
        assert!(ended(&mut viewer), "{evil:?}");
    }
    let mut intruder = UnixStream::connect(scene.path()).unwrap();
    intruder.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    assert!(ended(&mut intruder));
    ask(&mut good, 0);
    assert_eq!(update(&mut good), (WHOLE, 7));
}

#[test]
fn a_viewer_too_many_is_turned_away() {
    let scene = scene();
    let _all: Vec<_> = (0..MAX_VIEWERS).map(|_| scene.viewer()).collect();
    assert!(ended(&mut UnixStream::connect(scene.path()).unwrap()));
}

#[test]
fn keys_reach_the_guest_and_are_let_go_by_who_leaves() {
    let scene = scene();
    let (send, keys) = mpsc::channel();
    let keyboard: Arc<dyn Keyboard> = Arc::new(Keys(Mutex::new(send)));
    scene.display.attach_keyboard(&keyboard);
    let mut viewer = scene.viewer();
    viewer.write_all(&[4, 1, 0, 0, 0, 0, 0, b'a']).unwrap();
    viewer.write_all(&[4, 0, 0, 0, 0, 0, 0, b'a']).unwrap();
    viewer.write_all(&[255, 0, 0, 1, 0, 0, 0, b'z', 0, 0, 0, 0x9d]).unwrap();
    for expected in [(0x1e, true), (0x1e, false), (0x9d, true)] {
        assert_eq!(keys.recv().unwrap(), expected);
    }
    drop(viewer);
    assert_eq!(keys.recv().unwrap(), (0x9d, false));
}

#[test]
fn the_socket_is_its_owners_and_goes_with_the_server() {
    let scene = scene();
    let mode = std::fs::metadata(scene.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(Server::listen(&Address::Unix(scene.path()), Display::default()).is_err());
    let mut viewer = scene.viewer();
    let (server, path) = (scene.server, scene.directory.path().join("vnc"));
    drop(server);
    assert!(ended(&mut viewer));
    assert!(!path.exists());
}

#[test]
fn a_port_is_found_on_loopback() {
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::listen(&address, Display::default()).unwrap();
    let Address::Tcp(address) = server.address() else { panic!("{}", server.address()) };
    let mut greeting = [0; 12];
    std::net::TcpStream::connect(address).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"RFB 003.008\n");
}

#[test]
fn only_safe_addresses_are_addresses() {
    assert_eq!("unix:/run/vnc".parse(), Ok(Address::Unix("/run/vnc".into())));
    assert!(matches!("[::1]:5900".parse(), Ok(Address::Tcp(_))));
    for text in ["", "unix:", "5900", "localhost:1", "127.0.0.1"] {
        assert!(matches!(text.parse::<Address>(), Err(ParseAddressError::Form(_))), "{text}");
    }
    for text in ["0.0.0.0:5900", "192.0.2.1:5900", "[::]:5900"] {
        assert!(matches!(text.parse::<Address>(), Err(ParseAddressError::NotLoopback(_))), "{text}");
    }
}
