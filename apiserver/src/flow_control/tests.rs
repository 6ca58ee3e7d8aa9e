use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;

use super::*;

const SMALL: Limits =
    Limits { seats: 2, queue_per_flow: 2, queue: 3, long_running: 2, long_running_per_flow: 1 };
const USERS: PriorityLevel = PriorityLevel::Users;

fn control() -> FlowControl {
    FlowControl::with(|_| SMALL)
}

fn load(control: &FlowControl) -> (usize, usize, usize, u64) {
    let [_, Load { executing, waiting, long_running, rejected, .. }, _] = control.load();
    (executing, waiting, long_running, rejected)
}

#[test]
fn levels_follow_from_users_and_where_requests_come_from() {
    let robot = User::service_account("kubevirt", "virt-handler");
    for (user, origin, level) in [
        (&robot, Origin::Component, PriorityLevel::System),
        // Who has its token outside may be anyone.
        (&robot, Origin::Remote, PriorityLevel::Users),
        (&User::administrator(), Origin::Remote, PriorityLevel::System),
        (&User::anonymous(), Origin::Remote, PriorityLevel::Unauthenticated),
    ] {
        assert_eq!(PriorityLevel::of(user, origin), level, "{}", user.name);
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_gets_the_seat_of_who_leaves_or_429() {
    let control = control();
    let first = control.seat(USERS, "a").await.unwrap();
    let mut second = Box::pin(control.seat(USERS, "a"));
    assert!((&mut second).now_or_never().is_none(), "one of two seats is for others");
    let mut third = Box::pin(control.seat(USERS, "a"));
    assert!((&mut third).now_or_never().is_none());
    assert!(matches!(control.seat(USERS, "a").now_or_never(), Some(Err(Rejected))));
    assert_eq!(load(&control), (1, 2, 0, 1));
    drop(first);
    let second = second.await.unwrap();
    assert_eq!(load(&control), (1, 1, 0, 1));
    assert!(matches!(third.await, Err(Rejected)), "it waited for too long");
    assert_eq!(load(&control), (1, 0, 0, 2));
    let mut cancelled = Box::pin(control.seat(USERS, "a"));
    assert!((&mut cancelled).now_or_never().is_none());
    drop(cancelled);
    drop(second);
    assert_eq!(load(&control), (0, 0, 0, 2));
}

#[tokio::test(start_paused = true)]
async fn other_levels_and_other_users_are_not_affected() {
    let control = control();
    let _all = (control.seat(USERS, "a").await, control.seat(USERS, "b").await);
    let mut waiting: Vec<_> = ["a", "a", "b"].map(|user| Box::pin(control.seat(USERS, user))).into();
    assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
    control.seat(PriorityLevel::System, "c").await.unwrap();
    let mut new = Box::pin(control.seat(USERS, "c"));
    assert!((&mut new).now_or_never().is_none());
    let dropped = waiting.remove(1);
    assert_eq!(dropped.await.map(drop), Err(Rejected), "the queue is full, and a has the most in it");
    assert_eq!(load(&control), (2, 3, 0, 1));
    drop(_all);
    new.await.unwrap();
}

#[tokio::test]
async fn a_seat_that_no_one_takes_goes_to_the_next() {
    let control = control();
    let first = control.seat(USERS, "a").await.unwrap();
    let (mut second, mut third) = (Box::pin(control.seat(USERS, "a")), Box::pin(control.seat(USERS, "a")));
    assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
    drop(first);
    drop(second);
    third.await.unwrap();
    assert_eq!(load(&control), (0, 0, 0, 0));
}

#[tokio::test]
async fn long_requests_count_until_their_body_or_connection_ends() {
    let control = control();
    let leave = control.long_running(USERS, "a").unwrap();
    assert_eq!(control.long_running(USERS, "a").map(drop), Err(Rejected));
    let response = keep(leave, None, Response::new(Body::from("events")));
    assert_eq!(load(&control), (0, 0, 1, 1));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "events");
    assert_eq!(load(&control).2, 0);

    let connection = Arc::new(Kept::default());
    let mut switching = Response::new(Body::empty());
    *switching.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let leave = control.long_running(USERS, "a").unwrap();
    drop(keep(leave, Some(&Arc::downgrade(&connection)), switching));
    assert_eq!(load(&control).2, 1);
    drop(connection);
    assert_eq!(load(&control).2, 0);
}
