//! Open files on their way from the node agent to a launcher, by SCM_RIGHTS (unix(7)).
//!
//! A launcher sees neither the node's files nor may it open devices, so the node agent opens them. The names are
//! those that the launch request has. Each packet has one descriptor and its name; the launcher answers the end of the
//! packets with the number that it has received.
//!
//! In the other direction, the containers of images in that Pod name the files of their images that the node agent needs.
//! It opens them itself: what a container passed could be anything.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::cmsg_space;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::netdevice::name_to_index;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, send, sendmsg, shutdown, socket_with, sockopt::socket_peercred,
};
use rustix::process::Pid;
use socket2::{Domain, Protocol, Socket, Type};

/// The socket for open files, below a VM's directory.
pub const FILES_SOCKET: &str = "files.sock";
/// The node's KVM, and the name of its descriptor.
pub const KVM: &str = "/dev/kvm";
/// The longest name: a path, or `tap:` and the name of a device.
const LONGEST_NAME: usize = 4096;
/// The most files that one image offers: a kernel and an initrd.
const MOST_OFFERED: usize = 2;

/// The name of the descriptor of a tap device's queue, counted from 0. No name of a device has a slash.
pub fn tap_name(device: &str, queue: usize) -> String {
    match queue {
        0 => format!("tap:{device}"),
        more => format!("tap:{device}/{more}"),
    }
}

/// The node's vhost-net.
pub const VHOST_NET: &str = "/dev/vhost-net";

/// The node's vhost-vsock, and the name of its descriptor.
pub const VHOST_VSOCK: &str = "/dev/vhost-vsock";

/// The name of the descriptor of the node's vhost-net for a queue of a tap device.
pub fn vhost_name(device: &str, queue: usize) -> String {
    format!("vhost:{device}/{queue}")
}

/// The name of the launcher's end of the socket to the passt of a NIC. QEMU's protocol of stream sockets is spoken there.
pub fn passt_name(nic: &str) -> String {
    format!("passt:{nic}")
}

/// The port of DHCP servers.
const DHCP_PORT: u16 = 67;

/// The name of the socket of the DHCP server on a tap device.
pub fn dhcp_name(device: &str) -> String {
    format!("dhcp:{device}")
}

/// The socket of the DHCP server on a tap device of the calling thread's network namespace.
///
/// # Errors
/// When it cannot be made; it asks for `CAP_NET_BIND_SERVICE`.
pub fn dhcp_socket(device: &str) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    // Each tap has its own server on the same port; the device keeps them apart.
    socket.set_reuse_address(true)?;
    socket.bind_device(Some(device.as_bytes()))?;
    socket.set_broadcast(true)?;
    socket.bind(&SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, DHCP_PORT)).into())?;
    Ok(socket.into())
}

/// The port of DHCPv6 servers.
const DHCPV6_PORT: u16 = 547;
/// All DHCP relay agents and servers of a link (RFC 8415, section 7.1).
const ALL_DHCP_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// All routers of a link (RFC 4291, section 2.7.1).
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// What shows a receiver that a message of neighbour discovery comes from its link (RFC 4861, section 6.1).
const ND_HOPS: u32 = 255;

/// The name of the socket of the DHCPv6 server on a tap device.
pub fn dhcpv6_name(device: &str) -> String {
    format!("dhcpv6:{device}")
}

/// The socket of the DHCPv6 server on a tap device of the calling thread's network namespace.
///
/// # Errors
/// When it cannot be made; it asks for `CAP_NET_BIND_SERVICE`.
pub fn dhcpv6_socket(device: &str) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.set_only_v6(true)?;
    socket.set_reuse_address(true)?;
    socket.bind_device(Some(device.as_bytes()))?;
    socket.bind(&SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, DHCPV6_PORT, 0, 0)).into())?;
    on_link(&socket, device, ALL_DHCP_SERVERS)?;
    Ok(socket.into())
}

/// The name of the socket for router advertisements on a tap device.
pub fn router_name(device: &str) -> String {
    format!("router:{device}")
}

/// The socket for router advertisements on a tap device of the calling thread's network namespace: ICMPv6 messages,
/// without their IP header.
///
/// # Errors
/// When it cannot be made; it asks for `CAP_NET_RAW`.
pub fn router_socket(device: &str) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::IPV6, Type::RAW.nonblocking(), Some(Protocol::ICMPV6))?;
    socket.bind_device(Some(device.as_bytes()))?;
    on_link(&socket, device, ALL_ROUTERS)?;
    socket.set_unicast_hops_v6(ND_HOPS)?;
    socket.set_multicast_hops_v6(ND_HOPS)?;
    Ok(socket.into())
}

/// Has a socket receive what is sent to a group on a device, and send there.
fn on_link(socket: &Socket, device: &str, group: Ipv6Addr) -> io::Result<()> {
    let index = name_to_index(socket, device)?;
    socket.join_multicast_v6(&group, index)?;
    socket.set_multicast_if_v6(index)?;
    socket.set_multicast_loop_v6(false)
}

/// The directory of an image that has its disk, where the manifest does not name the file.
pub const DISKS: &str = "/disk";

/// The name of the disk of an image: the path by which it was asked for, if there is one.
pub fn disk_name(path: Option<&Path>) -> String {
    format!("disk:{}", path.map(Path::to_string_lossy).unwrap_or_default())
}

/// The name of a file of an image.
pub fn file_name(path: &Path) -> String {
    format!("file:{}", path.to_string_lossy())
}

/// A file of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageFile {
    /// Its disk: at a path, or the only one.
    Disk(Option<PathBuf>),
    /// At a path.
    File(PathBuf),
}

impl ImageFile {
    /// The file that a name means.
    pub fn parse(name: &str) -> Option<Self> {
        let path = |path: &str| Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
        match name.split_once(':')? {
            ("disk", at) => Some(Self::Disk(path(at))),
            ("file", at) => path(at).map(Self::File),
            _ => None,
        }
    }
}

/// Passes open files to the launcher that listens at `socket`. Blocks until it has them.
///
/// # Errors
/// When the launcher cannot be reached, or does not take them all.
pub fn pass(socket: &Path, files: &[(String, OwnedFd)]) -> io::Result<()> {
    if files.is_empty() { Ok(()) } else { pass_all(socket, files) }
}

/// Has the launcher that listens at `socket` close the files that were passed and that no VM has taken: those of a node
/// agent that ended in between. A tap cannot be opened again before. Blocks until they are closed.
///
/// # Errors
/// As [`pass`].
pub fn discard(socket: &Path) -> io::Result<()> {
    pass_all(socket, &[])
}

fn pass_all(socket: &Path, files: &[(String, OwnedFd)]) -> io::Result<()> {
    let stream = connected(socket)?;
    send_all(&stream, files)?;
    let mut answer = [0_u8; 4];
    let length = rustix::io::read(&stream, &mut answer)?;
    let received = if length == answer.len() { u32::from_be_bytes(answer) } else { 0 };
    if usize::try_from(received) == Ok(files.len()) {
        Ok(())
    } else {
        Err(io::Error::other(format!("the launcher took {received} of {} files", files.len())))
    }
}

/// What the node agent wants of a process that offers files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Their names.
    Names,
    /// Nothing any more.
    Nothing,
}

impl Wanted {
    fn byte(self) -> u8 {
        match self {
            Self::Names => b'F',
            Self::Nothing => b'N',
        }
    }
}

/// Offers files of this process's file system to the next peer that connects, by their names. Blocks. Returns what it
/// wanted.
///
/// # Errors
/// When no connection can be had, or one fails.
pub fn offer(listener: BorrowedFd<'_>, names: &[String]) -> io::Result<Wanted> {
    let stream = accept_with(listener, SocketFlags::CLOEXEC)?;
    let mut wanted = [0_u8];
    rustix::io::read(&stream, &mut wanted)?;
    if wanted == [Wanted::Nothing.byte()] {
        return Ok(Wanted::Nothing);
    }
    for name in names {
        send(&stream, name.as_bytes(), SendFlags::NOSIGNAL)?;
    }
    shutdown(&stream, Shutdown::Write)?;
    Ok(Wanted::Names)
}

/// The names of the files that are offered at `socket`, and the process that offers them. Blocks.
///
/// # Errors
/// When no process offers files, or there are more than one VM can need.
pub fn offered(socket: &Path) -> io::Result<(Pid, Vec<String>)> {
    let stream = ask(socket, Wanted::Names)?;
    let mut names = Vec::new();
    let mut name = vec![0_u8; LONGEST_NAME];
    loop {
        let length = rustix::io::read(&stream, &mut name)?;
        if length == 0 {
            return Ok((socket_peercred(&stream)?.pid, names));
        }
        if names.len() == MOST_OFFERED {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many files are offered"));
        }
        let name = name.get(..length).unwrap_or_default().to_vec();
        names.push(
            String::from_utf8(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
        );
    }
}

/// Tells the process that offers files at `socket` that they are not needed any more.
///
/// # Errors
/// When no process does.
pub fn finish(socket: &Path) -> io::Result<()> {
    ask(socket, Wanted::Nothing).map(drop)
}

/// Answers whoever connects to a listener, so that [`peer`] finds the process. Blocks until it fails.
///
/// # Errors
/// When no connection can be had.
pub fn answer(listener: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        accept_with(listener, SocketFlags::CLOEXEC)?;
    }
}

/// The process that listens at `socket`. Blocks.
///
/// # Errors
/// When none does.
pub fn peer(socket: &Path) -> io::Result<Pid> {
    Ok(socket_peercred(connected(socket)?)?.pid)
}

fn ask(socket: &Path, wanted: Wanted) -> io::Result<OwnedFd> {
    let stream = connected(socket)?;
    send(&stream, &[wanted.byte()], SendFlags::NOSIGNAL)?;
    Ok(stream)
}

fn send_all(stream: &OwnedFd, files: &[(String, OwnedFd)]) -> io::Result<()> {
    for (name, file) in files {
        let mut space = [std::mem::MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [file.as_fd()];
        if name.is_empty()
            || name.len() > LONGEST_NAME
            || !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors))
        {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a file name")));
        }
        sendmsg(stream, &[IoSlice::new(name.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
    }
    Ok(shutdown(stream, Shutdown::Write)?)
}

/// Listens for [`pass`] at `socket`, which must not exist. Only its owner and root may connect (unix(7)).
///
/// # Errors
/// When the socket cannot be made.
pub fn listener(socket: &Path) -> io::Result<OwnedFd> {
    let listener = seqpacket()?;
    bind(&listener, &SocketAddrUnix::new(socket)?)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    listen(&listener, 4)?;
    Ok(listener)
}

/// What a node agent wants of a launcher.
#[derive(Debug)]
pub enum Passed {
    /// A file, with its name.
    File(String, OwnedFd),
    /// Files that were passed before are to be closed.
    Discard,
}

/// Waits for one [`pass`] or [`discard`] and hands over what it is about. Blocks.
///
/// # Errors
/// When no connection can be had, or one fails.
pub fn receive(listener: BorrowedFd<'_>, mut take: impl FnMut(Passed)) -> io::Result<()> {
    let stream = accept_with(listener, SocketFlags::CLOEXEC)?;
    let mut count = 0_u32;
    while let Some((name, file)) = packet(stream.as_fd())? {
        take(Passed::File(name, file));
        count = count.saturating_add(1);
    }
    if count == 0 {
        take(Passed::Discard);
    }
    send(&stream, &count.to_be_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// One packet; `None` at their end.
fn packet(stream: BorrowedFd<'_>) -> io::Result<Option<(String, OwnedFd)>> {
    let mut name = vec![0_u8; LONGEST_NAME];
    let mut space = [std::mem::MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut name)], &mut ancillary, flags)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    name.truncate(received.bytes);
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let name = String::from_utf8(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let file = file
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{name} came without a file")))?;
    Ok(Some((name, file)))
}

/// A socket in a directory that its server may write to. It is opened without following a link, which could lead to the
/// socket of another service.
#[derive(Debug)]
pub struct SocketPath(OwnedFd);

impl SocketPath {
    /// Opens a socket, whose path may be longer than those of sockets can be.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(socket: &Path) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not the path of a socket");
        let (directory, name) = socket.parent().zip(socket.file_name()).ok_or_else(invalid)?;
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, path | OFlags::DIRECTORY, Mode::empty())?;
        let socket = rustix::fs::openat(&directory, name, path | OFlags::NOFOLLOW, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&socket)?.st_mode) {
            FileType::Socket => Ok(Self(socket)),
            _ => Err(io::Error::new(io::ErrorKind::ConnectionRefused, "it is not a socket")),
        }
    }

    /// The path by which this process connects to it, as long as this lives.
    pub fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string())
    }
}

fn connected(socket: &Path) -> io::Result<OwnedFd> {
    let (socket, stream) = (SocketPath::open(socket)?, seqpacket()?);
    connect(&stream, &SocketAddrUnix::new(socket.path())?)?;
    Ok(stream)
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    #[test]
    fn files_arrive_under_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join(FILES_SOCKET);
        let listener = listener(&socket).unwrap();
        let receiver = std::thread::spawn(move || {
            let mut files = Vec::new();
            let mut discarded = 0;
            for _ in 0..2 {
                receive(listener.as_fd(), |passed| match passed {
                    Passed::File(name, file) => files.push((name, file)),
                    Passed::Discard => discarded += 1,
                })
                .unwrap();
            }
            assert_eq!(discarded, 1);
            files
        });
        let names: Vec<String> = (0..20).map(|number| format!("/a/{number}")).collect();
        let files = names.iter().map(|name| {
            let path = dir.path().join(name.replace('/', "_"));
            std::fs::write(&path, name).unwrap();
            (name.clone(), OwnedFd::from(File::open(path).unwrap()))
        });
        pass(&socket, &files.collect::<Vec<_>>()).unwrap();
        pass(&socket, &[]).unwrap();
        discard(&socket).unwrap();
        let received = receiver.join().unwrap();
        assert_eq!(received.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), names);
        for (name, file) in received {
            let mut content = String::new();
            File::from(file).read_to_string(&mut content).unwrap();
            assert_eq!(content, name);
        }
    }

    #[test]
    fn files_are_offered_until_nothing_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(100));
        std::fs::create_dir(&long).unwrap();
        std::os::unix::fs::symlink(&long, dir.path().join("short")).unwrap();
        let listener = listener(&dir.path().join("short/disk.sock")).unwrap();
        let socket = long.join("disk.sock");
        let offering = std::thread::spawn(move || {
            let mut count = 0;
            let names = ["disk:".to_owned(), "file:/a".to_owned()];
            while offer(listener.as_fd(), &names).unwrap() == Wanted::Names {
                count += 1;
            }
            count
        });
        for _ in 0..2 {
            let names = vec!["disk:".to_owned(), "file:/a".to_owned()];
            assert_eq!(offered(&socket).unwrap(), (rustix::process::getpid(), names));
        }
        finish(&socket).unwrap();
        assert_eq!(offering.join().unwrap(), 2);
        assert!(offered(&socket).is_err(), "they are no longer offered");
    }

    #[test]
    fn names_are_few() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("disk.sock");
        let listener = listener(&socket).unwrap();
        // The peer may have gone before it has sent all.
        std::thread::spawn(move || offer(listener.as_fd(), &vec!["disk:".to_owned(); MOST_OFFERED + 1]));
        assert_eq!(offered(&socket).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_process_is_found_by_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("attachment.sock");
        assert!(peer(&socket).is_err());
        let listener = listener(&socket).unwrap();
        std::thread::spawn(move || answer(listener.as_fd()));
        // More often than connections may wait.
        for _ in 0..20 {
            assert_eq!(peer(&socket).unwrap(), rustix::process::getpid());
        }
    }

    #[test]
    fn names_mean_files_of_images() {
        let path = Path::new("/a:b.img");
        for (name, file) in [
            (disk_name(None), ImageFile::Disk(None)),
            (disk_name(Some(path)), ImageFile::Disk(Some(path.to_owned()))),
            (file_name(path), ImageFile::File(path.to_owned())),
        ] {
            assert_eq!(ImageFile::parse(&name), Some(file));
        }
        assert_eq!(ImageFile::parse("tap:tap0"), None);
        assert_eq!(ImageFile::parse("file:"), None);
    }

    #[test]
    fn a_link_to_a_socket_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, link) = (dir.path().join("a.sock"), dir.path().join("b.sock"));
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let opened = SocketPath::open(&socket).unwrap();
        assert!(std::os::unix::net::UnixStream::connect(opened.path()).is_ok());
        let refused = SocketPath::open(&link).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        drop(listener);
        assert!(std::os::unix::net::UnixStream::connect(opened.path()).is_err());
    }

    #[test]
    fn absent_listeners_and_invalid_names_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join(FILES_SOCKET);
        assert!(discard(&socket).is_err());
        let _listener = listener(&socket).unwrap();
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        assert_eq!(pass(&socket, &[(String::new(), file)]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
