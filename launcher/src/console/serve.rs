use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tracing::{debug, info, warn};

use super::history::plain_text;
use super::{Console, Shared};
use crate::socket;

/// Most bytes per write to a client and per read from one.
const CHUNK: usize = 4096;
/// The guest writes a byte at a time: bytes within this interval are sent together, or each byte would wake us and the
/// client, at the guest's cost where vCPUs are few.
const COALESCE: Duration = Duration::from_millis(2);
/// Limit of connections to one console.
const CLIENTS: usize = 32;

/// What a client gets before live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// Nothing, as KubeVirt's clients expect.
    Nothing,
    /// History as plain text: its length in four bytes, the most significant first, and the text.
    History,
}

/// Serves the console until dropped.
pub async fn serve(console: Console, listener: UnixListener, greeting: Greeting) {
    let slots = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let stream = socket::accept(&listener).await;
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            warn!(clients = CLIENTS, "console connection rejected: too many clients");
            continue;
        };
        let console = console.clone();
        tokio::spawn(async move {
            attach(&console, stream, greeting).await;
            drop(slot);
        });
    }
}

/// Serves one client until the console ends or the client disconnects.
async fn attach(console: &Console, stream: UnixStream, greeting: Greeting) {
    debug!("console client attached");
    let (reader, writer) = stream.into_split();
    // Before any of its keys is taken: it sees all that they bring about.
    let start = Start::now(&console.shared, greeting);
    let skipped = tokio::select! {
        skipped = follow(&console.shared, writer, start) => skipped,
        () = forward_keys(reader, &console.keys) => Ok(0),
    };
    match skipped {
        Ok(0) => debug!("console client detached"),
        Ok(skipped) => info!(skipped, "console client detached; it was too slow for some of the output"),
        Err(error) => debug!(%error, "console client gone"),
    }
}

/// What a client begins with.
struct Start {
    history: Option<Vec<u8>>,
    /// Offset of its first live byte.
    cursor: u64,
}

impl Start {
    fn now(shared: &Shared, greeting: Greeting) -> Self {
        let ring = &shared.state().ring;
        let history = (greeting == Greeting::History).then(|| ring.history());
        Self { history, cursor: ring.end() }
    }
}

/// History if there is any to send, then live bytes. Returns how many bytes this client missed after it had come.
async fn follow(shared: &Shared, mut client: OwnedWriteHalf, start: Start) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    let mut missed = 0;
    let mut cursor = start.cursor;
    if let Some(history) = start.history {
        let text = plain_text(&history);
        drop(history);
        client.write_u32(u32::try_from(text.len()).map_err(io::Error::other)?).await?;
        client.write_all(&text).await?;
    }
    loop {
        // Registered before looking, so that a change in between is not lost.
        let mut changed = pin!(shared.changed.notified());
        changed.as_mut().enable();
        let (read, ended) = {
            let state = shared.state();
            (state.ring.read(cursor, &mut chunk), state.ended)
        };
        cursor = read.next;
        missed += read.skipped;
        match chunk.get(..read.taken) {
            Some(bytes) if !bytes.is_empty() => client.write_all(bytes).await?,
            _ if ended => return client.shutdown().await.map(|()| missed),
            _ => {
                changed.await;
                tokio::time::sleep(COALESCE).await;
            }
        }
    }
}

/// Keys to the guest, as fast as it takes them; once it is gone, keys are dropped. Returns when the client is gone.
async fn forward_keys(mut client: OwnedReadHalf, keys: &mpsc::Sender<Vec<u8>>) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(count @ 1..) = client.read(&mut chunk).await {
        if let Some(bytes) = chunk.get(..count) {
            // Fails only when the guest is gone.
            let _ = keys.send(bytes.to_vec()).await;
        }
    }
    if !hung_up(&client) {
        // It sends no more but still reads. That it leaves is noticed by the next byte for it.
        std::future::pending::<()>().await;
    }
}

/// Whether the peer closed both directions, as opposed to having nothing more to send.
fn hung_up(client: &OwnedReadHalf) -> bool {
    let stream: &UnixStream = client.as_ref();
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut polled, Some(&now)) {
        Ok(_) => polled.iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR)),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream as Blocking;

    use super::*;
    use crate::console::Port;

    struct Served {
        console: Console,
        port: Port,
        path: std::path::PathBuf,
        _dir: tempfile::TempDir,
    }

    fn served() -> Served {
        let dir = tempfile::tempdir().unwrap();
        let (console, port) = Console::new();
        let served = Served { console, port, path: dir.path().join("console.sock"), _dir: dir };
        for (path, greeting) in
            [(served.path.clone(), Greeting::Nothing), (served.history(), Greeting::History)]
        {
            tokio::spawn(serve(served.console.clone(), socket::bind(&path).unwrap(), greeting));
        }
        served
    }

    impl Served {
        fn history(&self) -> std::path::PathBuf {
            self.path.with_file_name("history.sock")
        }

        /// A client that has got all history and how much that was.
        async fn late(&self) -> (UnixStream, String) {
            let mut client = UnixStream::connect(self.history()).await.unwrap();
            let length = client.read_u32().await.unwrap();
            let mut history = vec![0; length.try_into().unwrap()];
            client.read_exact(&mut history).await.unwrap();
            (client, String::from_utf8(history).unwrap())
        }
    }

    async fn expect(client: &mut UnixStream, text: &[u8]) {
        let mut got = vec![0; text.len()];
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(got, text);
    }

    #[tokio::test]
    async fn history_is_on_request_and_live_bytes_are_for_all() {
        let served = served();
        served.port.output.write(b"boot \x1b[6n");
        let (mut early, history) = served.late().await;
        assert_eq!(history, "boot ");
        served.port.output.write(b"login:\x1b[6n");
        expect(&mut early, b"login:\x1b[6n").await;
        let (mut late, history) = served.late().await;
        assert_eq!(history, "boot login:");
        let mut live = UnixStream::connect(&served.path).await.unwrap();
        // It is attached as soon as its keys arrive.
        live.write_all(b"k").await.unwrap();
        let mut port = served.port;
        assert_eq!(port.input.recv().await.unwrap(), b"k");
        port.output.write(b"\x1b[5n!");
        for client in [&mut early, &mut late, &mut live] {
            expect(client, b"\x1b[5n!").await;
        }
        served.console.end();
        for client in [&mut early, &mut late, &mut live] {
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        }
        let mut after = UnixStream::connect(served.path.with_file_name("history.sock")).await.unwrap();
        let mut all = Vec::new();
        after.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"\0\0\0\x0cboot login:!");
        let mut after = UnixStream::connect(&served.path).await.unwrap();
        assert_eq!(after.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_blocks_no_other() {
        let served = served();
        let _stuck = UnixStream::connect(&served.path).await.unwrap();
        let (mut reader, _) = served.late().await;
        served.port.output.write(b">");
        expect(&mut reader, b">").await;
        let block = vec![b'x'; 1 << 16];
        for _ in 0..64 {
            served.port.output.write(&block);
            let mut got = vec![0; block.len()];
            reader.read_exact(&mut got).await.unwrap();
            assert_eq!(got, block);
        }
    }

    #[tokio::test]
    async fn keys_of_all_clients_reach_the_guest_and_wait_while_it_takes_none() {
        let mut served = served();
        let mut one = UnixStream::connect(&served.path).await.unwrap();
        let mut two = UnixStream::connect(&served.path).await.unwrap();
        one.write_all(b"a").await.unwrap();
        assert_eq!(served.port.input.recv().await.unwrap(), b"a");
        two.write_all(b"b").await.unwrap();
        assert_eq!(served.port.input.recv().await.unwrap(), b"b");

        let flood = vec![b'k'; 8 << 20];
        let blocked = tokio::time::timeout(std::time::Duration::from_millis(50), one.write_all(&flood));
        assert!(blocked.await.is_err(), "8 MiB of keys were taken for a guest that reads none");
    }

    #[tokio::test]
    async fn closing_the_writing_side_is_no_detaching_and_leaving_is() {
        let served = served();
        let client = Blocking::connect(served.history()).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        client.set_nonblocking(true).unwrap();
        let mut client = UnixStream::from_std(client).unwrap();
        assert_eq!(client.read_u32().await.unwrap(), 0);
        served.port.output.write(b"still here");
        expect(&mut client, b"still here").await;
        drop(client);
        // A slot is free again soon after its client left: more clients get in than there are slots.
        let mut served_clients = 0;
        while served_clients <= 2 * CLIENTS {
            let mut client = UnixStream::connect(served.history()).await.unwrap();
            let mut got = [0; 14];
            if client.read_exact(&mut got).await.is_ok() {
                assert_eq!(&got, b"\0\0\0\x0astill here");
                served_clients += 1;
            }
        }
    }
}
