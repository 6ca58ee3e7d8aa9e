//! What is measured, and the table of it.

use super::subject::Subject;

/// What one round on one server comes to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    pub(super) creates: f64,
    pub(super) gets: f64,
    pub(super) lists: f64,
    pub(super) events: f64,
    pub(super) memory: f64,
}

type Row = (&'static str, fn(&Figures) -> f64);

const ROWS: [Row; 5] = [
    ("durable creates a second", |figures| figures.creates),
    ("gets a second", |figures| figures.gets),
    ("lists of 500 a second", |figures| figures.lists),
    ("watch events a second", |figures| figures.events),
    ("memory after that, MiB", |figures| figures.memory),
];

/// Prints the medians of both servers and the ratio of the first to the second.
pub(super) fn print(subjects: &[Subject; 2], measured: [Vec<Figures>; 2]) {
    let [ours, theirs] = subjects;
    println!("{:26}{:>12}{:>24}{:>8}", "", ours.name, theirs.name, "ratio");
    for (what, figure) in ROWS {
        let [ours, theirs] = measured.each_ref().map(|rounds| median(rounds.iter().map(figure)));
        println!("{what:26}{ours:>12.0}{theirs:>24.0}{:>8.2}", ours / theirs);
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
