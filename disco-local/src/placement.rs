//! Which processors ranks run on. A rank moves to another one if it seems to share its processor needlessly, and may use
//! all processors again right after the move.
//!
//! Linux does not move threads that have just run, and ranks that yield have always just run. So an uneven placement
//! lasts for many milliseconds: two ranks take turns on one processor beside an idle one, or three beside one.

use std::cell::Cell;
use std::time::{Duration, Instant};

use disco_core::processors;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::board::Board;

/// Yields after which a wait is still taken to have ended because the awaited rank ran on this processor meanwhile.
const HANDOVER_YIELDS: u32 = 4;
/// Successive handovers after which a rank moves to another processor.
const MAX_HANDOVERS: u32 = 3;
/// Waits of a rank that takes turns with others, for each look at the processors of all ranks.
const WAITS_PER_LOOK: u32 = 64;
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
    /// The last move to another processor, and the least time until the next one.
    moved: Option<(Instant, Duration)>,
}

thread_local! {
    static PLACEMENT: Cell<Placement> = const { Cell::new(Placement { handovers: 0, waits: 0, moved: None }) };
}

/// Records that a wait for ranks that can have processors of their own has ended after `yields` yields, and moves this
/// thread if it seems to share its processor with one of them.
///
/// The waits of two ranks on one processor end right after a yield several times in a row: the peer runs only while this
/// rank does not. The rank that sees this first moves at once, while the peer, which is about to run here, waits for it and
/// sees that the handovers have ended. If the rank moved at its next wait, the peer would follow it.
pub(crate) fn note_wait(yields: u32) {
    let mut placement = PLACEMENT.get();
    let is_handover = (1..=HANDOVER_YIELDS).contains(&yields);
    placement.handovers = if is_handover { placement.handovers.saturating_add(1) } else { 0 };
    PLACEMENT.set(placement);
    if placement.handovers >= MAX_HANDOVERS && may_move() {
        move_to(|others| Some(*others));
    }
}

/// Counts a wait of `rank` in a group of more ranks than processors. Now and then, tells the other ranks the processor of
/// this one, and moves this rank if more ranks take turns there than have to.
#[inline]
pub(crate) fn count_wait(board: &Board, rank: usize) {
    let mut placement = PLACEMENT.get();
    placement.waits = (placement.waits + 1) % WAITS_PER_LOOK;
    PLACEMENT.set(placement);
    if placement.waits == 0 {
        spread(board, rank);
    }
}

/// Of several ranks that could leave a processor, the last one does.
#[cold]
fn spread(board: &Board, rank: usize) {
    let here = sched_getcpu();
    board.set_processor(rank, here);
    let size = board.size();
    let ranks_on = |processor| (0..size).filter(move |rank| board.processor(*rank) == Some(processor));
    let crowd = ranks_on(here).count();
    if crowd > size.div_ceil(processors()) && ranks_on(here).next_back() == Some(rank) && may_move() {
        move_to(|others| {
            let all = (0..CpuSet::MAX_CPU).filter(|processor| others.is_set(*processor));
            let (ranks, least) = all.map(|processor| (ranks_on(processor).count(), processor)).min()?;
            let mut target = CpuSet::new();
            target.set(least);
            (ranks + 1 < crowd).then_some(target)
        });
        board.set_processor(rank, sched_getcpu());
    }
}

/// Whether enough time has passed since this thread's last move. If moves follow each other soon they change little, so
/// the interval between two of them grows.
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

/// Moves this thread to one of the processors that `choose` picks among its other ones, and allows all of them again.
/// Does nothing if the thread has only one, or if the system refuses.
fn move_to(choose: impl FnOnce(&CpuSet) -> Option<CpuSet>) {
    let Ok(all) = sched_getaffinity(None) else { return };
    let mut others = all;
    others.unset(sched_getcpu());
    let Some(target) = (others.count() > 0).then(|| choose(&others)).flatten() else { return };
    if sched_setaffinity(None, &target).is_ok() {
        // Fails only if the administrator has meanwhile taken away these processors; Linux then replaces the mask.
        _ = sched_setaffinity(None, &all);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Runs `test` on a thread of its own, whose placement nothing else changes.
    fn on_new_thread(test: impl FnOnce() + Send + 'static) {
        thread::spawn(test).join().unwrap();
    }

    #[test]
    fn a_move_restores_the_affinity_of_the_thread() {
        on_new_thread(|| {
            let before = sched_getaffinity(None).unwrap();
            move_to(|others| Some(*others));
            assert!(sched_getaffinity(None).unwrap() == before);
        });
    }

    #[test]
    fn the_last_rank_leaves_a_processor_with_more_ranks_than_others() {
        on_new_thread(|| {
            if processors() < 2 {
                return;
            }
            let (here, size) = (sched_getcpu(), processors() + 2);
            let board = Board::new(size);
            (0..size).for_each(|rank| board.set_processor(rank, here));
            spread(&board, size - 1);
            assert!(PLACEMENT.get().moved.is_some());
            assert_eq!(board.processor(size - 1), Some(sched_getcpu()));
        });
    }

    #[test]
    fn ranks_stay_if_a_later_one_can_leave_or_if_no_other_processor_has_fewer() {
        on_new_thread(|| {
            let size = 2 * processors();
            let board = Board::new(size);
            (0..size).for_each(|rank| board.set_processor(rank, sched_getcpu()));
            spread(&board, 0);
            assert_eq!(PLACEMENT.get().moved, None, "a later one can leave");
            let elsewhere = 10_000;
            (0..size).for_each(|rank| board.set_processor(rank, elsewhere + rank % processors()));
            spread(&board, size - 1);
            assert_eq!(PLACEMENT.get().moved, None, "each processor has two");
        });
    }
}
