//! What requests are answered, in KubeVirt's words where scripts may look at them.

use super::super::*;
use super::World;

fn conflict(message: &str) -> Result<Writes, Rejection> {
    Err(Rejection::Conflict(message.to_owned()))
}

#[test]
fn requests_that_make_no_sense_are_turned_down() {
    let mut halted = World::new("Halted");
    let start = StartOptions::default();
    assert_eq!(halted.stop(StopOptions::default()), conflict("VM is not running"));
    assert_eq!(
        halted.restart(RestartOptions::default()),
        conflict("RunStategy Halted does not support manual restart requests")
    );
    let mut always = World::new("Always");
    assert_eq!(always.start(start), conflict("Always does not support manual start requests"));
    assert_eq!(always.restart(RestartOptions::default()), conflict("VM is not running: Halted"));
    always.settle();
    assert_eq!(always.start(start), conflict("VM is already running"));
    for seconds in [-1, 5] {
        let refused = always.restart(RestartOptions { grace_period_seconds: Some(seconds) });
        assert!(matches!(refused, Err(Rejection::BadRequest(_))), "{seconds}");
    }
    let mut manual = World::new("Manual");
    manual.start(start).unwrap();
    assert_eq!(manual.start(start), conflict("a start or stop of the VM is already under way"));
    let mut rerun = World::new("RerunOnFailure");
    rerun.settle();
    rerun.ends("Failed");
    assert!(matches!(rerun.start(start), Err(Rejection::Conflict(_))));
}

/// A halted VM whose instance still shuts down may be asked to shorten its grace period, and nothing else.
#[test]
fn the_grace_period_of_a_stop_under_way_may_be_shortened() {
    let mut world = World::new("Always");
    world.settle();
    world.vm.spec.run_strategy = Some("Halted".to_owned());
    world.instance.as_mut().unwrap().spec.termination_grace_period_seconds = Some(60);
    let ask = |world: &mut World, grace_period| world.stop(StopOptions { grace_period });
    assert_eq!(ask(&mut world, Some(5)), Ok(Writes { vm: None, grace_period: Some(5) }));
    assert_eq!(ask(&mut world, Some(60)), conflict("VM is not running"));
    assert_eq!(ask(&mut world, None), conflict("VM is not running"));
}
