//! The end of a launcher by a system call that is not allowed.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use syscalls::Sysno;

/// No system call has this number: no table allows it.
const NO_CALL: libc::c_long = 4095;
/// What a shell reports for a process that SIGSYS ended.
const EXIT_CODE: libc::c_int = 128 + libc::SIGSYS;

/// `siginfo_t` of a SIGSYS, of which libc has no accessors: `include/uapi/asm-generic/siginfo.h`.
#[repr(C)]
struct Info {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    address: *const libc::c_void,
    call: libc::c_int,
    architecture: libc::c_uint,
}

/// Has a rejected call be reported before it ends the process.
pub(super) fn handle() -> io::Result<()> {
    set_handler(report as *const () as libc::sighandler_t)
}

fn set_handler(handler: libc::sighandler_t) -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeroes are a `sigaction`: the default action, with an empty mask.
    #[expect(unsafe_code, reason = "libc has no other way to make one")]
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` is initialized; the handler is the default one, or `report`, which is async-signal-safe.
    #[expect(unsafe_code, reason = "signal handlers are set by a raw system call")]
    let result = unsafe { libc::sigaction(libc::SIGSYS, action, ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes one line and ends the process by SIGSYS. Makes system calls only, which every table allows: no allocation, no locks.
extern "C" fn report(_signal: libc::c_int, info: *const Info, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes the `siginfo_t` of a SIGSYS to its handler.
    #[expect(unsafe_code, reason = "signal handlers get pointers")]
    let call = unsafe { (*info).call };
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes at most 16 bytes, and ends them with a zero.
    #[expect(unsafe_code, reason = "the name of a thread is read by a raw system call")]
    unsafe {
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr())
    };
    let mut line = Line::default();
    line.call(call, &name);
    // SAFETY: the bytes are initialized and live until the call returns.
    #[expect(unsafe_code, reason = "std's stderr takes a lock")]
    unsafe {
        libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.length)
    };
    // The first process of a namespace is not ended by a signal that it sends itself, but by one that a filter raises.
    let _ = set_handler(libc::SIG_DFL);
    // SAFETY: no system call has this number.
    #[expect(unsafe_code, reason = "it is made only to be rejected")]
    unsafe {
        libc::syscall(NO_CALL)
    };
    // SAFETY: it runs nothing of this process.
    #[expect(unsafe_code, reason = "std's exit runs destructors")]
    unsafe {
        libc::_exit(EXIT_CODE)
    }
}

/// A line of the log, on the stack.
pub(super) struct Line {
    bytes: [u8; 160],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; 160], length: 0 }
    }
}

impl Line {
    /// Names a call that was rejected, and its thread.
    pub(super) fn call(&mut self, call: i32, thread: &[u8]) {
        self.add(b"virt-launcher: the seccomp filter does not allow system call ");
        let number = usize::try_from(call).ok();
        if let Some(known) = number.and_then(Sysno::new) {
            self.add(known.name().as_bytes());
            self.add(b" ");
        }
        self.add(b"(");
        self.number(number.unwrap_or_default());
        self.add(b") of thread ");
        let end = thread.iter().position(|byte| *byte == 0).unwrap_or(thread.len());
        self.add(thread.get(..end).unwrap_or_default());
        self.add(b"\n");
    }

    /// What there is so far.
    #[cfg(test)]
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap()
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(free) = self.bytes.get_mut(self.length) {
                *free = *byte;
                self.length += 1;
            }
        }
    }

    fn number(&mut self, number: usize) {
        if number >= 10 {
            self.number(number / 10);
        }
        self.add(&[b'0' + u8::try_from(number % 10).unwrap_or_default()]);
    }
}
