//! Filters earlier guest output for replay on a terminal.
//!
//! A terminal answers some of what it is shown: where its cursor is (`ESC [6n`), what it is (`ESC [c`, ENQ), what its title
//! is. Such an answer is typed into the guest as if its user had typed it, so that only a guest that asks now may get one.
//! Of history, text is shown with its colours; whatever else changes a terminal or makes it speak is left out.

use vte::{Params, Parser, Perform};

#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    /// Whether a colour is set that would colour what follows.
    styled: bool,
}

/// Guest output as plain text with colours. It may begin and end in the middle of a sequence; one that has not ended
/// is left out.
pub(crate) fn plain_text(output: &[u8]) -> Vec<u8> {
    let mut text = Text::default();
    // A terminal may take bytes that are not UTF-8 for 8-bit control characters.
    let output = String::from_utf8_lossy(output);
    Parser::new().advance(&mut text, output.as_bytes());
    if text.styled {
        text.bytes.extend_from_slice(b"\x1b[0m");
    }
    text.bytes
}

impl Perform for Text {
    fn print(&mut self, letter: char) {
        // C1 controls have code points as well, and DEL is not text.
        if !letter.is_control() {
            self.bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }

    fn execute(&mut self, byte: u8) {
        // Not BEL, not ENQ (terminals answer it), not SO and SI (they switch the character set).
        if matches!(byte, b'\n' | b'\r' | b'\t' | 0x08) {
            self.bytes.push(byte);
        }
    }

    /// Keeps `CSI ... m` (SGR) without a private marker: colours and weights.
    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: char) {
        if action != 'm' || ignore || !intermediates.is_empty() {
            return;
        }
        let one = |parts: &[u16]| parts.iter().map(u16::to_string).collect::<Vec<_>>().join(":");
        let all = params.iter().map(one).collect::<Vec<_>>().join(";");
        self.bytes.extend_from_slice(format!("\x1b[{all}m").as_bytes());
        self.styled = !params.iter().all(|parts| parts.iter().all(|part| *part == 0));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn becomes(said: &[u8], shown: &str) {
        assert_eq!(String::from_utf8_lossy(&plain_text(said)), shown, "{:?}", String::from_utf8_lossy(said));
    }

    #[test]
    fn text_and_its_colours_stay() {
        becomes(b"boot\r\n\tlogin: ro\x08 \x08", "boot\r\n\tlogin: ro\x08 \x08");
        becomes("Grüße, 世界".as_bytes(), "Grüße, 世界");
        becomes(b"[\x1b[0;32m OK \x1b[0m] log", "[\x1b[0;32m OK \x1b[0m] log");
        becomes(b"\x1b[38:2::1:2:3mx", "\x1b[38:2:0:1:2:3mx\x1b[0m");
        becomes(b"\x1b[1;31m\x1b[mx", "\x1b[1;31m\x1b[0mx");
        becomes(b"latin \xe4", "latin \u{fffd}");
    }

    #[test]
    fn whatever_a_terminal_answers_is_left_out() {
        for asked in [
            "\x1b[6n",
            "\x1b[?6n",
            "\x1b[5n",
            "\x1b[c",
            "\x1b[>c",
            "\x1b[=c",
            "\x1b[0c",
            "\x1bZ",
            "\x05",
            "\x1b[x",
            "\x1b[18t",
            "\x1b[21t",
            "\x1b[?2004$p",
            "\x1b[>q",
            "\x1b[?u",
            "\x1b[>4;1m",
            "\x1b[?4m",
            "\x1b]0;title\x07",
            "\x1b]10;?\x1b\\",
            "\x1b]52;c;?\x07",
            "\x1bP$qm\x1b\\",
            "\x1bP+q544e\x1b\\",
            "\x1b_G i=1\x1b\\",
            "\x1b^x\x1b\\",
            "\x1bXx\x1b\\",
            "\u{9b}6n",
            "\u{9d}0;t\u{9c}",
            "\x07",
            "\x0e",
            "\x0f",
            "\x7f",
        ] {
            let output = format!("a{asked}b");
            let shown = String::from_utf8(plain_text(output.as_bytes())).unwrap();
            assert!(shown.starts_with('a') && shown.ends_with('b'), "{asked:?} became {shown:?}");
            assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{asked:?} became {shown:?}");
        }
    }

    #[test]
    fn what_has_not_ended_is_left_out() {
        for open in ["\x1b", "\x1b[", "\x1b[6", "\x1b]0;title", "\x1bP$q", "\x1b[>"] {
            becomes(format!("login: {open}").as_bytes(), "login: ");
        }
    }

    /// Whether there is nothing but text and SGR without a private marker.
    fn is_plain(shown: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(shown) else { return false };
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('\x1b') {
            let Some(after) = after.strip_prefix('[') else { return false };
            let Some((numbers, after)) = after.split_once('m') else { return false };
            let is_number = |byte: u8| byte.is_ascii_digit() || b";:".contains(&byte);
            if !is_text(before) || !numbers.bytes().all(is_number) {
                return false;
            }
            rest = after;
        }
        is_text(rest)
    }

    fn is_text(text: &str) -> bool {
        text.chars().all(|letter| !letter.is_control() || "\n\r\t\x08".contains(letter))
    }

    /// Bytes that make sequences often.
    fn output() -> impl Strategy<Value = Vec<u8>> {
        let pieces = prop_oneof![
            prop::sample::select(
                b"\x1b[]P_^X\\?>=;:$+0168nmcqtxu\x05\x07\x18\x9b\x9c\x9d\xc2\xe4 az\r\n".to_vec()
            )
            .prop_map(|byte| vec![byte]),
            any::<Vec<u8>>(),
            Just(b"\x1b[6n".to_vec()),
            Just(b"\x1b[1;31m".to_vec()),
            Just("ä世".as_bytes().to_vec()),
        ];
        prop::collection::vec(pieces, 0..60).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        /// Wherever the history begins and ends: what is shown is text, and nothing of it becomes a sequence.
        #[test]
        fn only_text_is_shown(bytes in output(), from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>()) {
            let (from, to) = (from.index(bytes.len() + 1), to.index(bytes.len() + 1));
            let shown = plain_text(&bytes[from.min(to)..from.max(to)]);
            prop_assert!(is_plain(&shown), "{:?}", String::from_utf8_lossy(&shown));
            prop_assert_eq!(plain_text(&shown), shown);
        }
    }
}
