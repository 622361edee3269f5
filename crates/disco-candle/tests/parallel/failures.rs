//! Errors of operations and layers, as a controller sees them.

use candle_core::Tensor;
use disco::{Builder, Mesh, Scope, WorkerContext};
use disco_candle::{Comm, find_disco_error, to_candle};
use disco_core::Reduction;

use super::{on_ranks, random};

#[test]
fn a_collective_after_another_rank_has_left_is_an_error_of_disco() {
    let errors = on_ranks(2, |comm| {
        if comm.rank() == 1 {
            return Ok(None);
        }
        let x = random(1, &[4]);
        let error = comm.all_reduce_in_place(&x, Reduction::Sum).unwrap_err();
        assert_eq!(x.dims(), [4]);
        assert_eq!(x.to_vec1::<f32>()?.len(), 4, "the memory is candle's again");
        Ok(find_disco_error(&error).map(|error| (error.kind(), error.to_string())))
    });
    let (kind, text) = errors[0].clone().unwrap();
    assert!(matches!(kind, disco_core::error::ErrorKind::Lost { .. }), "{text}");
}

#[test]
fn shapes_that_do_not_fit_are_refused_before_anything_is_sent() {
    on_ranks(2, |comm| {
        let x = random(1, &[3, 2]);
        let error = comm.reduce_scatter(&x, 0).unwrap_err().to_string();
        assert_eq!(error, "reduce_scatter: dimension 0 of [3, 2] does not divide by 2 ranks");
        let error = comm.all_gather_uneven(&x, 0, &[1, 1]).unwrap_err().to_string();
        assert_eq!(error, format!("all_gather: rank {} has [3, 2], not extent 1 at 0", comm.rank()));
        let error = comm.scatter_to_ranks(&x, 1, &[1, 2]).unwrap_err().to_string();
        assert_eq!(error, "own_part: the parts [1, 2] do not fill dimension 1 of [3, 2]");
        let error = comm.scatter_to_ranks(&x, 1, &[2]).unwrap_err().to_string();
        assert_eq!(error, "1 extents for 2 ranks");
        Ok(())
    });
}

#[test]
fn a_value_that_differs_on_one_rank_is_an_error_on_all() {
    let errors = on_ranks(3, |comm| {
        let same = |value| comm.require_same("the files", value, &candle_core::Device::Cpu);
        same(u64::MAX).unwrap();
        Ok(same(7 + (comm.rank() as u64) / 2).unwrap_err().to_string())
    });
    let expected = "the files differ between the ranks: rank 0 has 0000000000000007, rank 2 has 0000000000000008";
    assert_eq!(errors, [expected; 3]);
}

/// Fails on rank 1, for which rank 0 waits.
fn fail(ctx: &mut WorkerContext, scope: Scope) -> candle_core::Result<f32> {
    let comm = Comm::over(ctx, &scope).map_err(to_candle)?;
    if comm.rank() == 1 {
        candle_core::bail!("planted");
    }
    let x = random(1, &[4]);
    comm.all_reduce_in_place(&x, Reduction::Sum)?;
    x.sum_all()?.to_scalar()
}

/// Keeps a communicator in a static of the thread, as a model in a register does, and joins again after a recovery. Returns
/// the sum of the workers' numbers.
fn rejoin(ctx: &mut WorkerContext, scope: Scope, is_first: bool) -> candle_core::Result<f32> {
    thread_local!(static COMM: std::cell::RefCell<Option<Comm>> = const { std::cell::RefCell::new(None) });
    if is_first {
        COMM.set(Some(Comm::over(ctx, &scope).map_err(to_candle)?));
    }
    let comm = COMM.with_borrow(|comm| comm.clone().unwrap());
    if !is_first {
        let x = random(1, &[4]);
        let error = comm.all_reduce_in_place(&x, Reduction::Sum).unwrap_err();
        assert!(find_disco_error(&error).is_some(), "{error}");
        comm.rejoin(ctx).map_err(to_candle)?;
    }
    let number = Tensor::new(ctx.worker().index() as f32, &candle_core::Device::Cpu)?;
    comm.all_reduce(&number, Reduction::Sum)?.to_scalar()
}

disco::register_function!("candle.fail", fail);
disco::register_function!("candle.rejoin", rejoin);

#[test]
fn the_controller_gets_the_error_of_candle_and_the_session_recovers() {
    let mesh: Mesh = "dp=2,tp=2".parse().unwrap();
    for (scope, sums) in [
        (Scope::World, [6.0, 6.0, 6.0, 6.0]),
        (Scope::Group, [1.0, 1.0, 5.0, 5.0]),
        (mesh.along(&["dp"]).unwrap(), [2.0, 4.0, 2.0, 4.0]),
    ] {
        let session = Builder::threads(4).groups(2).start().unwrap();
        disco::block_on(async {
            session.init_ccl("local", &[]).await.unwrap();
            let first = session.call("candle.rejoin", (&scope, true)).await.unwrap();
            assert_eq!(session.get_all::<f32>(&first).await.unwrap(), sums, "{scope}");

            session.call("candle.fail", (&scope,)).await.unwrap();
            let error = session.sync_all().await.unwrap_err().to_string();
            assert!(error.contains("worker ") && error.contains("candle.fail") && error.contains("planted"), "{error}");

            session.init_ccl("local", &[]).await.unwrap();
            let again = session.call("candle.rejoin", (&scope, false)).await.unwrap();
            assert_eq!(session.get_all::<f32>(&again).await.unwrap(), sums, "{scope}");
            session.shutdown().await.unwrap();
        });
    }
}
