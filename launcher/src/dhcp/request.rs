use std::net::Ipv4Addr;

/// What follows the fixed part of every DHCP packet (RFC 2131, section 3).
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// Where the options begin.
const OPTIONS: usize = 240;
const BOOT_REQUEST: u8 = 1;
const ETHERNET: u8 = 1;

const PAD: u8 = 0;
const REQUESTED_ADDRESS: u8 = 50;
const MESSAGE_TYPE: u8 = 53;
const SERVER_IDENTIFIER: u8 = 54;
const CLIENT_IDENTIFIER: u8 = 61;
const END: u8 = 255;

/// A client's packet, as far as it matters for the answer.
///
/// Read here and not by `dhcproto`, whose decoder asserts things about option lengths and slices by the hardware
/// address length: a guest could make it panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Option 53.
    pub kind: u8,
    /// Transaction.
    pub xid: u32,
    /// Broadcast bit and reserved ones.
    pub flags: u16,
    /// The client's current address; unspecified for none.
    pub ciaddr: Ipv4Addr,
    /// The client's Ethernet address.
    pub mac: [u8; 6],
    /// Option 50.
    pub wanted: Option<Ipv4Addr>,
    /// Option 54: the server the client means.
    pub server: Option<Ipv4Addr>,
    /// Option 61.
    pub client_identifier: Option<Vec<u8>>,
}

impl Request {
    /// Reads a request that comes from an Ethernet client without a relay; `None` for everything else.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let fixed: &[u8; OPTIONS] = packet.first_chunk()?;
        let [BOOT_REQUEST, ETHERNET, 6, ..] = *fixed else { return None };
        let giaddr = Ipv4Addr::from(field::<4>(fixed, 24)?);
        if field::<4>(fixed, OPTIONS - MAGIC.len())? != MAGIC || !giaddr.is_unspecified() {
            return None;
        }
        let mut request = Self {
            kind: 0,
            xid: u32::from_be_bytes(field(fixed, 4)?),
            flags: u16::from_be_bytes(field(fixed, 10)?),
            ciaddr: Ipv4Addr::from(field::<4>(fixed, 12)?),
            mac: field(fixed, 28)?,
            wanted: None,
            server: None,
            client_identifier: None,
        };
        request.read_options(packet.get(OPTIONS..)?);
        (request.kind != 0).then_some(request)
    }

    /// Reads as far as the options make sense.
    fn read_options(&mut self, mut rest: &[u8]) {
        while let Some((&code, behind)) = rest.split_first() {
            match code {
                PAD => rest = behind,
                END => return,
                _ => {
                    let Some((&length, behind)) = behind.split_first() else { return };
                    let Some((value, behind)) = behind.split_at_checked(usize::from(length)) else { return };
                    self.read_option(code, value);
                    rest = behind;
                }
            }
        }
    }

    fn read_option(&mut self, code: u8, value: &[u8]) {
        let address = || <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from);
        match (code, value) {
            (MESSAGE_TYPE, &[kind]) => self.kind = kind,
            (REQUESTED_ADDRESS, _) => self.wanted = address(),
            (SERVER_IDENTIFIER, _) => self.server = address(),
            (CLIENT_IDENTIFIER, _) => self.client_identifier = Some(value.to_vec()),
            _ => {}
        }
    }
}

fn field<const N: usize>(fixed: &[u8; OPTIONS], at: usize) -> Option<[u8; N]> {
    fixed.get(at..)?.first_chunk().copied()
}
