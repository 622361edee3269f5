//! Loom models of two ranks that use the board, in all orders of events that the memory model allows.

#![allow(unsafe_code)]

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::pieces::{PIECES_PER_RANK, Piece};
use super::*;

const HEAD: Head = Head { signature: 1, count: 1 };
/// Models have no clock. A rank that is not woken never wakes up, which loom reports as a deadlock.
const LONG: Duration = Duration::MAX;

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(run);
}

/// Sleeps until `holds` returns true, as ranks do.
fn sleep_until(board: &Board, holds: impl Fn() -> bool) {
    while board.sleep_unless(LONG, || holds().then_some(())).is_none() {}
}

/// Two ranks run three collectives in a row. Each reads the tensor that the other has posted for this collective, although slots
/// are reused without further synchronisation.
#[test]
fn a_post_is_read_before_its_slot_is_reused() {
    loom::model(|| {
        let board = Arc::new(Board::new(2));
        let run = |board: &Board, me: usize| {
            for number in 1..=3 {
                board.post(me, number, HEAD, [10 * number + me as u64].into_iter());
                while !board.has_posted(1 - me, number) {
                    thread::yield_now();
                }
                assert_eq!(board.posted_word(1 - me, number, 0), 10 * number + 1 - me as u64);
            }
        };
        let theirs = board.clone();
        let peer = thread::spawn(move || run(&theirs, 1));
        run(&board, 0);
        peer.join().unwrap();
    });
}

/// Two ranks post a tensor each in three collectives, in the area of the parity of the collective's number. No area is
/// filled while the peer reads it.
#[test]
fn a_posted_tensor_is_read_before_its_area_is_reused() {
    model(3, || {
        let board = Arc::new(Board::new(2));
        let areas: Arc<[[UnsafeCell<u64>; 2]; 2]> = Arc::default();
        let run = |board: &Board, areas: &[[UnsafeCell<u64>; 2]; 2], me: usize| {
            for number in 1..=3u64 {
                let area = number as usize % 2;
                // SAFETY: loom checks that there is no concurrent access.
                areas[me][area].with_mut(|cell| unsafe { *cell = 10 * number + me as u64 });
                board.post(me, number, HEAD, [].into_iter());
                while !board.has_posted(1 - me, number) {
                    thread::yield_now();
                }
                // SAFETY: loom checks that there is no concurrent write.
                let found = areas[1 - me][area].with(|cell| unsafe { *cell });
                assert_eq!(found, 10 * number + 1 - me as u64);
            }
        };
        let (theirs, shared) = (board.clone(), areas.clone());
        let peer = thread::spawn(move || run(&theirs, &shared, 1));
        run(&board, &areas, 0);
        peer.join().unwrap();
    });
}

/// Memory that one rank publishes is read by the other only between the two synchronisations.
#[test]
fn published_memory_is_read_between_post_and_step() {
    loom::model(|| {
        let board = Arc::new(Board::new(2));
        let memory = Arc::new(UnsafeCell::new(0));
        let (theirs, shared) = (board.clone(), memory.clone());
        let reader = thread::spawn(move || {
            theirs.post(1, 1, HEAD, [].into_iter());
            while !theirs.has_posted(0, 1) {
                thread::yield_now();
            }
            // SAFETY: loom checks that there is no concurrent write.
            assert_eq!(shared.with(|value| unsafe { *value }), 1);
            theirs.step(1, 1);
        });
        // SAFETY: loom checks that there is no concurrent access.
        memory.with_mut(|value| unsafe { *value = 1 });
        board.post(0, 1, HEAD, [].into_iter());
        while !board.has_reached_step(1, 1) {
            thread::yield_now();
        }
        // SAFETY: loom checks that there is no concurrent access.
        memory.with_mut(|value| unsafe { *value = 2 });
        reader.join().unwrap();
    });
}

/// A rank that leaves after a failure waits until no peer accesses its memory, and no peer starts to afterwards.
#[test]
fn no_peer_accesses_the_memory_of_a_rank_that_left_after_a_failure() {
    loom::model(|| {
        let board = Arc::new(Board::new(2));
        let memory = Arc::new(UnsafeCell::new(0));
        let (theirs, shared) = (board.clone(), memory.clone());
        let reader = thread::spawn(move || {
            if theirs.begin_access(1) {
                // SAFETY: loom checks that there is no concurrent write.
                shared.with(|value| unsafe { *value });
                theirs.end_access(1);
            }
        });
        board.forbid_access();
        while board.is_accessing(1) {
            thread::yield_now();
        }
        // SAFETY: loom checks that there is no concurrent access.
        memory.with_mut(|value| unsafe { *value = 1 });
        reader.join().unwrap();
    });
}

/// Two ranks sleep until both have reached a step, twice. No wake-up is lost.
#[test]
fn a_sleeping_rank_is_woken_by_the_step_it_waits_for() {
    model(3, || {
        let board = Arc::new(Board::new(2));
        let run = |board: &Board, me: usize| {
            for step in 1..=2 {
                board.step(me, step);
                board.wake_sleepers();
                sleep_until(board, || board.has_reached_step(1 - me, step));
            }
        };
        let theirs = board.clone();
        let peer = thread::spawn(move || run(&theirs, 1));
        run(&board, 0);
        peer.join().unwrap();
    });
}

/// Two ranks fail at the same time. A sleeping rank wakes up and reads the failure that came first.
#[test]
fn a_failure_wakes_a_sleeping_rank() {
    model(3, || {
        let board = Arc::new(Board::new(2));
        let record = |kind| Record { kind, involved: None, number: 0, texts: [String::new(), String::new()] };
        let failing = [1, 2].map(|kind| {
            let board = board.clone();
            thread::spawn(move || board.fail(&record(kind)))
        });
        sleep_until(&board, || board.has_failed());
        let wins = failing.map(|thread| thread.join().unwrap());
        assert_ne!(wins[0], wins[1]);
        assert_eq!(board.record(), Some(record(if wins[0] { 1 } else { 2 })));
    });
}

/// Messages through one slot, each with memory that its sender overwrites once the message is acknowledged. They arrive
/// in order, no read races with a write, and no wake-up is lost.
#[test]
fn the_memory_of_a_message_is_read_before_it_is_overwritten() {
    model(3, || {
        let board = Arc::new(Board::new(2));
        let memory = Arc::new(UnsafeCell::new(0));
        let (theirs, shared) = (board.clone(), memory.clone());
        let reader = thread::spawn(move || {
            for header in 1..=2 {
                sleep_until(&theirs, || theirs.next_message(0, 1).is_some());
                let (number, found) = theirs.next_message(0, 1).unwrap();
                assert_eq!(found, [header]);
                // SAFETY: loom checks that there is no concurrent write.
                assert_eq!(shared.with(|value| unsafe { *value }), header);
                theirs.release_slot(0, 1, number);
                theirs.wake_sleepers();
            }
        });
        for header in 1..=2 {
            sleep_until(&board, || board.has_room(0, 1, MAX_IN_FLIGHT));
            // SAFETY: loom checks that there is no concurrent access.
            memory.with_mut(|value| unsafe { *value = header });
            board.send(0, 1, [header], [].into_iter());
            board.wake_sleepers();
        }
        reader.join().unwrap();
    });
}

/// Two ranks stage one piece each in three collectives, with a staged message after each. No piece is filled while the
/// peer reads it, although neither collectives nor messages end with a synchronisation of both ranks. [`Piece::index`]
/// chooses the pieces, as in production.
#[test]
fn a_staged_piece_is_filled_again_only_after_its_last_read() {
    model(2, || {
        let board = Arc::new(Board::new(2));
        let areas: Arc<[[UnsafeCell<u64>; PIECES_PER_RANK]; 2]> = Arc::default();
        let run = |board: &Board, areas: &[[UnsafeCell<u64>; PIECES_PER_RANK]; 2], me: usize| {
            // SAFETY: loom checks that there is no concurrent access.
            let fill = |piece: Piece, value| areas[me][piece.index()].with_mut(|cell| unsafe { *cell = value });
            // SAFETY: loom checks that there is no concurrent write.
            let read = |from: usize, piece: Piece| areas[from][piece.index()].with(|cell| unsafe { *cell });
            for round in 0..3 {
                fill(Piece::Input(round), 10 * round + me as u64);
                board.post(me, round + 1, HEAD, [].into_iter());
                while !board.has_posted(1 - me, round + 1) {
                    thread::yield_now();
                }
                assert_eq!(read(1 - me, Piece::Input(round)), 10 * round + 1 - me as u64);
                if me == 0 {
                    let number = board.next_number(0, 1);
                    fill(Piece::Message(number), 100 + number);
                    board.send(0, 1, [number], [].into_iter());
                    while board.in_flight(0, 1) > 0 {
                        thread::yield_now();
                    }
                } else {
                    while board.next_message(0, 1).is_none() {
                        thread::yield_now();
                    }
                    let (number, _) = board.next_message(0, 1).unwrap();
                    assert_eq!(read(0, Piece::Message(number)), 100 + number);
                    board.release_slot(0, 1, number);
                }
            }
        };
        let (theirs, shared) = (board.clone(), areas.clone());
        let peer = thread::spawn(move || run(&theirs, &shared, 1));
        run(&board, &areas, 0);
        peer.join().unwrap();
    });
}
