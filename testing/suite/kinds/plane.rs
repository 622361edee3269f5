//! Collectives called by the controller: any root, parts of different sizes, barriers.

use disco::error::ErrorKind;
use disco::{DRef, DType, Error, LaneSession, Placement, Rank, Reduction, Result, Scope, Tensor, WorkerId, block_on};
use disco_conformance::waiting::wait_until_in_collective;
use futures_lite::future;

use super::marker::stay;
use super::{Kind, builder};

super::tests![
    rooted_collectives_take_any_root,
    v_collectives_take_counts_of_each_worker,
    a_barrier_waits_for_the_slowest_worker,
    roots_and_counts_out_of_range_are_rejected_by_the_controller,
    wrong_shapes_are_errors_that_name_worker_operation_and_reason,
];

/// A session of two groups of two.
fn plane(kind: Kind) -> LaneSession {
    let session = builder(kind).groups(2).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    session
}

/// A handle of a tensor with the elements `of[w]` on worker w.
async fn tensors(session: &LaneSession, of: [&[i64]; 4]) -> Result<DRef> {
    let handle = session.call("tests.whoami", ()).await?;
    let tensor = |worker: WorkerId| {
        let elements = of[worker.index()];
        Tensor::from_slice(elements, [elements.len() as i64]).unwrap()
    };
    session.set_each(&handle, tensor).await?;
    Ok(handle)
}

async fn zeros(session: &LaneSession, len: i64) -> Result<DRef> {
    session.empty(DType::I64, [len], Placement::All).await
}

async fn all(session: &LaneSession, handle: &DRef) -> Result<Vec<Vec<i64>>> {
    session.get_all::<Tensor>(handle).await?.iter().map(Tensor::to_vec).collect()
}

/// The expected tensors of all workers if only rank `root` of each scope gets a result, and the others keep zeros.
fn at(root: usize, scope: Scope, world: Vec<i64>, groups: [Vec<i64>; 2]) -> Vec<Vec<i64>> {
    let worker = |worker: usize| match scope {
        Scope::World if worker == root => world.clone(),
        Scope::World => vec![0; world.len()],
        _ if worker % 2 == root => groups[worker / 2].clone(),
        _ => vec![0; groups[0].len()],
    };
    (0..4).map(worker).collect()
}

fn rooted_collectives_take_any_root(kind: Kind) {
    let session = plane(kind);
    block_on(async {
        let numbers =
            tensors(&session, [&[0, 1, 2, 3], &[10, 11, 12, 13], &[20, 21, 22, 23], &[30, 31, 32, 33]]).await?;
        for root in 0..4 {
            let (rank, first) = (Rank::new(root), i64::from(root) * 10);
            let root = root as usize;
            let dst = zeros(&session, 4).await?;
            session.broadcast_from(&numbers, &dst, rank, Scope::World).await?;
            assert_eq!(all(&session, &dst).await?, vec![(first..first + 4).collect::<Vec<_>>(); 4]);
            let dst = zeros(&session, 1).await?;
            session.scatter_from(&numbers, &dst, rank, Scope::World).await?;
            assert_eq!(all(&session, &dst).await?, (first..first + 4).map(|x| vec![x]).collect::<Vec<_>>());
            let dst = zeros(&session, 16).await?;
            session.gather_to(&numbers, &dst, rank, Scope::World).await?;
            let gathered = (0..4).flat_map(|worker| 10 * worker..10 * worker + 4).collect();
            assert_eq!(all(&session, &dst).await?, at(root, Scope::World, gathered, Default::default()));
            let dst = zeros(&session, 4).await?;
            session.reduce(&numbers, &dst, Reduction::Sum, rank, Scope::World).await?;
            assert_eq!(all(&session, &dst).await?, at(root, Scope::World, vec![60, 64, 68, 72], Default::default()));
        }
        for root in 0..2 {
            let rank = Rank::new(root);
            let root = root as usize;
            let dst = zeros(&session, 4).await?;
            session.broadcast_from(&numbers, &dst, rank, Scope::Group).await?;
            let of = |worker: usize| (0..4).map(|x| 10 * (worker / 2 * 2 + root) as i64 + x).collect::<Vec<_>>();
            assert_eq!(all(&session, &dst).await?, (0..4).map(of).collect::<Vec<_>>());
            let dst = zeros(&session, 4).await?;
            session.reduce(&numbers, &dst, Reduction::Max, rank, Scope::Group).await?;
            let groups = [vec![10, 11, 12, 13], vec![30, 31, 32, 33]];
            assert_eq!(all(&session, &dst).await?, at(root, Scope::Group, Vec::new(), groups));
        }
        // A tensor that only the root needs may exist on the root alone.
        let only = session.empty(DType::I64, [4], Placement::Worker0).await?;
        session.reduce(&numbers, &only, Reduction::Min, Rank::new(0), Scope::World).await?;
        session.broadcast_from(&only, &numbers, Rank::new(0), Scope::World).await?;
        assert_eq!(all(&session, &numbers).await?, vec![vec![0, 1, 2, 3]; 4]);
        session.shutdown().await
    })
    .unwrap();
}

fn v_collectives_take_counts_of_each_worker(kind: Kind) {
    let session = plane(kind);
    block_on(async {
        let parts = tensors(&session, [&[1], &[], &[2, 3, 4], &[5, 6]]).await?;
        let dst = zeros(&session, 6).await?;
        session.all_gather_v(&parts, &dst, &[1, 0, 3, 2], Scope::World).await?;
        assert_eq!(all(&session, &dst).await?, vec![vec![1, 2, 3, 4, 5, 6]; 4]);

        let src = tensors(&session, [&[1, 2, 3], &[4], &[5, 6], &[7, 8, 9, 10]]).await?;
        let counts: [&[usize]; 4] = [&[1, 2, 0, 0], &[0, 0, 0, 1], &[1, 0, 1, 0], &[1, 1, 1, 1]];
        let dst = tensors(&session, [&[0; 3], &[0; 3], &[0; 2], &[0; 2]]).await?;
        session.all_to_all_v(&src, &dst, &counts, Scope::World).await?;
        assert_eq!(all(&session, &dst).await?, [vec![1, 5, 7], vec![2, 3, 8], vec![6, 9], vec![4, 10]]);

        let dst = tensors(&session, [&[0; 3], &[0; 1], &[0; 4], &[0; 2]]).await?;
        let src = tensors(&session, [&[1, 2, 3], &[4], &[5, 6, 7], &[8, 9, 10]]).await?;
        let error = session.all_to_all_v(&src, &dst, &counts, Scope::Group).await.unwrap_err();
        assert_eq!(error.to_string(), "all_to_all_v: 4 rows of counts for 2 ranks");
        let halves = tensors(&session, [&[1, 2], &[3], &[4, 5], &[6]]).await?;
        let dst = zeros(&session, 3).await?;
        session.all_gather_v(&halves, &dst, &[2, 1], Scope::Group).await?;
        assert_eq!(all(&session, &dst).await?, [[1, 2, 3], [1, 2, 3], [4, 5, 6], [4, 5, 6]]);
        let src = tensors(&session, [&[1, 2, 3], &[4], &[5, 6, 7], &[8]]).await?;
        let dst = tensors(&session, [&[0; 2], &[0; 2], &[0; 2], &[0; 2]]).await?;
        session.all_to_all_v(&src, &dst, &[&[1, 2], &[1, 0]], Scope::Group).await?;
        assert_eq!(all(&session, &dst).await?, [[1, 4], [2, 3], [5, 8], [6, 7]]);
        session.shutdown().await
    })
    .unwrap();
}

fn a_barrier_waits_for_the_slowest_worker(kind: Kind) {
    let session = plane(kind);
    block_on(async {
        for (scope, waiting) in [(Scope::World, &[0, 1, 3][..]), (Scope::Group, &[3])] {
            let late = stay(&session, 2);
            session.barrier(scope.clone()).await?;
            wait_until_in_collective(&session, waiting.iter().copied());
            for worker in 0..4 {
                let mut sync = session.sync_worker(WorkerId::new(worker));
                if worker == 2 || waiting.contains(&(worker as usize)) {
                    assert!(future::poll_once(&mut sync).await.is_none(), "worker {worker} in {scope:?}")
                } else {
                    sync.await?
                }
            }
            drop(late);
            session.sync_all().await?;
        }
        session.shutdown().await
    })
    .unwrap();
}

fn roots_and_counts_out_of_range_are_rejected_by_the_controller(kind: Kind) {
    let session = plane(kind);
    block_on(async {
        let (x, root) = (zeros(&session, 4).await?, Rank::new(2));
        let text = |result: Result<()>| match result.unwrap_err() {
            Error::Invalid(text) => text,
            other => panic!("{other:?}"),
        };
        let group = || Scope::Group;
        let missing = "rank 2 of 2 ranks does not exist";
        assert_eq!(text(session.broadcast_from(&x, &x, root, group()).await), format!("broadcast_from: {missing}"));
        assert_eq!(text(session.scatter_from(&x, &x, root, group()).await), format!("scatter_from: {missing}"));
        assert_eq!(text(session.gather_to(&x, &x, root, group()).await), format!("gather_to: {missing}"));
        let reduce = session.reduce(&x, &x, Reduction::Sum, root, group());
        assert_eq!(text(reduce.await), format!("reduce: {missing}"));
        let gather = session.all_gather_v(&x, &x, &[1, 2, 3], Scope::World);
        assert_eq!(text(gather.await), "all_gather_v: 3 counts for 4 ranks: [1, 2, 3]");
        let exchange = session.all_to_all_v(&x, &x, &[&[1, 2], &[3]], group());
        assert_eq!(text(exchange.await), "all_to_all_v: 1 counts for 2 ranks: [3]");
        let large = session.all_gather_v(&x, &x, &[usize::MAX, 0], group());
        assert_eq!(text(large.await), format!("all_gather_v: {} elements are too many", usize::MAX));
        session.sync_all().await?;
        session.shutdown().await
    })
    .unwrap();
}

fn wrong_shapes_are_errors_that_name_worker_operation_and_reason(kind: Kind) {
    let session = plane(kind);
    block_on(async {
        let mut texts = Vec::new();
        for case in 0..4 {
            let src = tensors(&session, [&[1, 2], &[1, 2], &[1, 2], &[1, 2, 3]]).await?;
            let dst = zeros(&session, 8).await?;
            match case {
                0 => session.all_gather_v(&src, &dst, &[2, 2, 2, 2], Scope::World).await?,
                1 => {
                    let counts: [&[usize]; 4] = [&[1, 1, 0, 0]; 4];
                    let dst = tensors(&session, [&[0; 4], &[0; 4], &[], &[]]).await?;
                    session.all_to_all_v(&src, &dst, &counts, Scope::World).await?;
                }
                2 => session.reduce(&src, &src, Reduction::Avg, Rank::new(3), Scope::World).await?,
                _ => {
                    let only = session.empty(DType::I64, [8], Placement::Worker0).await?;
                    session.gather_to(&src, &only, Rank::new(3), Scope::World).await?;
                }
            }
            let error = session.sync_worker(WorkerId::new(3)).await.unwrap_err();
            texts.push(error.to_string());
            assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Mismatch), "{error}");
            session.init_ccl("local", &[]).await?;
        }
        let ends = [
            "): all_gather_v: src has 3 elements, expected 2",
            "): all_to_all_v: src has 3 elements, expected 2",
            "",
            "): gather: rank 3 needs a dst",
        ];
        for (text, end) in texts.iter().zip(ends) {
            assert!(text.starts_with("worker ") && text.contains(": disco.") && text.ends_with(end), "{text}");
        }
        session.shutdown().await
    })
    .unwrap();
}
