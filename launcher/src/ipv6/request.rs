use std::net::Ipv6Addr;

/// Message types of clients (RFC 8415, section 7.3).
const SOLICIT: u8 = 1;
const REQUEST: u8 = 3;
const CONFIRM: u8 = 4;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORMATION_REQUEST: u8 = 11;

/// Options (RFC 8415, section 21).
pub(super) const CLIENT_ID: u16 = 1;
pub(super) const SERVER_ID: u16 = 2;
pub(super) const IA_NA: u16 = 3;
pub(super) const IA_ADDRESS: u16 = 5;
pub(super) const RAPID_COMMIT: u16 = 14;

/// The longest identifier: a type and 128 bytes (RFC 8415, section 11.1).
const LONGEST_ID: usize = 130;
/// More associations, and addresses in all of them, than any client has. An answer with all fits into the smallest packet that
/// each link carries (RFC 8200, section 5).
const MOST_ASSOCIATIONS: usize = 8;
const MOST_ADDRESSES: usize = 16;
/// Type and transaction.
const HEADER: usize = 4;
/// What precedes the options of an association: IAID, T1 and T2.
const IA_HEADER: usize = 12;

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Solicit,
    Request,
    Confirm,
    Renew,
    Rebind,
    Release,
    Decline,
    InformationRequest,
}

/// An identity association: what a client binds its addresses to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Association {
    /// The client's name for it.
    pub id: [u8; 4],
    /// The addresses that it has, or would like to have.
    pub addresses: Vec<Ipv6Addr>,
}

/// A client's message, as far as it matters for the answer.
///
/// Read here and not by `dhcproto`, for the reason that its older sibling in `dhcp` has: the bytes are the guest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// What is wanted.
    pub kind: Kind,
    /// Transaction.
    pub transaction: [u8; 3],
    /// The client's identifier.
    pub client: Option<Vec<u8>>,
    /// The server the client means.
    pub server: Option<Vec<u8>>,
    /// Whether it takes a reply instead of an offer.
    pub rapid_commit: bool,
    /// Its associations for addresses that are not temporary.
    pub associations: Vec<Association>,
}

impl Request {
    /// Reads a message that comes from a client without a relay; `None` for everything else.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let &[kind, a, b, c] = packet.first_chunk::<HEADER>()?;
        let kind = match kind {
            SOLICIT => Kind::Solicit,
            REQUEST => Kind::Request,
            CONFIRM => Kind::Confirm,
            RENEW => Kind::Renew,
            REBIND => Kind::Rebind,
            RELEASE => Kind::Release,
            DECLINE => Kind::Decline,
            INFORMATION_REQUEST => Kind::InformationRequest,
            _ => return None,
        };
        let mut request = Self {
            kind,
            transaction: [a, b, c],
            client: None,
            server: None,
            rapid_commit: false,
            associations: Vec::new(),
        };
        for (code, value) in options(packet.get(HEADER..)?) {
            match code {
                CLIENT_ID => request.client = Some(id(value)?),
                SERVER_ID => request.server = Some(id(value)?),
                RAPID_COMMIT => request.rapid_commit = true,
                IA_NA if request.associations.len() < MOST_ASSOCIATIONS => {
                    let addresses = request.associations.iter().map(|one| one.addresses.len()).sum();
                    request.associations.push(association(value, MOST_ADDRESSES.saturating_sub(addresses))?);
                }
                _ => {}
            }
        }
        Some(request)
    }
}

fn id(value: &[u8]) -> Option<Vec<u8>> {
    (3..=LONGEST_ID).contains(&value.len()).then(|| value.to_vec())
}

/// Reads an association with at most so many addresses.
fn association(value: &[u8], most: usize) -> Option<Association> {
    let id = *value.first_chunk()?;
    let addresses = options(value.get(IA_HEADER..)?).filter(|(code, _)| *code == IA_ADDRESS);
    let address = |(_, value): (u16, &[u8])| value.first_chunk::<16>().copied().map(Ipv6Addr::from);
    Some(Association { id, addresses: addresses.filter_map(address).take(most).collect() })
}

/// The options of a message, as far as they make sense.
pub(super) fn options(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (&[a, b, c, d], behind) = rest.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([c, d]));
        let (value, behind) = behind.split_at_checked(length)?;
        rest = behind;
        Some((u16::from_be_bytes([a, b]), value))
    })
}
