//! Against the real kernel: namespaces, veth, nftables. The guest is a namespace on the far side of the tap's name.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use super::nft::Protocol;
use super::*;

const PATIENCE: Duration = Duration::from_secs(5);

/// Runs a command that must succeed.
fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// One VM's network with a guest in it; gone when dropped.
struct Bench {
    plan: Plan,
    guest: String,
}

impl Bench {
    /// `None`, with a message, where the test may not create namespaces.
    fn new(forwards: &[Forward]) -> Option<Self> {
        if let Err(reason) = permitted() {
            eprintln!("SKIPPED: {reason}");
            return None;
        }
        let (used, mtu) = host_facts().unwrap();
        let range = "10.213.0.0/16".parse().unwrap();
        // Tests run beside each other: the uid decides the names, and the process id the wire.
        let uid = Uuid::new_v4();
        let mut used = used;
        let mut wire = address::allocate(range, &used).unwrap();
        for _ in 0..uid.as_u128() % 4096 {
            used.insert(wire.vm());
            wire = address::allocate(range, &used).unwrap();
        }
        let plan = Plan::new(uid, wire, mtu);
        let inside = Inside { net: "10.0.2.0/24".parse().unwrap(), forwards: forwards.to_vec() };
        prepare_host(range).unwrap();
        ensure(&plan, &inside).unwrap();
        // Once more: nothing may break, and nothing may be there twice.
        ensure(&plan, &inside).unwrap();
        let bench = Self { guest: format!("{}-guest", plan.namespace), plan };
        bench.put_guest();
        Some(bench)
    }

    fn put_guest(&self) {
        let (ns, guest) = (&self.plan.namespace, &self.guest);
        run(&format!("ip netns add {guest}"));
        run(&format!("ip -n {ns} link del tap0"));
        run(&format!("ip -n {ns} link add tap0 type veth peer name eth0 netns {guest}"));
        run(&format!("ip -n {ns} addr add 10.0.2.1/24 dev tap0"));
        run(&format!("ip -n {ns} link set tap0 up"));
        run(&format!("ip -n {guest} link set lo up"));
        run(&format!("ip -n {guest} link set eth0 up"));
        run(&format!("ip -n {guest} addr add 10.0.2.2/24 dev eth0"));
        run(&format!("ip -n {guest} route add default via 10.0.2.1"));
    }

    fn in_guest<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        netns::inside(&netns::path(&self.guest), work).unwrap()
    }

    fn listen(&self, port: u16) -> TcpListener {
        self.in_guest(move || TcpListener::bind(("10.0.2.2", port)).unwrap())
    }

    fn vm(&self, port: u16) -> SocketAddr {
        (self.plan.wire().vm(), port).into()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = netns::remove(&self.guest);
        remove(&self.plan).unwrap();
        remove(&self.plan).unwrap();
        assert!(!netns::path(&self.plan.namespace).exists());
        assert!(!run("ip -o link").contains(&self.plan.host_link));
    }
}

/// The host connects to the guest's listener and reads from it.
fn greet(bench: &Bench, listener: &TcpListener, port: u16) -> SocketAddr {
    let mut client = TcpStream::connect_timeout(&bench.vm(port), PATIENCE).unwrap();
    let (mut served, peer) = listener.accept().unwrap();
    served.write_all(b"hello").unwrap();
    drop(served);
    let mut text = String::new();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    peer
}

#[test]
fn host_and_guest_reach_each_other() {
    let Some(bench) = Bench::new(&[]) else { return };
    let listener = bench.listen(8080);
    let peer = greet(&bench, &listener, 8080);
    assert_eq!(peer.ip(), bench.plan.wire().host(), "the guest sees the host's own address");

    // The other way: the host sees the VMI's address, not the guest's private one.
    let host = TcpListener::bind((bench.plan.wire().host(), 0)).unwrap();
    let address = host.local_addr().unwrap();
    let client = bench.in_guest(move || TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
    let (_, seen) = host.accept().unwrap();
    assert_eq!(seen.ip(), bench.plan.wire().vm());
    drop(client);
}

#[test]
fn only_listed_ports_reach_the_guest() {
    let Some(bench) = Bench::new(&[Forward { protocol: Protocol::Tcp, port: 8080 }]) else { return };
    let open = bench.listen(8080);
    let closed = bench.listen(9090);
    greet(&bench, &open, 8080);
    assert!(TcpStream::connect_timeout(&bench.vm(9090), Duration::from_secs(1)).is_err());
    closed.set_nonblocking(true).unwrap();
    assert!(closed.accept().is_err());
}

#[test]
fn a_guest_cannot_spoof_addresses_nor_reach_the_namespace() {
    let Some(bench) = Bench::new(&[]) else { return };
    let host = UdpSocket::bind((bench.plan.wire().host(), 0)).unwrap();
    host.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let target = host.local_addr().unwrap();
    run(&format!("ip -n {} addr add 10.0.2.77/24 dev eth0", bench.guest));
    run(&format!("ip -n {} addr add 192.0.2.9/32 dev eth0", bench.guest));
    let send = |from: &'static str| {
        bench.in_guest(move || UdpSocket::bind((from, 0)).unwrap().send_to(from.as_bytes(), target).unwrap());
    };
    send("10.0.2.77");
    send("192.0.2.9");
    send("10.0.2.2");
    let mut buffer = [0; 64];
    let (length, from) = host.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"10.0.2.2", "only the guest's own address comes through");
    assert_eq!(from.ip(), bench.plan.wire().vm());
    assert!(host.recv_from(&mut buffer).is_err());

    let namespace = netns::path(&bench.plan.namespace);
    let inner = netns::inside(&namespace, || TcpListener::bind("10.0.2.1:7777").unwrap()).unwrap();
    let reached = bench
        .in_guest(|| TcpStream::connect_timeout(&"10.0.2.1:7777".parse().unwrap(), Duration::from_secs(1)));
    assert!(reached.is_err());
    drop(inner);
}

#[test]
fn a_tap_is_persistent_and_made_once() {
    if let Err(reason) = permitted() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    let name = format!("vireo-t{}", std::process::id());
    netns::create(&name).unwrap();
    let path = netns::path(&name);
    let links = netns::inside(&path, || {
        tap::create(TAP).unwrap();
        tap::create(TAP).unwrap();
        assert!(tap::create("a-name-beyond-fifteen").is_err());
        run("ip -o -d link show type tun")
    });
    netns::remove(&name).unwrap();
    let links = links.unwrap();
    assert_eq!(links.lines().count(), 1, "{links}");
    assert!(
        links.contains("tap0") && links.contains("persist on") && links.contains("vnet_hdr on"),
        "{links}"
    );
}
