//! The keys of the terminal that are not the guest's.

/// Ctrl+] leaves.
const LEAVE: u8 = 0x1d;
/// Ctrl+^ begins a command to the monitor. Twice, it is the guest's.
const COMMAND: u8 = 0x1e;

/// What the user wants, in the order of the keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// These bytes are for the guest.
    Type(Vec<u8>),
    /// A break on the serial line.
    Break,
    PowerButton,
    /// Pauses the VM, or resumes it.
    Pause,
    Save,
    Leave,
}

/// Finds the monitor's keys in what comes in pieces.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The last key began a command.
    commanded: bool,
}

impl Keys {
    /// Reads the keys up to one that leaves.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Wish> {
        let mut wishes = Vec::new();
        for byte in bytes {
            let wish = match (std::mem::take(&mut self.commanded), *byte) {
                (_, LEAVE) => Wish::Leave,
                (true, b'b' | b'B') => Wish::Break,
                (true, b'p' | b'P') => Wish::PowerButton,
                (true, b'z' | b'Z') => Wish::Pause,
                (true, b's' | b'S') => Wish::Save,
                (false, COMMAND) => {
                    self.commanded = true;
                    continue;
                }
                // An unknown command does nothing.
                (true, other) if other != COMMAND => continue,
                (_, other) => {
                    match wishes.last_mut() {
                        Some(Wish::Type(typed)) => typed.push(other),
                        _ => wishes.push(Wish::Type(vec![other])),
                    }
                    continue;
                }
            };
            let left = wish == Wish::Leave;
            wishes.push(wish);
            if left {
                break;
            }
        }
        wishes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(bytes: &[u8]) -> Wish {
        Wish::Type(bytes.to_vec())
    }

    #[test]
    fn keys_are_the_guests_until_one_leaves() {
        let mut keys = Keys::default();
        assert_eq!(keys.read(b"ls\r"), [typed(b"ls\r")]);
        assert_eq!(keys.read(b"a\x1db"), [typed(b"a"), Wish::Leave]);
    }

    #[test]
    fn commands_may_come_in_pieces() {
        let mut keys = Keys::default();
        assert_eq!(keys.read(b"a\x1ebh"), [typed(b"a"), Wish::Break, typed(b"h")]);
        assert_eq!(keys.read(b"\x1e"), []);
        assert_eq!(keys.read(b"p"), [Wish::PowerButton]);
        assert_eq!(keys.read(b"\x1e\x1ep"), [typed(b"\x1ep")]);
        assert_eq!(keys.read(b"\x1ez\x1es"), [Wish::Pause, Wish::Save]);
        assert_eq!(keys.read(b"\x1ex"), [], "there is no such command");
        assert_eq!(keys.read(b"\x1e\x1d"), [Wish::Leave]);
    }
}
