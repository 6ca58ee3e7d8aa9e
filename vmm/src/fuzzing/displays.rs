//! Entry points to graphics and input devices, ports, and the VNC server.

use vm_memory::{Bytes, GuestAddress};

use super::drives::ram;
use crate::memory::{GuestMemory, Segments};

/// What a graphics request is made of: its type, and the words behind the header.
const REQUEST: usize = 1 + 32;
/// Where requests are in memory, and where their answers go; the script itself is below.
const REQUESTS: u64 = 32 << 10;
const ANSWERS: u64 = 48 << 10;

fn segments(memory: &GuestMemory, at: u64, len: usize) -> Segments {
    let mut segments = Segments::default();
    let len = u32::try_from(len).expect("a small script");
    segments.push(memory, GuestAddress(at), len).expect("in RAM");
    segments
}

/// Requests to the graphics adapter, of 33 bytes each: the type's low byte, with the highest bit for those of the
/// cursor, and what follows the header. Backings and their lists are the script itself, at address 0.
pub fn virtio_gpu(script: &[u8]) {
    let memory = ram();
    memory.write_slice(script.get(..4096).unwrap_or(script), GuestAddress(0)).expect("RAM at 0");
    crate::virtio::gpu::fuzz(&memory, |mut execute| {
        for request in script.chunks_exact(REQUEST) {
            let Some((kind, body)) = request.split_first() else { return };
            let kind = if kind & 0x80 == 0 { 0x100 } else { 0x300 } + u32::from(kind & 0xf);
            let header = [kind, 1, 7, 0, 0, 0].map(u32::to_le_bytes);
            // The list of a backing follows its request.
            let list = script.get(..2048).unwrap_or(script);
            let bytes = [header.as_flattened(), body, list].concat();
            let bytes = if kind == 0x106 { [&bytes[..32], list].concat() } else { bytes };
            memory.write_slice(&bytes, GuestAddress(REQUESTS)).expect("RAM");
            execute(segments(&memory, REQUESTS, bytes.len()), segments(&memory, ANSWERS, 2048));
        }
    });
}

/// What a driver writes to an input device: configuration accesses of two bytes, then the status queue.
pub fn virtio_input(script: &[u8]) {
    let memory = ram();
    let script = script.get(..4096).unwrap_or(script);
    memory.write_slice(script, GuestAddress(0)).expect("RAM at 0");
    crate::virtio::input::fuzz(&memory, script, segments(&memory, 0, script.len()));
}

/// What a driver writes to a port: control messages and output, each encoded in three bytes: which of the two, and where in
/// the script and how long it is, in units of eight bytes.
pub fn virtio_port(script: &[u8]) {
    let memory = ram();
    let script = script.get(..4096).unwrap_or(script);
    memory.write_slice(script, GuestAddress(0)).expect("RAM at 0");
    let (messages, _) = script.as_chunks::<3>();
    let buffer = |&[kind, at, len]: &[u8; 3]| {
        (kind & 1 == 0, segments(&memory, u64::from(at) * 8, usize::from(len) * 8))
    };
    crate::virtio::port::fuzz(&memory, messages.iter().map(buffer));
}

/// Messages of a viewer.
pub fn rfb(script: &[u8]) {
    crate::rfb::fuzz(script);
}
