//! The end of a process by a system call that is not allowed.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use syscalls::Sysno;

/// No system call has this number: no table allows it.
const NO_CALL: libc::c_long = 4095;
/// What a line of the log says of a rejected call, before its name.
const REJECTED: &str = "the seccomp filter does not allow system call ";
/// The longest name of a system call that is taken from a log.
const LONGEST_NAME: usize = 32;
/// The program that the log names.
static PROGRAM: OnceLock<&str> = OnceLock::new();
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

/// The name of the system call that a program has reported as rejected, from its log. The log is not trusted: what follows
/// is a name or nothing.
#[must_use]
pub fn rejected_call(log: &str) -> Option<&str> {
    let (_, rest) = log.split_once(REJECTED)?;
    let name = rest.split(|next: char| !next.is_ascii_alphanumeric() && next != '_').next()?;
    (1..=LONGEST_NAME).contains(&name.len()).then_some(name)
}

/// Has a rejected call be reported, with the name of this program, before it ends the process.
pub(super) fn handle(program: &'static str) -> io::Result<()> {
    // The first name stays.
    let _ = PROGRAM.set(program);
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
    line.call(PROGRAM.get().copied().unwrap_or_default(), call, &name);
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
struct Line {
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
    fn call(&mut self, program: &str, call: i32, thread: &[u8]) {
        self.add(program.as_bytes());
        self.add(b": ");
        self.add(REJECTED.as_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_call_and_its_thread() {
        let text = |call, thread| {
            let mut line = Line::default();
            line.call("virt-launcher", call, thread);
            String::from_utf8(line.bytes[..line.length].to_vec()).unwrap()
        };
        let known =
            "virt-launcher: the seccomp filter does not allow system call ptrace (101) of thread vcpu0\n";
        assert_eq!(text(101, b"vcpu0\0\0"), known);
        assert_eq!(rejected_call(&format!("before\n{known}after")), Some("ptrace"));
        let unknown = text(4095, b"vm");
        assert!(unknown.ends_with("system call (4095) of thread vm\n"), "{unknown}");
        assert_eq!(rejected_call(&unknown), None);
        assert_eq!(rejected_call(&format!("{REJECTED}{}", "a".repeat(LONGEST_NAME + 1))), None);
        assert_eq!(rejected_call("ended"), None);
    }
}
