//! Layouts of tensors over the workers.

use std::fmt;

use disco_core::{DRef, Scope, WorkerId, World};
use serde::{Deserialize, Serialize};

/// The relation between a worker's tensor and the tensor that a checkpoint stores.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Layout {
    /// All workers have the same elements. One worker writes them.
    Replicated,
    /// Rank `i` of the scope has part `i` along dimension `dim`. All sets of the scope have the same parts: all groups, or
    /// all lines along axes of a mesh.
    Split {
        /// The dimension, from 0.
        dim: usize,
        /// The workers that the tensor is split over.
        #[serde(rename = "over")]
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

    /// Rank `i` of a scope, such as [`Scope::Group`] or [`Mesh::along`](disco_core::Mesh::along), has part `i` along
    /// dimension `dim`.
    pub const fn split_over(dim: usize, scope: Scope) -> Self {
        Self::Split { dim, scope }
    }

    /// Checks that a mesh of the layout fits the world. The methods below suppose that.
    pub(crate) fn check(&self, world: &World) -> disco_core::Result<()> {
        match self {
            Self::Split { scope, .. } => scope.check(world),
            Self::Replicated | Self::PerWorker => Ok(()),
        }
    }

    /// The number of different parts in a world.
    pub(crate) fn ranks(&self, world: &World) -> usize {
        match self {
            Self::Replicated => 1,
            Self::Split { scope, .. } => scope.ranks(world),
            Self::PerWorker => world.size(),
        }
    }

    /// The part that a worker has.
    pub(crate) fn rank(&self, world: &World, worker: WorkerId) -> usize {
        match self {
            Self::Replicated => 0,
            Self::Split { scope, .. } => scope.rank(world, worker).index(),
            Self::PerWorker => worker.index(),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicated => f.write_str("replicated"),
            Self::Split { dim, scope: Scope::Group } => write!(f, "split along dimension {dim} in each group"),
            Self::Split { dim, scope: Scope::World } => write!(f, "split along dimension {dim}"),
            Self::Split { dim, scope } => write!(f, "split along dimension {dim} over `{scope}`"),
            Self::PerWorker => f.write_str("different on each worker"),
        }
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::index::Index;

    #[test]
    fn an_index_with_an_impossible_scope_is_damaged() {
        let refused = |over: &str| {
            let layout = format!(r#"{{"split": {{"dim": 0, "over": "{over}"}}}}"#);
            let tensor = format!(r#"{{"layout": {layout}, "parts": []}}"#);
            let world = r#""version": 1, "step": 1, "workers": 2, "groups": 1, "notes": {}, "shards": []"#;
            let index = format!(r#"{{{world}, "tensors": {{"x": {tensor}}}}}"#);
            Index::decode_unsigned(Path::new("index.json"), &index).unwrap_err().to_string()
        };
        assert_eq!(
            refused("tp of dp=2,tp=2"),
            "`index.json` is damaged: tensor `x` has a layout that does not fit: mesh `dp=2,tp=2` has 4 places, and the \
             session has 2 workers; `dp=1,tp=2` or `dp=2,tp=1` would fit"
        );
        let unread = refused("tp of 4");
        assert!(unread.contains("it is no index: `4` is no mesh"), "{unread}");
        assert_eq!(refused("dp of dp=2"), "`index.json` is damaged: tensor `x` has 0 parts, expected 2");
    }
}
