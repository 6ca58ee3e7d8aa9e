//! Lines of filters, and those that every program of ours has.

use syscalls::Sysno;

/// Some bits of an argument have a value.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Counted from 0.
    pub argument: u8,
    /// Which bits.
    pub mask: u32,
    /// Their value.
    pub value: u32,
}

/// A system call that is allowed: with any arguments, or where every condition holds. The lines of one call are
/// alternatives.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Which.
    pub call: Sysno,
    /// Every one of these.
    pub when: &'static [Condition],
    /// For the reader of the table.
    pub reason: &'static str,
}

/// A system call that fails, where the caller goes on without it.
#[derive(Clone, Copy, Debug)]
pub struct Failing {
    /// Which.
    pub call: Sysno,
    /// Where every one of these holds.
    pub when: &'static [Condition],
    /// With this error.
    pub errno: i32,
    /// For the reader of the table.
    pub reason: &'static str,
}

use Sysno as S;

/// What fails in every program.
pub const FAILING: &[Failing] = &[fails(
    S::clone3,
    libc::ENOSYS,
    "its flags are in memory, where no filter reads them: libc uses clone instead",
)];

/// What every program may call.
#[rustfmt::skip]
pub const PROCESS: &[Allowed] = &[
    // Files that are open.
    allow(S::read, "files, eventfds, sockets"),
    allow(S::write, "files, eventfds, sockets, the log"),
    allow(S::readv, "files, sockets"),
    allow(S::writev, "files, sockets"),
    allow(S::pread64, "files"),
    allow(S::pwrite64, "files"),
    allow(S::lseek, "sizes, holes and positions of files"),
    allow(S::fdatasync, "files that are kept"),
    allow(S::fstat, "files"),
    allow(S::statx, "std's metadata"),
    allow(S::newfstatat, "fstat of libc"),
    allow(S::fcntl, "flags of descriptors, locks of files"),
    allow(S::dup, "descriptors"),
    allow(S::dup3, "descriptors"),
    allow(S::close, "descriptors"),
    allow(S::getcwd, "backtraces of panics"),
    // Waiting.
    allow(S::epoll_create1, "event loops"),
    allow(S::epoll_ctl, "what a thread waits for"),
    allow(S::epoll_wait, "waiting"),
    allow(S::epoll_pwait, "waiting, in newer libc"),
    allow(S::epoll_pwait2, "waiting, in newer libc"),
    allow(S::poll, "waiting"),
    allow(S::ppoll, "waiting"),
    allow(S::eventfd2, "what an event loop is woken by"),
    // Memory. None is executable.
    when(S::mmap, &[NOT_EXECUTABLE], "allocator, stacks, files"),
    when(S::mprotect, &[NOT_EXECUTABLE], "guard pages, heaps of the allocator"),
    allow(S::munmap, "allocator, stacks, files"),
    allow(S::mremap, "allocator"),
    allow(S::madvise, "allocator, stacks"),
    allow(S::brk, "allocator"),
    // Threads and time.
    when(S::clone, &[THREAD], "threads, and no processes or namespaces"),
    allow(S::set_robust_list, "start of a thread"),
    allow(S::rseq, "start of a thread"),
    allow(S::sigaltstack, "start and end of a thread"),
    allow(S::sched_getaffinity, "start of a thread: std asks for its stack"),
    allow(S::sched_yield, "locks"),
    allow(S::futex, "locks"),
    allow(S::membarrier, "locks"),
    allow(S::gettid, "signals to a thread"),
    allow(S::getpid, "signals to a thread"),
    allow(S::tgkill, "abort"),
    allow(S::tkill, "abort"),
    allow(S::exit, "end of a thread"),
    allow(S::exit_group, "end of the process"),
    allow(S::rt_sigaction, "the default action of SIGSYS and SIGABRT, at the end"),
    allow(S::rt_sigprocmask, "start of a thread"),
    allow(S::rt_sigreturn, "end of a signal handler"),
    allow(S::restart_syscall, "the kernel makes a wait go on after a signal"),
    when(S::prctl, &[exactly(0, libc::PR_SET_NAME as u32)], "names of threads"),
    when(S::prctl, &[exactly(0, libc::PR_GET_NAME as u32)], "the report of a rejected call"),
    when(S::prctl, &[exactly(0, libc::PR_SET_NO_NEW_PRIVS as u32)], "before a filter is set"),
    when(S::prctl, &[exactly(0, libc::PR_SET_VMA as u32)], "names of the allocator's memory"),
    when(S::seccomp, &[exactly(0, libc::SECCOMP_SET_MODE_FILTER)], "several filters, narrower ones"),
    allow(S::clock_gettime, "where the clock of the host is not mapped"),
    allow(S::clock_getres, "clocks"),
    allow(S::gettimeofday, "where the clock of the host is not mapped"),
    allow(S::time, "where the clock of the host is not mapped"),
    allow(S::nanosleep, "pauses"),
    allow(S::clock_nanosleep, "pauses"),
    allow(S::getrandom, "hash tables, TLS"),
    allow(S::getcpu, "allocator"),
    // Its new limit is a null pointer, of which a filter for 32 bits sees the half that a pointer never leaves zero.
    when(S::prlimit64, &[exactly(2, 0)], "the stack of a thread; limits are read, not set"),
    // Terminals.
    when(S::ioctl, &[request(TERMINAL, 0x21)], "FIONBIO"),
    when(S::ioctl, &[request(TERMINAL, 0x51)], "FIOCLEX"),
    when(S::ioctl, &[request(TERMINAL, 0x01)], "TCGETS: std asks whether the log is a terminal"),
];

/// What no program of ours may call once its filter holds: calls that make processes, change what a process is or sees, reach
/// into others, or change the kernel. For tests of tables.
pub const NEVER: &[Sysno] = &[
    S::add_key,
    S::bpf,
    S::chroot,
    S::execveat,
    S::fork,
    S::fsopen,
    S::init_module,
    S::kexec_load,
    S::keyctl,
    S::mount,
    S::move_mount,
    S::open_by_handle_at,
    S::perf_event_open,
    S::personality,
    S::pivot_root,
    S::process_vm_readv,
    S::process_vm_writev,
    S::ptrace,
    S::setns,
    S::setuid,
    S::umount2,
    S::unshare,
    S::userfaultfd,
    S::vfork,
];

const TERMINAL: u8 = b'T';

/// Of openat: a file that exists is opened, and cannot be written to.
pub const READ_ONLY: Condition = none_of(
    2,
    (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32,
);
/// Of mmap and mprotect.
pub const NOT_EXECUTABLE: Condition = none_of(2, libc::PROT_EXEC as u32);
/// Of clone: flags of a new thread, none of a new namespace.
pub const THREAD: Condition = {
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
/// The type of a socket, without its flags.
const SOCKET_TYPE: u32 = 0xf;
/// Of socket.
pub const SOCKET_STREAM: Condition =
    Condition { argument: 1, mask: SOCKET_TYPE, value: libc::SOCK_STREAM as u32 };
/// Of socket.
pub const SOCKET_DATAGRAM: Condition =
    Condition { argument: 1, mask: SOCKET_TYPE, value: libc::SOCK_DGRAM as u32 };

/// The argument is `value`.
#[must_use]
pub const fn exactly(argument: u8, value: u32) -> Condition {
    Condition { argument, mask: u32::MAX, value }
}

/// The argument has none of these bits.
#[must_use]
pub const fn none_of(argument: u8, mask: u32) -> Condition {
    Condition { argument, mask, value: 0 }
}

/// An ioctl by type and number. Its size and direction belong to the number.
#[must_use]
pub const fn request(kind: u8, number: u8) -> Condition {
    Condition { argument: 1, mask: 0xffff, value: (kind as u32) << 8 | number as u32 }
}

/// A call with any arguments.
#[must_use]
pub const fn allow(call: Sysno, reason: &'static str) -> Allowed {
    when(call, &[], reason)
}

/// A call with conditions.
#[must_use]
pub const fn when(call: Sysno, when: &'static [Condition], reason: &'static str) -> Allowed {
    Allowed { call, when, reason }
}

/// A call that fails with any arguments.
#[must_use]
pub const fn fails(call: Sysno, errno: i32, reason: &'static str) -> Failing {
    fails_when(call, &[], errno, reason)
}

/// A call that fails with conditions.
#[must_use]
pub const fn fails_when(
    call: Sysno,
    when: &'static [Condition],
    errno: i32,
    reason: &'static str,
) -> Failing {
    Failing { call, when, errno, reason }
}
