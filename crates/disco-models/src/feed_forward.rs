//! The feed-forward network of one rank.

use std::ops::Range;

use candle_core::Tensor;
use disco_candle::{Comm, even_ranges};
use disco_core::Reduction;

use crate::config;
use crate::experts::Mixture;
use crate::names::Role;
use crate::parts::Parts;
use crate::units::Units;
use crate::{Config, ExpertSplit, Experts, ModelError};

/// A rank's part of the feed-forward network of a layer.
#[derive(Debug)]
pub(crate) struct FeedForward {
    kind: Kind,
    bias: Option<Tensor>,
    comm: Comm,
}

#[derive(Debug)]
enum Kind {
    Dense(Units),
    Experts(Mixture),
}

impl FeedForward {
    pub(crate) fn load(parts: &Parts<'_>, layer: usize, comm: &Comm) -> Result<Self, ModelError> {
        let (kind, has_bias) = match &parts.config.layers[layer].feed_forward {
            config::FeedForward::Experts(experts) => {
                let own = own_experts(parts.config, experts, comm);
                (Kind::Experts(Mixture::load(parts, *experts, layer, own, comm)?), false)
            }
            config::FeedForward::Dense(dense) => (Kind::Dense(Units::load(parts, dense, layer)?), dense.bias),
        };
        let bias = has_bias.then(|| parts.bias(layer, Role::Down)).transpose()?;
        Ok(Self { kind, bias, comm: comm.clone() })
    }

    /// The output of all ranks' hidden units: `[.., dim]` to `[.., dim]`.
    pub(crate) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let own = match &self.kind {
            Kind::Dense(units) => units.forward(x),
            Kind::Experts(experts) => experts.forward(x),
        }?;
        self.comm.all_reduce_in_place(&own, Reduction::Sum)?;
        self.bias.iter().try_fold(own, |y, bias| y.broadcast_add(bias))
    }
}

/// The experts of which this rank has hidden units.
fn own_experts(config: &Config, experts: &Experts, comm: &Comm) -> Range<usize> {
    match config.expert_split {
        ExpertSplit::Within => 0..experts.count,
        ExpertSplit::Over => even_ranges(experts.count, comm.size()).nth(comm.rank()).unwrap_or(0..0),
    }
}
