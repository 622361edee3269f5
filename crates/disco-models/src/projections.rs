//! The tensors of queries, keys and values.

use crate::Projections;
use crate::names::Role;

impl Projections {
    /// The matrices of queries, keys and values.
    pub(crate) fn roles(self) -> &'static [Role] {
        match self {
            Self::Apart => &[Role::Query, Role::Key, Role::Value],
            Self::Fused => &[Role::Qkv],
            Self::KeysAreValues => &[Role::Query, Role::Key],
            Self::Shared { .. } => &[Role::Query],
        }
    }
}
