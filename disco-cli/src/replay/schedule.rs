//! Simulates the planned operations, so that the replay leaves out operations that would never complete.
//!
//! A log may lack the call of a rank: its record was replaced, its program failed, or the worlds differ.

use std::collections::BTreeSet;
use std::ops::Range;

use disco::World;

/// The ranks that a worker's operation needs, and the arguments on which they must agree.
pub(super) struct Meeting {
    pub(super) kind: Kind,
    /// A transfer that is launched together with the one before it.
    pub(super) joins: bool,
    pub(super) in_group: bool,
    /// The workers of the communicator.
    pub(super) members: Range<usize>,
    /// A hash of the arguments that are equal on all ranks of a collective, or on both ends of a transfer.
    pub(super) signature: u64,
}

/// A collective, or a transfer with another worker. A peer that does not exist is `None`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Collective,
    Send { to: Option<usize> },
    Recv { from: Option<usize> },
}

/// A worker's operation: its worker, its call, and its position in the call.
pub(super) type Place = (usize, usize, usize);

/// The operations that can't complete, because another rank does not make them in the same order. `at` returns the
/// operation at a call, worker and position; `None` inside if the call has no more; `None` if there is no such call.
pub(super) fn lonely<'a>(
    world: World,
    at: impl Fn(usize, usize, usize) -> Option<Option<&'a Meeting>>,
) -> BTreeSet<Place> {
    let mut run = Run { next: vec![(0, 0); world.size()], done: vec![BTreeSet::new(); world.size()], at };
    (0..world.size()).for_each(|worker| run.skip_to_operation(worker));
    let mut lonely = BTreeSet::new();
    loop {
        let mut has_progress = false;
        for worker in 0..world.size() {
            while run.complete(worker) {
                has_progress = true;
            }
        }
        if has_progress {
            continue;
        }
        // All workers wait. The operation of the earliest call is left out; of several, a transfer before a collective, then
        // the one that comes first in its call.
        let waiting = (0..world.size()).filter_map(|worker| run.current(worker).map(|meeting| (worker, meeting)));
        let first = waiting.min_by_key(|(worker, meeting)| {
            let (call, op) = run.next[*worker];
            (call, meeting.kind == Kind::Collective, op)
        });
        let Some((worker, _)) = first else { return lonely };
        let (call, op) = run.next[worker];
        lonely.insert((worker, call, op));
        run.advance(worker, op);
    }
}

struct Run<F> {
    /// For each worker its call, and the position of its first operation in it that is not complete.
    next: Vec<(usize, usize)>,
    /// For each worker the positions of later operations of the same group that are complete.
    done: Vec<BTreeSet<usize>>,
    at: F,
}

impl<'a, F: Fn(usize, usize, usize) -> Option<Option<&'a Meeting>>> Run<F> {
    fn current(&self, worker: usize) -> Option<&'a Meeting> {
        let (call, op) = self.next[worker];
        (self.at)(call, worker, op).flatten()
    }

    /// The operations that a worker waits in: one, or the transfers of a group that are not complete, with their
    /// positions.
    fn waiting(&self, worker: usize) -> impl Iterator<Item = (usize, &'a Meeting)> {
        let (call, first) = self.next[worker];
        let later = (first + 1..).map_while(move |op| (self.at)(call, worker, op).flatten().map(|it| (op, it)));
        let joined = later.take_while(|(_, meeting)| meeting.joins);
        let joined = joined.filter(move |(op, _)| !self.done[worker].contains(op));
        self.current(worker).map(|meeting| (first, meeting)).into_iter().chain(joined)
    }

    /// Completes an operation that a worker waits in, if all its ranks have come to it.
    fn complete(&mut self, worker: usize) -> bool {
        let Some(mine) = self.current(worker) else { return false };
        if mine.kind == Kind::Collective {
            let has_come = |member: usize| {
                self.current(member).is_some_and(|theirs| {
                    (theirs.kind, theirs.in_group) == (Kind::Collective, mine.in_group)
                        && theirs.signature == mine.signature
                })
            };
            if !mine.members.clone().all(has_come) {
                return false;
            }
            mine.members.clone().for_each(|member| self.advance(member, self.next[member].1));
            return true;
        }
        let found = self.waiting(worker).find_map(|(op, mine)| {
            let (peer, opposite) = match mine.kind {
                Kind::Collective => return None,
                Kind::Send { to } => (to?, Kind::Recv { from: Some(worker) }),
                Kind::Recv { from } => (from?, Kind::Send { to: Some(worker) }),
            };
            let is_opposite =
                |(_, theirs): &(usize, &Meeting)| (theirs.kind, theirs.in_group) == (opposite, mine.in_group);
            let (theirs, meeting) = self.waiting(peer).find(is_opposite)?;
            (meeting.signature == mine.signature).then_some((op, peer, theirs))
        });
        let Some((op, peer, theirs)) = found else { return false };
        self.advance(worker, op);
        self.advance(peer, theirs);
        true
    }

    /// Passes an operation that a worker waits in.
    fn advance(&mut self, worker: usize, op: usize) {
        let done = &mut self.done[worker];
        done.insert(op);
        while done.remove(&self.next[worker].1) {
            self.next[worker].1 += 1;
        }
        self.skip_to_operation(worker);
    }

    /// Passes calls without further operations.
    fn skip_to_operation(&mut self, worker: usize) {
        while let (call, op) = self.next[worker]
            && let Some(None) = (self.at)(call, worker, op)
        {
            self.next[worker] = (call + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collective(name: char) -> Meeting {
        Meeting { kind: Kind::Collective, joins: false, in_group: false, members: 0..2, signature: name.into() }
    }

    fn transfer(kind: Kind) -> Meeting {
        Meeting { kind, joins: false, in_group: false, members: 0..2, signature: 4 }
    }

    /// Transfers that are launched together.
    fn group(kinds: &[Kind]) -> Vec<Meeting> {
        let joined = kinds.iter().enumerate();
        joined.map(|(place, kind)| Meeting { joins: place > 0, ..transfer(*kind) }).collect()
    }

    /// The operations of two workers, each in one call, that can't complete.
    fn lonely_of(workers: [Vec<Meeting>; 2]) -> Vec<Place> {
        let at = |call: usize, worker: usize, op: usize| (call == 0).then(|| workers[worker].get(op));
        lonely(World::new(2, 1).unwrap(), at).into_iter().collect()
    }

    #[test]
    fn operations_with_all_their_ranks_complete() {
        let (to, from) = (Kind::Send { to: Some(1) }, Kind::Recv { from: Some(0) });
        assert_eq!(
            lonely_of([vec![collective('a'), transfer(to)], vec![collective('a'), transfer(from)]]),
            Vec::<Place>::new()
        );
    }

    #[test]
    fn an_operation_without_a_partner_is_left_out_and_later_ones_complete() {
        let send = || transfer(Kind::Send { to: Some(1) });
        assert_eq!(lonely_of([vec![send(), collective('a')], vec![collective('a')]]), [(0, 0, 0)]);
        assert_eq!(lonely_of([vec![send(), send(), collective('a')], vec![collective('a')]]), [(0, 0, 0), (0, 0, 1)]);
        let both_send = [vec![send(), collective('a')], vec![transfer(Kind::Send { to: Some(0) }), collective('a')]];
        assert_eq!(lonely_of(both_send), [(0, 0, 0), (1, 0, 0)]);
        assert_eq!(lonely_of([vec![transfer(Kind::Send { to: None })], vec![]]), [(0, 0, 0)]);
    }

    #[test]
    fn transfers_of_a_group_complete_in_any_order() {
        let (to, from) = (|to| Kind::Send { to: Some(to) }, |from| Kind::Recv { from: Some(from) });
        let with = |mut group: Vec<Meeting>| {
            group.push(collective('a'));
            group
        };
        assert_eq!(lonely_of([with(group(&[to(1), from(1)])), with(group(&[to(0), from(0)]))]), []);
        assert_eq!(lonely_of([with(group(&[to(0), to(1), from(0), from(1)])), with(group(&[from(0), to(0)]))]), []);
        // The same transfers one after the other: both workers send first.
        let each = |peer| vec![transfer(to(peer)), transfer(from(peer)), collective('a')];
        assert_eq!(lonely_of([each(1), each(0)]), [(0, 0, 0), (1, 0, 1)]);
        // A group without a partner for one of its transfers.
        assert_eq!(lonely_of([with(group(&[from(1), to(1)])), with(group(&[from(0)]))]), [(0, 0, 0)]);
    }

    #[test]
    fn collectives_that_differ_are_left_out() {
        let differ = [vec![collective('a'), collective('c')], vec![collective('b'), collective('c')]];
        assert_eq!(lonely_of(differ), [(0, 0, 0), (1, 0, 0)]);
        assert_eq!(lonely_of([vec![collective('a')], vec![]]), [(0, 0, 0)]);
    }
}
