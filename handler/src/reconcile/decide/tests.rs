use super::*;

const LIVE: Record =
    Record { is_final: false, leaving: false, condemned: false, has_network: true, outdated: false };
const LEAVING: Record = Record { leaving: true, ..LIVE };
const CONDEMNED: Record = Record { condemned: true, ..LIVE };
const FINAL: Record = Record { is_final: true, ..LIVE };

fn decided(wanted: Wanted, record: impl Into<Option<Record>>, launcher: Launcher, stop: Stop) -> Action {
    decide(wanted, &Observed { record: record.into(), launcher, volumes_differ: false, ill: false, stop })
}

#[test]
fn every_row_of_the_table() {
    use Launcher as L;
    use Stop::{Asked, Overdue, Unasked};
    use Wanted::{Absent, Held, Present};
    let released = Record { has_network: false, ..FINAL };
    let outdated = Record { outdated: true, ..LIVE };
    let outdated_end = Record { outdated: true, ..released };
    let final_leaving = Record { leaving: true, ..FINAL };
    let rows = [
        // A name without a record.
        (Present, None, L::Unstarted, Unasked, Action::Accept),
        (Held, None, L::Unstarted, Unasked, Action::Finish),
        (Absent, None, L::Unstarted, Unasked, Action::Finish),
        // The way up.
        (Present, Some(LIVE), L::Unstarted, Unasked, Action::Start),
        (Present, Some(LIVE), L::Silent, Unasked, Action::Wait),
        (Present, Some(LIVE), L::Waiting, Unasked, Action::Launch),
        (Present, Some(LIVE), L::Alive, Unasked, Action::Wait),
        // A broken manifest changes nothing about what was accepted.
        (Held, Some(LIVE), L::Unstarted, Unasked, Action::Start),
        (Held, Some(LIVE), L::Waiting, Unasked, Action::Launch),
        (Held, Some(LIVE), L::Alive, Unasked, Action::Wait),
        // A slow launcher is not a dead one, however long it takes.
        (Present, Some(LIVE), L::Silent, Overdue, Action::Wait),
        // A corrected manifest replaces what never ran, and nothing else.
        (Present, Some(outdated), L::Unstarted, Unasked, Action::Remove),
        (Held, Some(outdated), L::Unstarted, Unasked, Action::Start),
        (Present, Some(outdated), L::Alive, Unasked, Action::Wait),
        (Present, Some(outdated_end), L::Vanished, Unasked, Action::Wait),
        // The guest ends by itself.
        (Present, Some(LIVE), L::Exited, Unasked, Action::RecordOutcome),
        (Present, Some(FINAL), L::Exited, Unasked, Action::Dismiss),
        (Present, Some(FINAL), L::Exited, Asked, Action::Wait),
        (Present, Some(FINAL), L::Exited, Overdue, Action::Kill),
        (Present, Some(FINAL), L::Silent, Overdue, Action::Kill),
        (Present, Some(FINAL), L::Vanished, Asked, Action::ReleaseNetwork),
        (Present, Some(released), L::Vanished, Asked, Action::Wait),
        (Present, Some(released), L::Unstarted, Unasked, Action::Wait),
        (Present, Some(FINAL), L::Waiting, Unasked, Action::Dismiss),
        (Present, Some(FINAL), L::Alive, Unasked, Action::Kill),
        // The launcher dies.
        (Present, Some(LIVE), L::Vanished, Unasked, Action::RecordLoss),
        (Held, Some(LIVE), L::Vanished, Unasked, Action::RecordLoss),
        // The manifest goes.
        (Absent, Some(LIVE), L::Alive, Unasked, Action::BeginLeaving),
        (Absent, Some(FINAL), L::Vanished, Unasked, Action::BeginLeaving),
        (Absent, Some(LEAVING), L::Alive, Unasked, Action::AskShutdown),
        (Absent, Some(LEAVING), L::Alive, Asked, Action::Wait),
        (Absent, Some(LEAVING), L::Alive, Overdue, Action::Kill),
        (Absent, Some(LEAVING), L::Silent, Unasked, Action::Wait),
        (Absent, Some(LEAVING), L::Silent, Asked, Action::Wait),
        (Absent, Some(LEAVING), L::Silent, Overdue, Action::Kill),
        (Absent, Some(LEAVING), L::Exited, Asked, Action::RecordOutcome),
        (Absent, Some(LEAVING), L::Vanished, Asked, Action::RecordLoss),
        (Absent, Some(final_leaving), L::Exited, Unasked, Action::Dismiss),
        (Absent, Some(final_leaving), L::Vanished, Asked, Action::Remove),
        (Absent, Some(LEAVING), L::Unstarted, Unasked, Action::Remove),
        (Absent, Some(LEAVING), L::Waiting, Unasked, Action::Dismiss),
        (Absent, Some(LEAVING), L::Waiting, Asked, Action::Wait),
        // The livenessProbe failed: the guest ends, and what ended stays.
        (Present, Some(CONDEMNED), L::Alive, Unasked, Action::AskShutdown),
        (Held, Some(CONDEMNED), L::Alive, Asked, Action::Wait),
        (Present, Some(CONDEMNED), L::Alive, Overdue, Action::Kill),
        (Present, Some(CONDEMNED), L::Silent, Asked, Action::Wait),
        (Present, Some(CONDEMNED), L::Silent, Overdue, Action::Kill),
        (Present, Some(CONDEMNED), L::Exited, Asked, Action::RecordOutcome),
        (Present, Some(CONDEMNED), L::Vanished, Asked, Action::RecordLoss),
        (Absent, Some(CONDEMNED), L::Alive, Asked, Action::BeginLeaving),
        // It returns while the old one leaves: the old one leaves all the same.
        (Present, Some(LEAVING), L::Alive, Unasked, Action::AskShutdown),
        (Present, Some(final_leaving), L::Vanished, Asked, Action::Remove),
        // Somebody else's launcher is never touched.
        (Present, Some(LIVE), L::Foreign, Unasked, Action::ReportStranger),
        (Absent, Some(LEAVING), L::Foreign, Overdue, Action::ReportStranger),
    ];
    for (wanted, record, launcher, stop, expected) in rows {
        assert_eq!(
            decided(wanted, record, launcher, stop),
            expected,
            "{wanted:?} {record:?} {launcher:?} {stop:?}"
        );
    }
}

fn everything() -> impl Iterator<Item = (Wanted, Observed)> {
    let flags = [false, true];
    let bits = |bits: u8| {
        let [is_final, leaving, condemned, has_network, outdated] =
            [1, 2, 4, 8, 16].map(|bit| bits & bit != 0);
        Record { is_final, leaving, condemned, has_network, outdated }
    };
    let records: Vec<_> = (0..32).map(|number| Some(bits(number))).chain([None]).collect();
    let launchers = [
        Launcher::Unstarted,
        Launcher::Silent,
        Launcher::Waiting,
        Launcher::Alive,
        Launcher::Exited,
        Launcher::Vanished,
        Launcher::Foreign,
    ];
    let stops = [Stop::Unasked, Stop::Asked, Stop::Overdue];
    let mut all = Vec::new();
    for wanted in [Wanted::Present, Wanted::Held, Wanted::Absent] {
        for record in &records {
            for launcher in launchers {
                for (stop, volumes_differ, ill) in stops
                    .into_iter()
                    .flat_map(|stop| flags.into_iter().map(move |differ| (stop, differ)))
                    .flat_map(|(stop, differ)| flags.map(|ill| (stop, differ, ill)))
                {
                    all.push((wanted, Observed { record: *record, launcher, volumes_differ, ill, stop }));
                }
            }
        }
    }
    all.into_iter()
}

#[test]
fn a_guest_gets_its_volumes_while_it_runs() {
    for (record, launcher, expected) in [
        (LIVE, Launcher::Alive, Action::PlugVolumes),
        (LIVE, Launcher::Silent, Action::Wait),
        (LEAVING, Launcher::Alive, Action::AskShutdown),
        (FINAL, Launcher::Alive, Action::Kill),
    ] {
        let seen = Observed {
            record: Some(record),
            launcher,
            volumes_differ: true,
            ill: false,
            stop: Stop::Unasked,
        };
        assert_eq!(decide(Wanted::Present, &seen), expected, "{record:?} {launcher:?}");
    }
}

#[test]
fn a_guest_that_is_ill_is_condemned_once() {
    for (record, launcher, expected) in [
        (LIVE, Launcher::Alive, Action::Condemn),
        (LIVE, Launcher::Silent, Action::Wait),
        (LIVE, Launcher::Exited, Action::RecordOutcome),
        (CONDEMNED, Launcher::Alive, Action::AskShutdown),
        (LEAVING, Launcher::Alive, Action::AskShutdown),
        (FINAL, Launcher::Alive, Action::Kill),
    ] {
        let seen =
            Observed { record: Some(record), launcher, volumes_differ: true, ill: true, stop: Stop::Unasked };
        assert_eq!(decide(Wanted::Present, &seen), expected, "{record:?} {launcher:?}");
    }
}

/// What must hold whatever the table says.
#[test]
fn the_promises_hold_everywhere() {
    for (wanted, seen) in everything() {
        let action = decide(wanted, &seen);
        let context = format!("{wanted:?} {seen:?} -> {action:?}");
        let unwanted = seen.record.is_some_and(|record| record.ends());
        if action == Action::Kill {
            assert!(unwanted, "a wanted guest is never killed: {context}");
        }
        if action == Action::Remove {
            let gone = matches!(seen.launcher, Launcher::Unstarted | Launcher::Vanished);
            assert!(gone, "nothing is removed under a launcher: {context}");
        }
        if matches!(action, Action::Start | Action::Launch) {
            let ended = seen.record.is_some_and(|record| record.leaving || record.is_final);
            assert!(!ended && wanted != Wanted::Absent, "only what is wanted starts: {context}");
        }
        if action == Action::PlugVolumes {
            let runs = seen.launcher == Launcher::Alive && seen.volumes_differ;
            assert!(runs && !unwanted, "volumes are for guests that go on: {context}");
        }
        if action == Action::Condemn {
            assert!(
                seen.ill && !unwanted,
                "only a guest that is ill and should go on is condemned: {context}"
            );
        }
        if action == Action::RecordLoss {
            assert_eq!(seen.launcher, Launcher::Vanished, "only a gone process is a loss: {context}");
        }
        if wanted == Wanted::Held && seen.record.is_none_or(|record| !record.outdated) {
            assert_eq!(
                action,
                if seen.record.is_some() { decide(Wanted::Present, &seen) } else { Action::Finish },
                "a broken manifest changes nothing: {context}"
            );
        }
    }
}
