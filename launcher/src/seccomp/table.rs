//! What each kind of thread may call, and why.

use syscalls::Sysno;
use vireo_privileges::seccomp::table::{
    self, Allowed, Condition, Failing, READ_ONLY, SOCKET_DATAGRAM, SOCKET_STREAM, exactly, request,
};

/// A kind of thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thread {
    /// Serves a device or a drive, or is one of a disk image. A vCPU's thread starts them: what is allowed to them is
    /// allowed to it.
    Device,
    /// Runs a vCPU, which includes its accesses to registers.
    Vcpu,
    /// Every other one of a launcher with the monitor: the server, the VM's thread, viewers of the display, clock and
    /// keyboard.
    Other,
    /// Any one of a launcher that drives QEMU.
    Driver,
}

/// The threads for which a line of a table holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Threads {
    /// Monitor, with the monitor or QEMU.
    Every,
    /// All of the monitor.
    Monitor,
    /// Those of the monitor but those of devices.
    NotDevices,
    /// Those of the monitor that run no vCPU and serve no device.
    Others,
    /// Those that work on what the guest writes.
    Guest,
    /// Those that run no vCPU and serve no device, with the monitor or QEMU.
    Server,
    /// Those of a launcher that drives QEMU.
    Driver,
}

impl Thread {
    /// Whether a line holds for this kind.
    pub(super) fn is_among(self, threads: Threads) -> bool {
        match threads {
            Threads::Every => true,
            Threads::Monitor => self != Self::Driver,
            Threads::NotDevices => matches!(self, Self::Vcpu | Self::Other),
            Threads::Others => self == Self::Other,
            Threads::Guest => matches!(self, Self::Device | Self::Vcpu),
            Threads::Server => matches!(self, Self::Other | Self::Driver),
            Threads::Driver => self == Self::Driver,
        }
    }
}

/// A system call that is allowed to some threads.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) allowed: Allowed,
    pub(super) threads: Threads,
}

/// A system call that fails on some threads.
#[derive(Debug)]
pub(super) struct FailingLine {
    pub(super) failing: Failing,
    pub(super) threads: Threads,
}

use Sysno as S;
use Threads::{Driver, Every, Guest, Monitor, NotDevices, Others, Server};

/// What fails, beside what fails in every program.
pub(super) const FAILING: &[FailingLine] = &[FailingLine {
    failing: table::fails(
        S::openat,
        libc::EACCES,
        "the allocator looks for the policy of overcommitment, and goes on without",
    ),
    threads: Guest,
}];

/// What is allowed, beside what every program may call.
#[rustfmt::skip]
pub(super) const ALLOWED: &[Line] = &[
    // Files that are open.
    allow(S::preadv, Monitor, "disk images"),
    allow(S::pwritev, Monitor, "disk images"),
    allow(S::preadv2, Monitor, "disk images, of which the page cache has the block"),
    allow(S::pwritev2, Monitor, "disk images"),
    allow(S::fsync, Monitor, "disk images"),
    allow(S::fallocate, Monitor, "discarded and zeroed blocks"),
    allow(S::ftruncate, Monitor, "qcow2 images that grow"),
    allow(S::fstatfs, Monitor, "the alignment of direct I/O"),
    allow(S::io_uring_setup, Monitor, "disks: the ring is made by the thread of the disk"),
    allow(S::io_uring_register, Monitor, "files and restrictions of a ring, before it is enabled"),
    allow(S::io_uring_enter, Monitor, "disks"),
    allow(S::memfd_create, Others, "RAM that is shared with the process of a file system, made again after a reset"),
    allow(S::mbind, Others, "RAM of a guest with NUMA nodes, made again after a reset"),
    allow(S::pipe2, Server, "descriptors of the runtime"),
    // Files by name.
    when(S::openat, &[READ_ONLY], Server, "the process's own statistics in /proc; nothing is written or made by name"),
    allow(S::readlinkat, Server, "links in /proc"),
    allow(S::readlink, Server, "links in /proc"),
    allow(S::getdents64, Server, "the process's own threads in /proc"),
    allow(S::unlink, Server, "the launcher's sockets"),
    allow(S::unlinkat, Server, "the launcher's sockets"),
    // Threads and time.
    when(S::sched_setaffinity, &[ITSELF], Monitor, "threads of a VM that has CPUs for itself, when they start, and vCPUs that start them"),
    allow(S::sched_setaffinity, Driver, "threads of QEMU whose VM has CPUs for itself"),
    when(S::sched_setscheduler, &[REAL_TIME], Driver, "vCPUs of QEMU that are scheduled in real time"),
    allow(S::sched_getscheduler, Monitor, "transmit queues: whether their thread is scheduled as usual"),
    when(S::sched_setscheduler, &[ITSELF, REAL_TIME], NotDevices, "vCPUs that are scheduled in real time, when they start"),
    when(S::sched_setscheduler, &[ITSELF, USUAL], Monitor, "transmit queues that take frames one by one"),
    when(S::sched_setscheduler, &[ITSELF, BATCH], Monitor, "transmit queues that take many frames at once"),
    allow(S::getrusage, Server, "statistics"),
    allow(S::getuid, Server, "who connects"),
    allow(S::geteuid, Server, "who connects"),
    allow(S::getgid, Server, "who connects"),
    allow(S::getegid, Server, "who connects"),
    allow(S::uname, Server, "DNS"),
    allow(S::sysinfo, Server, "statistics"),
    // QEMU, the TPM and those that share file systems, which run before the filter is set.
    allow(S::wait4, Server, "their ends"),
    allow(S::waitid, Server, "their ends"),
    allow(S::kill, Server, "their ends, in the launcher's own process ID namespace"),
    allow(S::pidfd_send_signal, Server, "their ends"),
    // Sockets.
    when(S::socket, &[exactly(0, libc::AF_UNIX as u32)], Server, "sockets of the launcher"),
    when(S::socket, &[exactly(0, libc::AF_INET as u32), SOCKET_STREAM], Server, "probes of the guest"),
    when(S::socket, &[exactly(0, libc::AF_INET as u32), SOCKET_DATAGRAM], Server, "DNS, for probes"),
    when(S::socket, &[exactly(0, libc::AF_INET6 as u32), SOCKET_STREAM], Server, "probes of the guest"),
    when(S::socket, &[exactly(0, libc::AF_INET6 as u32), SOCKET_DATAGRAM], Server, "DNS, for probes"),
    when(S::socketpair, &[exactly(0, libc::AF_UNIX as u32)], Server, "signals, ports"),
    allow(S::connect, Server, "probes of the guest"),
    allow(S::bind, Server, "DNS, for probes"),
    allow(S::listen, Server, "sockets of the launcher"),
    allow(S::accept, Server, "sockets of the launcher"),
    allow(S::accept4, Server, "sockets of the launcher"),
    allow(S::recvfrom, Every, "console, agent, DHCP"),
    allow(S::recvmsg, Every, "console, agent, DHCP"),
    allow(S::sendto, Every, "console, agent, DHCP"),
    allow(S::sendmsg, Every, "console, agent, DHCP"),
    allow(S::shutdown, Every, "console, display"),
    allow(S::getsockopt, Server, "errors and peers of sockets"),
    allow(S::setsockopt, Server, "options of probes"),
    allow(S::getsockname, Server, "addresses of sockets"),
    allow(S::getpeername, Server, "addresses of sockets"),
    // Devices of the host. KVM_RUN is first: it is the one whose time counts.
    ioctl(&[request(KVM, 0x80)], NotDevices, "KVM_RUN"),
    ioctl(&[request(KVM, 0x61)], Monitor, "KVM_IRQ_LINE"),
    ioctl(&[request(KVM, 0x6a)], Monitor, "KVM_SET_GSI_ROUTING"),
    ioctl(&[request(KVM, 0x76)], Monitor, "KVM_IRQFD"),
    ioctl(&[request(KVM, 0x79)], Monitor, "KVM_IOEVENTFD"),
    ioctl(&[request(KVM, 0x42)], Monitor, "KVM_GET_DIRTY_LOG, by the display adapter"),
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
    ioctl(&[request(KVM, 0x83)], NotDevices, "KVM_GET_SREGS, by vCPUs for memory dumps"),
    ioctl(&[request(KVM, 0x84)], Others, "KVM_SET_SREGS"),
    ioctl(&[request(KVM, 0x88)], NotDevices, "KVM_GET_MSRS, by vCPUs for memory dumps"),
    ioctl(&[request(KVM, 0x89)], Others, "KVM_SET_MSRS"),
    ioctl(&[request(KVM, 0x8d)], Others, "KVM_SET_FPU"),
    ioctl(&[request(KVM, 0x8e)], Others, "KVM_GET_LAPIC"),
    ioctl(&[request(KVM, 0x8f)], Others, "KVM_SET_LAPIC"),
    ioctl(&[request(KVM, 0x90)], Others, "KVM_SET_CPUID2"),
    ioctl(&[request(KVM, 0xa3)], Others, "KVM_GET_TSC_KHZ, KVM_ENABLE_CAP"),
    ioctl(&[request(TUN, 0xd0)], Monitor, "TUNSETOFFLOAD"),
    ioctl(&[request(TUN, 0xd8)], Monitor, "TUNSETVNETHDRSZ"),
    ioctl(&[request(TUN, 0xd9)], Monitor, "TUNSETQUEUE"),
    ioctl(&[request(VHOST, 0x00)], Monitor, "VHOST_GET_FEATURES, VHOST_SET_FEATURES"),
    ioctl(&[request(VHOST, 0x01)], Monitor, "VHOST_SET_OWNER"),
    ioctl(&[request(VHOST, 0x03)], Monitor, "VHOST_SET_MEM_TABLE"),
    ioctl(&[request(VHOST, 0x10)], Monitor, "VHOST_SET_VRING_NUM"),
    ioctl(&[request(VHOST, 0x11)], Monitor, "VHOST_SET_VRING_ADDR"),
    ioctl(&[request(VHOST, 0x12)], Monitor, "VHOST_SET_VRING_BASE, VHOST_GET_VRING_BASE"),
    ioctl(&[request(VHOST, 0x20)], Monitor, "VHOST_SET_VRING_KICK"),
    ioctl(&[request(VHOST, 0x21)], Monitor, "VHOST_SET_VRING_CALL"),
    ioctl(&[request(VHOST, 0x22)], Monitor, "VHOST_SET_VRING_ERR"),
    ioctl(&[request(VHOST, 0x30)], Monitor, "VHOST_NET_SET_BACKEND"),
    ioctl(&[request(VHOST, 0x61)], Monitor, "VHOST_VSOCK_SET_RUNNING"),
    ioctl(&[request(BLOCK, 114)], Every, "BLKGETSIZE64"),
    ioctl(&[request(BLOCK, 104)], Every, "BLKSSZGET"),
];

// The types of requests: bits 8 to 15.
const KVM: u8 = 0xae;
const VHOST: u8 = 0xaf;
const TUN: u8 = b'T';
const BLOCK: u8 = 0x12;

/// The thread that calls.
const ITSELF: Condition = exactly(0, 0);
const USUAL: Condition = exactly(1, libc::SCHED_OTHER as u32);
const REAL_TIME: Condition = exactly(1, (libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK) as u32);
const BATCH: Condition = exactly(1, libc::SCHED_BATCH as u32);

const fn allow(call: Sysno, threads: Threads, reason: &'static str) -> Line {
    when(call, &[], threads, reason)
}

const fn when(call: Sysno, when: &'static [Condition], threads: Threads, reason: &'static str) -> Line {
    Line { allowed: table::when(call, when, reason), threads }
}

const fn ioctl(request: &'static [Condition], threads: Threads, reason: &'static str) -> Line {
    when(Sysno::ioctl, request, threads, reason)
}
