//! Collectives called by the controller: any root, parts of different sizes, barriers.

use disco::error::ErrorKind;
use disco::{DRef, DType, Error, LaneSession, Placement, Rank, Reduction, Result, Scope, Tensor, WorkerId, block_on};

use super::{Kind, builder};

super::tests![
    a_tensor_that_only_the_root_needs_may_exist_on_the_root_alone,
    roots_and_counts_out_of_range_are_rejected_by_the_controller,
    wrong_shapes_are_errors_that_name_worker_operation_and_reason,
];

/// A session of two groups of two.
fn plane(kind: Kind) -> LaneSession {
    let session = builder(kind).groups(2).start().unwrap();
    block_on(session.init_ccl("auto", &[])).unwrap();
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

fn a_tensor_that_only_the_root_needs_may_exist_on_the_root_alone(kind: Kind) {
    let session = plane(kind);
    block_on(async {
        let numbers = tensors(&session, [&[0, 11], &[10, 1], &[20, 21], &[30, 31]]).await?;
        let only = session.empty(DType::I64, [2], Placement::Worker0).await?;
        session.reduce(&numbers, &only, Reduction::Min, Rank::new(0), Scope::World).await?;
        session.broadcast_from(&only, &numbers, Rank::new(0), Scope::World).await?;
        for tensor in session.get_all::<Tensor>(&numbers).await? {
            assert_eq!(tensor.to_vec::<i64>()?, [0, 1]);
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
        let rows: [&[usize]; 4] = [&[]; 4];
        let exchange = session.all_to_all_v(&x, &x, &rows, group());
        assert_eq!(text(exchange.await), "all_to_all_v: 4 rows of counts for 2 ranks");
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
