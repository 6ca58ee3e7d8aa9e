use super::*;

const RULES: Rules = Rules { period: Duration::from_secs(10), success_threshold: 2, failure_threshold: 3 };

fn ill(cause: &str) -> Outcome {
    Outcome::Ill(cause.to_owned())
}

/// After answers that came at once, one each period.
fn after(outcomes: &[Outcome]) -> Course {
    let begin = Instant::now();
    outcomes.iter().fold(Course::begin(begin), |course, outcome| {
        let at = course.due;
        course.next(&RULES, outcome.clone(), at, at)
    })
}

#[test]
fn thresholds_are_of_answers_in_a_row() {
    use Outcome::{Unknown, Well};
    let rows: &[(&[Outcome], Option<bool>)] = &[
        (&[], None),
        (&[Well], None),
        (&[Well, Well], Some(true)),
        (&[Well, ill("a"), Well], None),
        (&[ill("a"), ill("a")], None),
        (&[ill("a"), ill("b"), ill("c")], Some(false)),
        (&[ill("a"), ill("a"), Well, ill("a"), ill("a")], None),
        (&[Well, Well, ill("a"), ill("a")], Some(true)),
        (&[Well, Well, ill("a"), ill("a"), Well, ill("a"), ill("a")], Some(true)),
        (&[Well, Well, ill("a"), ill("a"), ill("a")], Some(false)),
        (&[ill("a"), ill("a"), ill("a"), Well], Some(false)),
        (&[ill("a"), ill("a"), ill("a"), Well, Well], Some(true)),
        // What could not be asked neither counts nor breaks a row.
        (&[Unknown, Unknown, Unknown], None),
        (&[ill("a"), Unknown, ill("a"), Unknown, ill("a")], Some(false)),
    ];
    for (outcomes, well) in rows {
        assert_eq!(after(outcomes).standing.well, *well, "{outcomes:?}");
    }
}

#[test]
fn the_next_question_is_a_period_after_the_last_and_never_before_its_answer() {
    let begin = Instant::now();
    let seconds = Duration::from_secs;
    for (took, due) in [(0, 10), (9, 10), (10, 10), (35, 35)] {
        for outcome in [Outcome::Well, ill("a"), Outcome::Unknown] {
            let course = Course::begin(begin).next(&RULES, outcome, begin, begin + seconds(took));
            assert_eq!(course.due, begin + seconds(due), "after {took} s");
        }
    }
}

#[test]
fn a_cause_is_told_while_the_guest_is_not_well() {
    let well = [Outcome::Well, Outcome::Well];
    assert_eq!(after(&[ill("a")]).standing.cause, "a", "also before anything is known");
    assert_eq!(after(&[ill("a"), Outcome::Well]).standing.cause, "a");
    assert_eq!(after(&[&[ill("a")], &well[..]].concat()).standing.cause, "");
    assert_eq!(after(&[&well[..], &[ill("a"), ill("a")]].concat()).standing.cause, "");
    assert_eq!(after(&[&well[..], &[ill("a"), ill("b"), ill("c")]].concat()).standing.cause, "c");
    // A new cause within half a minute is no news; the third failure changes what is known, and so tells its own.
    let changing = [ill("a"), ill("b"), ill("c"), ill("d"), ill("e"), ill("f")];
    let told: Vec<_> = (1..=6).map(|count| after(&changing[..count]).standing.cause).collect();
    assert_eq!(told, ["a", "a", "c", "c", "c", "f"]);
}
