//! Scopes: the workers that take part in a collective, or that a tensor is split over.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::{Rank, WorkerId};
use crate::mesh::Mesh;
use crate::world::World;

/// The sets of workers of a collective, or the sets that a tensor is split over. Each worker is in one set, and all sets
/// have the same size. Rank 0, as a root, is the first worker of each set.
///
/// As text, and in JSON: `world`, `group`, or axes and their mesh, `tp of dp=2,tp=4`.
///
/// ```
/// use disco_core::{Mesh, Scope, WorkerId, World};
///
/// // Six workers in two groups; the mesh has two rows of three workers.
/// let (world, mesh) = (World::new(6, 2)?, Mesh::new([("dp", 2), ("tp", 3)])?);
/// let peers = |scope: Scope| scope.members(&world, WorkerId::new(4));
/// assert_eq!(peers(Scope::World), [0, 1, 2, 3, 4, 5].map(WorkerId::new));
/// assert_eq!(peers(Scope::Group), [3, 4, 5].map(WorkerId::new));
/// assert_eq!(peers(mesh.along(&["dp"])?), [1, 4].map(WorkerId::new));
/// # Ok::<(), disco_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum Scope {
    /// One set of all workers; the rank is the worker's id.
    World,
    /// Each group separately; the rank is the position in the group.
    Group,
    /// Each line of a mesh separately: [`Mesh::along`].
    Along(Axes),
}

/// Some axes of a [`Mesh`]. A *line* is a set of workers that differ along these axes only; ranks count along them in
/// row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes {
    mesh: Mesh,
    /// Positions of the axes in the mesh, the one that varies slowest first.
    positions: Arc<[usize]>,
}

impl Mesh {
    /// The scope of the workers that differ along these axes only. The last of them varies fastest, so `["dp", "tp"]` and
    /// `["tp", "dp"]` have the same sets and different ranks.
    ///
    /// ```
    /// use disco_core::{Mesh, WorkerId, World};
    ///
    /// let mesh = Mesh::new([("dp", 2), ("pp", 2), ("tp", 2)])?;
    /// let (world, worker) = (World::new(8, 1)?, WorkerId::new(5));
    /// assert_eq!(mesh.along(&["tp"])?.members(&world, worker), [4, 5].map(WorkerId::new));
    /// assert_eq!(mesh.along(&["dp"])?.members(&world, worker), [1, 5].map(WorkerId::new));
    /// assert_eq!(mesh.along(&["dp", "tp"])?.members(&world, worker), [0, 1, 4, 5].map(WorkerId::new));
    /// # Ok::<(), disco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no axis, an unknown one, or a repeated one.
    pub fn along(&self, axes: &[&str]) -> Result<Scope> {
        let refuse = |why: &str| Error::invalid(format!("axes {axes:?} of mesh `{self}`: {why}"));
        let positions = axes.iter().map(|axis| self.position(axis)).collect::<Result<Vec<_>>>()?;
        if positions.is_empty() {
            return Err(refuse("a scope needs at least one axis"));
        }
        if positions.iter().enumerate().any(|(index, axis)| positions[..index].contains(axis)) {
            return Err(refuse("an axis is repeated"));
        }
        Ok(Scope::Along(Axes { mesh: self.clone(), positions: positions.into() }))
    }
}

impl Scope {
    /// Checks that a mesh has as many places as `world` has workers. The other methods suppose that.
    ///
    /// # Errors
    /// As [`Mesh::check`].
    pub fn check(&self, world: &World) -> Result<()> {
        match self {
            Self::World | Self::Group => Ok(()),
            Self::Along(axes) => axes.mesh.check(world.size()),
        }
    }

    /// Number of workers of each set.
    pub fn ranks(&self, world: &World) -> usize {
        match self {
            Self::World => world.size(),
            Self::Group => world.group_size(),
            Self::Along(axes) => axes.positions.iter().map(|axis| axes.mesh.extent(*axis)).product(),
        }
    }

    /// The rank of a worker in its set.
    pub fn rank(&self, world: &World, worker: WorkerId) -> Rank {
        let rank = match self {
            Self::World => worker.index(),
            Self::Group => worker.index() % world.group_size(),
            Self::Along(axes) => axes.mesh.flat(&axes.positions, worker),
        };
        Rank::new(rank as u32)
    }

    /// The number of a worker's set among the sets, from 0: the group, or the place along the other axes of the mesh.
    pub fn set(&self, world: &World, worker: WorkerId) -> usize {
        match self {
            Self::World => 0,
            Self::Group => world.group_of(worker).index(),
            Self::Along(axes) => {
                let others = (0..axes.mesh.dims()).filter(|axis| !axes.positions.contains(axis));
                axes.mesh.flat(&others.collect::<Vec<_>>(), worker)
            }
        }
    }

    /// The workers of a worker's set, by rank.
    pub fn members(&self, world: &World, worker: WorkerId) -> Vec<WorkerId> {
        let set = self.set(world, worker);
        let mut members: Vec<_> = world.workers().filter(|other| self.set(world, *other) == set).collect();
        members.sort_by_key(|member| self.rank(world, *member));
        members
    }
}

impl Mesh {
    /// The place of a worker along some axes, in row-major order.
    fn flat(&self, axes: &[usize], worker: WorkerId) -> usize {
        axes.iter().fold(0, |place, axis| place * self.extent(*axis) + self.coordinate_at(*axis, worker))
    }
}

/// [`Scope::Group`] for true and [`Scope::World`] for false: the flag `in_group` of TVM's functions.
impl From<bool> for Scope {
    fn from(in_group: bool) -> Self {
        if in_group { Self::Group } else { Self::World }
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.positions.iter().map(|axis| self.mesh.name(*axis)).collect();
        write!(f, "{} of {}", names.join(","), self.mesh)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::World => f.write_str("world"),
            Self::Group => f.write_str("group"),
            Self::Along(axes) => axes.fmt(f),
        }
    }
}

impl FromStr for Scope {
    type Err = Error;

    #[allow(clippy::disallowed_methods, reason = "a user's text, and the form in which a scope is an argument")]
    fn from_str(text: &str) -> Result<Self> {
        match (text, text.split_once(" of ")) {
            ("world", _) => Ok(Self::World),
            ("group", _) => Ok(Self::Group),
            (_, Some((axes, mesh))) => mesh.parse::<Mesh>()?.along(&axes.split(',').collect::<Vec<_>>()),
            _ => Err(Error::invalid(format!(
                "`{text}` is no scope, which is `world`, `group`, or axes of a mesh such as `tp of dp=2,tp=4`"
            ))),
        }
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

impl TryFrom<String> for Scope {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_worker_is_in_one_set_at_its_rank(
            sizes in proptest::collection::vec(1usize..4, 1..5),
            order in Just([0, 1, 2, 3]).prop_shuffle(),
            count in 1usize..5,
        ) {
            let names: Vec<_> = (0..sizes.len()).map(|axis| format!("a{axis}")).collect();
            let mesh = Mesh::new(names.iter().cloned().zip(sizes.iter().copied())).unwrap();
            let mut chosen: Vec<usize> = order.into_iter().filter(|axis| *axis < sizes.len()).collect();
            chosen.truncate(count);
            let axes: Vec<_> = chosen.iter().map(|axis| names[*axis].as_str()).collect();
            let (scope, world) = (mesh.along(&axes).unwrap(), World::new(mesh.size(), 1).unwrap());
            prop_assert_eq!(&scope.to_string().parse::<Scope>().unwrap(), &scope);
            let mut seen = vec![0; mesh.size()];
            for worker in world.workers() {
                let members = scope.members(&world, worker);
                prop_assert_eq!(members.len(), scope.ranks(&world));
                prop_assert_eq!(members[scope.rank(&world, worker).index()], worker);
                // A member differs along the axes of the scope only, and the members are sorted by these coordinates.
                let place = |worker: &WorkerId| mesh.coordinates(*worker).unwrap();
                let own = |worker: &WorkerId| chosen.iter().map(|axis| place(worker)[*axis]).collect::<Vec<_>>();
                prop_assert!(members.windows(2).all(|pair| own(&pair[0]) < own(&pair[1])));
                for member in &members {
                    prop_assert_eq!(scope.set(&world, *member), scope.set(&world, worker));
                    let mut others = (0..sizes.len()).filter(|axis| !chosen.contains(axis));
                    prop_assert!(others.all(|axis| place(member)[axis] == place(&worker)[axis]));
                    seen[member.index()] += 1;
                }
            }
            prop_assert!(seen.iter().all(|count| *count == scope.ranks(&world)));
        }
    }

    #[test]
    fn the_last_axis_of_a_mesh_has_the_sets_and_ranks_of_groups() {
        let world = World::new(12, 4).unwrap();
        let scope = Mesh::new([("dp", 4), ("tp", 3)]).unwrap().along(&["tp"]).unwrap();
        for worker in world.workers() {
            assert_eq!(scope.rank(&world, worker), Scope::Group.rank(&world, worker));
            assert_eq!(scope.set(&world, worker), Scope::Group.set(&world, worker));
            assert_eq!(scope.members(&world, worker), Scope::Group.members(&world, worker));
        }
    }

    #[test]
    fn invalid_scopes_are_refused_with_the_reason() {
        let mesh = Mesh::new([("dp", 2), ("tp", 4)]).unwrap();
        let refused = |axes: &[&str]| mesh.along(axes).unwrap_err().to_string();
        assert_eq!(refused(&[]), "axes [] of mesh `dp=2,tp=4`: a scope needs at least one axis");
        assert_eq!(refused(&["tp", "tp"]), r#"axes ["tp", "tp"] of mesh `dp=2,tp=4`: an axis is repeated"#);
        assert_eq!(refused(&["ep"]), "mesh `dp=2,tp=4` has no axis `ep`");
        let unread = |text: &str| text.parse::<Scope>().unwrap_err().to_string();
        assert_eq!(
            unread("tp"),
            "`tp` is no scope, which is `world`, `group`, or axes of a mesh such as `tp of dp=2,tp=4`"
        );
        assert_eq!(unread("tp of 4"), "`4` is no mesh, which is names and sizes such as `dp=2,tp=4`");
    }
}
