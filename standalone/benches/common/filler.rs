//! Text for objects that the store cannot compress.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Hexadecimal digits of hashes, other ones for each name.
pub(crate) fn text(name: &str, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    for number in 0_usize.. {
        if text.len() >= bytes {
            break;
        }
        let mut hasher = DefaultHasher::new();
        (name, number).hash(&mut hasher);
        text.push_str(&format!("{:016x}", hasher.finish()));
    }
    text.truncate(bytes);
    text
}
