//! The tensors of queries, keys and values.

use crate::names::Role;
use crate::{Attention, Latent, Projections, QkNorm};

/// A matrix of queries, keys or values.
pub(crate) struct Projection {
    pub(crate) role: Role,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    pub(crate) has_bias: bool,
    pub(crate) heads: OfHeads,
}

/// Which heads the outputs of a matrix are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfHeads {
    /// Each query head has so many.
    Query(usize),
    /// Each kv head has so many.
    Kv(usize),
    /// Of query heads, then twice of kv heads.
    Fused,
    /// All ranks need all of them.
    Whole,
}

impl Projections {
    /// The matrices of queries, keys and values with the same input.
    pub(crate) fn roles(self) -> &'static [Role] {
        match self {
            Self::Apart => &[Role::Query, Role::Key, Role::Value],
            Self::Fused => &[Role::Qkv],
            Self::KeysAreValues => &[Role::Query, Role::Key],
            Self::Shared { .. } => &[Role::Query],
            Self::Latent(Latent { query_rank: None, .. }) => &[Role::Query, Role::LatentDown],
            Self::Latent(_) => &[Role::QueryDown, Role::LatentDown],
        }
    }
}

impl Attention {
    /// The matrices of queries, keys and values for hidden states of `dim` elements.
    pub(crate) fn matrices(&self, dim: usize) -> Vec<Projection> {
        let &Self { heads, kv_heads, head_dim, input_bias: has_bias, .. } = self;
        let query_rows = if self.gated { 2 * head_dim } else { head_dim };
        let of_state = |role: &Role| {
            let (outputs, heads) = match (*role, self.projections) {
                (Role::QueryDown, Projections::Latent(latent)) => (latent.query_rank.unwrap_or(0), OfHeads::Whole),
                (Role::LatentDown, Projections::Latent(latent)) => (latent.rank + latent.rotated, OfHeads::Whole),
                (Role::Query, Projections::Latent(latent)) => {
                    (heads * latent.query_dim(), OfHeads::Query(latent.query_dim()))
                }
                (Role::Query, _) => (heads * query_rows, OfHeads::Query(query_rows)),
                (Role::Qkv, _) => ((heads + 2 * kv_heads) * head_dim, OfHeads::Fused),
                _ => (kv_heads * head_dim, OfHeads::Kv(head_dim)),
            };
            // Queries of the whole hidden state have no bias beside a latent vector that has one.
            let has_bias = has_bias && (*role != Role::Query || self.projections.latent().is_none());
            Projection { role: *role, outputs, inputs: dim, has_bias, heads }
        };
        let mut all: Vec<_> = self.projections.roles().iter().map(of_state).collect();
        if let Some(latent) = self.projections.latent() {
            let of_latent = |role, inputs, width| Projection {
                role,
                outputs: heads * width,
                inputs,
                has_bias: false,
                heads: OfHeads::Query(width),
            };
            all.extend(latent.query_rank.map(|rank| of_latent(Role::QueryUp, rank, latent.query_dim())));
            if !latent.apart {
                all.push(of_latent(Role::LatentUp, latent.rank, latent.plain + latent.value));
            }
        }
        all
    }

    /// The stacks of a matrix of each query head, and their shapes.
    pub(crate) fn stacks(&self) -> Vec<(Role, [usize; 3])> {
        let latent = self.projections.latent().filter(|latent| latent.apart);
        latent.map_or_else(Vec::new, |Latent { rank, plain, value, .. }| {
            vec![(Role::LatentKeys, [self.heads, rank, plain]), (Role::LatentValues, [self.heads, value, rank])]
        })
    }

    /// The norms of queries, keys and latent vectors, and their widths.
    pub(crate) fn norms(&self) -> impl Iterator<Item = (Role, usize)> {
        let widths = match self.qk_norm {
            QkNorm::None => None,
            QkNorm::Each => Some([self.head_dim; 2]),
            QkNorm::Joint => Some([self.heads, self.kv_heads].map(|heads| heads * self.head_dim)),
        };
        let of_query = widths.map(|[query, _]| (Role::QueryNorm, query));
        let of_key = widths.filter(|_| self.has_memory()).map(|[_, key]| (Role::KeyNorm, key));
        let latent = self.projections.latent();
        let of_latent_query = latent.and_then(|latent| Some((Role::QueryDownNorm, latent.query_rank?)));
        let of_latent = latent.map(|latent| (Role::LatentNorm, latent.rank));
        [of_query, of_key, of_latent_query, of_latent].into_iter().flatten()
    }

    /// Elements of a head's values.
    pub(crate) fn value_dim(&self) -> usize {
        self.projections.latent().map_or(self.head_dim, |latent| latent.value)
    }
}

impl Latent {
    /// Elements of a head's queries and keys.
    pub(crate) fn query_dim(&self) -> usize {
        self.plain + self.rotated
    }
}
