//! Spreads ranks over processors. A rank that shares its processor needlessly moves to another processor, and may use all
//! processors again that it was allowed before.
//!
//! Linux does not move threads that have just run, and ranks that yield have always just run. So an uneven placement
//! lasts for many milliseconds: two ranks share one processor while another one is idle, or three ranks share one
//! processor and one rank has the other.
//!
//! Threads that run operations beside workers wake up for each operation, wherever Linux puts them: often both ranks of a
//! machine with two processors on the same one. They compare their processors at the meeting of each large operation.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::board::Board;

/// Yields after which a wait is still taken to have ended because the awaited rank ran on this processor meanwhile.
const HANDOVER_YIELDS: u32 = 4;
/// Successive handovers after which a rank moves to another processor.
const MAX_HANDOVERS: u32 = 3;
/// A rank of a group with more ranks than processors compares the processors of all ranks once in this many waits. A prime,
/// so that the looks do not all fall on one of the groups that a thread uses in turn.
const WAITS_PER_LOOK: u32 = 61;
/// Shortest and longest time between two moves of a thread.
const MIN_MOVE_INTERVAL: Duration = Duration::from_micros(250);
const MAX_MOVE_INTERVAL: Duration = Duration::from_millis(64);

/// What a thread knows about its placement.
#[derive(Clone, Copy)]
struct Placement {
    /// Successive slow waits that a yield has ended.
    handovers: u32,
    /// Waits since the last look at the processors of other ranks.
    waits: u32,
    /// Whether no other rank was on this thread's processor at the last look.
    is_alone: bool,
    /// Whether this thread runs operations beside a worker. Its waits tell nothing: most end with the wake-up of a peer.
    is_beside: bool,
    /// The last move to another processor, and the least time until the next one.
    moved: Option<(Instant, Duration)>,
}

thread_local! {
    static PLACEMENT: Cell<Placement> =
        const { Cell::new(Placement { handovers: 0, waits: 0, is_alone: false, is_beside: false, moved: None }) };
}

/// Records that a wait for ranks that can have processors of their own has ended after `yields` yields, and moves this
/// thread if it seems to share its processor with one of them.
///
/// The waits of two ranks on one processor end right after a yield several times in a row: the peer runs only while this
/// rank does not. The rank that sees this first moves at once, while the peer, which is about to run here, waits for it and
/// sees that the handovers have ended. If the rank moved at its next wait, the peer would follow it.
pub(crate) fn note_wait(yields: u32) {
    let mut placement = PLACEMENT.get();
    if placement.is_beside {
        return;
    }
    let is_handover = (1..=HANDOVER_YIELDS).contains(&yields);
    placement.handovers = if is_handover { placement.handovers.saturating_add(1) } else { 0 };
    PLACEMENT.set(placement);
    if placement.handovers >= MAX_HANDOVERS && may_move() {
        move_to(|others| others.unset(sched_getcpu()));
    }
}

/// Counts a wait of `rank` in a group with more ranks than processors. Every [`WAITS_PER_LOOK`] waits, moves this rank if
/// more ranks take turns on its processor than necessary.
#[inline]
pub(crate) fn count_wait(board: &Board, rank: usize) {
    let mut placement = PLACEMENT.get();
    placement.waits = (placement.waits + 1) % WAITS_PER_LOOK;
    PLACEMENT.set(placement);
    if placement.waits == 0 {
        spread(board, rank);
    }
}

/// Notes that this thread runs an operation of `rank` beside its worker.
pub(crate) fn begin_in_background(board: &Board, rank: usize) {
    PLACEMENT.set(Placement { is_beside: true, ..PLACEMENT.get() });
    board.set_processor(rank, sched_getcpu());
}

/// Moves this thread if it runs beside a worker and shares its processor with the thread of a rank that has met it. All
/// ranks have published their processors before the meeting.
#[inline]
pub(crate) fn note_meeting(board: &Board, rank: usize) {
    if PLACEMENT.get().is_beside {
        spread(board, rank);
    }
}

/// Whether a rank of a group with more ranks than processors still has this processor to itself, as far as it knows:
/// processes may be bound to different processors.
#[inline]
pub(crate) fn is_alone() -> bool {
    PLACEMENT.get().is_alone
}

/// Publishes the processor of `rank`, and moves the rank if another processor has fewer ranks.
#[cold]
fn spread(board: &Board, rank: usize) {
    // A rank that expects another number of ranks waits only for the error.
    if rank >= board.size() {
        return;
    }
    let here = sched_getcpu();
    board.set_processor(rank, here);
    let ranks_on = |processor| (0..board.size()).filter(move |rank| board.processor(*rank) == Some(processor));
    // A rank that has not published its processor may be here.
    let is_alone = ranks_on(here).eq([rank]) && (0..board.size()).all(|rank| board.processor(rank).is_some());
    PLACEMENT.set(Placement { is_alone, ..PLACEMENT.get() });
    // Only the last rank leaves, so that the ranks of a processor do not all leave at once.
    if is_alone || ranks_on(here).next_back() != Some(rank) {
        return;
    }
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let allowed = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor));
    if let Some(target) = least_used(here, allowed, |processor| ranks_on(processor).count()).filter(|_| may_move()) {
        move_to(|processors| {
            processors.clear();
            processors.set(target);
        });
        board.set_processor(rank, sched_getcpu());
    }
}

/// The processor with the fewest ranks, if it has fewer than `here` even with one more.
fn least_used(here: usize, allowed: impl Iterator<Item = usize>, ranks_on: impl Fn(usize) -> usize) -> Option<usize> {
    let (ranks, least) = allowed.map(|processor| (ranks_on(processor), processor)).min()?;
    (ranks + 1 < ranks_on(here)).then_some(least)
}

/// Whether enough time has passed since this thread's last move, which a move follows if it has. Moves that follow each
/// other soon change little, so the interval between two of them grows.
fn may_move() -> bool {
    let (now, mut placement) = (Instant::now(), PLACEMENT.get());
    let interval = match placement.moved {
        None => MIN_MOVE_INTERVAL,
        Some((last, interval)) => match now.duration_since(last) {
            elapsed if elapsed < interval => return false,
            elapsed if elapsed > 4 * interval => MIN_MOVE_INTERVAL,
            _ => (2 * interval).min(MAX_MOVE_INTERVAL),
        },
    };
    (placement.handovers, placement.moved) = (0, Some((now, interval)));
    PLACEMENT.set(placement);
    true
}

/// Moves this thread to one of those of its processors that `choose` leaves, and allows all of them again. Does nothing if
/// none is left, or if the system refuses.
fn move_to(choose: impl FnOnce(&mut CpuSet)) {
    let Ok(all) = sched_getaffinity(None) else { return };
    let mut chosen = all;
    choose(&mut chosen);
    if chosen.count() > 0 && sched_setaffinity(None, &chosen).is_ok() {
        // Fails only if the administrator has meanwhile taken away these processors; Linux then replaces the mask.
        _ = sched_setaffinity(None, &all);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_rank_leaves_for_the_processor_with_the_fewest_ranks() {
        // The processors of the ranks, the own processor, the number of processors, and the target.
        let cases: [(&[usize], usize, usize, Option<usize>); 7] = [
            (&[0, 0, 0, 1], 0, 2, Some(1)),
            (&[0, 0, 1, 1], 0, 2, None),
            (&[0, 0, 0, 1, 1], 0, 2, None),
            (&[1, 1, 1, 1], 1, 2, Some(0)),
            (&[0, 0], 0, 1, None),
            (&[0, 0, 5, 5, 5, 6, 6], 5, 64, Some(1)),
            (&[2, 2, 2, 0, 1, 1], 2, 3, Some(0)),
        ];
        for (ranks, here, processors, target) in cases {
            let ranks_on = |processor| ranks.iter().filter(|rank| **rank == processor).count();
            assert_eq!(least_used(here, 0..processors, ranks_on), target, "{ranks:?}");
        }
    }

    #[test]
    fn a_move_takes_the_thread_to_the_chosen_processor_and_restores_its_affinity() {
        let test = || {
            let Ok(before) = sched_getaffinity(None) else { return };
            for target in (0..CpuSet::MAX_CPU).filter(|processor| before.is_set(*processor)) {
                let mut found = None;
                move_to(|processors| {
                    processors.clear();
                    processors.set(target);
                    found = Some(processors.count());
                });
                assert_eq!(found, Some(1));
                assert!(sched_getaffinity(None).unwrap() == before);
            }
            move_to(CpuSet::clear);
            assert!(sched_getaffinity(None).unwrap() == before, "there is nowhere to go");
        };
        // On a thread of its own, whose placement nothing else changes.
        thread::spawn(test).join().unwrap();
    }

    #[test]
    fn a_rank_knows_whether_it_is_alone_on_its_processor() {
        let test = || {
            let (board, mut here) = (Board::new(3), CpuSet::new());
            here.set(sched_getcpu());
            let pinned = sched_setaffinity(None, &here);
            if pinned.is_err() {
                return;
            }
            board.set_processor(0, sched_getcpu() + 1);
            spread(&board, 2);
            assert!(!is_alone(), "rank 1 may be here");
            board.set_processor(1, sched_getcpu() + 1);
            spread(&board, 2);
            assert!(is_alone() && board.processor(2) == Some(sched_getcpu()));
            board.set_processor(0, sched_getcpu());
            spread(&board, 2);
            assert!(!is_alone());
            spread(&board, 3);
            assert!(!is_alone(), "the board has no such rank");
        };
        thread::spawn(test).join().unwrap();
    }
}
