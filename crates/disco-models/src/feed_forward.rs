//! The feed-forward network of one rank.

use std::ops::Range;

use candle_core::{Module as _, Tensor};
use disco_candle::{Comm, Matrix, even_ranges};

use crate::config;
use crate::experts::Mixture;
use crate::names::Role;
use crate::norm::Norm;
use crate::parts::Parts;
use crate::ranks::Join;
use crate::units::Units;
use crate::{Config, ExpertSplit, Experts, ModelError};

/// A rank's part of the feed-forward network of a layer.
#[derive(Debug)]
pub(crate) struct FeedForward {
    kind: Kind,
    bias: Option<Tensor>,
    join: Join,
}

#[derive(Debug)]
enum Kind {
    Dense(Units),
    Experts(Mixture),
    Shared {
        units: Units,
        experts: Box<Mixture>,
        /// The matrix of the gate of the shared units.
        gate: Option<Matrix>,
    },
    Both {
        dense: Units,
        experts: Box<Mixture>,
        /// Behind the network, before the experts, behind them, and before the router.
        norms: [Norm; 4],
    },
}

impl FeedForward {
    pub(crate) fn load(parts: &Parts<'_>, layer: usize, comm: &Comm) -> Result<Self, ModelError> {
        let mixture =
            |experts: &Experts| Mixture::load(parts, *experts, layer, own_experts(parts.config, experts, comm), comm);
        let (kind, has_bias) = match &parts.config.layers[layer].feed_forward {
            config::FeedForward::Experts(experts) => (Kind::Experts(mixture(experts)?), false),
            config::FeedForward::Dense(dense) => (Kind::Dense(Units::load(parts, dense, layer, comm)?), dense.bias),
            config::FeedForward::Shared { dense, experts, is_gated } => {
                let units = Units::load(parts, dense, layer, comm)?;
                let gate = is_gated.then(|| {
                    // GGUF files may have a vector.
                    let gate = parts.tensor(&parts.names.layer(layer, Role::SharedGating))?;
                    Ok::<_, ModelError>(Matrix::inference(gate.reshape((1, parts.config.dim))?)?)
                });
                (Kind::Shared { units, experts: Box::new(mixture(experts)?), gate: gate.transpose()? }, false)
            }
            config::FeedForward::Both(dense, experts) => {
                let norm = |role| parts.norm(&parts.names.layer(layer, role));
                let norms = [norm(Role::DensePostNorm)?, norm(Role::ExpertsNorm)?, norm(Role::ExpertsPostNorm)?];
                let [behind, before, last] = norms;
                let kind = Kind::Both {
                    dense: Units::load(parts, dense, layer, comm)?,
                    experts: Box::new(mixture(experts)?),
                    norms: [behind, before, last, parts.plain_norm(parts.config.dim)?],
                };
                (kind, dense.bias)
            }
        };
        let bias = has_bias.then(|| parts.bias(layer, Role::Down)).transpose()?;
        Ok(Self { kind, bias, join: parts.join(comm) })
    }

    /// The output of all ranks' hidden units: `[.., dim]` to `[.., dim]`. `state` is the hidden state whose norm `x` is.
    pub(crate) fn forward(&self, x: &Tensor, state: &Tensor) -> candle_core::Result<Tensor> {
        match &self.kind {
            Kind::Dense(units) => self.joined(units.forward(x)?),
            Kind::Experts(experts) => self.joined(experts.forward(x, x)?),
            Kind::Shared { units, experts, gate } => {
                let shared = units.forward(x)?;
                let shared = gate.iter().try_fold(shared, |shared, gate| {
                    shared.broadcast_mul(&candle_nn::ops::sigmoid(&gate.forward(x)?)?)
                })?;
                self.joined((shared + experts.forward(x, x)?)?)
            }
            Kind::Both { dense, experts, norms: [behind, before, last, plain] } => {
                let y = behind.forward(&self.joined(dense.forward(x)?)?)?;
                let of_experts = experts.forward(&before.forward(state)?, &plain.forward(state)?)?;
                y + last.forward(&self.join.forward(of_experts)?)?
            }
        }
    }

    /// The output of all ranks, and the bias.
    fn joined(&self, own: Tensor) -> candle_core::Result<Tensor> {
        let y = self.join.forward(own)?;
        self.bias.iter().try_fold(y, |y, bias| y.broadcast_add(bias))
    }
}

/// The experts of which this rank has hidden units.
fn own_experts(config: &Config, experts: &Experts, comm: &Comm) -> Range<usize> {
    match config.expert_split {
        ExpertSplit::Within => 0..experts.count,
        ExpertSplit::Over => even_ranges(experts.count, comm.size()).nth(comm.rank()).unwrap_or(0..0),
    }
}
