//! What each kind of process may call beside what every program may, and why.

use syscalls::Sysno as S;
use vireo_privileges::seccomp::table::{
    Allowed, FAILING, Failing, PROCESS, READ_ONLY, SOCKET_DATAGRAM, SOCKET_STREAM, allow, exactly,
    fails_when, request, when,
};
use vireo_privileges::seccomp::{Filters, Rejected, Seccomp, SeccompError};

use super::Profile;

/// Reads an image: it opens what it has open or sees, and writes to what it has open.
#[rustfmt::skip]
const READ: &[Allowed] = &[
    when(S::openat, &[READ_ONLY], "files that are open, once more"),
    allow(S::openat2, "files of a layout, below its directory"),
    allow(S::ftruncate, "length of the output"),
    allow(S::fsync, "the output"),
];

/// Gets an image: it writes in the directory of its layout, and asks servers.
#[rustfmt::skip]
const PULL: &[Allowed] = &[
    allow(S::openat, "files of its layout; certificates and configuration of names"),
    allow(S::stat, "files of its layout"),
    allow(S::mkdir, "directories of its layout"),
    allow(S::rename, "a blob that is whole"),
    allow(S::unlink, "a blob that is damaged"),
    allow(S::ftruncate, "a blob that starts again"),
    allow(S::readlink, "certificates"),
    allow(S::getdents64, "certificates"),
    allow(S::fstatfs, "configuration of names"),
    allow(S::pipe2, "descriptors of the runtime"),
    allow(S::uname, "DNS"),
    when(S::ioctl, &[request(b'T', 0x1b)], "FIONREAD: length of an answer of DNS"),
    when(S::socket, &[exactly(0, libc::AF_INET as u32), SOCKET_STREAM], "servers"),
    when(S::socket, &[exactly(0, libc::AF_INET as u32), SOCKET_DATAGRAM], "DNS"),
    when(S::socket, &[exactly(0, libc::AF_INET6 as u32), SOCKET_STREAM], "servers"),
    when(S::socket, &[exactly(0, libc::AF_INET6 as u32), SOCKET_DATAGRAM], "DNS"),
    allow(S::connect, "servers, DNS"),
    allow(S::sendto, "servers, DNS"),
    allow(S::sendmsg, "servers, DNS"),
    allow(S::sendmmsg, "DNS"),
    allow(S::recvfrom, "servers, DNS"),
    allow(S::recvmsg, "servers, DNS"),
    allow(S::shutdown, "servers"),
    allow(S::getsockopt, "errors of connections"),
    allow(S::setsockopt, "options of connections"),
    allow(S::getsockname, "the order of addresses"),
    allow(S::getpeername, "servers"),
];

const UNIX: u32 = libc::AF_UNIX as u32;
const NETLINK: u32 = libc::AF_NETLINK as u32;

const PULL_FAILING: &[Failing] = &[
    fails_when(
        S::socket,
        &[exactly(0, UNIX)],
        libc::EAFNOSUPPORT,
        "libc asks a cache of names, and goes on without",
    ),
    fails_when(
        S::socket,
        &[exactly(0, NETLINK)],
        libc::EAFNOSUPPORT,
        "libc asks for the node's addresses, and goes on without",
    ),
];

/// Has started qemu-img, and waits for it.
const CONVERT: &[Allowed] = &[
    allow(S::wait4, "the end of qemu-img"),
    allow(S::waitid, "the end of qemu-img"),
    allow(S::pidfd_open, "waiting for the end of qemu-img"),
    allow(S::pidfd_send_signal, "qemu-img is ended"),
    allow(S::kill, "qemu-img is ended"),
];

/// `qemu-img convert`, of any release. It is another program: what is not listed fails.
#[rustfmt::skip]
const QEMU_IMG: &[Allowed] = &[
    // Its start.
    allow(S::execve, "itself: it is executed after the filter is set"),
    allow(S::mmap, "its program and its libraries are executable memory"),
    allow(S::mprotect, "its program and its libraries are executable memory"),
    allow(S::arch_prctl, "start of a program"),
    allow(S::set_tid_address, "start of a program"),
    allow(S::access, "libraries"),
    allow(S::open, "libraries, in older libc"),
    allow(S::openat, "libraries, the image, the disk"),
    allow(S::readlink, "its own path"),
    allow(S::readlinkat, "its own path"),
    allow(S::getdents64, "topology of memory"),
    allow(S::stat, "libraries, the image, the disk"),
    allow(S::lstat, "the image, the disk"),
    allow(S::uname, "release of the kernel"),
    allow(S::sysinfo, "size of memory"),
    allow(S::getuid, "whether it is privileged"),
    allow(S::geteuid, "whether it is privileged"),
    allow(S::getgid, "whether it is privileged"),
    allow(S::getegid, "whether it is privileged"),
    // Its work.
    allow(S::preadv, "the image"),
    allow(S::pwritev, "the disk"),
    allow(S::preadv2, "the image"),
    allow(S::pwritev2, "the disk"),
    allow(S::ftruncate, "length of the disk"),
    allow(S::fallocate, "zeros"),
    allow(S::fsync, "the disk"),
    allow(S::sync_file_range, "the disk"),
    allow(S::fadvise64, "the image"),
    allow(S::copy_file_range, "the disk"),
    allow(S::statfs, "alignment"),
    allow(S::fstatfs, "alignment"),
    allow(S::flock, "locks of files"),
    allow(S::ioctl, "sizes and extents of files; it has no device open"),
    allow(S::pipe2, "its event loop"),
    allow(S::eventfd, "its event loop"),
    allow(S::signalfd4, "its event loop"),
    allow(S::select, "its event loop"),
    allow(S::pselect6, "its event loop"),
    allow(S::timerfd_create, "its event loop"),
    allow(S::timerfd_settime, "its event loop"),
    allow(S::rt_sigpending, "its event loop"),
    allow(S::rt_sigsuspend, "stacks of coroutines, where they are made by signals"),
    allow(S::rt_sigtimedwait, "its event loop"),
    allow(S::sched_setaffinity, "its threads"),
    allow(S::getrusage, "statistics"),
    when(S::prctl, &[exactly(0, libc::PR_SET_TIMERSLACK as u32)], "its event loop"),
];

/// The filter of a process, for what it is going to do. What is not listed ends it.
pub(super) fn compile(profile: Profile, seccomp: Seccomp) -> Result<Filters, SeccompError> {
    let (allowed, failing) = match profile {
        Profile::Read => (READ, [].as_slice()),
        Profile::Pull => (PULL, PULL_FAILING),
        Profile::Convert => (CONVERT, [].as_slice()),
    };
    seccomp.compile(allowed.iter().chain(PROCESS), failing.iter().chain(FAILING), Rejected::Ends)
}

/// The filter of `qemu-img`, to be set before it is executed. What is not listed fails.
///
/// # Errors
/// When it cannot be compiled.
pub fn qemu_img(seccomp: Seccomp) -> Result<Filters, SeccompError> {
    let is_narrower =
        |line: &&Allowed| QEMU_IMG.iter().any(|own| own.when.is_empty() && own.call == line.call);
    let shared = PROCESS.iter().filter(|line| !is_narrower(line));
    seccomp.compile(QEMU_IMG.iter().chain(shared), FAILING, Rejected::Fails(libc::ENOSYS))
}

#[cfg(test)]
mod tests {
    use vireo_privileges::seccomp::table::NEVER;

    use super::*;

    fn allowed() -> [(&'static str, Vec<&'static Allowed>); 4] {
        let with = |own: &'static [Allowed]| own.iter().chain(PROCESS).collect();
        [
            ("read", with(READ)),
            ("pull", with(PULL)),
            ("convert", with(CONVERT)),
            ("qemu-img", QEMU_IMG.iter().chain(PROCESS).collect()),
        ]
    }

    #[test]
    fn filters_compile_and_lines_have_reasons() {
        for profile in [Profile::Read, Profile::Pull, Profile::Convert] {
            let filters = compile(profile, Seccomp::Enforce).unwrap();
            assert!(filters.lengths().all(|length| (1..=4096).contains(&length)), "{profile:?}");
        }
        assert!(qemu_img(Seccomp::Enforce).unwrap().lengths().all(|length| length <= 4096));
        assert_eq!(compile(Profile::Read, Seccomp::Off).unwrap().lengths().count(), 0);
        for (name, lines) in allowed() {
            assert!(lines.iter().all(|line| !line.reason.is_empty()), "{name}");
        }
    }

    #[test]
    fn no_network_where_none_is_needed_and_nothing_that_attacks() {
        let network = [S::socket, S::socketpair, S::connect, S::bind, S::sendto, S::sendmsg, S::accept4];
        let never = [S::io_uring_setup, S::chown, S::fchownat, S::memfd_create, S::bind, S::listen];
        for (name, lines) in allowed() {
            let has = |call: S| lines.iter().any(|line| line.call == call);
            assert!(never.iter().chain(NEVER).all(|call| !has(*call)), "{name}");
            assert_eq!(has(S::execve), name == "qemu-img", "{name}");
            assert_eq!(network.into_iter().any(has), name == "pull", "{name}");
            let clone = lines.iter().find(|line| line.call == S::clone).unwrap();
            assert_eq!(clone.when.len(), 1, "{name}: threads alone");
            assert_eq!(clone.when[0].mask, vireo_privileges::seccomp::table::THREAD.mask);
        }
    }
}
