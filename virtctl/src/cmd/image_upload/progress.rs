//! How far an upload is: a bar on a terminal, else a line now and then.

use std::io::{IsTerminal as _, Write as _};

/// Letters of the bar.
const WIDTH: u64 = 30;
const MIB: u64 = 1 << 20;

/// How far it is.
#[derive(Debug)]
pub(super) struct Progress {
    total: u64,
    bar: bool,
    /// The progress printed last, in percent or in tenths.
    reported: Option<u64>,
}

impl Progress {
    pub(super) fn new(total: u64) -> Self {
        Self { total, bar: std::io::stderr().is_terminal(), reported: None }
    }

    /// Prints the progress, if it changed.
    pub(super) fn report(&mut self, sent: u64) {
        if let Some(line) = self.line(sent) {
            // Who does not look misses nothing.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn line(&mut self, sent: u64) -> Option<String> {
        let percent = (sent.saturating_mul(100)).checked_div(self.total).unwrap_or(100).min(100);
        let now = if self.bar { percent } else { percent / 10 };
        if self.reported == Some(now) {
            return None;
        }
        self.reported = Some(now);
        let (sent, total) = (sent / MIB, self.total / MIB);
        if !self.bar {
            return Some(format!("{percent}% ({sent} of {total} MiB)\n"));
        }
        let full = usize::try_from(percent * WIDTH / 100).unwrap_or_default();
        let end = if percent == 100 { "\n" } else { "" };
        let bar = "=".repeat(full);
        Some(format!("\r{sent} MiB / {total} MiB [{bar:<30}] {percent:3}%{end}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_moves_and_lines_are_few() {
        let mut bar = Progress { total: 200 * MIB, bar: true, reported: None };
        assert_eq!(bar.line(0).unwrap(), format!("\r0 MiB / 200 MiB [{}]   0%", " ".repeat(30)));
        assert_eq!(bar.line(1), None);
        assert_eq!(
            bar.line(100 * MIB).unwrap(),
            format!("\r100 MiB / 200 MiB [{}{}]  50%", "=".repeat(15), " ".repeat(15))
        );
        assert!(bar.line(200 * MIB).unwrap().ends_with("100%\n"));
        let mut lines = Progress { total: 1000, bar: false, reported: None };
        let reported: Vec<String> = (0..=1000).filter_map(|sent| lines.line(sent)).collect();
        assert_eq!((reported.len(), reported[10].as_str()), (11, "100% (0 of 0 MiB)\n"));
        assert_eq!(Progress { total: 0, bar: false, reported: None }.line(0).unwrap(), "100% (0 of 0 MiB)\n");
    }
}
