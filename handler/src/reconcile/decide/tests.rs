use super::*;

const LIVE: Record = Record {
    is_final: false,
    deleting: false,
    unhealthy: false,
    stopped: false,
    started: true,
    has_network: true,
    outdated: false,
};
/// Its guest has not run.
const NEW: Record = Record { started: false, ..LIVE };
const LEAVING: Record = Record { deleting: true, ..LIVE };
const CONDEMNED: Record = Record { unhealthy: true, ..LIVE };
const STOPPED: Record = Record { stopped: true, ..LIVE };
const FINAL: Record = Record { is_final: true, ..LIVE };

fn decided(
    wanted: Wanted,
    record: impl Into<Option<Record>>,
    launcher: Launcher,
    request: Request,
) -> Action {
    decide(
        wanted,
        &Observed { record: record.into(), launcher, devices_differ: false, liveness_failed: false, request },
    )
}

#[test]
fn every_row_of_the_table() {
    use Launcher as L;
    use Request::{Overdue, Sent, Unsent};
    use Wanted::{Absent, Held, Present, Stopped};
    let released = Record { has_network: false, ..FINAL };
    let outdated = Record { outdated: true, ..LIVE };
    let outdated_end = Record { outdated: true, ..released };
    let final_leaving = Record { deleting: true, ..FINAL };
    let rows = [
        // A name without a record.
        (Present, None, L::Unstarted, Unsent, Action::Accept),
        (Held, None, L::Unstarted, Unsent, Action::Finish),
        (Absent, None, L::Unstarted, Unsent, Action::Finish),
        // The way up.
        (Present, Some(LIVE), L::Unstarted, Unsent, Action::Start),
        (Present, Some(LIVE), L::Silent, Unsent, Action::Wait),
        (Present, Some(NEW), L::Waiting, Unsent, Action::Launch),
        (Present, Some(NEW), L::Starting, Unsent, Action::Wait),
        (Present, Some(LIVE), L::Alive, Unsent, Action::Wait),
        // It has so long to come up.
        (Present, Some(NEW), L::Silent, Overdue, Action::Kill),
        (Present, Some(NEW), L::Waiting, Overdue, Action::Kill),
        (Present, Some(NEW), L::Waiting, Sent, Action::Wait),
        (Held, Some(NEW), L::Starting, Overdue, Action::Kill),
        (Present, Some(NEW), L::Exited, Overdue, Action::RecordOutcome),
        // A broken manifest changes nothing about what was accepted.
        (Held, Some(LIVE), L::Unstarted, Unsent, Action::Start),
        (Held, Some(NEW), L::Waiting, Unsent, Action::Launch),
        (Held, Some(LIVE), L::Alive, Unsent, Action::Wait),
        // Once its guest has run, a slow launcher is not a dead one, however long it takes.
        (Present, Some(LIVE), L::Silent, Overdue, Action::Wait),
        (Present, Some(LIVE), L::Alive, Overdue, Action::Wait),
        // A corrected manifest replaces what never ran, and nothing else.
        (Present, Some(outdated), L::Unstarted, Unsent, Action::Remove),
        (Held, Some(outdated), L::Unstarted, Unsent, Action::Start),
        (Present, Some(outdated), L::Alive, Unsent, Action::Wait),
        (Present, Some(outdated_end), L::Vanished, Unsent, Action::Wait),
        // The guest ends by itself.
        (Present, Some(LIVE), L::Exited, Unsent, Action::RecordOutcome),
        (Present, Some(FINAL), L::Exited, Unsent, Action::Dismiss),
        (Present, Some(FINAL), L::Exited, Sent, Action::Wait),
        (Present, Some(FINAL), L::Exited, Overdue, Action::Kill),
        (Present, Some(FINAL), L::Silent, Overdue, Action::Kill),
        (Present, Some(FINAL), L::Vanished, Sent, Action::ReleaseNetwork),
        (Present, Some(released), L::Vanished, Sent, Action::Wait),
        (Present, Some(released), L::Unstarted, Unsent, Action::Wait),
        (Present, Some(FINAL), L::Waiting, Unsent, Action::Dismiss),
        (Present, Some(FINAL), L::Alive, Unsent, Action::Kill),
        // The launcher dies.
        (Present, Some(LIVE), L::Vanished, Unsent, Action::RecordLoss),
        (Held, Some(LIVE), L::Vanished, Unsent, Action::RecordLoss),
        // The manifest goes.
        (Absent, Some(LIVE), L::Alive, Unsent, Action::BeginDeletion),
        (Absent, Some(FINAL), L::Vanished, Unsent, Action::BeginDeletion),
        (Absent, Some(LEAVING), L::Alive, Unsent, Action::AskShutdown),
        (Absent, Some(LEAVING), L::Alive, Sent, Action::Wait),
        (Absent, Some(LEAVING), L::Alive, Overdue, Action::Kill),
        (Absent, Some(LEAVING), L::Silent, Unsent, Action::Wait),
        (Absent, Some(LEAVING), L::Silent, Sent, Action::Wait),
        (Absent, Some(LEAVING), L::Silent, Overdue, Action::Kill),
        (Absent, Some(LEAVING), L::Exited, Sent, Action::RecordOutcome),
        (Absent, Some(LEAVING), L::Vanished, Sent, Action::RecordLoss),
        (Absent, Some(final_leaving), L::Exited, Unsent, Action::Dismiss),
        (Absent, Some(final_leaving), L::Vanished, Sent, Action::Remove),
        (Absent, Some(LEAVING), L::Unstarted, Unsent, Action::Remove),
        (Absent, Some(LEAVING), L::Waiting, Unsent, Action::Dismiss),
        (Absent, Some(LEAVING), L::Waiting, Sent, Action::Wait),
        (Absent, Some(LEAVING), L::Waiting, Overdue, Action::Kill),
        (Absent, Some(LEAVING), L::Starting, Unsent, Action::AskShutdown),
        (Absent, Some(LEAVING), L::Starting, Sent, Action::Wait),
        (Absent, Some(LEAVING), L::Starting, Overdue, Action::Kill),
        (Absent, Some(LEAVING), L::Exited, Overdue, Action::RecordOutcome),
        // The livenessProbe failed: the guest ends, and what ended stays.
        (Present, Some(CONDEMNED), L::Alive, Unsent, Action::AskShutdown),
        (Held, Some(CONDEMNED), L::Alive, Sent, Action::Wait),
        (Present, Some(CONDEMNED), L::Alive, Overdue, Action::Kill),
        (Present, Some(CONDEMNED), L::Silent, Sent, Action::Wait),
        (Present, Some(CONDEMNED), L::Silent, Overdue, Action::Kill),
        (Present, Some(CONDEMNED), L::Exited, Sent, Action::RecordOutcome),
        (Present, Some(CONDEMNED), L::Vanished, Sent, Action::RecordLoss),
        (Absent, Some(CONDEMNED), L::Alive, Sent, Action::BeginDeletion),
        // Its launcher Pod is deleted: the guest ends, also one that was not started.
        (Stopped, None, L::Unstarted, Unsent, Action::Accept),
        (Stopped, Some(NEW), L::Unstarted, Unsent, Action::Stop),
        (Stopped, Some(LIVE), L::Alive, Unsent, Action::Stop),
        (Stopped, Some(CONDEMNED), L::Alive, Sent, Action::Stop),
        (Stopped, Some(FINAL), L::Exited, Unsent, Action::Dismiss),
        (Stopped, Some(STOPPED), L::Unstarted, Unsent, Action::RecordLoss),
        (Stopped, Some(STOPPED), L::Waiting, Unsent, Action::Dismiss),
        (Stopped, Some(STOPPED), L::Alive, Unsent, Action::AskShutdown),
        (Held, Some(STOPPED), L::Alive, Overdue, Action::Kill),
        (Stopped, Some(STOPPED), L::Exited, Sent, Action::RecordOutcome),
        (Present, Some(STOPPED), L::Vanished, Sent, Action::RecordLoss),
        (Absent, Some(STOPPED), L::Alive, Sent, Action::BeginDeletion),
        // It returns while the old one leaves: the old one leaves all the same.
        (Present, Some(LEAVING), L::Alive, Unsent, Action::AskShutdown),
        (Present, Some(final_leaving), L::Vanished, Sent, Action::Remove),
        // Another VMI's launcher is never touched.
        (Present, Some(LIVE), L::Foreign, Unsent, Action::ReportForeignLauncher),
        (Absent, Some(LEAVING), L::Foreign, Overdue, Action::ReportForeignLauncher),
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
        let [is_final, deleting, unhealthy, stopped, started, has_network, outdated] =
            [1, 2, 4, 8, 16, 32, 64].map(|bit| bits & bit != 0);
        Record { is_final, deleting, unhealthy, stopped, started, has_network, outdated }
    };
    let records: Vec<_> = (0..128).map(|number| Some(bits(number))).chain([None]).collect();
    let launchers = [
        Launcher::Unstarted,
        Launcher::Silent,
        Launcher::Waiting,
        Launcher::Starting,
        Launcher::Alive,
        Launcher::Exited,
        Launcher::Vanished,
        Launcher::Foreign,
    ];
    let requests = [Request::Unsent, Request::Sent, Request::Overdue];
    let mut all = Vec::new();
    for wanted in [Wanted::Present, Wanted::Stopped, Wanted::Held, Wanted::Absent] {
        for record in &records {
            for launcher in launchers {
                for (request, devices_differ, liveness_failed) in requests
                    .into_iter()
                    .flat_map(|request| flags.into_iter().map(move |differ| (request, differ)))
                    .flat_map(|(request, differ)| {
                        flags.map(|liveness_failed| (request, differ, liveness_failed))
                    })
                {
                    all.push((
                        wanted,
                        Observed { record: *record, launcher, devices_differ, liveness_failed, request },
                    ));
                }
            }
        }
    }
    all.into_iter()
}

#[test]
fn a_guest_gets_its_devices_while_it_runs() {
    for (record, launcher, expected) in [
        (LIVE, Launcher::Alive, Action::SyncDevices),
        (LIVE, Launcher::Silent, Action::Wait),
        (LEAVING, Launcher::Alive, Action::AskShutdown),
        (FINAL, Launcher::Alive, Action::Kill),
    ] {
        let observed = Observed {
            record: Some(record),
            launcher,
            devices_differ: true,
            liveness_failed: false,
            request: Request::Unsent,
        };
        assert_eq!(decide(Wanted::Present, &observed), expected, "{record:?} {launcher:?}");
    }
}

#[test]
fn an_unhealthy_guest_is_marked_once() {
    for (record, launcher, expected) in [
        (LIVE, Launcher::Alive, Action::MarkUnhealthy),
        (LIVE, Launcher::Silent, Action::Wait),
        (LIVE, Launcher::Exited, Action::RecordOutcome),
        (CONDEMNED, Launcher::Alive, Action::AskShutdown),
        (LEAVING, Launcher::Alive, Action::AskShutdown),
        (FINAL, Launcher::Alive, Action::Kill),
    ] {
        let observed = Observed {
            record: Some(record),
            launcher,
            devices_differ: true,
            liveness_failed: true,
            request: Request::Unsent,
        };
        assert_eq!(decide(Wanted::Present, &observed), expected, "{record:?} {launcher:?}");
    }
}

/// What must hold whatever the table says.
#[test]
fn the_promises_hold_everywhere() {
    for (wanted, observed) in everything() {
        let action = decide(wanted, &observed);
        let context = format!("{wanted:?} {observed:?} -> {action:?}");
        let unwanted = observed.record.is_some_and(|record| record.ends());
        if action == Action::Kill {
            let started = observed.record.is_some_and(|record| record.started);
            assert!(unwanted || !started, "a guest that has run and is wanted is never killed: {context}");
        }
        if action == Action::Remove {
            let gone = matches!(observed.launcher, Launcher::Unstarted | Launcher::Vanished);
            assert!(gone, "nothing is removed under a launcher: {context}");
        }
        if matches!(action, Action::Start | Action::Launch) {
            let ended =
                observed.record.is_some_and(|record| record.deleting || record.stopped || record.is_final);
            assert!(
                !ended && ![Wanted::Absent, Wanted::Stopped].contains(&wanted),
                "only what is wanted starts: {context}"
            );
        }
        if action == Action::SyncDevices {
            let runs = observed.launcher == Launcher::Alive && observed.devices_differ;
            assert!(runs && !unwanted, "devices are for guests that go on: {context}");
        }
        if action == Action::MarkUnhealthy {
            assert!(
                observed.liveness_failed && !unwanted,
                "only a guest that is liveness_failed and should go on is unhealthy: {context}"
            );
        }
        if action == Action::Stop {
            let ends =
                observed.record.is_none_or(|record| record.deleting || record.stopped || record.is_final);
            assert!(wanted == Wanted::Stopped && !ends, "only a guest that is to end is: {context}");
        }
        if action == Action::RecordLoss {
            let unstarted = observed.record.is_some_and(|record| record.stopped)
                && observed.launcher == Launcher::Unstarted;
            let lost = observed.launcher == Launcher::Vanished || unstarted;
            assert!(lost, "only a process that is gone, or never will be, is a loss: {context}");
        }
        if wanted == Wanted::Held && observed.record.is_none_or(|record| !record.outdated) {
            assert_eq!(
                action,
                if observed.record.is_some() { decide(Wanted::Present, &observed) } else { Action::Finish },
                "a broken manifest changes nothing: {context}"
            );
        }
    }
}

/// A launcher that has a process is waited for until a deadline, in every state that it can say or not say: then it is
/// killed, unless its end can be recorded or its deletion be begun first, which is done in one step.
#[test]
fn every_wait_for_a_launcher_has_an_end() {
    let mut killed = 0;
    for (wanted, observed) in everything() {
        let has_process = !matches!(observed.launcher, Launcher::Unstarted | Launcher::Vanished);
        let Some(record) = observed.record.filter(|_| has_process) else { continue };
        // Its process may belong to another VMI.
        if observed.launcher == Launcher::Foreign {
            continue;
        }
        let context = format!("{wanted:?} {observed:?}");
        let action = decide(wanted, &observed);
        let is_kept = record.started && !record.ends();
        assert_eq!(
            record.awaited().is_none(),
            is_kept,
            "only a guest that may go on has no deadline: {context}"
        );
        if observed.request != Request::Overdue || is_kept {
            continue;
        }
        let ends_now =
            [Action::Kill, Action::RecordOutcome, Action::BeginDeletion, Action::Stop].contains(&action);
        assert!(ends_now, "it is waited for without end: {context} -> {action:?}");
        killed += u32::from(action == Action::Kill);
        // That step leads to the next one.
        let next = match action {
            Action::RecordOutcome => Record { is_final: true, ..record },
            Action::Stop => Record { stopped: true, ..record },
            _ => Record { deleting: true, ..record },
        };
        let then = decide(wanted, &Observed { record: Some(next), ..observed });
        let expected = if observed.launcher == Launcher::Exited && !next.is_final {
            Action::RecordOutcome
        } else {
            Action::Kill
        };
        assert_eq!(then, expected, "{context}");
    }
    assert!(killed > 100, "this test sees too little: {killed}");
}
