use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::contender::Contender;

/// One start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) contender: Contender,
    /// From exec to the guest's first process.
    pub(crate) millis: f64,
    /// Resident beside the guest's RAM, in KiB.
    pub(crate) kib: u64,
}

/// The medians, and how they relate to QEMU's.
pub(crate) fn table(samples: &[Sample]) -> String {
    let row = |contender| {
        let of = || samples.iter().filter(move |sample| sample.contender == contender);
        let millis = median(of().map(|sample| sample.millis).collect())?;
        let mib = median(of().map(|sample| sample.kib as f64 / 1024.0).collect())?;
        Some((of().count(), millis, mib, spread(of().map(|sample| sample.millis))))
    };
    let qemu = row(Contender::Qemu);
    let mut text = String::from(
        "contender   runs   exec to guest init (min-max)      to QEMU   beside the guest   to QEMU\n",
    );
    for contender in Contender::ALL {
        let Some((runs, millis, mib, (low, high))) = row(contender) else { continue };
        let ratio = |value: f64, of: Option<f64>| {
            of.map_or_else(|| "-".to_owned(), |of| format!("{:.2}", value / of))
        };
        let (time_ratio, memory_ratio) =
            (ratio(millis, qemu.map(|row| row.1)), ratio(mib, qemu.map(|row| row.2)));
        let times = format!("{millis:.0} ms ({low:.0}-{high:.0})");
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{contender:<11} {runs:>4}   {times:<32} {time_ratio:>8}   {mib:>12.1} MiB   {memory_ratio:>7}"
        );
    }
    text.push_str(&isolation(samples).unwrap_or_default());
    text
}

/// What isolation adds, round by round, where launchers with and without it were measured.
fn isolation(samples: &[Sample]) -> Option<String> {
    let of = |contender| samples.iter().filter(move |sample| sample.contender == contender);
    let rounds: Vec<_> = of(Contender::Bare).zip(of(Contender::Isolated)).collect();
    let differences = || rounds.iter().map(|(bare, isolated)| isolated.millis - bare.millis);
    let millis = median(differences().collect())?;
    let ratio = median(rounds.iter().map(|(bare, isolated)| isolated.millis / bare.millis).collect())?;
    let memory = rounds.iter().map(|(bare, isolated)| (isolated.kib as f64 - bare.kib as f64) / 1024.0);
    let mib = median(memory.collect())?;
    let low = differences().fold(f64::INFINITY, f64::min);
    let high = differences().fold(f64::NEG_INFINITY, f64::max);
    Some(format!(
        "isolation adds {millis:.1} ms ({low:.1} to {high:.1}), {ratio:.3} of the start without it, and {mib:.1} MiB\n"
    ))
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

fn spread(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high), value| (value.min(low), value.max(high)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn isolation_is_compared_round_by_round() {
        let sample = |contender, millis, kib| Sample { contender, millis, kib };
        let mut samples = vec![sample(Contender::Bare, 1000.0, 5120)];
        assert_eq!(isolation(&samples), None);
        samples.push(sample(Contender::Isolated, 1010.0, 5632));
        samples.extend([sample(Contender::Bare, 2000.0, 5120), sample(Contender::Isolated, 1998.0, 5632)]);
        samples.extend([sample(Contender::Bare, 1000.0, 5120), sample(Contender::Isolated, 1008.0, 5632)]);
        let text = isolation(&samples).unwrap();
        assert_eq!(
            text,
            "isolation adds 8.0 ms (-2.0 to 10.0), 1.008 of the start without it, and 0.5 MiB\n"
        );
        assert!(table(&samples).ends_with(&text));
    }

    #[test]
    fn rows_relate_to_qemu() {
        let sample = |contender, millis, kib| Sample { contender, millis, kib };
        let text = table(&[
            sample(Contender::Vmm, 400.0, 4096),
            sample(Contender::Qemu, 1000.0, 51 * 1024),
            sample(Contender::Vmm, 600.0, 4096),
        ]);
        let vmm: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(vmm, ["vmm", "2", "500", "ms", "(400-600)", "0.50", "4.0", "MiB", "0.08"]);
        let qemu: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(qemu, ["qemu", "1", "1000", "ms", "(1000-1000)", "1.00", "51.0", "MiB", "1.00"]);
    }
}
