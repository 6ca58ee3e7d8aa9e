//! A back end for tests, which speaks the protocol by itself: it serves rings in memory that it maps, and can misbehave.

use std::fs::File;
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use virtio_queue::{Queue, QueueT as _};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryMmap};

pub(crate) const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
pub(crate) const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
pub(crate) const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
pub(crate) const GET_QUEUE_NUM: u32 = 17;
pub(crate) const SET_VRING_ENABLE: u32 = 18;
pub(crate) const RESET_DEVICE: u32 = 34;

const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
const EVENT_IDX: u64 = 1 << 29;
const REPLY_ACK: u64 = 1 << 3;

/// What it writes into buffers, with the number of the queue.
pub(crate) const MARK: u8 = 0x50;

/// What the back end answers.
pub(crate) struct Answers {
    pub(crate) features: u64,
    pub(crate) protocol: u64,
    pub(crate) queues: u64,
    /// It says nothing to this request, nor to any after it.
    pub(crate) silent: Option<u32>,
    /// It closes the connection in place of an answer.
    pub(crate) close: Option<u32>,
    /// It answers something else.
    pub(crate) wrong: Option<u32>,
    /// It acknowledges that it could not do that.
    pub(crate) refuse: Option<u32>,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            features: 1 << 28 | EVENT_IDX | 1 << 30 | 1 << 32,
            // Multiple queues, acknowledgements, and resets.
            protocol: 1 | REPLY_ACK | 1 << 13,
            queues: 2,
            silent: None,
            close: None,
            wrong: None,
            refuse: None,
        }
    }
}

/// A back end, on a thread that ends with its connection.
pub(crate) struct BackEnd {
    asked: Arc<Mutex<Vec<u32>>>,
    /// Another end of the back end's socket.
    socket: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl BackEnd {
    /// Starts one, and returns the front end's socket.
    pub(crate) fn start(answers: Answers) -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let asked = Arc::default();
        let socket = ours.try_clone().unwrap();
        let serving = Serving {
            answers,
            socket: ours,
            asked: Arc::clone(&asked),
            acknowledges: false,
            features: 0,
            memory: None,
            hosts: Vec::new(),
            rings: Default::default(),
        };
        let thread = std::thread::spawn(move || serving.run());
        (Self { asked, socket, thread: Some(thread) }, theirs)
    }

    /// How often it got this request.
    pub(crate) fn count(&self, request: u32) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| **asked == request).count()
    }

    /// It says something that it was not asked.
    pub(crate) fn speak(&self) {
        (&self.socket).write_all(b"hello").unwrap();
    }

    /// It dies.
    pub(crate) fn die(&mut self) {
        // Fails where the front end has closed it.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.thread.take().map(JoinHandle::join).transpose().unwrap();
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.die();
        }
    }
}

#[derive(Default)]
struct VRing {
    size: u16,
    base: u16,
    /// In the front end: descriptors, used, available.
    addresses: [u64; 3],
    kick: Option<File>,
    call: Option<File>,
    enabled: bool,
    queue: Option<Queue>,
}

struct Serving {
    answers: Answers,
    socket: UnixStream,
    asked: Arc<Mutex<Vec<u32>>>,
    acknowledges: bool,
    features: u64,
    memory: Option<GuestMemoryMmap<()>>,
    /// Where the front end has RAM: its address, size, and the guest's address.
    hosts: Vec<(u64, u64, u64)>,
    rings: [VRing; 2],
}

struct Message {
    request: u32,
    flags: u32,
    body: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Message {
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.body[at..at + 8].try_into().unwrap())
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.body[at..at + 4].try_into().unwrap())
    }

    fn file(&mut self) -> Option<File> {
        assert_eq!(self.files.len(), 1, "{}", self.request);
        self.files.pop().map(File::from)
    }
}

impl Serving {
    fn run(mut self) {
        loop {
            let kicks = self.rings.iter().enumerate().filter(|(_, ring)| ring.enabled);
            let kicks: Vec<_> = kicks.filter_map(|(at, ring)| Some((at, ring.kick.as_ref()?))).collect();
            let mut waits = vec![PollFd::new(&self.socket, PollFlags::IN)];
            waits.extend(kicks.iter().map(|(_, kick)| PollFd::new(*kick, PollFlags::IN)));
            poll(&mut waits, None).unwrap();
            let ready: Vec<bool> = waits.iter().map(|one| !one.revents().is_empty()).collect();
            let kicked: Vec<usize> =
                kicks.iter().zip(&ready[1..]).filter(|(_, ready)| **ready).map(|((at, _), _)| *at).collect();
            kicked.into_iter().for_each(|ring| self.serve(ring));
            if ready[0] {
                let Some(message) = self.receive() else { return };
                if !self.answer(message) {
                    return;
                }
            }
        }
    }

    /// `None` once the front end is gone.
    fn receive(&self) -> Option<Message> {
        let mut header = [0; 12];
        let files = self.read(&mut header)?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; usize::try_from(word(8)).unwrap()];
        if !body.is_empty() {
            self.read(&mut body)?;
        }
        Some(Message { request: word(0), flags: word(4), body, files })
    }

    fn read(&self, mut buffer: &mut [u8]) -> Option<Vec<OwnedFd>> {
        let mut files = Vec::new();
        while !buffer.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let read = recvmsg(
                self.socket.as_fd(),
                &mut [IoSliceMut::new(buffer)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            let bytes = read.ok()?.bytes;
            if bytes == 0 {
                return None;
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    files.extend(rights);
                }
            }
            buffer = &mut buffer[bytes..];
        }
        Some(files)
    }

    /// Whether it goes on.
    fn answer(&mut self, mut message: Message) -> bool {
        let request = message.request;
        assert_eq!(message.flags & 3, VERSION);
        self.asked.lock().unwrap().push(request);
        if self.answers.close == Some(request) {
            self.socket.shutdown(std::net::Shutdown::Both).unwrap();
            return false;
        }
        if self.answers.silent == Some(request) {
            // Until the front end gives up.
            while self.receive().is_some() {}
            return false;
        }
        let reply: Option<Vec<u8>> = match request {
            GET_FEATURES => Some(self.answers.features.to_le_bytes().into()),
            GET_PROTOCOL_FEATURES => Some(self.answers.protocol.to_le_bytes().into()),
            GET_QUEUE_NUM => Some(self.answers.queues.to_le_bytes().into()),
            SET_FEATURES => {
                self.features = message.u64(0);
                assert_eq!(self.features & !self.answers.features, 0);
                None
            }
            SET_PROTOCOL_FEATURES => {
                self.acknowledges = message.u64(0) & REPLY_ACK != 0;
                None
            }
            SET_MEM_TABLE => {
                self.map(&mut message);
                None
            }
            SET_VRING_NUM => {
                self.ring(&message).size = message.u32(4).try_into().unwrap();
                None
            }
            SET_VRING_BASE => {
                self.ring(&message).base = message.u32(4).try_into().unwrap();
                None
            }
            SET_VRING_ADDR => {
                self.ring(&message).addresses = [8, 16, 24].map(|at| message.u64(at));
                None
            }
            SET_VRING_KICK => {
                self.ring(&message).kick = message.file();
                None
            }
            SET_VRING_CALL => {
                self.ring(&message).call = message.file();
                None
            }
            SET_VRING_ENABLE => {
                let enabled = message.u32(4) == 1;
                self.ring(&message).enabled = enabled;
                if enabled {
                    self.build(usize::try_from(message.u32(0)).unwrap());
                }
                None
            }
            GET_VRING_BASE => {
                let index = message.u32(0);
                let ring = std::mem::take(self.ring(&message));
                let position = ring.queue.map_or(ring.base, |queue| queue.next_avail());
                Some([index.to_le_bytes(), u32::from(position).to_le_bytes()].concat())
            }
            RESET_DEVICE => {
                self.rings = Default::default();
                None
            }
            _ => None,
        };
        let refused = self.answers.refuse == Some(request);
        let acknowledged = self.acknowledges && message.flags & NEED_REPLY != 0;
        let reply = reply.or_else(|| acknowledged.then(|| u64::from(refused).to_le_bytes().into()));
        if let Some(reply) = reply {
            let code =
                if self.answers.wrong == Some(request) { GET_FEATURES + SET_FEATURES } else { request };
            let size = u32::try_from(reply.len()).unwrap();
            let header = [code, VERSION | REPLY, size].map(u32::to_le_bytes).concat();
            // Fails where the front end is gone.
            let _ = self.socket.write_all(&[header, reply].concat());
        }
        true
    }

    fn ring(&mut self, message: &Message) -> &mut VRing {
        &mut self.rings[usize::try_from(message.u32(0)).unwrap() & 0xff]
    }

    fn map(&mut self, message: &mut Message) {
        let count = usize::try_from(message.u32(0)).unwrap();
        assert_eq!(count, message.files.len());
        let files: Vec<_> = message.files.drain(..).collect();
        self.hosts.clear();
        let ranges = files.into_iter().enumerate().map(|(number, file)| {
            let at = 8 + 32 * number;
            let [guest, size, host, offset] = [0, 8, 16, 24].map(|field| message.u64(at + field));
            self.hosts.push((host, size, guest));
            let file = FileOffset::new(File::from(file), offset);
            (GuestAddress(guest), usize::try_from(size).unwrap(), Some(file))
        });
        self.memory = Some(GuestMemoryMmap::from_ranges_with_files(ranges).unwrap());
    }

    fn build(&mut self, index: usize) {
        let find = |address: u64| {
            let inside = |(host, size, _): &&(u64, u64, u64)| (*host..*host + *size).contains(&address);
            let (host, _, guest) = self.hosts.iter().find(inside).expect("an address in RAM");
            GuestAddress(address - host + guest)
        };
        let memory = self.memory.as_ref().expect("RAM is set before rings");
        let ring = &mut self.rings[index];
        assert!(ring.kick.is_some() && ring.call.is_some());
        let [descriptors, used, available] = ring.addresses.map(find);
        let mut queue = Queue::new(1024).unwrap();
        queue.set_size(ring.size);
        queue.try_set_desc_table_address(descriptors).unwrap();
        queue.try_set_used_ring_address(used).unwrap();
        queue.try_set_avail_ring_address(available).unwrap();
        queue.set_event_idx(self.features & EVENT_IDX != 0);
        queue.set_next_avail(ring.base);
        queue.set_next_used(queue.used_idx(memory, std::sync::atomic::Ordering::SeqCst).unwrap().0);
        queue.set_ready(true);
        ring.queue = Some(queue);
    }

    /// Marks every buffer that the device writes, and answers with their size.
    fn serve(&mut self, index: usize) {
        let (Some(memory), ring) = (self.memory.as_ref(), &mut self.rings[index]) else { return };
        let (Some(kick), Some(call), Some(queue)) = (&ring.kick, &ring.call, &mut ring.queue) else { return };
        let _ = rustix::io::read(kick, &mut [0_u8; 8]);
        loop {
            queue.disable_notification(memory).unwrap();
            while let Some(chain) = queue.pop_descriptor_chain(memory) {
                let head = chain.head_index();
                let mut written = 0;
                for descriptor in chain.writable() {
                    let mark =
                        vec![MARK + u8::try_from(index).unwrap(); usize::try_from(descriptor.len()).unwrap()];
                    memory.write_slice(&mark, descriptor.addr()).unwrap();
                    written += descriptor.len();
                }
                queue.add_used(memory, head, written).unwrap();
                if queue.needs_notification(memory).unwrap() {
                    rustix::io::write(call, &1_u64.to_ne_bytes()).unwrap();
                }
            }
            if !queue.enable_notification(memory).unwrap() {
                return;
            }
        }
    }
}
