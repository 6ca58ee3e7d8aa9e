/// Longer lines are cut.
const LINE: usize = 200;
/// Firmware logs its result long before this many bytes; what follows comes from an operating system.
const LISTENED_TO: usize = 256 << 10;

/// What SeaBIOS logs before it gives up or tries again, and OVMF where it has no shell.
const NOTHING_FOUND: [&str; 2] = ["No bootable device", "No bootable option or device was found"];
/// OVMF starts its shell when nothing else starts.
const STARTS: &str = "starting Boot";
const SHELL: &str = "\"EFI Internal Shell\"";

/// Scans the output of firmware, on its debug port or the console, for the message that it found no boot device.
///
/// Firmware has no other signal for it. A guest can print the same message, which is not distinguished.
#[derive(Debug, Default)]
pub struct LogScanner {
    line: String,
    heard: usize,
    found: bool,
}

impl LogScanner {
    /// Scans output; returns whether it is now known that nothing can be booted, once. `line` is
    /// called with every line.
    pub(super) fn hear_lines(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) -> bool {
        let before = self.found;
        for byte in bytes {
            match byte {
                b'\n' => {
                    each(&self.line);
                    self.found |= is_the_end(&self.line);
                    self.line.clear();
                }
                b' '..=b'~' if self.line.len() < LINE => self.line.push(char::from(*byte)),
                _ => {}
            }
        }
        self.found && !before
    }

    /// Scans output; returns whether it is now known that nothing can be booted, once. Stops
    /// listening after the output of the firmware.
    pub fn scan(&mut self, bytes: &[u8]) -> bool {
        if self.found || self.heard >= LISTENED_TO {
            return false;
        }
        self.heard += bytes.len();
        self.hear_lines(bytes, |_| {})
    }
}

fn is_the_end(line: &str) -> bool {
    NOTHING_FOUND.iter().any(|words| line.contains(words)) || (line.contains(STARTS) && line.contains(SHELL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_firmwares_are_understood() {
        for text in [
            "Booting from Hard Disk...\r\nNo bootable device.\r\n",
            "No bootable device.  Retrying in 60 seconds.\n",
            "\x1b[2J\x1b[01;01HBdsDxe: No bootable option or device was found.\r\n",
            "BdsDxe: starting Boot0002 \"EFI Internal Shell\" from Fv(7CB8BDC9)\r\n",
        ] {
            let mut log_scanner = LogScanner::default();
            let heard: Vec<_> = text.bytes().map(|byte| log_scanner.scan(&[byte])).collect();
            assert_eq!(heard.iter().filter(|found| **found).count(), 1, "{text}");
            assert!(!log_scanner.scan(text.as_bytes()), "it is reported once");
        }
    }

    #[test]
    fn other_words_and_late_ones_mean_nothing() {
        let mut log_scanner = LogScanner::default();
        assert!(
            !log_scanner
                .scan(b"BdsDxe: loading Boot0002 \"EFI Internal Shell\"\nstarting Boot0001 \"disk\"\n")
        );
        assert!(!log_scanner.scan(b"No bootable\n device\n"));
        assert!(!log_scanner.scan(&vec![b'x'; LISTENED_TO]));
        assert!(!log_scanner.scan(b"\nNo bootable device.\n"));
    }
}
