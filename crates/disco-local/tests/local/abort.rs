//! Aborts while ranks wait, and while they copy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use disco_core::{Communicator as _, CommunicatorExt, DType, Error, Op, Rank, Reduction};

use super::{LONG, on_threads, ranks, zeroed, zeros};

#[test]
fn an_abort_ends_waits_and_breaks_the_communicator() {
    let mut ranks = ranks(3, LONG).unwrap();
    let missing = ranks.pop().unwrap();
    let aborter = missing.aborter();
    std::thread::scope(|scope| {
        scope.spawn(|| aborter.abort(&"worker 2 panicked".into()));
        on_threads(ranks, |mut comm| {
            let first = match comm.rank().index() {
                0 => comm.all_reduce_in_place(&zeros(1), Reduction::Sum).unwrap_err(),
                _ => comm.recv(&zeros(1), Rank::new(0)).unwrap_err(),
            };
            assert!(matches!(first, Error::Aborted { .. } | Error::Broken { .. }), "{first}");
            let then = comm.barrier().unwrap_err();
            assert_eq!(then.to_string(), "barrier: the communicator is broken since: worker 2 panicked");
        });
    });
    aborter.abort(&"again".into());
}

/// The abort arrives while ranks copy large tensors, which they free at once. A peer that still accessed them would
/// access freed memory.
#[test]
fn no_rank_accesses_tensors_of_peers_after_an_abort_during_a_copy() {
    const ELEMENTS: usize = 1 << 20;
    let aborted = AtomicUsize::new(0);
    for round in 0..200u64 {
        let ranks = ranks(3, LONG).unwrap();
        let aborter = ranks[0].aborter();
        std::thread::scope(|scope| {
            // Varies from before the first copy to after the last.
            let moment = Duration::from_micros(round * 7919 % 4000);
            scope.spawn(move || {
                let start = Instant::now();
                while start.elapsed() < moment {
                    std::hint::spin_loop();
                }
                aborter.abort(&"aborted by the test".into());
            });
            on_threads(ranks, |mut comm| {
                let src = zeroed(DType::U8, 3 * ELEMENTS);
                let dst = zeroed(DType::U8, 3 * ELEMENTS);
                let next = Rank::new((comm.rank().index() as u32 + 1) % 3);
                let previous = Rank::new((comm.rank().index() as u32 + 2) % 3);
                let group: Vec<Op> = match round % 3 {
                    0 => vec![Op::AllToAll { src: Some(src.clone()), dst: dst.clone() }],
                    1 => vec![Op::AllReduce { src: None, dst: dst.clone(), reduction: Reduction::Max }],
                    _ => vec![Op::Send { src: src.clone(), to: next }, Op::Recv { dst: dst.clone(), from: previous }],
                };
                match comm.enqueue(&group) {
                    Ok(()) => {}
                    Err(Error::Aborted { .. } | Error::Broken { .. }) => {
                        aborted.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(other) => panic!("{other}"),
                }
                drop(group);
                // No rank accesses the tensors any more: they can be viewed and freed.
                src.bytes_mut().unwrap()[0] = 1;
                dst.bytes_mut().unwrap()[0] = 1;
            });
        });
    }
    assert!(aborted.into_inner() > 0, "no abort came in time");
}
