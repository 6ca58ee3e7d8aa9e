//! VMs in a world that does at once what is decided.

mod asked;
mod data_volumes;
mod dumps;
mod hotplug;
mod nics;
mod status;
mod world;

use jiff::SignedDuration;
use proptest::prelude::*;

use self::world::World;
use super::*;

/// For each strategy: whether it starts by itself, and whether it is there again after the guest ended well, and badly.
#[test]
fn strategies_decide_when_a_vm_runs() {
    for (strategy, at_once, after_success, after_failure) in [
        ("Always", true, true, true),
        ("Halted", false, false, false),
        ("Manual", false, false, false),
        ("RerunOnFailure", true, false, true),
        ("Once", true, false, false),
    ] {
        for (end, again) in [("Succeeded", after_success), ("Failed", after_failure)] {
            let mut world = World::new(strategy);
            world.settle();
            assert_eq!(world.runs(), at_once, "{strategy} at once");
            if !at_once {
                continue;
            }
            let first = world.uid();
            world.ends(end);
            world.settle();
            assert_eq!(world.runs(), again, "{strategy} after {end}");
            assert_ne!(world.runs().then(|| world.uid()), Some(first), "another instance");
        }
    }
}

#[test]
fn manual_vms_keep_the_ended_vmi() {
    let mut world = World::new("Manual");
    world.start(StartOptions::default()).unwrap();
    world.settle();
    world.ends("Failed");
    world.settle();
    assert_eq!(world.phase(), Some("Failed"));
    world.start(StartOptions::default()).unwrap();
    world.settle();
    assert!(world.runs());
    assert!(world.vm.status.state_change_requests.is_empty());
}

#[test]
fn a_restart_makes_another_instance() {
    for strategy in ["Always", "Manual", "RerunOnFailure"] {
        let mut world = World::new(strategy);
        if strategy == "Manual" {
            world.start(StartOptions::default()).unwrap();
        }
        world.settle();
        let first = world.uid();
        world.restart(RestartOptions { grace_period_seconds: Some(0) }).unwrap();
        assert_eq!(world.instance.as_ref().unwrap().spec.termination_grace_period_seconds, Some(1));
        world.settle();
        assert!(world.runs(), "{strategy}");
        assert_ne!(world.uid(), first, "{strategy}");
        assert!(world.vm.status.state_change_requests.is_empty());
    }
}

#[test]
fn a_stop_lasts() {
    for strategy in ["Always", "Manual", "RerunOnFailure", "Once"] {
        let mut world = World::new(strategy);
        if strategy == "Manual" {
            world.start(StartOptions::default()).unwrap();
        }
        world.settle();
        world.stop(StopOptions { grace_period: Some(3) }).unwrap();
        assert_eq!(world.instance.as_ref().unwrap().spec.termination_grace_period_seconds, Some(3));
        world.settle();
        assert_eq!(world.phase(), None, "{strategy}");
        assert_eq!(world.vm.status.printable_status, "Stopped");
    }
}

#[test]
fn a_halted_vm_that_is_started_runs_always() {
    let mut world = World::new("Halted");
    world.start(StartOptions { paused: true }).unwrap();
    assert_eq!(world.vm.spec.run_strategy.as_deref(), Some("Halted"), "first it is asked for");
    world.settle();
    assert_eq!(world.vm.spec.run_strategy.as_deref(), Some("Always"));
    assert_eq!(world.instance.as_ref().unwrap().spec.start_strategy.as_deref(), Some("Paused"));
    // The older way to say it stays in use where it was used.
    let mut world = World::new("Halted");
    (world.vm.spec.run_strategy, world.vm.spec.running) = (None, Some(false));
    world.start(StartOptions::default()).unwrap();
    assert_eq!((world.vm.spec.running, world.vm.spec.run_strategy.as_deref()), (Some(true), None));
}

#[test]
fn guests_that_never_run_are_tried_less_and_less_often() {
    let mut world = World::new("Always");
    world.guests_run = false;
    let mut waits = Vec::new();
    for _ in 0..7 {
        world.settle();
        assert_eq!(world.phase(), None);
        assert_eq!(world.vm.status.printable_status, "CrashLoopBackOff");
        let again = world.again.expect("it looks again");
        waits.push((again - world.now).get_seconds());
        world.now = again;
    }
    // 10 s times the square of the number, and half of that on top by jitter, at most 300 s.
    assert_eq!(waits, [15, 60, 135, 240, 300, 300, 300]);
    assert_eq!(world.created, 7, "each wait is for one start");
    world.guests_run = true;
    world.settle();
    assert!(world.runs());
    assert_eq!(world.vm.status.start_failure, None);
}

#[test]
fn a_guest_that_ran_and_failed_is_started_at_once() {
    let mut world = World::new("Always");
    world.settle();
    world.ends("Failed");
    world.settle();
    assert!(world.runs());
    assert_eq!(world.again, None);
}

#[test]
fn a_vm_is_deleted_with_its_vmi_unless_orphaned() {
    let mut world = World::new("Always");
    world.settle();
    world.delete_vm();
    world.step();
    assert_eq!(world.vm.status.printable_status, "Terminating");
    world.settle();
    assert!(world.vm.metadata.finalizers.is_empty());
    assert_eq!(world.phase(), None);

    let mut world = World::new("Always");
    world.settle();
    world.vm.metadata.finalizers.push("orphan".to_owned());
    world.delete_vm();
    world.settle();
    assert_eq!(world.vm.metadata.finalizers, ["orphan"]);
    assert!(world.runs());
}

#[test]
fn a_vmi_has_the_choices_of_its_vm() {
    let mut world = World::new("Always");
    let mut expanded = world.vm.spec.template.clone().unwrap();
    expanded.spec.hostname = "large".to_owned();
    world.expanded = Some(Ok(expanded));
    world.settle();
    assert_eq!(world.instance.as_ref().unwrap().spec.hostname, "large");
}

#[test]
fn failed_starts_have_a_reason() {
    let problem = |change: fn(&mut World)| {
        let mut world = World::new("Always");
        change(&mut world);
        world.settle();
        assert_eq!(world.phase(), None);
        let failure = world.vm.status.conditions.iter().find(|one| one.r#type == "Failure").unwrap();
        failure.message.clone()
    };
    assert!(problem(|world| world.vm.spec.template = None).contains("spec.template"));
    assert!(problem(|world| world.vm.spec.running = Some(true)).contains("spec.running"));
    assert!(problem(|world| world.vm.spec.run_strategy = Some("always".into())).contains("always"));
    let chosen = problem(|world| world.expanded = Some(Err("spec.instancetype: not found".to_owned())));
    assert_eq!(chosen, "spec.instancetype: not found");
}

#[test]
fn what_is_refused_is_a_failure_until_it_is_done() {
    let failure = |world: &World| {
        let failure = world.vm.status.conditions.iter().find(|one| one.r#type == "Failure")?;
        Some((failure.reason.clone(), failure.message.clone()))
    };
    let refused = |reason: &str| Some((reason.to_owned(), "not allowed".to_owned()));
    let mut world = World::new("Always");
    world.refused_action = Some(Refusable::CreateVmi);
    world.settle();
    assert_eq!((world.phase(), failure(&world)), (None, refused("FailedCreate")));
    world.refused_action = None;
    world.settle();
    assert!(world.runs());
    assert_eq!(failure(&world), None);

    world.refused_action = Some(Refusable::DeleteVmi);
    world.vm.spec.run_strategy = Some("Halted".to_owned());
    world.settle();
    assert!(world.runs());
    assert_eq!(failure(&world), refused("FailedDelete"));
    world.refused_action = Some(Refusable::CreateVmi);
    world.settle();
    assert_eq!((world.phase(), failure(&world)), (None, None), "another action was refused");
}

/// Something that may happen at any time.
#[derive(Clone, Debug)]
enum Event {
    Ends(&'static str),
    Choose(&'static str),
    Start,
    Stop,
    Restart,
    /// A user deletes the instance.
    Delete,
    Time,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let strategies = ["Always", "Halted", "Manual", "RerunOnFailure", "Once"];
    let event = prop_oneof![
        prop::sample::select(vec!["Succeeded", "Failed"]).prop_map(Event::Ends),
        prop::sample::select(strategies.to_vec()).prop_map(Event::Choose),
        Just(Event::Start),
        Just(Event::Stop),
        Just(Event::Restart),
        Just(Event::Delete),
        Just(Event::Time),
    ];
    prop::collection::vec((event, 0..3_u8), 0..30)
        .prop_map(|all| all.into_iter().map(|(one, _)| one).collect())
}

proptest! {
    /// Whatever happens, and however little is done between two events: what is decided comes to an end, a halted
    /// VM has no instance, one that always runs has one, and nothing of a deleted VM stays.
    #[test]
    fn every_story_ends(events in events(), guests_run: bool, steps in prop::collection::vec(0..4_usize, 30)) {
        let mut world = World::new("Manual");
        world.guests_run = guests_run;
        for (event, steps) in events.into_iter().zip(steps) {
            match event {
                Event::Ends(phase) => world.ends(phase),
                Event::Choose(strategy) => world.vm.spec.run_strategy = Some(strategy.to_owned()),
                Event::Start => drop(world.start(StartOptions::default())),
                Event::Stop => drop(world.stop(StopOptions::default())),
                Event::Restart => drop(world.restart(RestartOptions::default())),
                Event::Delete => world.delete_instance(),
                Event::Time => world.now += SignedDuration::from_mins(10),
            }
            for _ in 0..steps {
                world.step();
            }
        }
        world.settle();
        if let Some(again) = world.again {
            world.now = again;
            world.guests_run = true;
            world.settle();
        }
        match world.vm.spec.run_strategy.as_deref() {
            Some("Halted") => prop_assert_eq!(world.phase(), None),
            Some("Always") => prop_assert!(world.runs() || world.again.is_some()),
            _ => {}
        }
        world.delete_vm();
        world.settle();
        prop_assert_eq!(world.phase(), None);
        prop_assert!(world.vm.metadata.finalizers.is_empty());
    }
}
