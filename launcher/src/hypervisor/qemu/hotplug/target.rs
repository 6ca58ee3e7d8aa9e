/// The first name of a disk that is free, as Linux gives them: sda to sdz, sdaa and so on.
pub(super) fn target(prefix: &str, fixed: usize, known: &[&str]) -> String {
    let mut target = (fixed..).map(|index| format!("{prefix}{}", letters(index)));
    target.find(|name| !known.contains(&name.as_str())).unwrap_or_default()
}

fn letters(index: usize) -> String {
    let last = char::from(b'a' + u8::try_from(index % 26).unwrap_or_default());
    match (index / 26).checked_sub(1) {
        Some(rest) => format!("{}{last}", letters(rest)),
        None => last.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_those_of_the_fixed_disks_and_are_used_again() {
        let table: [(usize, &[&str], &str); 5] = [
            (0, &[], "sda"),
            (2, &[], "sdc"),
            (1, &["sdb", "sdd"], "sdc"),
            (25, &["sdz"], "sdaa"),
            (702, &[], "sdaaa"),
        ];
        for (fixed, known, name) in table {
            assert_eq!(target("sd", fixed, known), name);
        }
    }
}
