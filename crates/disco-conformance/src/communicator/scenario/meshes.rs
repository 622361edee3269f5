//! Scenario: communicators along axes of meshes, against splits made by hand and plain loops.

use disco_core::{Communicator, CommunicatorExt, DType, Mesh, Reduction, Result, Scope, Session};
use disco_core::{Tensor, WorkerContext};

use crate::communicator::fixture::{self, HostMemory};
use crate::communicator::verdicts::CheckResult;

const COMPARE: &str = "disco.conformance.mesh";

disco_core::register_function!(COMPARE, compare);

/// Meshes of `size` workers as their sizes, with the axes of a scope: each axis of two, both in the other order, and the
/// outer two of three.
fn meshes(size: usize) -> Vec<(Vec<usize>, Vec<usize>)> {
    let divisors = (1..=size).filter(|x| size.is_multiple_of(*x));
    let mut meshes: Vec<_> =
        divisors.flat_map(|x| [vec![0], vec![1], vec![1, 0]].map(|axes| (vec![x, size / x], axes))).collect();
    if size.is_multiple_of(4) {
        meshes.extend([vec![0, 2], vec![1]].map(|axes| (vec![2, size / 4, 2], axes)));
    }
    meshes
}

/// The scope of some axes of a mesh.
fn scope(sizes: &[usize], axes: &[usize]) -> Result<Scope> {
    let names = ["x", "y", "z"];
    let axes: Vec<_> = axes.iter().map(|axis| names[*axis]).collect();
    Mesh::new(names.into_iter().zip(sizes.iter().copied()))?.along(&axes)
}

/// The scopes of the scenario, for `size` workers.
pub(super) fn scopes(size: usize) -> Result<Vec<Scope>> {
    meshes(size).iter().map(|(sizes, axes)| scope(sizes, axes)).collect()
}

pub(super) async fn run(session: &dyn Session) -> CheckResult<usize> {
    let meshes = meshes(session.world().size());
    let mut compared = 0;
    // A second use takes the same communicators.
    for (sizes, axes) in meshes.iter().chain(&meshes) {
        let found = async {
            let scope = scope(sizes, axes)?;
            let found = session.call(COMPARE, (scope, sizes.clone(), axes.clone())).await?;
            session.get_all::<String>(&found).await
        };
        let found = found.await.map_err(|error| format!("axes {axes:?} of {sizes:?}: {error}"))?;
        if let Some(difference) = found.into_iter().find(|difference| !difference.is_empty()) {
            return Err(format!("axes {axes:?} of {sizes:?}: {difference}"));
        }
        compared += 1;
    }
    Ok(compared)
}

/// The difference between the communicator along axes, a split by hand and plain loops on this worker; empty if there is
/// none.
fn compare(ctx: &mut WorkerContext, scope: Scope, sizes: Vec<usize>, axes: Vec<usize>) -> Result<String> {
    let worker = ctx.worker().index();
    // The place of each worker along each axis, by counting.
    let mut places = vec![Vec::new()];
    for size in &sizes {
        places = places.iter().flat_map(|place| (0..*size).map(|at| [&place[..], &[at]].concat())).collect();
    }
    let differs = |other: usize, axis: usize| places[other][axis] != places[worker][axis];
    let is_member = |other: &usize| (0..sizes.len()).all(|axis| axes.contains(&axis) || !differs(*other, axis));
    let mut members: Vec<usize> = (0..places.len()).filter(is_member).collect();
    let (first, size) = (members[0], members.len());
    members.sort_by_key(|member| axes.iter().map(|axis| places[*member][*axis]).collect::<Vec<_>>());
    let rank = members.iter().take_while(|member| **member != worker).count();
    let numbers: Vec<i32> = members.iter().map(|member| number(*member)).collect();
    let plain = Results { rank, size, sum: numbers.iter().sum(), numbers };

    let mut by_hand = ctx.comm()?.split(Some(first as u32), rank as i32)?;
    let by_hand = results(ctx, &scope, &mut by_hand)?;
    let by_mesh = results(ctx, &scope, &mut None)?;
    if by_mesh == plain && by_hand == plain {
        return Ok(String::new());
    }
    Ok(format!("worker {worker} gets {by_mesh:?} along the axes, {by_hand:?} by hand, and {plain:?} by plain loops"))
}

/// The number that a worker sends.
fn number(worker: usize) -> i32 {
    worker as i32 * 10 + 1
}

/// Results of collectives on one rank.
#[derive(Debug, PartialEq)]
struct Results {
    rank: usize,
    size: usize,
    /// The number of each rank.
    numbers: Vec<i32>,
    sum: i32,
}

type ByHand = Option<Box<dyn Communicator>>;

/// Exchanges numbers over the communicator made by hand, or else over that of the scope.
fn results(ctx: &mut WorkerContext, scope: &Scope, by_hand: &mut ByHand) -> Result<Results> {
    let comm = comm(ctx, scope, by_hand)?;
    let (rank, size) = (comm.rank().index(), comm.size());
    let src = ctx.empty(DType::I32, 1)?;
    let (all, sum) = (ctx.empty(DType::I32, size)?, ctx.empty(DType::I32, 1)?);
    let own = number(ctx.worker().index()).to_ne_bytes();
    fixture::upload(ctx, &src, &own, HostMemory::Shared)?;
    let comm = self::comm(ctx, scope, by_hand)?;
    comm.all_gather(&src, &all)?;
    comm.all_reduce(&src, &sum, Reduction::Sum)?;
    comm.synchronize()?;
    Ok(Results { rank, size, numbers: read(ctx, &all)?, sum: read(ctx, &sum)?[0] })
}

fn comm<'a>(ctx: &'a mut WorkerContext, scope: &Scope, by_hand: &'a mut ByHand) -> Result<&'a mut dyn Communicator> {
    match by_hand {
        Some(comm) => Ok(&mut **comm),
        None => ctx.comm_in(scope),
    }
}

fn read(ctx: &mut WorkerContext, tensor: &Tensor) -> Result<Vec<i32>> {
    let bytes = fixture::download(ctx, tensor, HostMemory::Shared)?;
    Ok(bytes.chunks_exact(4).map(|it| i32::from_ne_bytes([it[0], it[1], it[2], it[3]])).collect())
}
