//! All interleavings of two ranks at the board.

#![allow(unsafe_code)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

const HEAD: Head = Head { signature: 1, count: 1 };

/// One of two ranks in three collectives in a row: what each reads is what the other posted for this one, though sheets
/// are written again without any further handshake.
#[test]
fn sheets_are_read_before_they_are_written_again() {
    loom::model(|| {
        let board = Arc::new(Board::new(2));
        let run = |board: &Board, me: usize| {
            for number in 1..=3 {
                board.post(me, number, HEAD, [10 * number + me as u64].into_iter());
                while !board.has_posted(1 - me, number) {
                    thread::yield_now();
                }
                assert_eq!(board.word(1 - me, number, 0), 10 * number + 1 - me as u64);
            }
        };
        let theirs = board.clone();
        let peer = thread::spawn(move || run(&theirs, 1));
        run(&board, 0);
        peer.join().unwrap();
    });
}

/// Memory that one rank publishes is read by the other between the two handshakes, and only then.
#[test]
fn published_memory_is_read_between_post_and_finish() {
    loom::model(|| {
        let board = Arc::new(Board::new(2));
        let memory = Arc::new(UnsafeCell::new(0));
        let (theirs, shared) = (board.clone(), memory.clone());
        let reader = thread::spawn(move || {
            theirs.post(1, 1, HEAD, [].into_iter());
            while !theirs.has_posted(0, 1) {
                thread::yield_now();
            }
            // SAFETY: loom checks that nobody writes meanwhile.
            assert_eq!(shared.with(|value| unsafe { *value }), 1);
            theirs.finish(1, 1);
        });
        // SAFETY: loom checks that nobody else looks meanwhile.
        memory.with_mut(|value| unsafe { *value = 1 });
        board.post(0, 1, HEAD, [].into_iter());
        while !board.has_finished(1, 1) {
            thread::yield_now();
        }
        // SAFETY: as above.
        memory.with_mut(|value| unsafe { *value = 2 });
        reader.join().unwrap();
    });
}

/// A rank that fails and leaves waits until nobody touches its memory, and nobody starts to later.
#[test]
fn nobody_touches_the_memory_of_a_rank_that_left() {
    loom::model(|| {
        let board = Arc::new(Board::new(2));
        let memory = Arc::new(UnsafeCell::new(0));
        let (theirs, shared) = (board.clone(), memory.clone());
        let reader = thread::spawn(move || {
            if theirs.touch(1) {
                // SAFETY: loom checks that nobody writes meanwhile.
                shared.with(|value| unsafe { *value });
                theirs.let_go(1);
            }
        });
        board.fail();
        while board.is_touching(1) {
            thread::yield_now();
        }
        // SAFETY: loom checks that nobody else looks meanwhile.
        memory.with_mut(|value| unsafe { *value = 1 });
        reader.join().unwrap();
    });
}
