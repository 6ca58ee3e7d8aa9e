use dhcproto::{Decodable, Decoder};
use proptest::prelude::*;

use super::*;
use crate::launch::Route;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

fn offer() -> Offer {
    Offer {
        mac: "52:54:00:01:02:03".parse().unwrap(),
        mtu: Some(1450),
        lease: Lease {
            address: ADDRESS,
            prefix_length: 24,
            gateway: Some(GATEWAY),
            server: GATEWAY,
            routes: Vec::new(),
            dns_servers: vec![Ipv4Addr::new(9, 9, 9, 9)],
            search_domains: vec!["a.example".into(), "example.".into()],
            hostname: "web".into(),
            domain: "a.example".into(),
            boot_file: "pxe.0".into(),
            tftp_server: "10.0.2.9".into(),
            ntp_servers: vec![Ipv4Addr::new(10, 0, 2, 8)],
            private_options: vec![(240, "private".into())],
        },
    }
}

fn request(kind: MessageType, options: Vec<DhcpOption>) -> Message {
    let mut message = Message::default();
    message.set_xid(0xabcd).set_chaddr(&MAC);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    for option in options {
        message.opts_mut().insert(option);
    }
    message
}

fn ask(request: &Message) -> Option<(Message, Ipv4Addr)> {
    let answer = answer(&request.to_vec().unwrap(), &offer())?;
    assert!(answer.packet.len() >= LEAST);
    Some((Message::decode(&mut Decoder::new(&answer.packet)).unwrap(), answer.to))
}

#[test]
fn a_discover_is_offered_everything_the_guest_needs() {
    let id = DhcpOption::ClientIdentifier(vec![1, 2, 3]);
    let (reply, to) = ask(&request(MessageType::Discover, vec![id.clone()])).unwrap();
    assert_eq!(to, Ipv4Addr::BROADCAST);
    assert_eq!((reply.xid(), reply.yiaddr()), (0xabcd, ADDRESS));
    assert_eq!(reply.siaddr(), Ipv4Addr::new(10, 0, 2, 9));
    assert_eq!(reply.opcode(), Opcode::BootReply);
    let expected = [
        DhcpOption::MessageType(MessageType::Offer),
        DhcpOption::ServerIdentifier(GATEWAY),
        id,
        DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
        DhcpOption::BroadcastAddr(Ipv4Addr::new(10, 0, 2, 255)),
        DhcpOption::Router(vec![GATEWAY]),
        DhcpOption::DomainNameServer(vec![Ipv4Addr::new(9, 9, 9, 9)]),
        DhcpOption::NtpServers(vec![Ipv4Addr::new(10, 0, 2, 8)]),
        DhcpOption::InterfaceMtu(1450),
        DhcpOption::Hostname("web".into()),
        DhcpOption::DomainName("a.example".into()),
        DhcpOption::BootfileName(b"pxe.0".to_vec()),
        DhcpOption::TFTPServerName(b"10.0.2.9".to_vec()),
        DhcpOption::AddressLeaseTime(LEASE_SECONDS),
        DhcpOption::Renewal(LEASE_SECONDS / 2),
        DhcpOption::Rebinding(LEASE_SECONDS / 8 * 7),
    ];
    for option in expected {
        assert_eq!(reply.opts().get(OptionCode::from(&option)), Some(&option));
    }
    let Some(DhcpOption::DomainSearch(names)) = reply.opts().get(OptionCode::DomainSearch) else {
        panic!("no search domains in {reply:?}");
    };
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a.example.", "example."]);
    let private = OptionCode::Unknown(240);
    let Some(DhcpOption::Unknown(option)) = reply.opts().get(private) else { panic!("no option 240") };
    assert_eq!(option.data(), b"private");
}

#[test]
fn a_guest_on_a_bridge_learns_the_routes_of_its_pod() {
    let router = Ipv4Addr::new(10, 0, 2, 254);
    let route = |destination: [u8; 4], prefix_length, gateway: [u8; 4]| Route {
        destination: Ipv4Net::new(destination.into(), prefix_length).unwrap(),
        gateway: gateway.into(),
    };
    let routes = vec![route([10, 0, 2, 254], 32, [0; 4]), route([10, 96, 0, 0], 12, [10, 0, 2, 9])];
    let options = |gateway, routes| {
        let mut offer = offer();
        (offer.lease.gateway, offer.lease.server, offer.lease.routes) = (gateway, GATEWAY, routes);
        let discover = request(MessageType::Discover, vec![]).to_vec().unwrap();
        let packet = answer(&discover, &offer).unwrap().packet;
        let reply = Message::decode(&mut Decoder::new(&packet)).unwrap();
        let known = [OptionCode::ServerIdentifier, OptionCode::Router, OptionCode::ClasslessStaticRoute];
        known.map(|code| reply.opts().get(code).cloned())
    };
    let server = Some(DhcpOption::ServerIdentifier(GATEWAY));
    let all = vec![
        ("10.0.2.254/32".parse().unwrap(), Ipv4Addr::UNSPECIFIED),
        ("10.96.0.0/12".parse().unwrap(), Ipv4Addr::new(10, 0, 2, 9)),
        ("0.0.0.0/0".parse().unwrap(), router),
    ];
    assert_eq!(
        options(Some(router), routes.clone()),
        [
            server.clone(),
            Some(DhcpOption::Router(vec![router])),
            Some(DhcpOption::ClasslessStaticRoute(all.clone()))
        ]
    );
    let without = Some(DhcpOption::ClasslessStaticRoute(all[..2].to_vec()));
    assert_eq!(options(None, routes), [server.clone(), None, without]);
    assert_eq!(options(None, Vec::new()), [server, None, None]);
}

#[test]
fn a_request_is_granted_refused_or_none_of_our_business() {
    use DhcpOption::{RequestedIpAddress, ServerIdentifier};
    let other = Ipv4Addr::new(192, 168, 0, 7);
    let table = [
        // Selecting, init-reboot, with a stale address, for another server.
        (vec![ServerIdentifier(GATEWAY), RequestedIpAddress(ADDRESS)], None, Some(MessageType::Ack)),
        (vec![RequestedIpAddress(ADDRESS)], None, Some(MessageType::Ack)),
        (vec![RequestedIpAddress(other)], None, Some(MessageType::Nak)),
        (vec![ServerIdentifier(other), RequestedIpAddress(ADDRESS)], None, None),
        // Renewing its address, and one from another network.
        (vec![], Some(ADDRESS), Some(MessageType::Ack)),
        (vec![], Some(other), Some(MessageType::Nak)),
        (vec![], None, Some(MessageType::Nak)),
    ];
    for (options, ciaddr, kind) in table {
        let case = format!("{options:?} {ciaddr:?}");
        let mut request = request(MessageType::Request, options);
        request.set_ciaddr(ciaddr.unwrap_or(Ipv4Addr::UNSPECIFIED));
        let reply = ask(&request);
        assert_eq!(reply.as_ref().and_then(|(reply, _)| reply.opts().msg_type()), kind, "{case}");
        let Some((reply, to)) = reply else { continue };
        let granted = kind == Some(MessageType::Ack);
        assert_eq!(reply.yiaddr(), if granted { ADDRESS } else { Ipv4Addr::UNSPECIFIED }, "{case}");
        assert_eq!(to, ciaddr.filter(|_| granted).unwrap_or(Ipv4Addr::BROADCAST), "{case}");
    }
}

#[test]
fn an_inform_gets_configuration_and_no_lease() {
    let mut request = request(MessageType::Inform, vec![]);
    request.set_ciaddr(Ipv4Addr::new(10, 0, 2, 77));
    let (reply, to) = ask(&request).unwrap();
    assert_eq!(to, Ipv4Addr::new(10, 0, 2, 77));
    assert!(reply.yiaddr().is_unspecified());
    assert!(reply.opts().contains(OptionCode::Router));
    assert!(!reply.opts().contains(OptionCode::AddressLeaseTime));
}

#[test]
fn other_clients_and_packets_are_not_answered() {
    for kind in [MessageType::Release, MessageType::Decline, MessageType::Offer, MessageType::Unknown(200)] {
        assert_eq!(ask(&request(kind, vec![])), None);
    }
    let discover = || request(MessageType::Discover, vec![]);
    assert!(ask(&discover()).is_some());
    let mut foreign = discover();
    foreign.set_chaddr(&[0x52, 0x54, 0, 1, 2, 4]);
    let mut relayed = discover();
    relayed.set_giaddr(Ipv4Addr::new(1, 2, 3, 4));
    let mut reply = discover();
    reply.set_opcode(Opcode::BootReply);
    let mut token_ring = discover();
    token_ring.set_htype(dhcproto::v4::HType::ProteonTokenRing);
    let mut bootp = discover();
    bootp.opts_mut().clear();
    for packet in [foreign, relayed, reply, token_ring, bootp] {
        assert_eq!(ask(&packet), None, "{packet:?}");
    }
    let mut lying = discover().to_vec().unwrap();
    for length in [0, 5, 7, 16, 17, 255] {
        lying[2] = length;
        assert_eq!(answer(&lying, &offer()), None, "hlen {length}");
    }
}

proptest! {
    #[test]
    fn garbage_is_survived(packet in proptest::collection::vec(any::<u8>(), 0..700)) {
        let _ = answer(&packet, &offer());
    }

    /// Garbage behind a header that is ours reaches the options.
    #[test]
    fn garbage_in_options_is_survived(
        options in proptest::collection::vec(any::<u8>(), 0..400),
        length in any::<u8>(),
    ) {
        let mut packet = request(MessageType::Discover, vec![]).to_vec().unwrap();
        packet.pop();
        packet.extend(options);
        let _ = answer(&packet, &offer());
        packet[2] = length;
        let _ = answer(&packet, &offer());
    }
}
