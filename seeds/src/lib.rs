//! Runs what fuzz targets run on their seeds and on inputs near them: in unit tests, without libFuzzer, and the same in each run.

use std::collections::BTreeSet;
use std::env;

use fastrand::Rng;

/// How many inputs are made of each seed.
const VARIANTS: &str = "VIREO_SEED_VARIANTS";
/// The same where the variable is not set.
const DEFAULT_VARIANTS: usize = 500;

/// A fuzz target by its name, and what it runs on an input.
pub type Target = (&'static str, fn(&[u8]));

/// Runs each target on its seeds and on inputs near them.
///
/// # Panics
/// Where a target does, where a seed has no target or a target no seed, and where the variable is not a number.
pub fn run(targets: &[Target], seeds: &[(&str, Vec<u8>)]) {
    let names: BTreeSet<_> = targets.iter().map(|(name, _)| *name).collect();
    let seeded: BTreeSet<_> = seeds.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, seeded, "targets, and those that have seeds");
    let variants = env::var(VARIANTS)
        .map_or(DEFAULT_VARIANTS, |text| text.parse().expect("VIREO_SEED_VARIANTS is a number"));
    let mut random = Rng::with_seed(1);
    for (name, seed) in seeds {
        for (_, run) in targets.iter().filter(|(target, _)| target == name) {
            run(seed);
            for _ in 0..variants {
                run(&near(seed, &mut random));
            }
        }
    }
}

/// An input that differs from a seed in one to four places.
fn near(seed: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut input = seed.to_vec();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=input.len());
        match random.u8(0..5) {
            0 => input.truncate(at),
            1 => input.insert(at, random.u8(..)),
            2 => {
                let piece: Vec<u8> = input.iter().skip(at).take(random.usize(..40)).copied().collect();
                input.splice(at..at, piece);
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = if random.bool() { *byte ^ (1 << random.u8(0..8)) } else { *choice(random) };
                }
            }
        }
    }
    input
}

/// A byte at which parsers decide.
fn choice(random: &mut Rng) -> &'static u8 {
    random.choice(&[0, 255, b'"', b'\n']).unwrap_or(&0)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static SEEN: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    }

    fn note(input: &[u8]) {
        SEEN.with_borrow_mut(|seen| seen.push(input.to_vec()));
    }

    #[test]
    fn the_seed_and_the_same_inputs_near_it_run_each_time() {
        let seeds = [("a", b"0123456789".to_vec()), ("a", Vec::new())];
        let seen = || {
            run(&[("a", note)], &seeds);
            SEEN.take()
        };
        let (first, second) = (seen(), seen());
        assert_eq!(first, second);
        assert!(seeds.iter().all(|(_, seed)| first.contains(seed)));
        let kinds = |is: fn(usize) -> bool| first.iter().filter(|input| is(input.len())).count();
        assert!(
            kinds(|length| length < 10) > 10 && kinds(|length| length > 10) > 10,
            "shorter and longer ones"
        );
    }

    #[test]
    #[should_panic(expected = "those that have seeds")]
    fn a_target_without_a_seed_is_found() {
        run(&[("a", note), ("b", note)], &[("a", Vec::new())]);
    }
}
