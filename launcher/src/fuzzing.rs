//! Entry points for fuzz targets (`fuzz`): what a guest sends to the launcher beside its hypervisor, and what QEMU
//! says to it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};
use tokio::runtime::Runtime;

use crate::console::{Ring, plain_text};
use crate::dhcp::{self, Offer};
use crate::launch::{Ipv6Lease, Lease, Route};
use crate::{health, ipv6};

pub use crate::agent::fuzzing::guest_agent;
pub use crate::hypervisor::qemu::fuzzing::qmp;

/// What may lie between a launcher and what it talks to.
const BUFFER: usize = 64 << 10;
/// What a guest can put into one frame of the usual size, without headers.
const FRAME: usize = 1472;

thread_local! {
    static RUNTIME: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
}

/// Runs a future that waits for nothing from outside.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

static OFFER: LazyLock<Offer> = LazyLock::new(|| Offer {
    mac: "52:54:00:00:00:01".parse().expect("an address"),
    lease: Lease {
        address: Ipv4Addr::new(10, 0, 2, 2),
        prefix_length: 24,
        gateway: Some(Ipv4Addr::new(10, 0, 2, 1)),
        server: Ipv4Addr::new(10, 0, 2, 1),
        routes: vec![Route {
            destination: "10.9.0.0/16".parse().expect("a network"),
            gateway: Ipv4Addr::UNSPECIFIED,
        }],
        dns_servers: vec![Ipv4Addr::new(10, 0, 2, 1)],
        search_domains: vec!["default.svc.cluster.local".to_owned()],
        hostname: "web".to_owned(),
        domain: "example".to_owned(),
        boot_file: String::new(),
        tftp_server: String::new(),
        ntp_servers: Vec::new(),
        private_options: vec![(224, "private".to_owned())],
    },
    mtu: Some(1450),
});

static LEASE: LazyLock<Ipv6Lease> = LazyLock::new(|| Ipv6Lease {
    address: Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 2),
    prefix_length: 120,
    dns_servers: vec![Ipv6Addr::LOCALHOST],
    search_domains: vec!["default.svc.cluster.local".to_owned()],
});

/// A packet of the guest to the server that the first byte says: DHCP, DHCPv6, or the router.
pub fn dhcp(script: &[u8]) {
    let Some((server, packet)) = script.split_first() else { return };
    match server % 3 {
        0 => {
            let Some(answer) = dhcp::answer(packet, &OFFER) else { return };
            assert!(
                (300..=FRAME).contains(&answer.packet.len()),
                "an answer of {} bytes",
                answer.packet.len()
            );
        }
        1 => {
            let Some(answer) = ipv6::answer(packet, &LEASE) else { return };
            assert!(answer.len() <= FRAME, "an answer of {} bytes", answer.len());
        }
        _ => {
            assert!(!ipv6::is_solicitation(packet) || packet.starts_with(&[133, 0]));
        }
    }
}

/// Output on the guest's console: the history that clients are shown, and what firmware logs.
pub fn console(script: &[u8]) {
    let mut ring = Ring::new(512);
    let mut scanner = vireo_vmm::FirmwareLogScanner::default();
    for piece in script.chunks(100) {
        ring.push(piece);
        scanner.scan(piece);
    }
    let shown = plain_text(&ring.history());
    let text = std::str::from_utf8(&shown).expect("text");
    for (at, letter) in text.char_indices() {
        match letter {
            '\n' | '\r' | '\t' | '\x08' => {}
            '\x1b' => assert!(is_style(text.get(at..).unwrap_or_default()), "{text:?}"),
            letter => assert!(!letter.is_control(), "{text:?}"),
        }
    }
    assert_eq!(plain_text(&shown), shown, "what is shown is shown as it is");
}

/// Whether a text begins with `CSI numbers m`.
fn is_style(text: &str) -> bool {
    let parameters = text.strip_prefix("\x1b[").and_then(|rest| rest.split_once('m'));
    parameters
        .is_some_and(|(numbers, _)| numbers.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b';' | b':')))
}

/// What the target of a probe answers to a request by HTTP.
pub fn probe(script: &[u8]) {
    block_on(async {
        let (ours, theirs) = duplex(BUFFER);
        let (mut from, mut to) = split(theirs);
        let answer = async {
            // Answers begin once the request has come.
            let _ = from.read(&mut [0; 1024]).await;
            let _ = to.write_all(script).await;
            let _ = to.shutdown().await;
            while matches!(from.read(&mut [0; 1024]).await, Ok(1..)) {}
        };
        tokio::join!(health::fuzz(ours), answer);
    });
}

/// Inputs to begin with.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut seeds = vec![
        ("dhcp", [&[0], discover(1).as_slice()].concat()),
        ("dhcp", [&[0], discover(3).as_slice()].concat()),
        ("dhcp", [&[0], discover(8).as_slice()].concat()),
        ("dhcp", vec![2, 133, 0, 1, 2, 0, 0, 0, 0, 0]),
        ("console", b"\x1b[1;32m OK \x1b[0m boot\r\n\x1b]0;title\x07\x1b[6n\x1bPq\x1b\\login: ".to_vec()),
        ("console", "No bootable device.\n\u{9b}31m ä 世 \x1b[38:2::1:2:3mx".into()),
        ("probe", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec()),
        (
            "probe",
            b"HTTP/1.1 302 Found\r\nLocation: //10.0.2.2:81/a?b\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_vec(),
        ),
        ("probe", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 404 \r\nConnection: close\r\n\r\n".to_vec()),
    ];
    for kind in [1, 3, 4, 5, 8, 11] {
        // A client's identifier, the server's, an association with an address, and rapid commit.
        let mut packet = vec![1, kind, 1, 2, 3, 0, 1, 0, 10, 0, 3, 0, 1, 0x52, 0x54, 0, 0, 0, 1];
        if matches!(kind, 3 | 5 | 8) {
            packet.extend([0, 2, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 0]);
        }
        packet.extend([0, 3, 0, 40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 24]);
        packet.extend(LEASE.address.octets());
        packet.extend([0; 8]);
        packet.extend([0, 14, 0, 0]);
        seeds.push(("dhcp", packet));
    }
    seeds.extend(crate::agent::fuzzing::seeds().into_iter().map(|seed| ("guest_agent", seed)));
    seeds.extend(crate::hypervisor::qemu::fuzzing::seeds().into_iter().map(|seed| ("qmp", seed)));
    seeds
}

/// A message of a DHCP client.
fn discover(kind: u8) -> Vec<u8> {
    let mut packet = vec![0; 240];
    let fields: [(usize, &[u8]); 3] =
        [(0, &[1, 1, 6]), (28, &[0x52, 0x54, 0, 0, 0, 1]), (236, &[99, 130, 83, 99])];
    for (at, bytes) in fields {
        if let Some(field) = packet.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    }
    packet.extend([53, 1, kind, 50, 4, 10, 0, 2, 2, 61, 3, 1, 2, 3, 54, 4, 10, 0, 2, 1, 255]);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_and_its_neighbours_run() {
        vireo_seeds::run(
            &[
                ("console", console),
                ("dhcp", dhcp),
                ("guest_agent", guest_agent),
                ("probe", probe),
                ("qmp", qmp),
            ],
            &seeds(),
        );
    }
}
