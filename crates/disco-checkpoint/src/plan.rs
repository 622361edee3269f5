//! The writer of each part, and the elements that each worker loads.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;

use disco_core::{WorkerId, World};

use crate::error::{Error, Result};
use crate::index::Tensor;
use crate::layout::Layout;
use crate::region::Region;

/// For each tensor, whether `worker` writes it. `tensors` has the layout, and the size in bytes of this worker's tensor.
///
/// Workers agree without messages. All of them have the same list of replicated tensors, and workers of the same rank in
/// a scope have the same list of tensors that are split over it. Sizes of other tensors differ between the workers, so these
/// choices do not depend on them.
pub(crate) fn written_by(worker: WorkerId, world: &World, tensors: &[(Layout, u64)]) -> Vec<bool> {
    let mut writes: Vec<bool> = tensors.iter().map(|_| false).collect();
    // The largest replicated tensors first, each to the worker that has the fewest bytes to write.
    let mut bytes_of = vec![0u64; world.size()];
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|index| Reverse(tensors[*index].1));
    // Tensors that are split over one scope: its sets write them in turn.
    let mut turns: HashMap<String, usize> = HashMap::new();
    for index in order {
        let (layout, bytes) = &tensors[index];
        writes[index] = match layout {
            Layout::Replicated => {
                let least = (0..bytes_of.len()).min_by_key(|worker| bytes_of[*worker]).unwrap_or(0);
                bytes_of[least] += bytes;
                least == worker.index()
            }
            Layout::Split { scope, .. } => {
                let turn = turns.entry(scope.to_string()).or_default();
                *turn += 1;
                *turn % (world.size() / scope.ranks(world)) == scope.set(world, worker)
            }
            Layout::PerWorker => true,
        };
    }
    writes
}

/// The elements that a worker loads of a tensor that is not [`Layout::PerWorker`]. With the layout and the number of
/// ranks of the save, these are the elements of a part as it was saved; else the dimension is divided evenly.
///
/// # Errors
/// The tensor lacks the dimension, the mesh of the layout does not fit the world, or [`Error::Uneven`].
pub(crate) fn region_of(
    (checkpoint, name, tensor): (&Path, &str, &Tensor),
    layout: &Layout,
    worker: WorkerId,
    world: &World,
) -> Result<Region> {
    let shape = tensor.shape();
    layout.check(world).map_err(|error| {
        let problem = format!("it can't be loaded {layout}: {error}; choose its layout with `load_only`");
        Error::tensor(checkpoint, name, problem)
    })?;
    let Layout::Split { dim, .. } = *layout else { return Ok(Region::whole(&shape)) };
    let (rank, ranks) = (layout.rank(world, worker), layout.ranks(world));
    let same_split = matches!(tensor.layout, Layout::Split { dim: saved, .. } if saved == dim);
    if same_split && tensor.parts.len() == ranks {
        return Ok(tensor.region(&shape, &tensor.parts[rank]));
    }
    let Some(extent) = shape.get(dim) else {
        let problem = format!("it has the shape {shape:?}, and no dimension {dim} to split");
        return Err(Error::tensor(checkpoint, name, problem));
    };
    if !extent.is_multiple_of(ranks) {
        let (checkpoint, tensor) = (checkpoint.into(), name.to_owned());
        return Err(Error::Uneven { checkpoint, tensor, shape, dim, ranks });
    }
    let share = extent / ranks;
    Ok(Region::along(&shape, dim, rank * share..(rank + 1) * share))
}

#[cfg(test)]
mod tests {
    use disco_core::{Mesh, Scope};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_part_has_one_writer(
            (groups, group_size) in (1usize..4, 1usize..4),
            // The layout of a tensor, and the bytes that each rank of the layout has.
            tensors in proptest::collection::vec((0usize..6, proptest::collection::vec(0u64..100, 9)), 0..10),
        ) {
            let world = World::new(groups * group_size, groups).unwrap();
            let mesh = Mesh::new([("x", groups), ("y", group_size)]).unwrap();
            let scopes = [Scope::World, Scope::Group, mesh.along(&["x"]).unwrap(), mesh.along(&["y", "x"]).unwrap()];
            let split = scopes.map(|scope| Layout::split_over(0, scope));
            let layouts: Vec<_> = [Layout::Replicated, Layout::PerWorker].into_iter().chain(split).collect();
            let tensors: Vec<_> = tensors.into_iter().map(|(layout, bytes)| (layouts[layout].clone(), bytes)).collect();
            let written = |worker| {
                let own = |(layout, bytes): &(Layout, Vec<u64>)| (layout.clone(), bytes[layout.rank(&world, worker)]);
                written_by(worker, &world, &tensors.iter().map(own).collect::<Vec<_>>())
            };
            let writers: Vec<_> = world.workers().map(|worker| (worker, written(worker))).collect();
            for (index, (layout, _)) in tensors.iter().enumerate() {
                let mut parts: Vec<_> = writers
                    .iter()
                    .filter(|(_, writes)| writes[index])
                    .map(|(worker, _)| layout.rank(&world, *worker))
                    .collect();
                parts.sort_unstable();
                prop_assert_eq!(parts, (0..layout.ranks(&world)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn replicated_tensors_are_spread_by_their_size() {
        let world = World::new(3, 1).unwrap();
        let sizes = [10, 60, 20, 30, 25];
        let tensors: Vec<_> = sizes.iter().map(|bytes| (Layout::Replicated, *bytes)).collect();
        let bytes = |worker| {
            let writes = written_by(WorkerId::new(worker), &world, &tensors);
            writes.iter().zip(sizes).filter(|(writes, _)| **writes).map(|(_, bytes)| bytes).sum::<u64>()
        };
        assert_eq!([0, 1, 2].map(bytes), [60, 40, 45]);
    }
}
