//! Inputs to begin with, where a target needs a form that it would take long to find.

/// A script of [`super::transport`]: the handshake, with rings of 16.
fn begin() -> Vec<u8> {
    let mut script = vec![0x46];
    script.extend(u64::MAX.to_le_bytes());
    script
}

/// A request with a header, and bytes in either direction, that is waited for.
fn request(queue: u8, kind: u8, header: &[u8], (to, from): (u16, u16)) -> Vec<u8> {
    let mut script = vec![0x2c | kind, queue, u8::try_from(header.len()).expect("a short header")];
    script.extend(to.to_le_bytes());
    script.extend(from.to_le_bytes());
    script.extend(header);
    script
}

fn block_request(kind: u32, sector: u64, lengths: (u16, u16)) -> Vec<u8> {
    let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
    request(0, 0, &header, lengths)
}

fn blocks() -> Vec<u8> {
    let mut script = begin();
    for (kind, lengths) in
        [(1, (4096, 0)), (0, (0, 4096)), (4, (0, 0)), (8, (0, 20)), (11, (16, 0)), (13, (32, 0))]
    {
        script.extend(block_request(kind, 3, lengths));
    }
    script
}

fn frames() -> Vec<u8> {
    let mut script = begin();
    // A buffer to receive in, a frame from outside, one to send, and a command to use both pairs.
    script.extend([0x07, 0, 0, 0, 0, 6, 2, 0x05, 0]);
    script.extend([0x09, 64]);
    script.extend([2; 64]);
    script.push(8);
    script.extend(request(1, 0, &[0; 60], (0, 0)));
    script.extend(request(4, 0, &[4, 0, 2, 0], (0, 0)));
    script
}

/// A console, or a port: input from outside, and output.
fn characters() -> Vec<u8> {
    let mut script = begin();
    script.extend([0x07, 0, 0, 0, 0, 1, 2, 0x05, 0]);
    script.extend([0x09, 5]);
    script.extend(b"input");
    script.extend(request(1, 0, b"output", (0, 0)));
    script
}

/// One seed for each device of the last target.
fn others() -> Vec<Vec<u8>> {
    let scsi = {
        let mut header = vec![1, 0, 0x40, 0];
        header.resize(19, 0);
        header.extend([0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        header.resize(51, 0);
        request(2, 0x10, &header, (0, 2048))
    };
    // The control messages of a driver that is ready, and of a port that is.
    let port =
        [request(3, 0, &[0, 0, 0, 0, 0, 0, 1, 0], (0, 0)), request(3, 0, &[0, 0, 0, 0, 6, 0, 1, 0], (0, 0))];
    let gpu = request(0, 0x10, &[[0, 1], [0, 0]].concat(), (0, 2048));
    let events = [vec![0x07, 0, 0, 0, 8, 0, 2, 0x05, 0], vec![0x09, 3, 30, 40, 1]].concat();
    let bodies = [scsi, port.concat(), gpu, events.clone(), events, vec![0x07, 0, 0, 0, 64, 0, 2, 0x05, 0]];
    (0_u8..).zip(bodies).map(|(kind, body)| [vec![kind], begin(), body].concat()).collect()
}

/// A qcow2 image of 64 KiB in clusters of 512 bytes, the first two of which are there.
fn qcow2() -> Vec<u8> {
    const CLUSTER: u64 = 512;
    let mut image = vec![0; 6 * 512];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = usize::try_from(at).expect("a small image");
        image.get_mut(at..at + bytes.len()).expect("inside").copy_from_slice(bytes);
    };
    put(0, b"QFI\xfb\0\0\0\x03");
    put(20, &9_u32.to_be_bytes());
    put(24, &(64_u64 << 10).to_be_bytes());
    put(36, &2_u32.to_be_bytes());
    put(40, &(2 * CLUSTER).to_be_bytes());
    put(48, &CLUSTER.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    // References: a table with one block, in which six clusters are used once.
    put(CLUSTER, &(3 * CLUSTER).to_be_bytes());
    for cluster in 0..6 {
        put(3 * CLUSTER + 2 * cluster, &1_u16.to_be_bytes());
    }
    const USED_ONCE: u64 = 1 << 63;
    put(2 * CLUSTER, &(4 * CLUSTER | USED_ONCE).to_be_bytes());
    put(4 * CLUSTER, &(5 * CLUSTER | USED_ONCE).to_be_bytes());
    put(5 * CLUSTER, &[7; 512]);
    let accesses =
        [[0, 0, 0, 3], [1, 0, 0, 1], [1, 20, 0, 8], [3, 0, 0, 1], [4, 4, 0, 2], [5, 0, 0, 1], [2, 0, 0, 0]];
    let count = u8::try_from(accesses.len()).expect("a few");
    [vec![count], accesses.concat(), image].concat()
}

/// The seeds of each target that has any.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let kernels =
        crate::boot::fuzzing::seeds().into_iter().map(|kernel| ("boot", [&[0], kernel.as_slice()].concat()));
    let mut seeds: Vec<_> = kernels.collect();
    seeds.extend(others().into_iter().map(|script| ("virtio_transport", script)));
    seeds.extend(super::saved::device_states().into_iter().map(|state| ("saved_device", state)));
    seeds.push(("virtio_balloon", [begin(), vec![0x07, 0, 0, 0, 64, 0, 0, 0x05, 0, 0x09, 1, 0]].concat()));
    seeds.push(("virtio_block", blocks()));
    seeds.push(("virtio_net", frames()));
    seeds.push(("virtio_console", characters()));
    seeds.push(("qcow2", qcow2()));
    seeds
}
