//! What a console shows before live bytes, and where that ends.

use serde_json::Value;
use vireo_api::v1::HISTORY_BYTES;

/// Ends history on a terminal, whose colours it resets.
const MARK: &[u8] = b"\x1b[0m\r----- the history of this console ends here -----\r\n";

/// Separates history from live bytes.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Whether the output is a terminal, where the end of the history is marked.
    marked: bool,
    /// How much is still to come.
    left: usize,
    /// What has come, to be shown at once.
    bytes: Vec<u8>,
}

impl History {
    /// Of a console that is shown on a terminal or not.
    pub(super) fn on(terminal: bool) -> Self {
        Self { marked: terminal, ..Self::default() }
    }

    /// Reads a text frame, which has the length of the history.
    pub(super) fn announced(&mut self, text: &str) {
        let announced: Option<Value> = serde_json::from_str(text).ok();
        let length = announced.and_then(|value| value.get(HISTORY_BYTES)?.as_u64());
        if let Some(length) = length.filter(|_| self.marked) {
            self.left = usize::try_from(length).unwrap_or(usize::MAX);
        }
    }

    /// What to show when these bytes come.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.left == 0 {
            return bytes.to_vec();
        }
        let (history, live) = bytes.split_at(self.left.min(bytes.len()));
        self.left -= history.len();
        self.bytes.extend_from_slice(history);
        if self.left > 0 {
            return Vec::new();
        }
        let mut shown = self.marked();
        shown.extend_from_slice(live);
        shown
    }

    /// What was not shown yet because not all of it has come.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.left = 0;
        std::mem::take(&mut self.bytes)
    }

    /// The history with its mark, after which the last line stands, such as a prompt: live bytes continue it.
    fn marked(&mut self) -> Vec<u8> {
        let history = std::mem::take(&mut self.bytes);
        let line = history.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (before, last) = history.split_at(line);
        [before, MARK, last].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKED: &str = "\x1b[0m\r----- the history of this console ends here -----\r\n";

    fn shown(history: &mut History, frames: &[&str]) -> String {
        frames.iter().map(|frame| String::from_utf8(history.take(frame.as_bytes())).unwrap()).collect()
    }

    #[test]
    fn people_see_where_history_ends() {
        let mut history = History::on(true);
        history.announced(r#"{"historyBytes":13}"#);
        assert_eq!(shown(&mut history, &["boot\r\n", "log"]), "", "all of it at once");
        assert_eq!(shown(&mut history, &["in: root"]), format!("boot\r\n{MARKED}login: root"));
        assert_eq!(shown(&mut history, &["\r\n", "# "]), "\r\n# ");
    }

    #[test]
    fn programs_see_bytes_only() {
        let mut history = History::on(false);
        history.announced(r#"{"historyBytes":6}"#);
        assert_eq!(shown(&mut history, &["boot", "\r\nlogin: "]), "boot\r\nlogin: ");
    }

    #[test]
    fn other_servers_have_no_history() {
        for odd in ["", "hello", "[]", r#"{"historyBytes":-1}"#, r#"{"historyBytes":0}"#] {
            let mut history = History::on(true);
            history.announced(odd);
            assert_eq!(shown(&mut history, &["live"]), "live", "{odd}");
        }
    }

    #[test]
    fn what_breaks_off_is_shown_as_far_as_it_came() {
        let mut history = History::on(true);
        history.announced(r#"{"historyBytes":100}"#);
        assert_eq!(shown(&mut history, &["boot"]), "");
        assert_eq!(history.rest(), b"boot");
        assert_eq!(history.rest(), b"");
    }
}
