//! Vectors that are lent to collectives come back, also after failures.

use std::time::{Duration, Instant};

use disco_core::{Communicator as _, CommunicatorExt, Error, Reduction, Tensor};
use disco_local::Communicator;

use super::{LONG, SHORT, on_ranks, on_threads, ranks};

/// Lends a vector to `run`. Returns the result and the vector, which must have its address.
fn lend<T>(len: usize, run: impl FnOnce(&Tensor) -> T) -> (T, Vec<f32>) {
    let elements = vec![1.0f32; len];
    let address = elements.as_ptr().addr();
    let lent = Tensor::from_vec(elements, [len as i64]).unwrap();
    let result = run(&lent);
    let elements: Vec<f32> = lent.into_vec().expect("no operation uses the vector");
    assert_eq!(elements.as_ptr().addr(), address);
    (result, elements)
}

fn sum(comm: &mut Communicator, lent: &Tensor) -> Result<(), Error> {
    comm.all_reduce_in_place(lent, Reduction::Sum)
}

#[test]
fn a_lent_vector_has_the_sum_of_a_collective() {
    for len in [1, 100_000, 1 << 20] {
        for (result, elements) in on_ranks(3, |mut comm| lend(len, |lent| sum(&mut comm, lent))) {
            result.unwrap();
            assert!(elements.iter().all(|element| *element == 3.0));
        }
    }
}

#[test]
fn a_lent_vector_comes_back_after_a_mismatch_a_deadline_and_a_lost_rank() {
    for (error, elements) in on_ranks(2, |mut comm| {
        let len = 4 + comm.rank().index();
        lend(len, |lent| sum(&mut comm, lent).unwrap_err())
    }) {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!(elements[..4], [1.0; 4]);
    }

    let absent = |mut comm: Communicator| match comm.rank().index() {
        0 => Some(lend(4, |lent| sum(&mut comm, lent).unwrap_err())),
        _ => None,
    };
    let ended = on_ranks(2, absent).swap_remove(0).unwrap();
    assert!(matches!(ended.0, Error::Lost(_)), "{}", ended.0);
    let mut both = ranks(2, SHORT).unwrap();
    let second = both.pop().unwrap();
    let ended = on_threads(both, absent).swap_remove(0).unwrap();
    assert!(matches!(ended.0, Error::Deadline { .. }), "{}", ended.0);
    drop(second);
}

/// The abort arrives while peers read and write the vectors, which their owners use and free at once afterwards.
#[test]
fn a_lent_vector_comes_back_from_an_abort_at_any_moment() {
    const LEN: usize = 1 << 19;
    let mut aborted = 0;
    for round in 0..100u64 {
        let ranks = ranks(3, LONG).unwrap();
        let aborter = ranks[0].aborter();
        std::thread::scope(|scope| {
            // Varies from before the first copy to after the last.
            let moment = Duration::from_micros(round * 7919 % 3000);
            scope.spawn(move || {
                let start = Instant::now();
                while start.elapsed() < moment {
                    std::hint::spin_loop();
                }
                aborter.abort(&"aborted by the test".into());
            });
            for (result, mut elements) in on_threads(ranks, |mut comm| lend(LEN, |lent| sum(&mut comm, lent))) {
                match result {
                    Ok(()) => assert!(elements.iter().all(|element| *element == 3.0)),
                    Err(Error::Aborted { .. } | Error::Broken { .. }) => aborted += 1,
                    Err(other) => panic!("{other}"),
                }
                elements.fill(7.0);
                assert!(elements.iter().all(|element| *element == 7.0), "a peer still writes to the vector");
            }
        });
    }
    assert!(aborted > 0, "no abort arrived in time");
}
