//! Guests that send from addresses that are not theirs. The test has the tap open instead of a monitor.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::bridge::{self, Bridge};
use super::*;
use crate::launcher::passt::{self, Passt};

const OTHER_MAC: MacAddr = MacAddr::local([0, 0, 0, 0, 9]);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
/// linux/virtio_net.h: the header of the frames of a tap.
const VNET_HEADER: [u8; 10] = [0; 10];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// A guest, by its tap.
struct Guest {
    tap: File,
}

impl Guest {
    fn at(namespace: &str, tap: &'static str) -> Self {
        let opened = netns::inside(&netns::path(namespace), move || tap::open(tap, tap::Queues::Single));
        let opened: OwnedFd = opened.unwrap().unwrap();
        // What the kernel sends before it has seen the carrier is lost.
        let deadline = Instant::now() + PATIENCE;
        while !run(&format!("ip -n {namespace} -o link show {tap}")).contains("state UP") {
            assert!(Instant::now() < deadline, "{tap} has no carrier");
        }
        Self { tap: opened.into() }
    }

    fn send(&self, to: [u8; 6], from: MacAddr, kind: [u8; 2], payload: &[u8]) {
        let frame = [&VNET_HEADER[..], &to, &from.octets(), &kind, payload].concat();
        assert_eq!((&self.tap).write(&frame).unwrap(), frame.len());
    }

    /// The next frame of a kind: what is after its header.
    fn receive(&self, kind: [u8; 2]) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap();
            assert_ne!(
                poll(&mut [PollFd::new(&self.tap, PollFlags::IN)], Some(&left)).unwrap(),
                0,
                "no frame"
            );
            let mut frame = [0; 2048];
            let length = (&self.tap).read(&mut frame).unwrap();
            let frame = &frame[VNET_HEADER.len()..length];
            if frame[12..14] == kind {
                return frame[14..].to_vec();
            }
        }
    }

    /// Asks for the MAC of an address. The MACs are those of the frame and of the request in it.
    fn ask(&self, (frame, sender): (MacAddr, MacAddr), from: Ipv4Addr, whose: Ipv4Addr) {
        let head = [0, 1, 8, 0, 6, 4, 0, 1];
        let payload = [&head[..], &sender.octets(), &from.octets(), &[0; 6], &whose.octets()].concat();
        self.send([0xff; 6], frame, ARP, &payload);
    }

    /// The address that the next answer is for.
    fn answered(&self) -> Ipv4Addr {
        loop {
            let payload = self.receive(ARP);
            if payload[7] == 2 {
                return Ipv4Addr::new(payload[24], payload[25], payload[26], payload[27]);
            }
        }
    }
}

/// The checksum of the Internet.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()).to_be_bytes()
}

/// A datagram with a text.
fn datagram(from: Ipv4Addr, to: SocketAddr, text: &[u8]) -> Vec<u8> {
    let SocketAddr::V4(to) = to else { panic!("IPv4") };
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let udp = [&5000_u16.to_be_bytes()[..], &to.port().to_be_bytes(), &length(8 + text.len()), &[0, 0], text]
        .concat();
    let mut header = [
        &[0x45, 0][..],
        &length(20 + udp.len()),
        &[0, 0, 0, 0, 64, 17, 0, 0],
        &from.octets(),
        &to.ip().octets(),
    ]
    .concat();
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    [header, udp].concat()
}

/// A neighbor solicitation for an address.
fn solicitation(from: Ipv6Addr, (to, target): (Ipv6Addr, Ipv6Addr), mac: MacAddr) -> Vec<u8> {
    let mut message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &[1, 1], &mac.octets()].concat();
    let pseudo = [&from.octets()[..], &to.octets(), &[0, 0, 0, 32, 0, 0, 0, 58], &message].concat();
    let sum = checksum(&pseudo);
    message[2..4].copy_from_slice(&sum);
    [&[0x60, 0, 0, 0, 0, 32, 58, 255][..], &from.octets(), &to.octets(), &message].concat()
}

fn access(each_other: bool) -> GuestAccess {
    GuestAccess { host_ports: vec![OPEN, OPEN_UDP], each_other }
}

#[test]
fn a_guest_sends_from_its_own_addresses_alone() {
    if !on_own_host() {
        return;
    }
    let bench = Bench::beside(&[], &access(false));
    let guest = Guest::at(&bench.plan.namespace, TAP);
    // ARP: another address, another MAC in the message, another MAC of the frame. The last one is its own.
    guest.ask((MAC, MAC), Ipv4Addr::new(10, 0, 2, 77), GATEWAY);
    guest.ask((MAC, OTHER_MAC), GUEST, GATEWAY);
    guest.ask((OTHER_MAC, MAC), GUEST, GATEWAY);
    guest.ask((MAC, MAC), GUEST, GATEWAY);
    assert_eq!(guest.answered(), GUEST);
    let neighbours = run(&format!("ip -n {} neigh show dev tap0", bench.plan.namespace));
    assert!(neighbours.contains("10.0.2.2 lladdr 02:00:00:00:00:02"), "{neighbours}");
    assert_eq!(neighbours.lines().count(), 1, "{neighbours}");

    let host = UdpSocket::bind((bench.plan.wire().host(), OPEN_UDP.first)).unwrap();
    host.set_read_timeout(Some(PATIENCE)).unwrap();
    let target = host.local_addr().unwrap();
    let mac = run(&format!("ip -n {} -o link show tap0", bench.plan.namespace));
    let mac: MacAddr = mac.split("link/ether ").nth(1).unwrap()[..17].parse().unwrap();
    let send = |from, address, text: &str| {
        guest.send(mac.octets(), from, IPV4, &datagram(address, target, text.as_bytes()));
    };
    send(OTHER_MAC, GUEST, "another MAC");
    send(MAC, Ipv4Addr::new(10, 0, 2, 77), "another address");
    send(MAC, bench.plan.wire().host(), "the host's address");
    send(MAC, GUEST, "its own");
    let mut buffer = [0; 64];
    let (length, _) = host.recv_from(&mut buffer).unwrap();
    assert_eq!(String::from_utf8_lossy(&buffer[..length]), "its own");
}

#[test]
fn a_guest_is_a_neighbour_with_its_own_addresses_alone() {
    if !on_own_host() {
        return;
    }
    if !ipv6::is_available() {
        eprintln!("SKIPPED: the kernel has no IPv6");
        return;
    }
    let bench = Bench::beside(&[], &access(false));
    let guest = Guest::at(&bench.plan.namespace, TAP);
    let gateway: Ipv6Addr = "fd10:0:2::1".parse().unwrap();
    let multicast = [0x33, 0x33, 0xff, 0, 0, 1];
    for (mac, from) in
        [(MAC, "fd10:0:2::77"), (OTHER_MAC, "fd10:0:2::2"), (MAC, "fe80::1"), (MAC, "fd10:0:2::2")]
    {
        let to = "ff02::1:ff00:1".parse().unwrap();
        guest.send(multicast, mac, IPV6, &solicitation(from.parse().unwrap(), (to, gateway), mac));
    }
    let answer = loop {
        let packet = guest.receive(IPV6);
        // An advertisement.
        if packet[6] == 58 && packet[40] == 136 {
            break packet;
        }
    };
    let to: [u8; 16] = answer[24..40].try_into().unwrap();
    assert_eq!(Ipv6Addr::from(to), "fd10:0:2::2".parse::<Ipv6Addr>().unwrap());
    let neighbours = run(&format!("ip -n {} -6 neigh show dev tap0", bench.plan.namespace));
    assert!(neighbours.contains("fd10:0:2::2 lladdr 02:00:00:00:00:02"), "{neighbours}");
    assert!(!neighbours.contains("::77"), "{neighbours}");
}

#[test]
fn ports_of_the_host_and_other_guests_are_out_of_reach_unless_they_are_opened() {
    let Some(one) = Bench::new(&[]) else { return };
    let two = Bench::beside(&[], &access(false));
    two.put_guest();
    let open = TcpListener::bind(("0.0.0.0", OPEN.first)).unwrap();
    let closed = TcpListener::bind(("0.0.0.0", 7777)).unwrap();
    let brief = Duration::from_secs(1);
    let reach =
        |address: SocketAddr| one.in_guest(move || TcpStream::connect_timeout(&address, brief)).is_ok();
    // Every address of the host counts, also that of another guest's wire.
    for address in [one.plan.wire().host(), two.plan.wire().host()] {
        assert!(reach((address, OPEN.first).into()));
        assert!(!reach((address, closed.local_addr().unwrap().port()).into()), "{address}");
    }
    run(&format!("ip netns exec {} ping -c 1 -W 5 {}", one.guest, one.plan.wire().host()));
    drop((open, closed));

    let listener = two.listen(8080);
    assert!(!reach(two.vm(8080)), "guests do not reach each other");
    greet(&two, &listener, 8080);
    prepare_host("10.213.0.0/16".parse().unwrap(), None, &access(true)).unwrap();
    assert!(reach(two.vm(8080)), "unless that is allowed");
    assert!(!reach((one.plan.wire().host(), 7777).into()));
}

/// The namespace of a Pod whose guest takes over its interface, with the network at the other end.
fn bridged(pod: &str, network: &str, address: Option<&str>) -> Guest {
    add_namespace(pod);
    add_namespace(network);
    run(&format!("ip -n {pod} link add eth0 type veth peer name peer netns {network}"));
    run(&format!("ip -n {pod} link set eth0 address {MAC}"));
    run(&format!("ip -n {pod} link set eth0 up"));
    run(&format!("ip -n {network} link set peer up"));
    run(&format!("ip -n {network} addr add 10.244.0.1/24 dev peer"));
    if let Some(address) = address {
        run(&format!("ip -n {pod} addr add {address} dev eth0"));
    }
    let path = netns::path(pod);
    let before = bridge::read(&path, vec!["eth0".to_owned()]).unwrap();
    let bridges = || vec![(Bridge::primary(), before[0].clone())];
    bridge::ensure(&path, bridges()).unwrap();
    bridge::ensure(&path, bridges()).unwrap();
    let guest = Guest::at(pod, TAP);
    let deadline = Instant::now() + PATIENCE;
    while run(&format!("bridge -n {pod} link")).matches("state forwarding").count() < 2 {
        assert!(Instant::now() < deadline, "the ports of the bridge are not up");
    }
    guest
}

/// IPv6 passes with the MAC of the guest, which chooses its addresses.
fn has_the_ipv6_of_its_network(guest: &Guest, network: &str) {
    run(&format!("ip -n {network} addr add fd00:7::1/64 dev peer nodad"));
    let router: Ipv6Addr = "fd00:7::1".parse().unwrap();
    for (mac, from) in [(OTHER_MAC, "fd00:7::6"), (MAC, "fd00:7::5")] {
        let to = "ff02::1:ff00:1".parse().unwrap();
        let asked = solicitation(from.parse().unwrap(), (to, router), mac);
        guest.send([0x33, 0x33, 0xff, 0, 0, 1], mac, IPV6, &asked);
    }
    let answer = loop {
        let packet = guest.receive(IPV6);
        // An advertisement.
        if packet[6] == 58 && packet[40] == 136 {
            break packet;
        }
    };
    assert_eq!(answer[24..40], "fd00:7::5".parse::<Ipv6Addr>().unwrap().octets());
    let neighbours = run(&format!("ip -n {network} -6 neigh show dev peer"));
    assert!(neighbours.contains(&format!("fd00:7::5 lladdr {MAC}")), "{neighbours}");
    assert!(!neighbours.contains("fd00:7::6"), "{neighbours}");
}

#[test]
fn a_guest_on_a_bridge_has_the_addresses_that_it_took_over() {
    if !on_own_host() {
        return;
    }
    let (pod, network) = (format!("vireo-b{}", std::process::id()), format!("vireo-n{}", std::process::id()));
    let (own, other) = (Ipv4Addr::new(10, 244, 0, 5), Ipv4Addr::new(10, 244, 0, 6));
    let router = Ipv4Addr::new(10, 244, 0, 1);
    let guest = bridged(&pod, &network, Some("10.244.0.5/24"));
    guest.ask((MAC, MAC), other, router);
    guest.ask((OTHER_MAC, MAC), own, router);
    guest.ask((MAC, OTHER_MAC), own, router);
    guest.ask((MAC, MAC), own, router);
    assert_eq!(guest.answered(), own);
    let neighbours = run(&format!("ip -n {network} neigh show dev peer"));
    assert!(neighbours.contains(&format!("10.244.0.5 lladdr {MAC}")), "{neighbours}");
    assert!(!neighbours.contains("10.244.0.6"), "{neighbours}");
    if ipv6::is_available() {
        has_the_ipv6_of_its_network(&guest, &network);
    }
    drop(guest);
    netns::remove(&pod).unwrap();
    netns::remove(&network).unwrap();

    // Without an address from its network's plugin, the guest may have any, with its own MAC.
    let guest = bridged(&pod, &network, None);
    guest.ask((OTHER_MAC, OTHER_MAC), own, router);
    guest.ask((MAC, OTHER_MAC), own, router);
    guest.ask((MAC, MAC), other, router);
    assert_eq!(guest.answered(), other);
    let neighbours = run(&format!("ip -n {network} neigh show dev peer"));
    assert!(neighbours.contains(&format!("10.244.0.6 lladdr {MAC}")), "{neighbours}");
    assert!(!neighbours.contains("10.244.0.5"), "{neighbours}");
    drop(guest);
    netns::remove(&pod).unwrap();
    netns::remove(&network).unwrap();
}

/// A guest by passt sends to an address of the namespace, which a socket there does not receive, and to the host, which does.
#[test]
fn a_guest_by_passt_reaches_nothing_in_its_namespace() {
    if !on_own_host() {
        return;
    }
    if !Path::new(passt::PROGRAM).exists() {
        eprintln!("SKIPPED: {} is not there", passt::PROGRAM);
        return;
    }
    let bench = Bench::beside(&[], &access(false));
    let wire = bench.plan.wire();
    let namespace = netns::path(&bench.plan.namespace);
    let own = [Ipv4Addr::LOCALHOST, wire.vm()];
    let sockets =
        netns::inside(&namespace, move || own.map(|address| UdpSocket::bind((address, 0)).unwrap()));
    let sockets = sockets.unwrap();
    let host = UdpSocket::bind((wire.host(), OPEN_UDP.first)).unwrap();
    host.set_read_timeout(Some(PATIENCE)).unwrap();

    let forwards = vec![Ports::one(Protocol::Tcp, 80)];
    let passt = Passt { nic: "default".to_owned(), forwards, servers: Vec::new(), search: Vec::new() };
    let launcher = std::process::id().try_into().unwrap();
    let guest = File::from(passt.start(&namespace, launcher).unwrap());
    let targets = sockets.iter().chain([&host]).map(|socket| socket.local_addr().unwrap());
    for target in targets {
        let packet = datagram(wire.vm(), target, b"by passt");
        let frame = [&OTHER_MAC.octets()[..], &MAC.octets(), &IPV4, &packet].concat();
        let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
        (&guest).write_all(&[&length[..], &frame].concat()).unwrap();
    }
    let mut text = [0; 16];
    let length = host.recv(&mut text).unwrap();
    assert_eq!(&text[..length], b"by passt");
    for socket in sockets {
        // What was sent to it was sent before.
        socket.set_nonblocking(true).unwrap();
        assert_eq!(socket.recv(&mut text).unwrap_err().kind(), io::ErrorKind::WouldBlock, "{socket:?}");
    }
}
