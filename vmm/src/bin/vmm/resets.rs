use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vireo_vmm::serial::SerialOutput;

/// A guest that ran this long before it reset itself has done some work.
const LONG: Duration = Duration::from_secs(30);
/// So many resets in a row without any work are a loop.
const LIMIT: u32 = 5;
/// Of a line, what is compared.
const LINE: usize = 512;
/// So many different lines are remembered; a guest that shows more is not in a loop.
const LINES: usize = 1 << 16;
/// Hexadecimal numbers of so many digits are addresses, or otherwise as good as random.
const ADDRESS: usize = 8;

/// Distinguishes a guest that reboots from one that crashes at every start: the latter runs for a short time and shows
/// nothing on its console that it has not shown before.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    /// What it shows may be on a display only.
    has_display: bool,
    in_a_row: u32,
    lines: Arc<Mutex<Lines>>,
}

impl Resets {
    /// Of a guest that has a display or not.
    pub(crate) fn new(has_display: bool) -> Self {
        Self { has_display, ..Self::default() }
    }

    /// Counts a reset of a guest that `lasted` since its start; returns whether this is a reset loop.
    pub(crate) fn is_loop(&mut self, lasted: Duration) -> bool {
        let mut lines = lock(&self.lines);
        let new = lines.end();
        let unseen = self.has_display && lines.seen.is_empty();
        drop(lines);
        self.in_a_row = match (lasted >= LONG || unseen, new) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => self.in_a_row + 1,
        };
        self.in_a_row >= LIMIT
    }

    /// An output that sees what the guest shows on its way to `output`.
    pub(crate) fn watch<O: SerialOutput>(&self, output: O) -> impl SerialOutput + use<O> {
        Watched { output, lines: self.lines.clone() }
    }
}

fn lock(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Watched<O> {
    output: O,
    lines: Arc<Mutex<Lines>>,
}

impl<O: SerialOutput> SerialOutput for Watched<O> {
    fn write(&mut self, bytes: &[u8]) {
        lock(&self.lines).show(bytes);
        self.output.write(bytes);
    }
}

/// The lines that a guest has shown, by their hashes.
#[derive(Debug, Default)]
struct Lines {
    seen: HashSet<u64>,
    line: Vec<u8>,
    /// Since the last reset there was one that had not been shown before.
    new: bool,
}

impl Lines {
    fn show(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\r' | b'\n' => self.finish_line(),
                other if self.line.len() < LINE => self.line.push(*other),
                _ => {}
            }
        }
    }

    fn finish_line(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let mut hasher = DefaultHasher::new();
        steady(&self.line).hash(&mut hasher);
        self.line.clear();
        self.new |= self.seen.len() >= LINES || self.seen.insert(hasher.finish());
    }

    /// The guest has reset itself; returns whether there was something new.
    fn end(&mut self) -> bool {
        self.finish_line();
        std::mem::take(&mut self.new)
    }
}

/// A line without what differs from boot to boot. In messages of a kernel, which have a time in front, these are all
/// numbers; elsewhere only addresses and fractions, since a script may count its steps.
fn steady(line: &[u8]) -> Vec<u8> {
    let (line, kernel) = match without_time(line) {
        Some(text) => (text, true),
        None => (line, false),
    };
    let mut steady = Vec::with_capacity(line.len());
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.';
    let mut rest = line;
    while let Some(first) = rest.first() {
        let len = rest.iter().position(|byte| is_word(byte) != is_word(first)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(len);
        rest = tail;
        if is_number(word, kernel) { steady.push(b'#') } else { steady.extend(word) }
    }
    steady
}

/// Whether a word is a number that is left out: of a kernel's message each word with a digit in it.
fn is_number(word: &[u8], kernel: bool) -> bool {
    let digits = word.iter().filter(|byte| byte.is_ascii_digit()).count();
    let hex = word.strip_prefix(b"0x").unwrap_or(word);
    let address = hex.len() >= ADDRESS && hex.iter().all(u8::is_ascii_hexdigit);
    let fraction =
        word.contains(&b'.') && word.iter().all(|byte| !byte.is_ascii_alphabetic() || *byte == b's');
    digits > 0 && (kernel || address || fraction)
}

/// The text behind a kernel's `[   12.345678] `; `None` if there is no such time.
fn without_time(line: &[u8]) -> Option<&[u8]> {
    let end = line.iter().position(|byte| *byte == b']')?;
    let time = line.strip_prefix(b"[")?.get(..end - 1)?;
    let time = time.trim_ascii();
    let is_time = time.contains(&b'.') && time.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    is_time.then(|| line.get(end + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resets of a guest with what it shows each time and for how many seconds.
    fn loops<'a>(lives: impl IntoIterator<Item = (u64, &'a str)>) -> bool {
        let mut resets = Resets::default();
        lives.into_iter().any(|(seconds, shown)| {
            resets.watch(|_: &[u8]| {}).write(shown.as_bytes());
            resets.is_loop(Duration::from_secs(seconds))
        })
    }

    fn silent(lasted: &[u64]) -> bool {
        loops(lasted.iter().map(|seconds| (*seconds, "")))
    }

    #[test]
    fn only_short_lives_in_a_row_are_a_loop() {
        assert!(silent(&[1, 1, 1, 1, 1]));
        assert!(!silent(&[1, 1, 1, 1]));
        assert!(!silent(&[1, 1, 1, 40, 1]));
        assert!(!silent(&[1, 1, 1, 1, 30]));
        assert!(silent(&[1, 40, 1, 2, 3, 4, 29]));
    }

    #[test]
    fn what_a_display_shows_is_not_known() {
        let mut resets = Resets::new(true);
        assert!((0..9).all(|_| !resets.is_loop(Duration::from_secs(1))));
        resets.watch(|_: &[u8]| {}).write(b"panic");
        assert!((0..9).any(|_| resets.is_loop(Duration::from_secs(1))));
    }

    #[test]
    fn a_guest_that_shows_something_new_is_not_in_a_loop() {
        let steps: Vec<_> = (0..20).map(|step| format!("[ 0.{step}] boot\nstep {step} of 20\n")).collect();
        assert!(!loops(steps.iter().map(|shown| (1, shown.as_str()))));
        let stuck =
            [(1, "boot\nstep 1\n"), (1, "boot\nstep 2\n"), (1, "boot\n"), (1, "boot\n"), (1, "boot\n")];
        assert!(!loops(stuck));
        assert!(loops(stuck.into_iter().chain([(1, "boot\n")])));
    }

    #[test]
    fn the_same_crash_at_another_time_and_address_is_nothing_new() {
        let crash = |n: u32| {
            format!(
                "[    0.{n}234] Kernel panic - not syncing: {n} ticks\r\n\
                 [    1.00{n}] RIP: 0010:ffffffff{n}beefca8 Code: 0{n} 48\r\n\
                 waited 0.{n}5s for ffff88{n}0deadbee"
            )
        };
        let lives: Vec<_> = (1..=5).map(crash).collect();
        assert!(loops(lives.iter().map(|shown| (1, shown.as_str()))));
    }

    #[test]
    fn numbers_of_a_script_stay() {
        assert_eq!(steady(b"[   12.5] cpu0: 17 MHz at 0xff"), b" #: # MHz at #");
        assert_eq!(steady(b"[  OK  ] Started 3 units"), b"[  OK  ] Started 3 units");
        assert_eq!(steady(b"at 0x7f0012345678, 1.25s"), b"at #, #");
        assert_eq!(steady(b"]["), b"][");
    }
}
