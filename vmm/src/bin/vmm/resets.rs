use std::time::Duration;

/// A guest that ran this long before it reset itself has done some work.
const LONG: Duration = Duration::from_secs(30);
/// So many resets in a row without any work are a loop.
const LIMIT: u32 = 5;

/// Distinguishes a guest that reboots from one that crashes at every start.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    in_a_row: u32,
}

impl Resets {
    /// Counts a reset of a guest that `lasted` since its start; returns whether this is a reset loop.
    pub(crate) fn is_loop(&mut self, lasted: Duration) -> bool {
        self.in_a_row = if lasted >= LONG { 0 } else { self.in_a_row + 1 };
        self.in_a_row >= LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops(lasted: &[u64]) -> bool {
        let mut resets = Resets::default();
        lasted.iter().fold(false, |_, seconds| resets.is_loop(Duration::from_secs(*seconds)))
    }

    #[test]
    fn only_short_lives_in_a_row_are_a_loop() {
        assert!(loops(&[1, 1, 1, 1, 1]));
        assert!(!loops(&[1, 1, 1, 1]));
        assert!(!loops(&[1, 1, 1, 40, 1]));
        assert!(!loops(&[1, 1, 1, 1, 30]));
        assert!(loops(&[1, 40, 1, 2, 3, 4, 29]));
    }
}
