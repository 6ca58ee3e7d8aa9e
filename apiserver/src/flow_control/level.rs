//! The decisions of one priority level, without time and tasks: which request is executed, which waits, and which is rejected.
//!
//! A level has a number of *seats*. Each user of it is a *flow* with a queue of its own. A flow may have its *share* of the
//! seats: they are divided by the number of flows that have requests, and one more, so that a user who comes anew finds a seat
//! as long as requests end in time. A free seat goes to the flow that has the fewest.

use std::collections::{BTreeMap, VecDeque};

/// What a level allows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Requests that are executed at the same time.
    pub(super) seats: usize,
    /// Requests of one flow that wait.
    pub(super) queue_per_flow: usize,
    /// Requests of all flows that wait.
    pub(super) queue: usize,
    /// Requests that go on for as long as their client wants, which take no seat; of all flows, and of one.
    pub(super) long_running: usize,
    pub(super) long_running_per_flow: usize,
}

/// Names a request that waits.
pub(super) type Ticket = u64;

/// What becomes of a request that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is executed now.
    Executes,
    /// It waits; the request that `instead_of` names does no longer, and is rejected.
    Waits { ticket: Ticket, instead_of: Option<Ticket> },
    /// Too many wait already.
    Rejected,
}

#[derive(Debug, Default)]
struct Flow {
    executing: usize,
    waiting: VecDeque<Ticket>,
    long_running: usize,
    /// When it last got a seat, in seats that were given before.
    served: u64,
}

impl Flow {
    fn has_requests(&self) -> bool {
        self.executing > 0 || !self.waiting.is_empty()
    }
}

/// The requests of one level.
#[derive(Debug)]
pub(super) struct Level {
    limits: Limits,
    /// Those that have requests, by user. However many users there are, the limits of requests bound these, so that they can be
    /// counted for each request.
    flows: BTreeMap<String, Flow>,
    executing: usize,
    waiting: usize,
    long_running: usize,
    tickets: Ticket,
    served: u64,
}

impl Level {
    pub(super) fn new(limits: Limits) -> Self {
        let flows = BTreeMap::new();
        Self { limits, flows, executing: 0, waiting: 0, long_running: 0, tickets: 0, served: 0 }
    }

    /// Requests that are executed, that wait, and that go on for long.
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.executing, self.waiting, self.long_running]
    }

    /// Seats that a flow may have while `user` has requests.
    fn share(&self, user: Option<&str>) -> usize {
        let is_active = |(name, flow): &(&String, &Flow)| flow.has_requests() || user == Some(name.as_str());
        let active = self.flows.iter().filter(is_active).count();
        (self.limits.seats / (active + 1)).max(1)
    }

    /// A request of `user` comes.
    pub(super) fn arrive(&mut self, user: &str) -> Arrival {
        self.flows.entry(user.to_owned()).or_default();
        let share = self.share(Some(user));
        let longest = self.flows.values().map(|flow| flow.waiting.len()).max().unwrap_or_default();
        let Some(flow) = self.flows.get_mut(user) else { return Arrival::Rejected };
        let own = flow.waiting.len();
        if own == 0 && self.executing < self.limits.seats && flow.executing < share {
            self.served += 1;
            flow.served = self.served;
            flow.executing += 1;
            self.executing += 1;
            return Arrival::Executes;
        }
        let is_full = self.waiting >= self.limits.queue;
        if own >= self.limits.queue_per_flow || (is_full && longest <= own + 1) {
            self.forget(user);
            return Arrival::Rejected;
        }
        let instead_of = if is_full { self.drop_from_longest() } else { None };
        self.tickets += 1;
        let ticket = self.tickets;
        self.flows.entry(user.to_owned()).or_default().waiting.push_back(ticket);
        self.waiting += 1;
        Arrival::Waits { ticket, instead_of }
    }

    /// The newest of the flow in which the most wait no longer does.
    fn drop_from_longest(&mut self) -> Option<Ticket> {
        let longest = self.flows.values_mut().max_by_key(|flow| flow.waiting.len())?;
        let dropped = longest.waiting.pop_back()?;
        self.waiting -= 1;
        Some(dropped)
    }

    /// The next one that is executed, if there is a seat for it, and its user.
    pub(super) fn next(&mut self) -> Option<(Ticket, String)> {
        let share = self.share(None);
        if self.executing >= self.limits.seats {
            return None;
        }
        let fits = |flow: &Flow| !flow.waiting.is_empty() && flow.executing < share;
        let flows = self.flows.iter_mut().filter(|(_, flow)| fits(flow));
        let (user, flow) = flows.min_by_key(|(_, flow)| (flow.executing, flow.served))?;
        let ticket = flow.waiting.pop_front()?;
        self.served += 1;
        flow.served = self.served;
        flow.executing += 1;
        self.executing += 1;
        self.waiting -= 1;
        Some((ticket, user.clone()))
    }

    /// A request of `user` that was executed has ended.
    pub(super) fn leave(&mut self, user: &str) {
        if let Some(flow) = self.flows.get_mut(user) {
            flow.executing = flow.executing.saturating_sub(1);
            self.executing = self.executing.saturating_sub(1);
        }
        self.forget(user);
    }

    /// A request of `user` waits no longer.
    pub(super) fn give_up(&mut self, user: &str, ticket: Ticket) {
        if let Some(flow) = self.flows.get_mut(user) {
            let before = flow.waiting.len();
            flow.waiting.retain(|waiting| *waiting != ticket);
            self.waiting -= before - flow.waiting.len();
        }
        self.forget(user);
    }

    /// A request of `user` that goes on for long comes; whether it may.
    pub(super) fn begin_long(&mut self, user: &str) -> bool {
        let flow = self.flows.entry(user.to_owned()).or_default();
        let may = flow.long_running < self.limits.long_running_per_flow
            && self.long_running < self.limits.long_running;
        if may {
            flow.long_running += 1;
            self.long_running += 1;
        } else {
            self.forget(user);
        }
        may
    }

    /// Such a request has ended.
    pub(super) fn end_long(&mut self, user: &str) {
        if let Some(flow) = self.flows.get_mut(user) {
            flow.long_running = flow.long_running.saturating_sub(1);
            self.long_running = self.long_running.saturating_sub(1);
        }
        self.forget(user);
    }

    /// Flows without requests are not kept.
    fn forget(&mut self, user: &str) {
        if self.flows.get(user).is_some_and(|flow| !flow.has_requests() && flow.long_running == 0) {
            self.flows.remove(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits =
        Limits { seats: 8, queue_per_flow: 4, queue: 6, long_running: 3, long_running_per_flow: 2 };

    fn arrivals(level: &mut Level, user: &str, count: usize) -> Vec<Arrival> {
        (0..count).map(|_| level.arrive(user)).collect()
    }

    fn ticket(arrival: Arrival) -> Ticket {
        match arrival {
            Arrival::Waits { ticket, .. } => ticket,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_user_has_half_of_the_seats_and_a_queue() {
        let mut level = Level::new(LIMITS);
        let all = arrivals(&mut level, "a", 9);
        assert!(all[..4].iter().all(|arrival| *arrival == Arrival::Executes), "{all:?}");
        assert!(all[4..8].iter().all(|arrival| matches!(arrival, Arrival::Waits { instead_of: None, .. })));
        assert_eq!(all[8], Arrival::Rejected);
        assert_eq!(level.counts(), [4, 4, 0]);
        // Others are not affected.
        assert_eq!(level.arrive("b"), Arrival::Executes);
        assert_eq!(level.next(), None, "a has more than its share");
        level.leave("b");
        level.leave("a");
        assert_eq!(level.next(), Some((ticket(all[4]), "a".to_owned())), "in the order in which they came");
        assert_eq!(level.next(), None);
    }

    #[test]
    fn seats_go_to_who_has_the_fewest() {
        let mut level = Level::new(Limits { seats: 2, ..LIMITS });
        assert_eq!(arrivals(&mut level, "a", 1), [Arrival::Executes]);
        let a = arrivals(&mut level, "a", 2);
        assert_eq!(level.arrive("b"), Arrival::Executes);
        let (b, c) = (level.arrive("b"), level.arrive("c"));
        assert_eq!(level.next(), None, "all seats are taken");
        level.leave("a");
        assert_eq!(level.next(), Some((ticket(c), "c".to_owned())));
        level.leave("c");
        assert_eq!(level.next(), Some((ticket(a[0]), "a".to_owned())));
        level.leave("a");
        level.leave("b");
        assert_eq!(level.next(), Some((ticket(b), "b".to_owned())), "who waited longer");
        assert_eq!(level.next(), Some((ticket(a[1]), "a".to_owned())));
        level.leave("a");
        level.leave("b");
        assert_eq!(level.counts(), [0; 3]);
        assert!(level.flows.is_empty());
    }

    #[test]
    fn a_full_queue_has_a_place_for_who_waits_less() {
        let mut level = Level::new(Limits { seats: 1, ..LIMITS });
        let a = arrivals(&mut level, "a", 5);
        assert_eq!(a[0], Arrival::Executes);
        let b = arrivals(&mut level, "b", 2);
        assert!(matches!(b[1], Arrival::Waits { instead_of: None, .. }));
        let Arrival::Waits { instead_of, .. } = level.arrive("c") else { panic!("c waits") };
        assert_eq!(instead_of, Some(ticket(a[4])), "the newest of the longest queue");
        assert_eq!(level.counts()[1], LIMITS.queue);
        assert!(matches!(level.arrive("c"), Arrival::Waits { instead_of: Some(_), .. }));
        assert_eq!(level.arrive("c"), Arrival::Rejected, "all have as many");
        level.give_up("b", ticket(b[0]));
        level.give_up("b", ticket(b[0]));
        assert_eq!(level.counts()[1], LIMITS.queue - 1);
    }

    #[test]
    fn long_requests_are_counted_apart() {
        let mut level = Level::new(LIMITS);
        assert_eq!([(); 3].map(|()| level.begin_long("a")), [true, true, false]);
        assert_eq!(level.arrive("a"), Arrival::Executes);
        assert_eq!([(); 2].map(|()| level.begin_long("b")), [true, false], "3 of all users");
        level.end_long("a");
        assert!(level.begin_long("b"));
        level.leave("a");
        for user in ["a", "b", "b"] {
            level.end_long(user);
        }
        assert!(level.flows.is_empty());
    }

    proptest! {
        #[test]
        fn limits_hold_and_no_one_waits_for_nothing(
            steps in prop::collection::vec((0_u8..4, 0_usize..5), 0..300),
        ) {
            let mut level = Level::new(LIMITS);
            let mut executing: Vec<String> = Vec::new();
            let mut waiting: Vec<(Ticket, String)> = Vec::new();
            for (step, user) in steps {
                let user = format!("user{user}");
                match step {
                    0 | 1 => match level.arrive(&user) {
                        Arrival::Executes => executing.push(user),
                        Arrival::Waits { ticket, instead_of } => {
                            waiting.retain(|(waits, _)| Some(*waits) != instead_of);
                            waiting.push((ticket, user));
                        }
                        Arrival::Rejected => {
                            let own = waiting.iter().filter(|(_, of)| *of == user).count();
                            prop_assert!(own == LIMITS.queue_per_flow || waiting.len() == LIMITS.queue);
                        }
                    },
                    2 if !executing.is_empty() => {
                        let user = executing.swap_remove(executing.len() / 2);
                        level.leave(&user);
                    }
                    _ if !waiting.is_empty() => {
                        let (ticket, user) = waiting.swap_remove(waiting.len() / 2);
                        level.give_up(&user, ticket);
                    }
                    _ => {}
                }
                while let Some((ticket, user)) = level.next() {
                    let at = waiting.iter().position(|waits| *waits == (ticket, user.clone()));
                    waiting.swap_remove(at.expect("it waits"));
                    executing.push(user);
                }
                prop_assert_eq!(level.counts(), [executing.len(), waiting.len(), 0]);
                prop_assert!(executing.len() <= LIMITS.seats && waiting.len() <= LIMITS.queue);
                // Who waits and has nothing executed waits for a seat.
                for (_, user) in &waiting {
                    prop_assert!(executing.contains(user) || executing.len() == LIMITS.seats);
                }
            }
        }
    }
}
