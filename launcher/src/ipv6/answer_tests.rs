use proptest::prelude::*;

use super::super::request::options;
use super::*;

const CLIENT: [u8; 10] = [0, 3, 0, 1, 0x52, 0x54, 0, 1, 2, 3];
const SOLICIT: u8 = 1;
const REQUEST: u8 = 3;
const CONFIRM: u8 = 4;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORMATION_REQUEST: u8 = 11;

fn lease() -> Ipv6Lease {
    Ipv6Lease {
        address: "fd10:0:2::2".parse().unwrap(),
        prefix_length: 120,
        dns_servers: vec!["2001:db8::53".parse().unwrap()],
        search_domains: vec!["a.example".into()],
    }
}

fn request(kind: u8, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = vec![kind, 0xab, 0xcd, 0xef];
    for (code, value) in options {
        option(&mut message, *code, value);
    }
    message
}

/// An association of addresses, as a client writes it.
fn association(id: u8, addresses: &[&str]) -> Vec<u8> {
    let mut value = vec![0, 0, 0, id, 0, 0, 0, 0, 0, 0, 0, 0];
    for text in addresses {
        address(&mut value, text.parse().unwrap(), 7);
    }
    value
}

/// The options of an answer.
type Options = Vec<(u16, Vec<u8>)>;

fn ask(request: &[u8]) -> Option<(u8, Options)> {
    let answer = answer(request, &lease())?;
    assert_eq!(answer[1..4], [0xab, 0xcd, 0xef]);
    Some((answer[0], options(&answer[4..]).map(|(code, value)| (code, value.to_vec())).collect()))
}

fn value(options: &[(u16, Vec<u8>)], code: u16) -> Option<&[u8]> {
    options.iter().find(|(known, _)| *known == code).map(|(_, value)| value.as_slice())
}

#[test]
fn a_solicit_is_answered_to_the_byte() {
    let none = association(9, &[]);
    let packet = request(SOLICIT, &[(CLIENT_ID, &CLIENT), (IA_NA, &none), (8, &[0, 0])]);
    #[rustfmt::skip]
    let expected = [
        2, 0xab, 0xcd, 0xef,
        0, 1, 0, 10, 0, 3, 0, 1, 0x52, 0x54, 0, 1, 2, 3,
        0, 2, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 0,
        0, 7, 0, 1, 255,
        0, 3, 0, 40, 0, 0, 0, 9, 0x02, 0x92, 0x85, 0x40, 0x04, 0x80, 0x69, 0x30,
        0, 5, 0, 24, 0xfd, 0x10, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x05, 0x25, 0x0a, 0x80, 0x05, 0x25, 0x0a, 0x80,
        0, 23, 0, 16, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x53,
        0, 24, 0, 11, 1, b'a', 7, b'e', b'x', b'a', b'm', b'p', b'l', b'e', 0,
    ];
    assert_eq!(answer(&packet, &lease()).unwrap(), expected);
}

#[test]
fn a_rapid_commit_saves_a_round() {
    let none = association(1, &[]);
    let packet = request(SOLICIT, &[(CLIENT_ID, &CLIENT), (RAPID_COMMIT, &[]), (IA_NA, &none)]);
    let (kind, options) = ask(&packet).unwrap();
    assert_eq!((kind, value(&options, RAPID_COMMIT)), (REPLY, Some(&[][..])));
    assert_eq!(value(&options, PREFERENCE), None);
    assert!(value(&options, IA_NA).is_some());
}

#[test]
fn a_client_gets_the_one_address_and_loses_all_others() {
    let (mine, both) = (association(1, &["fd10:0:2::2"]), association(1, &["fd10:0:2::2", "2001:db8::7"]));
    let expected = |ended: &[&str]| {
        let mut value = vec![0, 0, 0, 1];
        value.extend((LIFETIME / 2).to_be_bytes());
        value.extend((LIFETIME / 8 * 7).to_be_bytes());
        address(&mut value, lease().address, LIFETIME);
        for text in ended {
            address(&mut value, text.parse().unwrap(), 0);
        }
        value
    };
    let server: &[(u16, &[u8])] = &[(SERVER_ID, &ID)];
    for (kind, server) in [(REQUEST, server), (RENEW, server), (REBIND, &[][..])] {
        for (has, ended) in [(&mine, &[][..]), (&both, &["2001:db8::7"][..])] {
            let packet = request(kind, &[&[(CLIENT_ID, &CLIENT[..]), (IA_NA, has)], server].concat());
            let (answer, options) = ask(&packet).unwrap();
            assert_eq!((answer, value(&options, IA_NA)), (REPLY, Some(&expected(ended)[..])), "{kind}");
            assert!(value(&options, DNS_SERVERS).is_some());
        }
    }
}

#[test]
fn a_second_association_gets_no_address() {
    let (first, second) = (association(1, &[]), association(2, &[]));
    let packet = request(REBIND, &[(CLIENT_ID, &CLIENT), (IA_NA, &first), (IA_NA, &second)]);
    let (_, options) = ask(&packet).unwrap();
    let [first, second] = &options.iter().filter(|(code, _)| *code == IA_NA).collect::<Vec<_>>()[..] else {
        panic!("{options:?}");
    };
    assert_eq!(first.1.len(), 40);
    assert_eq!(second.1, [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13, 0, 2, 0, 2]);
}

#[test]
fn the_longest_answer_fits_into_a_packet_of_every_link() {
    let addresses: Vec<String> = (1..=8).map(|number| format!("2001:db8::{number}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let associations: Vec<Vec<u8>> = (1..=20).map(|id| association(id, &addresses)).collect();
    let mut options = vec![(CLIENT_ID, &[1; 130][..])];
    options.extend(associations.iter().map(|one| (IA_NA, &one[..])));
    let answer = answer(&request(SOLICIT, &options), &lease()).expect("an answer");
    // 1,280 bytes less the headers of IPv6 and UDP.
    assert!((700..=1280 - 48).contains(&answer.len()), "{} bytes", answer.len());
}

#[test]
fn addresses_of_this_link_are_confirmed() {
    for (addresses, code) in [
        (&["fd10:0:2::2"][..], Some(SUCCESS)),
        (&["fd10:0:2::2", "2001:db8::7"], Some(NOT_ON_LINK)),
        (&[], None),
    ] {
        let packet = request(CONFIRM, &[(CLIENT_ID, &CLIENT), (IA_NA, &association(1, addresses))]);
        let status = ask(&packet).map(|(_, options)| value(&options, STATUS).unwrap().to_vec());
        assert_eq!(status, code.map(|code| code.to_be_bytes().to_vec()), "{addresses:?}");
    }
}

#[test]
fn what_is_released_or_declined_is_acknowledged() {
    for kind in [RELEASE, DECLINE] {
        let mine = association(1, &["fd10:0:2::2"]);
        let (answer, options) =
            ask(&request(kind, &[(CLIENT_ID, &CLIENT), (SERVER_ID, &ID), (IA_NA, &mine)])).unwrap();
        assert_eq!((answer, value(&options, STATUS)), (REPLY, Some(&[0, 0][..])));
        assert_eq!(value(&options, IA_NA), None);
    }
}

#[test]
fn information_needs_no_identifier() {
    let (kind, options) = ask(&request(INFORMATION_REQUEST, &[])).unwrap();
    assert_eq!((kind, value(&options, CLIENT_ID)), (REPLY, None));
    assert_eq!(value(&options, SEARCH_DOMAINS), Some(&b"\x01a\x07example\0"[..]));
    let empty = Ipv6Lease { dns_servers: Vec::new(), search_domains: Vec::new(), ..lease() };
    let bare = answer(&request(INFORMATION_REQUEST, &[]), &empty).unwrap();
    assert_eq!(bare.len(), 4 + 4 + ID.len(), "the server's identifier alone");
}

#[test]
fn other_messages_are_not_answered() {
    let other: &[u8] = &[0, 3, 0, 1, 2, 0, 0, 0, 0, 9];
    let client: (u16, &[u8]) = (CLIENT_ID, &CLIENT);
    let ours: (u16, &[u8]) = (SERVER_ID, &ID);
    let none = association(1, &[]);
    let long = [0; 131];
    for (kind, options) in [
        (SOLICIT, vec![]),
        (SOLICIT, vec![client, ours]),
        (SOLICIT, vec![(CLIENT_ID, &long[..])]),
        (SOLICIT, vec![(CLIENT_ID, &[][..])]),
        (SOLICIT, vec![client, (IA_NA, &[0, 0, 0, 1][..])]),
        (REQUEST, vec![client]),
        (REQUEST, vec![ours]),
        (REQUEST, vec![client, (SERVER_ID, other)]),
        (RENEW, vec![client]),
        (REBIND, vec![client, ours]),
        (RELEASE, vec![client, (SERVER_ID, other)]),
        (INFORMATION_REQUEST, vec![(SERVER_ID, other)]),
        (INFORMATION_REQUEST, vec![client, (IA_NA, &none[..])]),
        // A server's, a relay's, and one that is not defined.
        (ADVERTISE, vec![client]),
        (REPLY, vec![client, ours]),
        (12, vec![client]),
        (200, vec![client]),
    ] {
        assert_eq!(answer(&request(kind, &options), &lease()), None, "{kind} {options:?}");
    }
    assert_eq!(answer(&[], &lease()), None);
    assert_eq!(answer(&[SOLICIT, 0, 0], &lease()), None);
}

proptest! {
    #[test]
    fn any_packet_is_survived(packet in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = answer(&packet, &lease());
    }

    /// Garbage behind a header and an identifier that are right, with options that lie about their lengths.
    #[test]
    fn garbage_in_options_is_survived(
        kind in 1_u8..=13,
        garbage in proptest::collection::vec(any::<u8>(), 0..600),
        code in 0_u16..40,
        length in any::<u16>(),
    ) {
        let mut packet = request(kind, &[(CLIENT_ID, &CLIENT), (SERVER_ID, &ID), (IA_NA, &garbage)]);
        packet.extend(code.to_be_bytes());
        packet.extend(length.to_be_bytes());
        packet.extend(garbage);
        if let Some(answer) = answer(&packet, &lease()) {
            // No amplification beyond what an association of the guest's own names.
            prop_assert!(answer.len() <= packet.len() + 160, "{} for {}", answer.len(), packet.len());
        }
    }
}
