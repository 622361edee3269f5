//! Layouts of tensors over the workers.

use std::fmt;

use disco_core::{DRef, Scope, WorkerId, World};
use serde::{Deserialize, Serialize};

/// The relation between a worker's tensor and the tensor that a checkpoint stores.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All workers have the same elements. One worker writes them.
    Replicated,
    /// Rank `i` of the scope has part `i` along dimension `dim`. With [`Scope::Group`] all groups have the same parts.
    Split {
        /// The dimension, from 0.
        dim: usize,
        /// The workers that the tensor is split over.
        scope: Scope,
    },
    /// Each worker has its own tensor, of any dtype and shape, or none. Only as many workers can load it.
    PerWorker,
}

impl Layout {
    /// Worker `i` has part `i` along dimension `dim`.
    pub const fn split(dim: usize) -> Self {
        Self::Split { dim, scope: Scope::World }
    }

    /// Worker `i` of each group has part `i` along dimension `dim`.
    pub const fn split_in_group(dim: usize) -> Self {
        Self::Split { dim, scope: Scope::Group }
    }

    /// The number of different parts in a world.
    pub(crate) fn ranks(self, world: &World) -> usize {
        match self {
            Self::Replicated => 1,
            Self::Split { scope: Scope::Group, .. } => world.group_size(),
            _ => world.size(),
        }
    }

    /// The part that a worker has.
    pub(crate) fn rank(self, world: &World, worker: WorkerId) -> usize {
        worker.index() % self.ranks(world)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicated => f.write_str("replicated"),
            Self::Split { dim, scope: Scope::Group } => write!(f, "split along dimension {dim} in each group"),
            Self::Split { dim, .. } => write!(f, "split along dimension {dim}"),
            Self::PerWorker => f.write_str("different on each worker"),
        }
    }
}

/// A layout in the index.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Stored {
    Replicated,
    Split { dim: usize, over: Over },
    PerWorker,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Over {
    World,
    Group,
}

impl Serialize for Layout {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let stored = match *self {
            Self::Replicated => Stored::Replicated,
            Self::Split { dim, scope: Scope::Group } => Stored::Split { dim, over: Over::Group },
            Self::Split { dim, .. } => Stored::Split { dim, over: Over::World },
            Self::PerWorker => Stored::PerWorker,
        };
        stored.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Layout {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Stored::deserialize(deserializer)? {
            Stored::Replicated => Self::Replicated,
            Stored::Split { dim, over: Over::World } => Self::split(dim),
            Stored::Split { dim, over: Over::Group } => Self::split_in_group(dim),
            Stored::PerWorker => Self::PerWorker,
        })
    }
}

/// A tensor to save: its name in the checkpoint, its handle, its layout. Pairs without a layout are
/// [`Layout::Replicated`].
#[derive(Clone, Debug)]
pub struct Entry {
    pub(crate) name: String,
    pub(crate) handle: DRef,
    pub(crate) layout: Layout,
}

impl Entry {
    /// A tensor and its layout.
    pub fn new(name: impl Into<String>, handle: &DRef, layout: Layout) -> Self {
        Self { name: name.into(), handle: handle.clone(), layout }
    }
}

impl<N: Into<String>> From<(N, &DRef)> for Entry {
    fn from((name, handle): (N, &DRef)) -> Self {
        Self::new(name, handle, Layout::Replicated)
    }
}

impl<N: Into<String>> From<(N, &DRef, Layout)> for Entry {
    fn from((name, handle, layout): (N, &DRef, Layout)) -> Self {
        Self::new(name, handle, layout)
    }
}

/// A tensor to load: its name, and its layout if that differs from the saved layout.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) name: String,
    pub(crate) layout: Option<Layout>,
}

impl From<&str> for Request {
    fn from(name: &str) -> Self {
        Self { name: name.into(), layout: None }
    }
}

impl From<String> for Request {
    fn from(name: String) -> Self {
        Self { name, layout: None }
    }
}

impl<N: Into<String>> From<(N, Layout)> for Request {
    fn from((name, layout): (N, Layout)) -> Self {
        Self { name: name.into(), layout: Some(layout) }
    }
}
