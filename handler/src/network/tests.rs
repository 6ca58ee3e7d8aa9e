//! Against the real kernel: namespaces, veth, nftables. The guest is a namespace on the far side of the tap's name.

mod hostile;
mod owner;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use super::ports::Protocol;
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

/// Has the calling thread, which is a test's own, be on a host with a network of its own, so that tests beside it and the
/// guests of this computer keep their rules. Returns false, with a message, where the test may not do that.
fn on_own_host() -> bool {
    if let Err(reason) = permitted() {
        eprintln!("SKIPPED: {reason}");
        return false;
    }
    // SAFETY: only UnshareFlags::FILES can make descriptors vanish from other threads; it is not given.
    #[expect(unsafe_code, reason = "rustix marks unshare unsafe for its FILES flag")]
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
    run("ip link set lo up");
    true
}

/// Makes a namespace without marks.
fn add_namespace(name: &str) {
    netns::create::<NetworkError>(name, || Ok(())).unwrap().unwrap();
}

/// A port of the host that guests reach.
const OPEN: Ports = Ports::one(Protocol::Tcp, 7000);
const OPEN_UDP: Ports = Ports::one(Protocol::Udp, 7001);

/// Of its guest's NIC.
const MAC: MacAddr = MacAddr::local([0, 0, 0, 0, 2]);

fn inside(forwards: &[Ports]) -> Inside {
    Inside {
        net: "10.0.2.0/24".parse().unwrap(),
        net6: "fd10:0:2::/120".parse().unwrap(),
        forwards: forwards.to_vec(),
        mac: MAC,
        queues: tap::Queues::Single,
    }
}

/// One VM's network with a guest in it; gone when dropped.
struct Bench {
    plan: Plan,
    guest: String,
}

impl Bench {
    /// `None`, with a message, where the test may not create namespaces.
    fn new(forwards: &[Ports]) -> Option<Self> {
        if !on_own_host() {
            return None;
        }
        let bench =
            Self::beside(forwards, &GuestAccess { host_ports: vec![OPEN, OPEN_UDP], each_other: false });
        bench.put_guest();
        Some(bench)
    }

    /// One more VM of the same host, whose guest is not there yet.
    fn beside(forwards: &[Ports], access: &GuestAccess) -> Self {
        let (used, mtu) = host_facts().unwrap();
        let range = "10.213.0.0/16".parse().unwrap();
        // Tests run beside each other: the uid decides the names, and the process id the wire.
        let uid = Uuid::new_v4();
        let mut used = used;
        let mut wire = address::allocate(range, &used).unwrap();
        for _ in 0..uid.as_u128() % 4096 {
            used.insert(wire.vm().into());
            wire = address::allocate(range, &used).unwrap();
        }
        let range_ipv6: ipnet::Ipv6Net = "fd00:10:213::/64".parse().unwrap();
        let first = u128::from(range_ipv6.network()) | ((uid.as_u128() % (1 << 48)) << 2);
        let wire_ipv6 = ipv6::is_available()
            .then(|| WireIpv6 { net: Ipv6Net::new(first.into(), WIRE_IPV6_PREFIX).unwrap() });
        let plan = Plan::new(uid, wire, wire_ipv6, mtu);
        let inside = inside(forwards);
        prepare_host(range, wire_ipv6.map(|_| range_ipv6), access).unwrap();
        ensure(&plan, Some(&inside)).unwrap();
        // Once more: nothing may break, and nothing may be there twice.
        ensure(&plan, Some(&inside)).unwrap();
        Self { guest: format!("{}-guest", plan.namespace), plan }
    }

    fn put_guest(&self) {
        let (ns, guest) = (&self.plan.namespace, &self.guest);
        run(&format!("ip netns add {guest}"));
        run(&format!("ip -n {ns} link del tap0"));
        run(&format!("ip -n {ns} link add tap0 type veth peer name eth0 netns {guest}"));
        run(&format!("ip -n {ns} addr add 10.0.2.1/24 dev tap0"));
        run(&format!("ip -n {ns} link set tap0 up"));
        run(&format!("ip -n {guest} link set lo up"));
        run(&format!("ip -n {guest} link set eth0 address {MAC}"));
        run(&format!("ip -n {guest} link set eth0 up"));
        run(&format!("ip -n {guest} addr add 10.0.2.2/24 dev eth0"));
        run(&format!("ip -n {guest} route add default via 10.0.2.1"));
        if self.plan.wire_ipv6.is_some() {
            for (address, prefix) in [("fe80::1", 64), ("fd10:0:2::1", 120)] {
                run(&format!("ip -n {ns} addr add {address}/{prefix} dev tap0 nodad"));
            }
            run(&format!("ip -n {guest} addr add fd10:0:2::2/120 dev eth0 nodad"));
            run(&format!("ip -n {guest} -6 route add default via fe80::1 dev eth0"));
        }
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
    let host = TcpListener::bind((bench.plan.wire().host(), OPEN.first)).unwrap();
    let address = host.local_addr().unwrap();
    let client = bench.in_guest(move || TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
    let (_, seen) = host.accept().unwrap();
    assert_eq!(seen.ip(), bench.plan.wire().vm());
    drop(client);
}

#[test]
fn host_and_guest_reach_each_other_over_ipv6() {
    let Some(bench) = Bench::new(&[Ports::one(Protocol::Tcp, 8080)]) else { return };
    let Some(wire) = bench.plan.wire_ipv6() else {
        eprintln!("SKIPPED: the kernel has no IPv6");
        return;
    };
    let listener = bench.in_guest(|| TcpListener::bind("[fd10:0:2::2]:8080").unwrap());
    let closed = bench.in_guest(|| TcpListener::bind("[fd10:0:2::2]:9090").unwrap());
    let connect = |port| TcpStream::connect_timeout(&(wire.vm(), port).into(), Duration::from_secs(1));
    let _client = connect(8080).unwrap();
    let (_, peer) = listener.accept().unwrap();
    assert_eq!(peer.ip(), wire.host(), "the guest sees the host's own address");
    assert!(connect(9090).is_err());
    closed.set_nonblocking(true).unwrap();
    assert!(closed.accept().is_err());

    // The other way: the host sees the VMI's address, and from the guest's own address alone. The guest knows its gateway
    // then: it would ask for that from another address, too.
    run(&format!("ip netns exec {} ping -6 -c 1 -W 5 {}", bench.guest, wire.host()));
    run(&format!("ip -n {} addr add fd10:0:2::77/120 dev eth0 nodad", bench.guest));
    let host = UdpSocket::bind((wire.host(), OPEN_UDP.first)).unwrap();
    host.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let target = host.local_addr().unwrap();
    for from in ["fd10:0:2::77", "fd10:0:2::2"] {
        let send = move || UdpSocket::bind((from, 0)).unwrap().send_to(from.as_bytes(), target).unwrap();
        bench.in_guest(send);
    }
    let mut buffer = [0; 64];
    let (length, from) = host.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from.ip()), (&b"fd10:0:2::2"[..], wire.vm().into()));
    assert!(host.recv_from(&mut buffer).is_err());

    run(&format!("ip -n {} addr del fd10:0:2::77/120 dev eth0", bench.guest));
    // The gateway answers to a ping, and nothing of the namespace to anything else.
    run(&format!("ip netns exec {} ping -6 -c 1 -W 5 fd10:0:2::1", bench.guest));
    let namespace = netns::path(&bench.plan.namespace);
    let inner = netns::inside(&namespace, || TcpListener::bind("[::]:7777").unwrap()).unwrap();
    for address in [IpAddr::from(wire.vm()), "fd10:0:2::1".parse().unwrap()] {
        let to = (address, 7777).into();
        let reached = bench.in_guest(move || TcpStream::connect_timeout(&to, Duration::from_secs(1)));
        assert!(reached.is_err(), "{address}");
    }
    drop(inner);
}

#[test]
fn only_listed_ports_reach_the_guest() {
    let Some(bench) = Bench::new(&[Ports::one(Protocol::Tcp, 8080)]) else { return };
    let open = bench.listen(8080);
    let closed = bench.listen(9090);
    greet(&bench, &open, 8080);
    assert!(TcpStream::connect_timeout(&bench.vm(9090), Duration::from_secs(1)).is_err());
    closed.set_nonblocking(true).unwrap();
    assert!(closed.accept().is_err());
}

#[test]
fn a_range_of_ports_reaches_the_guest_with_its_ends() {
    let Some(bench) = Bench::new(&[Ports { protocol: Protocol::Tcp, first: 8080, last: 8082 }]) else {
        return;
    };
    for port in [8080, 8081, 8082] {
        greet(&bench, &bench.listen(port), port);
    }
    for port in [8079, 8083] {
        let closed = bench.listen(port);
        assert!(TcpStream::connect_timeout(&bench.vm(port), Duration::from_secs(1)).is_err());
        closed.set_nonblocking(true).unwrap();
        assert!(closed.accept().is_err());
    }
}

#[test]
fn a_guest_cannot_spoof_addresses_nor_reach_the_namespace() {
    let Some(bench) = Bench::new(&[]) else { return };
    let host = UdpSocket::bind((bench.plan.wire().host(), OPEN_UDP.first)).unwrap();
    host.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let target = host.local_addr().unwrap();
    // The guest knows its gateway then: it would ask for that from another address, too.
    run(&format!("ip netns exec {} ping -c 1 -W 5 10.0.2.1", bench.guest));
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

/// The namespace of a Pod as a CNI plugin leaves it, with the guest's side made in it.
fn pod(name: &str, addresses: &[&str], routes: &[&str]) -> (Uplink, impl Fn(&str) -> String + use<>) {
    add_namespace(name);
    run(&format!("ip -n {name} link add eth0 mtu 1400 type veth peer name peer"));
    for link in ["eth0", "peer"] {
        run(&format!("ip -n {name} link set {link} up"));
    }
    for address in addresses {
        run(&format!("ip -n {name} addr add {address} dev eth0"));
    }
    for route in routes {
        run(&format!("ip -n {name} route add default via {route}"));
    }
    let inside = inside(&[]);
    let path = netns::path(name);
    let uplink = ensure_in_pod(&path, &inside).unwrap();
    assert_eq!(ensure_in_pod(&path, &inside).unwrap(), uplink, "repeatable");
    let read = move |setting: &str| {
        let file = format!("/proc/sys/net/ipv6/conf/{setting}");
        netns::inside(&path, move || fs::read_to_string(file).unwrap().trim().to_owned()).unwrap()
    };
    (uplink, read)
}

#[test]
fn a_guest_has_ipv6_where_its_pod_has_it() {
    if permitted().is_err() || !ipv6::is_available() {
        eprintln!("SKIPPED: no rights, or no IPv6");
        return;
    }
    let name = format!("vireo-p{}", std::process::id());
    let (ipv4, ipv6) = ("10.244.0.5/24", "fd00:10:244::5/64 nodad");
    let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
    let settings =
        ["all/forwarding", "eth0/accept_ra", "tap0/accept_ra", "tap0/autoconf", "tap0/accept_redirects"];

    let (uplink, read) = pod(&name, &[ipv6, ipv4], &["10.244.0.1", "fd00:10:244::1"]);
    assert_eq!(uplink, Uplink { mtu: 1400, addresses: addresses(&["10.244.0.5", "fd00:10:244::5"]) });
    assert_eq!(settings.map(&read), ["1", "2", "0", "0", "0"]);
    let routes = run(&format!("ip -n {name} -6 route"));
    assert!(routes.contains("default via fd00:10:244::1 dev eth0"), "{routes}");
    let shown = run(&format!("ip -n {name} -o -6 addr show dev tap0"));
    assert!(shown.contains("fd10:0:2::1/120") && shown.contains("fe80::1/64"), "{shown}");
    assert_eq!(shown.lines().count(), 2, "no other address: {shown}");
    netns::remove(&name).unwrap();

    let (uplink, _) = pod(&name, &[ipv6], &["fd00:10:244::1"]);
    assert_eq!(uplink, Uplink { mtu: 1400, addresses: addresses(&["fd00:10:244::5"]) });
    netns::remove(&name).unwrap();

    let (uplink, read) = pod(&name, &[ipv4], &["10.244.0.1"]);
    assert_eq!(uplink, Uplink { mtu: 1400, addresses: addresses(&["10.244.0.5"]) });
    assert_eq!(["all/forwarding", "eth0/accept_ra", "tap0/disable_ipv6"].map(&read), ["0", "1", "1"]);
    netns::remove(&name).unwrap();
}

#[test]
fn a_plan_of_an_earlier_release_is_one_without_ipv6() {
    let stored = r#"{"namespace": "vireo-1", "host_link": "vv1", "wire": "10.201.0.4/30", "mtu": 1500}"#;
    let plan: Plan = serde_json::from_str(stored).unwrap();
    assert_eq!(plan.vm_addresses(), [IpAddr::from([10, 201, 0, 6])]);
    let without: serde_json::Value = serde_json::from_str(stored).unwrap();
    assert_eq!(serde_json::to_value(&plan).unwrap(), without, "as it was written");
    let plan = Plan { wire_ipv6: Some("fd00:10:201::4/126".parse().unwrap()), ..plan };
    let read: Plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    let ipv6: std::net::Ipv6Addr = "fd00:10:201::6".parse().unwrap();
    assert_eq!(read.vm_addresses(), [IpAddr::from([10, 201, 0, 6]), ipv6.into()]);
}

#[test]
fn a_tap_is_persistent_and_made_once() {
    if let Err(reason) = permitted() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    let name = format!("vireo-t{}", std::process::id());
    add_namespace(&name);
    let path = netns::path(&name);
    let links = netns::inside(&path, || {
        use tap::Queues::{Several, Single};
        tap::create(TAP, Single).unwrap();
        tap::create(TAP, Single).unwrap();
        assert!(tap::create("a-name-beyond-fifteen", Single).is_err());
        let _first = tap::open(TAP, Single).unwrap();
        assert!(tap::open(TAP, Single).is_err(), "it has one queue");
        tap::create("tap1", Several).unwrap();
        let queues = [(); 8].map(|()| tap::open("tap1", Several).unwrap());
        drop(queues);
        run("ip -o -d link show type tun")
    });
    netns::remove(&name).unwrap();
    let links = links.unwrap();
    assert_eq!(links.lines().count(), 2, "{links}");
    assert_eq!(links.matches(" multi_queue ").count(), 1, "{links}");
    assert!(
        links.contains("tap0") && links.contains("persist on") && links.contains("vnet_hdr on"),
        "{links}"
    );
}
