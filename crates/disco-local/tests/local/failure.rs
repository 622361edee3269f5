//! Mismatches, deadlines, ranks that leave, tensors in use.

use disco_core::{Communicator as _, CommunicatorExt, DType, Error, Rank, Reduction};
use disco_local::Communicator;

use super::{LONG, SHORT, floats, on_ranks, on_threads, ranks, zeroed, zeros};

/// The mismatch error that all ranks get when each makes its own `call`.
fn mismatch(size: usize, call: impl Fn(&mut Communicator, usize) -> disco_core::Result<()> + Sync) -> String {
    let errors = on_ranks(size, |mut comm| {
        let rank = comm.rank().index();
        let error = call(&mut comm, rank).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
        assert!(matches!(comm.barrier(), Err(Error::Broken { .. })));
        assert!(matches!(comm.synchronize(), Err(Error::Broken { .. })));
        error.to_string()
    });
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    errors[0].clone()
}

#[test]
fn a_mismatch_names_the_calls_of_all_ranks() {
    let sum = Reduction::Sum;
    assert_eq!(
        mismatch(2, |comm, rank| comm.all_reduce_in_place(&zeros(4 + rank), sum)),
        "all_reduce: ranks disagree: rank 0 called all_reduce sum f32 x 4, rank 1 called all_reduce sum f32 x 5"
    );
    assert_eq!(
        mismatch(4, |comm, rank| match rank {
            2 => comm.barrier(),
            _ => comm.broadcast(&zeros(1), Rank::new(0)),
        }),
        "broadcast: ranks disagree: ranks 0, 1, 3 called broadcast f32 x 1, root rank 0, rank 2 called barrier"
    );
    assert_eq!(
        mismatch(2, |comm, rank| comm.reduce(&zeros(1), Some(&zeros(1)), sum, Rank::new(rank as u32))),
        "reduce: ranks disagree: rank 0 called reduce sum f32 x 1, root rank 0, rank 1 called reduce sum f32 x 1, root \
         rank 1"
    );
    let other = |rank| [Reduction::Min, Reduction::Max][rank];
    assert!(mismatch(2, |comm, rank| comm.all_reduce_in_place(&zeros(1), other(rank))).contains("all_reduce min f32"));
    let dtype = |rank| [DType::F32, DType::I32][rank];
    let x = |rank| zeroed(dtype(rank), 2);
    assert!(mismatch(2, |comm, rank| comm.all_reduce_in_place(&x(rank), sum)).contains("all_reduce sum i32 x 2"));
    assert_eq!(
        mismatch(2, |comm, rank| match rank {
            0 => comm.barrier(),
            _ => comm.split(None, 0).map(drop),
        }),
        "barrier: ranks disagree: rank 0 called barrier, rank 1 called split"
    );
}

#[test]
fn counts_by_rank_are_compared() {
    let gather = |comm: &mut Communicator, rank: usize| {
        let counts = [[1, 2], [2, 1]][rank];
        comm.all_gather_v(&zeros(counts[rank]), &zeros(3), &counts)
    };
    assert_eq!(
        mismatch(2, gather),
        "all_gather_v: ranks disagree: rank 0 called all_gather_v f32 x [1, 2], rank 1 called all_gather_v f32 x [2, 1]"
    );
    let exchange = |comm: &mut Communicator, rank: usize| {
        let (send, recv) = [([1, 2], [1, 0]), ([0, 1], [3, 1])][rank];
        let (src, dst) = (zeros(send.iter().sum()), zeros(recv.iter().sum()));
        comm.all_to_all_v((&src, &send), (&dst, &recv))
    };
    assert_eq!(
        mismatch(2, exchange),
        "all_to_all_v: ranks disagree: rank 0 sends 2 elements to rank 1, which expects 3"
    );
}

#[test]
fn a_deadline_error_names_the_missing_rank() {
    let mut ranks = ranks(3, SHORT).unwrap();
    let missing = ranks.remove(1);
    let errors = on_threads(ranks, |mut comm| comm.all_reduce_in_place(&zeros(4), Reduction::Sum).unwrap_err());
    let text = errors.iter().find(|error| matches!(error, Error::Deadline { .. })).unwrap().to_string();
    assert!(text.starts_with("all_reduce sum f32 x 4: no end after 50ms: "), "{text}");
    assert!(text.contains("rank 1 has not arrived (no operation so far)"), "{text}");
    assert!(errors.iter().all(|error| error.to_string().contains("rank 1 has not arrived")), "{errors:?}");
    drop(missing);
}

#[test]
fn a_deadline_error_names_the_operation_of_the_missing_rank() {
    let ranks = ranks(3, SHORT).unwrap();
    let errors = on_threads(ranks, |mut comm| {
        comm.barrier().unwrap();
        comm.barrier().unwrap();
        match comm.rank().index() {
            0 => comm.barrier().unwrap_err().to_string(),
            1 => comm.recv(&zeros(2), Rank::new(0)).unwrap_err().to_string(),
            _ => {
                // Returns once the other ranks have given up.
                while comm.synchronize().is_ok() {
                    std::thread::yield_now();
                }
                comm.synchronize().unwrap_err().to_string()
            }
        }
    });
    let all = errors.join("\n");
    let collective = "barrier: no end after 50ms: rank 1 is in recv, rank 2 has not arrived (2 operations so far, the last \
                      barrier); rank 0 waits";
    let transfer = "recv f32 x 2: no end after 50ms: rank 0 is in barrier; rank 1 waits to receive from rank 0";
    assert!(all.contains(collective) || all.contains(transfer), "{all}");
    assert!(errors[2].starts_with("synchronize: the communicator is broken since: rank "), "{all}");
}

#[test]
fn ranks_that_do_not_wait_for_a_dropped_communicator_continue() {
    on_ranks(3, |mut comm| match comm.rank().index() {
        0 => comm.send(&floats(&[5.0]), Rank::new(1)).unwrap(),
        1 => comm.recv(&zeros(1), Rank::new(0)).unwrap(),
        _ => drop(comm),
    });
}

#[test]
fn a_tensor_in_use_is_refused_and_the_communicator_stays_usable() {
    on_ranks(2, |mut comm| {
        let x = floats(&[1.0]);
        let view = x.view::<f32>().unwrap();
        assert!(matches!(comm.all_reduce_in_place(&x, Reduction::Sum), Err(Error::Busy(_))));
        drop(view);
        comm.all_reduce_in_place(&x, Reduction::Sum).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [2.0]);
    });
}

#[test]
fn a_tensor_is_in_use_while_its_operation_waits() {
    let mut ranks = ranks(2, LONG).unwrap();
    let (mut late, mut early) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let (x, y) = (floats(&[1.0]), floats(&[2.0]));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| early.all_reduce_in_place(&x, Reduction::Sum));
        while x.view::<f32>().is_ok() {
            std::thread::yield_now();
        }
        assert!(matches!(x.view_mut::<f32>(), Err(Error::Busy(_))));
        late.all_reduce_in_place(&y, Reduction::Sum).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(x.to_vec::<f32>().unwrap(), [3.0]);
}
