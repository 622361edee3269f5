//! Scenario: collectives that the controller calls with handles: any scope and root, V-forms and barriers.

use disco_core::{DRef, DType, OpKind, Placement, Rank, Reduction, Result, Scope};
use disco_core::{Session, Shape, Tensor, WorkerContext, WorkerId};

use super::meshes;
use crate::communicator::fixture::{self, HostMemory};
use crate::communicator::verdicts::CheckResult;

const NUMBERS: &str = "disco.conformance.numbers";

disco_core::register_function!(NUMBERS, numbers);

/// The operations of the scenario.
pub(super) const NEEDS: [OpKind; 7] = [
    OpKind::Broadcast,
    OpKind::Scatter,
    OpKind::Gather,
    OpKind::Reduce,
    OpKind::AllGatherV,
    OpKind::AllToAllV,
    OpKind::Barrier,
];

/// Element `index` of the input of a worker.
fn number(worker: usize, index: usize) -> i32 {
    (100 * worker + index) as i32
}

/// The input of this worker. `lens` has the number of elements by rank in the scope.
fn numbers(ctx: &mut WorkerContext, lens: Shape, scope: Scope) -> Result<Tensor> {
    let worker = ctx.worker().index();
    let len = lens[scope.rank(&ctx.world(), ctx.worker()).index()];
    let tensor = ctx.empty(DType::I32, [len])?;
    let bytes: Vec<u8> = (0..len as usize).flat_map(|index| number(worker, index).to_le_bytes()).collect();
    fixture::upload(ctx, &tensor, &bytes, HostMemory::Shared)?;
    Ok(tensor)
}

pub(super) async fn run(session: &dyn Session) -> CheckResult<usize> {
    let world = session.world();
    let mut checks = 0;
    for scope in [Scope::World, Scope::Group].into_iter().chain(to_text(meshes::scopes(world.size()))?) {
        let ranks = scope.ranks(&world);
        let plane = Plane { session, scope, ranks };
        for root in [0, ranks - 1] {
            checks += plane.rooted(root).await?;
        }
        checks += plane.parts().await?;
    }
    Ok(checks)
}

/// The scope of the collectives.
struct Plane<'a> {
    session: &'a dyn Session,
    scope: Scope,
    ranks: usize,
}

impl Plane<'_> {
    async fn rooted(&self, root: usize) -> CheckResult<usize> {
        let (session, ranks, scope) = (self.session, self.ranks, || self.scope.clone());
        let (rank, block) = (Rank::new(root as u32), 3);
        let src = self.numbers(&vec![block; ranks]).await?;
        let blocks = self.numbers(&vec![block * ranks; ranks]).await?;

        let dst = self.zeros(block).await?;
        to_text(session.broadcast_from(&src, &dst, rank, scope()).await)?;
        self.expect("broadcast_from", &dst, |_, members| of(members[root], 0..block)).await?;

        let dst = self.zeros(block).await?;
        to_text(session.scatter_from(&blocks, &dst, rank, scope()).await)?;
        self.expect("scatter_from", &dst, |rank, members| of(members[root], rank * block..(rank + 1) * block)).await?;

        let dst = self.zeros(block * ranks).await?;
        to_text(session.gather_to(&src, &dst, rank, scope()).await)?;
        let gathered = |members: &[WorkerId]| members.iter().flat_map(|worker| of(*worker, 0..block)).collect();
        let at_root =
            |rank, members: &[WorkerId]| if rank == root { gathered(members) } else { vec![0; block * ranks] };
        self.expect("gather_to", &dst, at_root).await?;

        let dst = self.zeros(block).await?;
        to_text(session.reduce(&src, &dst, Reduction::Sum, rank, scope()).await)?;
        let sum = |members: &[WorkerId], index| members.iter().map(|worker| number(worker.index(), index)).sum();
        let sums = |members: &[WorkerId]| (0..block).map(|index| sum(members, index)).collect();
        let at_root = |rank, members: &[WorkerId]| if rank == root { sums(members) } else { vec![0; block] };
        self.expect("reduce", &dst, at_root).await?;
        Ok(4)
    }

    async fn parts(&self) -> CheckResult<usize> {
        let (session, ranks, scope) = (self.session, self.ranks, || self.scope.clone());
        let counts: Vec<usize> = (0..ranks).map(|rank| (rank + 1) % 3).collect();
        let (src, dst) = (self.numbers(&counts).await?, self.zeros(counts.iter().sum()).await?);
        to_text(session.all_gather_v(&src, &dst, &counts, scope()).await)?;
        let all = |members: &[WorkerId]| {
            members.iter().zip(&counts).flat_map(|(worker, count)| of(*worker, 0..*count)).collect()
        };
        self.expect("all_gather_v", &dst, |_, members| all(members)).await?;

        to_text(session.barrier(scope()).await)?;

        let count = |from: usize, to: usize| (from + 2 * to) % 3;
        let rows: Vec<Vec<usize>> = (0..ranks).map(|from| (0..ranks).map(|to| count(from, to)).collect()).collect();
        let rows: Vec<&[usize]> = rows.iter().map(Vec::as_slice).collect();
        let sent: Vec<usize> = rows.iter().map(|row| row.iter().sum()).collect();
        let received: Vec<usize> = (0..ranks).map(|to| (0..ranks).map(|from| count(from, to)).sum()).collect();
        let (src, dst) = (self.numbers(&sent).await?, self.numbers(&received).await?);
        to_text(session.all_to_all_v(&src, &dst, &rows, scope()).await)?;
        let part = |from: usize, to: usize, members: &[WorkerId]| {
            let start: usize = (0..to).map(|before| count(from, before)).sum();
            of(members[from], start..start + count(from, to))
        };
        self.expect("all_to_all_v", &dst, |rank, members| {
            (0..ranks).flat_map(|from| part(from, rank, members)).collect()
        })
        .await?;
        Ok(3)
    }

    async fn numbers(&self, lens: &[usize]) -> CheckResult<DRef> {
        let lens: Vec<i64> = lens.iter().map(|len| *len as i64).collect();
        to_text(self.session.call(NUMBERS, (Shape::from(lens), &self.scope)).await)
    }

    async fn zeros(&self, len: usize) -> CheckResult<DRef> {
        to_text(self.session.empty(DType::I32, [len as i64], Placement::All).await)
    }

    /// Compares the tensor of each worker with `expected(rank, members)`: its rank, and the workers of its set by rank.
    async fn expect(
        &self,
        name: &str,
        dst: &DRef,
        expected: impl Fn(usize, &[WorkerId]) -> Vec<i32>,
    ) -> CheckResult<()> {
        let found = to_text(self.session.get_all::<Tensor>(dst).await)?;
        let (world, scope) = (self.session.world(), &self.scope);
        for (worker, found) in world.workers().zip(&found) {
            let (rank, members) = (scope.rank(&world, worker).index(), scope.members(&world, worker));
            let (found, expected) = (to_text(found.to_vec::<i32>())?, expected(rank, &members));
            if found != expected {
                return Err(format!("{name} in {scope}: {worker} has {found:?} in place of {expected:?}"));
            }
        }
        Ok(())
    }
}

/// The elements of a worker's input with these indices.
fn of(worker: WorkerId, indices: std::ops::Range<usize>) -> Vec<i32> {
    indices.map(|index| number(worker.index(), index)).collect()
}

fn to_text<T>(result: Result<T>) -> CheckResult<T> {
    result.map_err(|error| error.to_string())
}
