use super::*;

const RULES: Rules = Rules { period: Duration::from_secs(10), success_threshold: 2, failure_threshold: 3 };

fn failure(cause: &str) -> Outcome {
    Outcome::Failure(cause.to_owned())
}

/// After immediate results, one each period.
fn after(outcomes: &[Outcome]) -> ProbeState {
    let begin = Instant::now();
    outcomes.iter().fold(ProbeState::new(begin), |state, outcome| {
        let at = state.due;
        state.next(&RULES, outcome.clone(), at, at)
    })
}

#[test]
fn thresholds_count_results_in_a_row() {
    use Outcome::{Success, Unknown};
    let rows: &[(&[Outcome], Option<bool>)] = &[
        (&[], None),
        (&[Success], None),
        (&[Success, Success], Some(true)),
        (&[Success, failure("a"), Success], None),
        (&[failure("a"), failure("a")], None),
        (&[failure("a"), failure("b"), failure("c")], Some(false)),
        (&[failure("a"), failure("a"), Success, failure("a"), failure("a")], None),
        (&[Success, Success, failure("a"), failure("a")], Some(true)),
        (&[Success, Success, failure("a"), failure("a"), Success, failure("a"), failure("a")], Some(true)),
        (&[Success, Success, failure("a"), failure("a"), failure("a")], Some(false)),
        (&[failure("a"), failure("a"), failure("a"), Success], Some(false)),
        (&[failure("a"), failure("a"), failure("a"), Success, Success], Some(true)),
        // A probe that could not run neither counts nor breaks a row.
        (&[Unknown, Unknown, Unknown], None),
        (&[failure("a"), Unknown, failure("a"), Unknown, failure("a")], Some(false)),
    ];
    for (outcomes, healthy) in rows {
        assert_eq!(after(outcomes).status.healthy, *healthy, "{outcomes:?}");
    }
}

#[test]
fn the_next_probe_is_a_period_after_the_last_and_never_before_its_result() {
    let begin = Instant::now();
    let seconds = Duration::from_secs;
    for (took, due) in [(0, 10), (9, 10), (10, 10), (35, 35)] {
        for outcome in [Outcome::Success, failure("a"), Outcome::Unknown] {
            let state = ProbeState::new(begin).next(&RULES, outcome, begin, begin + seconds(took));
            assert_eq!(state.due, begin + seconds(due), "after {took} s");
        }
    }
}

#[test]
fn a_cause_is_reported_while_the_guest_is_not_healthy() {
    let successes = [Outcome::Success, Outcome::Success];
    assert_eq!(after(&[failure("a")]).status.cause, "a", "also before anything is known");
    assert_eq!(after(&[failure("a"), Outcome::Success]).status.cause, "a");
    assert_eq!(after(&[&[failure("a")], &successes[..]].concat()).status.cause, "");
    assert_eq!(after(&[&successes[..], &[failure("a"), failure("a")]].concat()).status.cause, "");
    assert_eq!(
        after(&[&successes[..], &[failure("a"), failure("b"), failure("c")]].concat()).status.cause,
        "c"
    );
    // A new cause within half a minute is not reported; the third failure changes the status and reports its cause.
    let changing = [failure("a"), failure("b"), failure("c"), failure("d"), failure("e"), failure("f")];
    let reported: Vec<_> = (1..=6).map(|count| after(&changing[..count]).status.cause).collect();
    assert_eq!(reported, ["a", "a", "c", "c", "c", "f"]);
}
