//! A USB device without hardware, which is redirected by the usbredir protocol (version 0.7): the side of the device's host.
//!
//! It has a configuration with an interface without endpoints, so that all transfers are those of the control endpoint.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};

/// The packets that are used.
mod packet {
    pub(super) const HELLO: u32 = 0;
    pub(super) const DEVICE_CONNECT: u32 = 1;
    pub(super) const RESET: u32 = 3;
    pub(super) const INTERFACE_INFO: u32 = 4;
    pub(super) const EP_INFO: u32 = 5;
    pub(super) const SET_CONFIGURATION: u32 = 6;
    pub(super) const GET_CONFIGURATION: u32 = 7;
    pub(super) const CONFIGURATION_STATUS: u32 = 8;
    pub(super) const SET_ALT_SETTING: u32 = 9;
    pub(super) const GET_ALT_SETTING: u32 = 10;
    pub(super) const ALT_SETTING_STATUS: u32 = 11;
    pub(super) const CANCEL_DATA: u32 = 21;
    pub(super) const CONTROL: u32 = 100;
}

/// The length of the version in a hello; capabilities follow.
const VERSION: usize = 64;
/// Packets after the hello have IDs of 64 bits where both sides announce this.
const LONG_IDS: u32 = 1 << 5;
/// What QEMU needs of a device on a controller of USB 3: packet sizes of endpoints, long IDs, long bulk packets.
const CAPABILITIES: u32 = 1 << 4 | LONG_IDS | 1 << 6;
/// Of packets of the control endpoint.
const PACKET_SIZE: u8 = 64;
/// Endpoints, or interfaces, of a description.
const DESCRIBED: usize = 32;
/// The first endpoint for input of a description.
const INPUT: usize = 16;
const NO_ENDPOINT: u8 = 255;
const FULL_SPEED: u8 = 1;
/// The class of devices for drivers of their vendors alone.
const VENDOR_SPECIFIC: u8 = 0xff;
const CONFIGURATION: u8 = 1;
const SUCCESS: u8 = 0;
const STALL: u8 = 4;
/// The longest packet that a host sends to a device like this.
const LONGEST: u32 = 64 << 10;

/// Standard requests and descriptors (USB 2.0, section 9.4).
const TO_HOST: u8 = 0x80;
const GET_STATUS: u8 = 0;
const GET_DESCRIPTOR: u8 = 6;
const DEVICE: u8 = 1;
const CONFIGURATIONS: u8 = 2;
const STRING: u8 = 3;
const ENGLISH: u16 = 0x0409;

/// A device, connected to a guest. Dropping it disconnects it.
#[derive(Debug)]
pub struct UsbDevice {
    stream: TcpStream,
    serving: Option<JoinHandle<()>>,
}

/// Who a device is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The vendor's ID.
    pub vendor: u16,
    /// The vendor's ID of the product.
    pub product: u16,
    /// The product's name.
    pub name: String,
}

impl UsbDevice {
    /// Connects a device to the address that `virtctl usbredir --no-launch` prints.
    ///
    /// # Errors
    /// When nothing accepts the connection.
    pub fn connect(address: SocketAddr, identity: Identity) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        let connection = stream.try_clone()?;
        let serving = thread::spawn(move || {
            // Whoever looks at the guest sees what is missing.
            if let Err(error) = serve(connection, &identity) {
                eprintln!("usb device: {error}");
            }
        });
        Ok(Self { stream, serving: Some(serving) })
    }
}

impl Drop for UsbDevice {
    fn drop(&mut self) {
        // The other side may have closed it.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(serving) = self.serving.take() {
            // A panic there was printed when it happened.
            let _ = serving.join();
        }
    }
}

/// Answers until the connection is closed.
fn serve(mut stream: impl Read + Write, identity: &Identity) -> io::Result<()> {
    let mut hello = b"vireo-tests".to_vec();
    hello.resize(VERSION, 0);
    hello.extend_from_slice(&CAPABILITIES.to_le_bytes());
    stream.write_all(&short_header(packet::HELLO, hello.len())?)?;
    stream.write_all(&hello)?;
    let Some([kind, length, _]) = fields(&mut stream)? else { return Ok(()) };
    let hello = body(&mut stream, length)?;
    let capabilities = hello.get(VERSION..VERSION + 4).and_then(|bytes| bytes.try_into().ok());
    if kind != packet::HELLO || capabilities.map_or(0, u32::from_le_bytes) & LONG_IDS == 0 {
        return Err(io::Error::other("the first packet is no hello of a guest with long IDs"));
    }
    send(&mut stream, packet::INTERFACE_INFO, 0, &interfaces())?;
    send(&mut stream, packet::EP_INFO, 0, &endpoints())?;
    send(&mut stream, packet::DEVICE_CONNECT, 0, &connect(identity))?;
    while let Some((kind, id, body)) = receive(&mut stream)? {
        if let Some((kind, answer)) = answer(kind, &body, identity)? {
            send(&mut stream, kind, id, &answer)?;
        }
    }
    Ok(())
}

/// The header of a hello, whose ID has 32 bits: 0.
fn short_header(kind: u32, length: usize) -> io::Result<Vec<u8>> {
    let length = u32::try_from(length).map_err(io::Error::other)?;
    Ok([kind, length, 0].map(u32::to_le_bytes).concat())
}

fn send(stream: &mut impl Write, kind: u32, id: u64, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut packet = [kind, length].map(u32::to_le_bytes).concat();
    packet.extend_from_slice(&id.to_le_bytes());
    packet.extend_from_slice(body);
    stream.write_all(&packet)
}

/// The next packet after the hello: its type, ID and body. None at the end.
fn receive(stream: &mut impl Read) -> io::Result<Option<(u32, u64, Vec<u8>)>> {
    let Some([kind, length, low, high]) = fields(stream)? else { return Ok(None) };
    let body = body(stream, length)?;
    Ok(Some((kind, u64::from(high) << 32 | u64::from(low), body)))
}

/// The fields of a header. None at the end.
fn fields<const N: usize>(stream: &mut impl Read) -> io::Result<Option<[u32; N]>> {
    use io::ErrorKind::{ConnectionReset, UnexpectedEof};
    let mut fields = [0; N];
    for (index, field) in fields.iter_mut().enumerate() {
        let mut bytes = [0; 4];
        match stream.read_exact(&mut bytes) {
            Err(error) if index == 0 && matches!(error.kind(), UnexpectedEof | ConnectionReset) => {
                return Ok(None);
            }
            read => read?,
        }
        *field = u32::from_le_bytes(bytes);
    }
    Ok(Some(fields))
}

fn body(stream: &mut impl Read, length: u32) -> io::Result<Vec<u8>> {
    if length > LONGEST {
        return Err(io::Error::other(format!("a packet of {length} bytes")));
    }
    let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// The only interface: number, class, subclass and protocol of each that a device may have.
fn interfaces() -> Vec<u8> {
    let mut info = 1_u32.to_le_bytes().to_vec();
    for first in [0, VENDOR_SPECIFIC, 0, 0] {
        let mut all = [0; DESCRIBED];
        all[0] = first;
        info.extend_from_slice(&all);
    }
    info
}

/// The control endpoint in both directions: type, interval, interface and packet size of each that a device may have.
fn endpoints() -> Vec<u8> {
    let mut types = [NO_ENDPOINT; DESCRIBED];
    types[0] = 0;
    types[INPUT] = 0;
    let mut sizes = [0; DESCRIBED];
    (sizes[0], sizes[INPUT]) = (u16::from(PACKET_SIZE), u16::from(PACKET_SIZE));
    let sizes = sizes.map(u16::to_le_bytes).concat();
    [types.to_vec(), vec![0; DESCRIBED], vec![0; DESCRIBED], sizes].concat()
}

fn connect(identity: &Identity) -> Vec<u8> {
    let mut device = vec![FULL_SPEED, VENDOR_SPECIFIC, 0, 0];
    device.extend_from_slice(&identity.vendor.to_le_bytes());
    device.extend_from_slice(&identity.product.to_le_bytes());
    device
}

/// The answer to a packet, if it has one.
fn answer(kind: u32, body: &[u8], identity: &Identity) -> io::Result<Option<(u32, Vec<u8>)>> {
    let status = vec![SUCCESS, CONFIGURATION];
    Ok(match (kind, body) {
        (packet::SET_CONFIGURATION | packet::GET_CONFIGURATION, _) => {
            Some((packet::CONFIGURATION_STATUS, status))
        }
        (packet::SET_ALT_SETTING | packet::GET_ALT_SETTING, [interface, ..]) => {
            Some((packet::ALT_SETTING_STATUS, vec![SUCCESS, *interface, 0]))
        }
        (packet::CONTROL, [endpoint, request, direction, _, fields @ ..]) => {
            let [v0, v1, i0, i1, l0, l1, ..] = *fields else {
                return Err(io::Error::other("a control transfer without its fields"));
            };
            let data = match direction & TO_HOST {
                0 => None,
                _ => descriptor((*request, v1, v0), identity),
            };
            let most = usize::from(u16::from_le_bytes([l0, l1]));
            let data = data.map(|data| data.into_iter().take(most).collect::<Vec<u8>>());
            let status = if data.is_some() { SUCCESS } else { STALL };
            let data = data.unwrap_or_default();
            let length = u16::try_from(data.len()).map_err(io::Error::other)?.to_le_bytes();
            let mut answer =
                vec![*endpoint, *request, *direction, status, v0, v1, i0, i1, length[0], length[1]];
            answer.extend_from_slice(&data);
            Some((packet::CONTROL, answer))
        }
        (packet::RESET | packet::CANCEL_DATA, _) => None,
        (other, _) => return Err(io::Error::other(format!("a packet of type {other}"))),
    })
}

/// What a request to the device reads: none of what it lacks. Of descriptors, by type and index.
fn descriptor(request: (u8, u8, u8), identity: &Identity) -> Option<Vec<u8>> {
    match request {
        (GET_STATUS, ..) => Some(vec![0, 0]),
        (GET_DESCRIPTOR, DEVICE, _) => {
            let mut device = vec![18, DEVICE, 0, 2, VENDOR_SPECIFIC, 0, 0, PACKET_SIZE];
            device.extend_from_slice(&identity.vendor.to_le_bytes());
            device.extend_from_slice(&identity.product.to_le_bytes());
            // Version 1.0; strings of manufacturer, product and serial number; configurations.
            device.extend_from_slice(&[0, 1, 0, 1, 0, 1]);
            Some(device)
        }
        (GET_DESCRIPTOR, CONFIGURATIONS, 0) => {
            // One interface, powered by the bus with 100 mA.
            let configuration = [9, CONFIGURATIONS, 18, 0, 1, CONFIGURATION, 0, 0x80, 50];
            let interface = [9, 4, 0, 0, 0, VENDOR_SPECIFIC, 0, 0, 0];
            Some([configuration, interface].concat())
        }
        (GET_DESCRIPTOR, STRING, 0) => Some(string(&[ENGLISH])),
        (GET_DESCRIPTOR, STRING, 1) => {
            let letters: Vec<u16> = identity.name.encode_utf16().collect();
            Some(string(&letters))
        }
        _ => None,
    }
}

fn string(units: &[u16]) -> Vec<u8> {
    let length = u8::try_from(2 + 2 * units.len()).unwrap_or(u8::MAX);
    [length, STRING].into_iter().chain(units.iter().flat_map(|unit| unit.to_le_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn identity() -> Identity {
        Identity { vendor: 0x1209, product: 0x0001, name: "Stick".to_owned() }
    }

    fn control(request: [u8; 3], value: u16, length: u16) -> (u8, Vec<u8>) {
        let [number, direction, index] = request;
        let mut body = vec![0x80, number, direction, 0];
        body.extend_from_slice(&value.to_le_bytes());
        body.extend_from_slice(&[index, 0]);
        body.extend_from_slice(&length.to_le_bytes());
        let (kind, answer) = answer(packet::CONTROL, &body, &identity()).unwrap().unwrap();
        assert_eq!(kind, packet::CONTROL);
        assert_eq!(usize::from(u16::from_le_bytes([answer[8], answer[9]])), answer.len() - 10);
        (answer[3], answer[10..].to_vec())
    }

    #[test]
    fn descriptors_are_as_long_as_they_say_and_no_longer_than_asked_for() {
        for (value, length, expected) in
            [(0x0100, 64, 18), (0x0100, 8, 8), (0x0200, 9, 9), (0x0200, 255, 18), (0x0301, 255, 12)]
        {
            let (status, data) = control([GET_DESCRIPTOR, TO_HOST, 0], value, length);
            assert_eq!((status, data.len()), (SUCCESS, expected), "{value:#x}");
            let whole =
                if value == 0x0200 { u16::from_le_bytes([18, 0]).into() } else { usize::from(data[0]) };
            assert_eq!(whole.min(length.into()), expected, "{value:#x}");
        }
        assert_eq!(control([GET_DESCRIPTOR, TO_HOST, 0], 0x0600, 10), (STALL, Vec::new()));
        assert_eq!(control([9, 0, 0], 1, 0), (STALL, Vec::new()));
    }

    #[test]
    fn a_device_greets_describes_itself_and_leaves() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let device = UsbDevice::connect(listener.local_addr().unwrap(), identity()).unwrap();
        let (mut guest, _) = listener.accept().unwrap();
        let [kind, length, _] = fields(&mut guest).unwrap().unwrap();
        assert_eq!((kind, body(&mut guest, length).unwrap().len()), (packet::HELLO, VERSION + 4));
        guest.write_all(&short_header(packet::HELLO, VERSION + 4).unwrap()).unwrap();
        guest.write_all(&[&[0; VERSION], &LONG_IDS.to_le_bytes()[..]].concat()).unwrap();
        let received = |guest: &mut TcpStream| receive(guest).unwrap().unwrap();
        let lengths = [packet::INTERFACE_INFO, packet::EP_INFO, packet::DEVICE_CONNECT].map(|expected| {
            let (kind, _, body) = received(&mut guest);
            assert_eq!(kind, expected);
            body.len()
        });
        // Without streams and the version of the device.
        assert_eq!(lengths, [4 + 4 * 32, (3 + 2) * 32, 8]);
        send(&mut guest, packet::RESET, 0, &[]).unwrap();
        send(&mut guest, packet::SET_CONFIGURATION, 7, &[1]).unwrap();
        assert_eq!(received(&mut guest), (packet::CONFIGURATION_STATUS, 7, vec![SUCCESS, CONFIGURATION]));
        drop(device);
        assert_eq!(receive(&mut guest).unwrap(), None);
    }
}
