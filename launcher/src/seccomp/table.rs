//! What each kind of thread may call, and why.

use syscalls::Sysno;

/// A kind of thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thread {
    /// Serves a device or a drive, or is one of a disk image. A vCPU's thread starts them: what is allowed to them is
    /// allowed to it.
    Device,
    /// Runs a vCPU, which includes its accesses to registers.
    Vcpu,
    /// Every other one: the server, the VM's thread, viewers of the display, clock and keyboard.
    Other,
}

/// The threads for which a line of a table holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Threads {
    /// All.
    All,
    /// All but those of devices.
    NotDevices,
    /// Those that run no vCPU and serve no device.
    Others,
    /// Those that work on what the guest writes.
    Guest,
}

impl Thread {
    /// Whether a line holds for this kind.
    pub(super) fn is_among(self, threads: Threads) -> bool {
        match threads {
            Threads::All => true,
            Threads::NotDevices => self >= Self::Vcpu,
            Threads::Others => self == Self::Other,
            Threads::Guest => self <= Self::Vcpu,
        }
    }
}

/// Some bits of an argument have a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Condition {
    pub(super) argument: u8,
    pub(super) mask: u32,
    pub(super) value: u32,
}

/// A system call that is allowed: with any arguments, or where every condition holds. The lines of one call are
/// alternatives.
#[derive(Debug)]
pub(super) struct Allowed {
    pub(super) call: Sysno,
    pub(super) when: &'static [Condition],
    pub(super) threads: Threads,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the reader of this table"))]
    pub(super) reason: &'static str,
}

/// A system call that fails, where the caller goes on without it.
#[derive(Debug)]
pub(super) struct Failing {
    pub(super) call: Sysno,
    pub(super) errno: i32,
    pub(super) threads: Threads,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the reader of this table"))]
    pub(super) reason: &'static str,
}

use Sysno as S;
use Threads::{All, Guest, NotDevices, Others};

/// What fails.
pub(super) const FAILING: &[Failing] = &[
    fails(
        S::clone3,
        libc::ENOSYS,
        All,
        "its flags are in memory, where no filter reads them: libc uses clone instead",
    ),
    fails(
        S::openat,
        libc::EACCES,
        Guest,
        "the allocator looks for the policy of overcommitment, and goes on without",
    ),
];

/// What is allowed.
#[rustfmt::skip]
pub(super) const ALLOWED: &[Allowed] = &[
    // Files that are open.
    allow(S::read, All, "files, eventfds, taps, sockets"),
    allow(S::write, All, "files, eventfds, taps, sockets, the log"),
    allow(S::readv, All, "packets of taps; sockets"),
    allow(S::writev, All, "packets of taps; sockets"),
    allow(S::pread64, All, "disk images, firmware"),
    allow(S::pwrite64, All, "disk images, EFI variables"),
    allow(S::preadv, All, "disk images"),
    allow(S::pwritev, All, "disk images"),
    allow(S::preadv2, All, "disk images, of which the page cache has the block"),
    allow(S::pwritev2, All, "disk images"),
    allow(S::lseek, All, "sizes and holes of disk images"),
    allow(S::fsync, All, "disk images"),
    allow(S::fdatasync, All, "disk images, EFI variables"),
    allow(S::fallocate, All, "discarded and zeroed blocks"),
    allow(S::ftruncate, All, "qcow2 images that grow"),
    allow(S::fstat, All, "disk images"),
    allow(S::statx, All, "disk images; std's metadata"),
    allow(S::newfstatat, All, "fstat of libc"),
    allow(S::fstatfs, All, "the alignment of direct I/O"),
    allow(S::fcntl, All, "flags of descriptors, locks of disk images"),
    allow(S::dup, All, "descriptors of disks and taps"),
    allow(S::dup3, All, "descriptors"),
    allow(S::close, All, "descriptors"),
    allow(S::pipe2, Others, "descriptors of the runtime"),
    // Files by name.
    when(S::openat, &[READ_ONLY], Others, "the process's own statistics in /proc; nothing is written or made by name"),
    allow(S::readlinkat, Others, "links in /proc"),
    allow(S::readlink, Others, "links in /proc"),
    allow(S::getdents64, Others, "the process's own threads in /proc"),
    allow(S::getcwd, All, "backtraces of panics"),
    allow(S::unlink, Others, "the launcher's sockets"),
    allow(S::unlinkat, Others, "the launcher's sockets"),
    // Waiting.
    allow(S::epoll_create1, All, "one for each device"),
    allow(S::epoll_ctl, All, "what a thread waits for"),
    allow(S::epoll_wait, All, "waiting"),
    allow(S::epoll_pwait, All, "waiting, in newer libc"),
    allow(S::epoll_pwait2, All, "waiting, in newer libc"),
    allow(S::poll, All, "waiting"),
    allow(S::ppoll, All, "waiting"),
    allow(S::eventfd2, All, "what a device is woken by"),
    allow(S::io_uring_setup, All, "disks: the ring is made by the thread of the disk"),
    allow(S::io_uring_register, All, "files and restrictions of a ring, before it is enabled"),
    allow(S::io_uring_enter, All, "disks"),
    // Memory. None is executable.
    when(S::mmap, &[NOT_EXECUTABLE], All, "allocator, stacks, rings, guest memory"),
    when(S::mprotect, &[NOT_EXECUTABLE], All, "guard pages, heaps of the allocator"),
    allow(S::munmap, All, "allocator, stacks, rings"),
    allow(S::mremap, All, "allocator"),
    allow(S::madvise, All, "allocator, stacks, huge pages of guest memory"),
    allow(S::brk, All, "allocator"),
    // Threads and time.
    when(S::clone, &[THREAD], All, "threads, and no processes or namespaces"),
    allow(S::set_robust_list, All, "start of a thread"),
    allow(S::rseq, All, "start of a thread"),
    allow(S::sigaltstack, All, "start and end of a thread"),
    allow(S::sched_getaffinity, All, "start of a thread: std asks for its stack"),
    when(S::sched_setaffinity, &[ITSELF], All, "threads of a VM that has CPUs for itself, when they start"),
    allow(S::sched_yield, All, "locks"),
    allow(S::sched_getscheduler, All, "transmit queues: whether their thread is scheduled as usual"),
    when(S::sched_setscheduler, &[ITSELF, USUAL], All, "transmit queues that take frames one by one"),
    when(S::sched_setscheduler, &[ITSELF, BATCH], All, "transmit queues that take many frames at once"),
    allow(S::futex, All, "locks"),
    allow(S::membarrier, All, "locks"),
    allow(S::gettid, All, "signals to a thread"),
    allow(S::getpid, All, "signals to a thread"),
    allow(S::tgkill, All, "vCPUs are interrupted; abort"),
    allow(S::tkill, All, "abort"),
    allow(S::exit, All, "end of a thread"),
    allow(S::exit_group, All, "end of the process"),
    allow(S::rt_sigaction, All, "the default action of SIGSYS and SIGABRT, at the end"),
    allow(S::rt_sigprocmask, All, "start of a thread"),
    allow(S::rt_sigreturn, All, "end of a signal handler"),
    allow(S::restart_syscall, All, "the kernel makes a wait go on after a signal"),
    when(S::prctl, &[exactly(0, libc::PR_SET_NAME as u32)], All, "names of threads"),
    when(S::prctl, &[exactly(0, libc::PR_GET_NAME as u32)], All, "the report of a rejected call"),
    when(S::prctl, &[exactly(0, libc::PR_SET_NO_NEW_PRIVS as u32)], All, "before a filter is set"),
    when(S::prctl, &[exactly(0, libc::PR_SET_VMA as u32)], All, "names of the allocator's memory"),
    when(S::seccomp, &[exactly(0, libc::SECCOMP_SET_MODE_FILTER)], All, "narrower filters"),
    allow(S::clock_gettime, All, "where the clock of the host is not mapped"),
    allow(S::clock_getres, All, "clocks"),
    allow(S::gettimeofday, All, "where the clock of the host is not mapped"),
    allow(S::time, All, "where the clock of the host is not mapped"),
    allow(S::nanosleep, All, "pauses"),
    allow(S::clock_nanosleep, All, "pauses"),
    allow(S::getrandom, All, "entropy device, hash tables, TLS"),
    allow(S::getrusage, Others, "statistics"),
    allow(S::getcpu, All, "allocator"),
    allow(S::getuid, Others, "who connects"),
    allow(S::geteuid, Others, "who connects"),
    allow(S::getgid, Others, "who connects"),
    allow(S::getegid, Others, "who connects"),
    allow(S::uname, Others, "DNS"),
    allow(S::sysinfo, Others, "statistics"),
    // Its new limit is a null pointer, of which a filter for 32 bits sees the half that a pointer never leaves zero.
    when(S::prlimit64, &[exactly(2, 0)], All, "the stack of a thread; limits are read, not set"),
    // Sockets.
    when(S::socket, &[exactly(0, libc::AF_UNIX as u32)], Others, "sockets of the launcher"),
    when(S::socket, &[exactly(0, libc::AF_INET as u32), SOCKET_STREAM], Others, "probes of the guest"),
    when(S::socket, &[exactly(0, libc::AF_INET as u32), SOCKET_DATAGRAM], Others, "DNS, for probes"),
    when(S::socket, &[exactly(0, libc::AF_INET6 as u32), SOCKET_STREAM], Others, "probes of the guest"),
    when(S::socket, &[exactly(0, libc::AF_INET6 as u32), SOCKET_DATAGRAM], Others, "DNS, for probes"),
    when(S::socketpair, &[exactly(0, libc::AF_UNIX as u32)], Others, "signals, ports"),
    allow(S::connect, Others, "probes of the guest"),
    allow(S::bind, Others, "DNS, for probes"),
    allow(S::listen, Others, "sockets of the launcher"),
    allow(S::accept, Others, "sockets of the launcher"),
    allow(S::accept4, Others, "sockets of the launcher"),
    allow(S::recvfrom, All, "console, agent, DHCP"),
    allow(S::recvmsg, All, "console, agent, DHCP"),
    allow(S::sendto, All, "console, agent, DHCP"),
    allow(S::sendmsg, All, "console, agent, DHCP"),
    allow(S::shutdown, All, "console, display"),
    allow(S::getsockopt, Others, "errors and peers of sockets"),
    allow(S::setsockopt, Others, "options of probes"),
    allow(S::getsockname, Others, "addresses of sockets"),
    allow(S::getpeername, Others, "addresses of sockets"),
    // Devices of the host. KVM_RUN is first: it is the one whose time counts.
    ioctl(&[request(KVM, 0x80)], NotDevices, "KVM_RUN"),
    ioctl(&[request(KVM, 0x61)], All, "KVM_IRQ_LINE"),
    ioctl(&[request(KVM, 0x6a)], All, "KVM_SET_GSI_ROUTING"),
    ioctl(&[request(KVM, 0x76)], All, "KVM_IRQFD"),
    ioctl(&[request(KVM, 0x79)], All, "KVM_IOEVENTFD"),
    ioctl(&[request(KVM, 0x42)], All, "KVM_GET_DIRTY_LOG, by the display adapter"),
    ioctl(&[request(KVM, 0x46)], NotDevices, "KVM_SET_USER_MEMORY_REGION"),
    ioctl(&[request(KVM, 0x81)], NotDevices, "KVM_GET_REGS"),
    ioctl(&[request(KVM, 0xad)], NotDevices, "KVM_KVMCLOCK_CTRL"),
    ioctl(&[request(KVM, 0x00)], Others, "KVM_GET_API_VERSION"),
    ioctl(&[request(KVM, 0x01)], Others, "KVM_CREATE_VM"),
    ioctl(&[request(KVM, 0x03)], Others, "KVM_CHECK_EXTENSION"),
    ioctl(&[request(KVM, 0x04)], Others, "KVM_GET_VCPU_MMAP_SIZE"),
    ioctl(&[request(KVM, 0x05)], Others, "KVM_GET_SUPPORTED_CPUID"),
    ioctl(&[request(KVM, 0x41)], Others, "KVM_CREATE_VCPU"),
    ioctl(&[request(KVM, 0x47)], Others, "KVM_SET_TSS_ADDR"),
    ioctl(&[request(KVM, 0x48)], Others, "KVM_SET_IDENTITY_MAP_ADDR"),
    ioctl(&[request(KVM, 0x60)], Others, "KVM_CREATE_IRQCHIP"),
    ioctl(&[request(KVM, 0x77)], Others, "KVM_CREATE_PIT2"),
    ioctl(&[request(KVM, 0x82)], Others, "KVM_SET_REGS"),
    ioctl(&[request(KVM, 0x83)], Others, "KVM_GET_SREGS"),
    ioctl(&[request(KVM, 0x84)], Others, "KVM_SET_SREGS"),
    ioctl(&[request(KVM, 0x89)], Others, "KVM_SET_MSRS"),
    ioctl(&[request(KVM, 0x8d)], Others, "KVM_SET_FPU"),
    ioctl(&[request(KVM, 0x8e)], Others, "KVM_GET_LAPIC"),
    ioctl(&[request(KVM, 0x8f)], Others, "KVM_SET_LAPIC"),
    ioctl(&[request(KVM, 0x90)], Others, "KVM_SET_CPUID2"),
    ioctl(&[request(KVM, 0xa3)], Others, "KVM_GET_TSC_KHZ"),
    ioctl(&[request(TUN, 0xd0)], All, "TUNSETOFFLOAD"),
    ioctl(&[request(TUN, 0xd8)], All, "TUNSETVNETHDRSZ"),
    ioctl(&[request(TUN, 0xd9)], All, "TUNSETQUEUE"),
    ioctl(&[request(VHOST, 0x00)], All, "VHOST_GET_FEATURES, VHOST_SET_FEATURES"),
    ioctl(&[request(VHOST, 0x01)], All, "VHOST_SET_OWNER"),
    ioctl(&[request(VHOST, 0x03)], All, "VHOST_SET_MEM_TABLE"),
    ioctl(&[request(VHOST, 0x10)], All, "VHOST_SET_VRING_NUM"),
    ioctl(&[request(VHOST, 0x11)], All, "VHOST_SET_VRING_ADDR"),
    ioctl(&[request(VHOST, 0x12)], All, "VHOST_SET_VRING_BASE, VHOST_GET_VRING_BASE"),
    ioctl(&[request(VHOST, 0x20)], All, "VHOST_SET_VRING_KICK"),
    ioctl(&[request(VHOST, 0x21)], All, "VHOST_SET_VRING_CALL"),
    ioctl(&[request(VHOST, 0x22)], All, "VHOST_SET_VRING_ERR"),
    ioctl(&[request(VHOST, 0x30)], All, "VHOST_NET_SET_BACKEND"),
    ioctl(&[request(BLOCK, 114)], All, "BLKGETSIZE64"),
    ioctl(&[request(BLOCK, 104)], All, "BLKSSZGET"),
    ioctl(&[request(TERMINAL, 0x21)], All, "FIONBIO"),
    ioctl(&[request(TERMINAL, 0x51)], All, "FIOCLEX"),
    ioctl(&[request(TERMINAL, 0x01)], All, "TCGETS: std asks whether the log is a terminal"),
];

// The types of requests: bits 8 to 15.
const KVM: u8 = 0xae;
const VHOST: u8 = 0xaf;
const TUN: u8 = b'T';
const TERMINAL: u8 = b'T';
const BLOCK: u8 = 0x12;

const READ_ONLY: Condition = none_of(
    2,
    (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32,
);
/// The thread that calls.
const ITSELF: Condition = is(0, 0);
const USUAL: Condition = is(1, libc::SCHED_OTHER as u32);
const BATCH: Condition = is(1, libc::SCHED_BATCH as u32);
const NOT_EXECUTABLE: Condition = none_of(2, libc::PROT_EXEC as u32);
/// Flags of a new thread, none of a new namespace.
const THREAD: Condition = {
    let thread = libc::CLONE_THREAD | libc::CLONE_VM;
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    Condition { argument: 0, mask: (thread | namespaces) as u32, value: thread as u32 }
};
/// Without its flags.
const SOCKET_TYPE: u32 = 0xf;
const SOCKET_STREAM: Condition =
    Condition { argument: 1, mask: SOCKET_TYPE, value: libc::SOCK_STREAM as u32 };
const SOCKET_DATAGRAM: Condition =
    Condition { argument: 1, mask: SOCKET_TYPE, value: libc::SOCK_DGRAM as u32 };

/// The argument is `value`.
const fn exactly(argument: u8, value: u32) -> Condition {
    Condition { argument, mask: u32::MAX, value }
}

/// The argument has none of these bits.
const fn none_of(argument: u8, mask: u32) -> Condition {
    Condition { argument, mask, value: 0 }
}

/// The argument has this value.
const fn is(argument: u8, value: u32) -> Condition {
    Condition { argument, mask: u32::MAX, value }
}

/// An ioctl by type and number. Its size and direction belong to the number.
const fn request(kind: u8, number: u8) -> Condition {
    Condition { argument: 1, mask: 0xffff, value: (kind as u32) << 8 | number as u32 }
}

const fn allow(call: Sysno, threads: Threads, reason: &'static str) -> Allowed {
    when(call, &[], threads, reason)
}

const fn when(call: Sysno, when: &'static [Condition], threads: Threads, reason: &'static str) -> Allowed {
    Allowed { call, when, threads, reason }
}

const fn ioctl(request: &'static [Condition], threads: Threads, reason: &'static str) -> Allowed {
    when(Sysno::ioctl, request, threads, reason)
}

const fn fails(call: Sysno, errno: i32, threads: Threads, reason: &'static str) -> Failing {
    Failing { call, errno, threads, reason }
}
