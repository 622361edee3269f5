//! The feed-forward network of one rank.

use std::ops::Range;

use candle_core::{Module as _, Tensor};
use disco_candle::{Comm, Matrix, even_ranges, sigmoid};

use crate::config;
use crate::experts::Mixture;
use crate::names::Role;
use crate::norm::Norm;
use crate::parts::Parts;
use crate::ranks::{Join, Last, Output};
use crate::units::Units;
use crate::{Config, Dense, ExpertSplit, Experts, ModelError};

/// A rank's part of the feed-forward network of a layer.
#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Units, Output),
    Experts(Mixture, Join),
    Shared {
        units: Units,
        last: Last,
        experts: Box<Mixture>,
        /// The matrix of the gate of the shared units.
        gate: Option<Matrix>,
        join: Join,
    },
    Both {
        units: Units,
        output: Output,
        experts: Box<Mixture>,
        join: Join,
        /// Behind the network, before the experts, behind them, and before the router.
        norms: [Norm; 4],
    },
}

impl FeedForward {
    pub(crate) fn load(parts: &Parts<'_>, layer: usize, comm: &Comm) -> Result<Self, ModelError> {
        let mixture =
            |experts: &Experts| Mixture::load(parts, *experts, layer, own_experts(parts.config, experts, comm), comm);
        let [_, _, down] = parts.config.layers[layer].feed_forward.dense_roles();
        let units = |dense: &Dense, all: &[Range<usize>]| Units::load(parts, dense, layer, all[comm.rank()].len());
        Ok(match &parts.config.layers[layer].feed_forward {
            config::FeedForward::Experts(experts) => Self::Experts(mixture(experts)?, parts.join(comm)),
            config::FeedForward::Dense(dense) => {
                let all = parts.units(layer, dense, comm.size())?;
                Self::Dense(units(dense, &all)?, parts.output((layer, down, dense.bias), (&all, 1), comm)?)
            }
            config::FeedForward::Shared { dense, experts, is_gated } => {
                let gate = is_gated.then(|| {
                    // GGUF files may have a vector.
                    let gate = parts.tensor(&parts.names.layer(layer, Role::SharedGating))?;
                    Ok::<_, ModelError>(Matrix::inference(gate.reshape((1, parts.config.dim))?)?)
                });
                let all = parts.units(layer, dense, comm.size())?;
                Self::Shared {
                    units: units(dense, &all)?,
                    last: parts.last(layer, down, &all, comm)?,
                    experts: Box::new(mixture(experts)?),
                    gate: gate.transpose()?,
                    join: parts.join(comm),
                }
            }
            config::FeedForward::Both(dense, experts) => {
                let norm = |role| parts.norm(&parts.names.layer(layer, role));
                let norms = [norm(Role::DensePostNorm)?, norm(Role::ExpertsNorm)?, norm(Role::ExpertsPostNorm)?];
                let [behind, before, last] = norms;
                let all = parts.units(layer, dense, comm.size())?;
                Self::Both {
                    units: units(dense, &all)?,
                    output: parts.output((layer, down, dense.bias), (&all, 1), comm)?,
                    experts: Box::new(mixture(experts)?),
                    join: parts.join(comm),
                    norms: [behind, before, last, parts.plain_norm(parts.config.dim)?],
                }
            }
        })
    }

    /// The output of all ranks' hidden units: `[.., dim]` to `[.., dim]`. `state` is the hidden state whose norm `x` is.
    pub(crate) fn forward(&self, x: &Tensor, state: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Dense(units, output) => output.forward(units.forward(x)?),
            Self::Experts(experts, join) => join.forward(experts.forward(x, x)?),
            Self::Shared { units, last, experts, gate, join } => {
                let shared = last.part(units.forward(x)?)?;
                let shared =
                    gate.iter().try_fold(shared, |shared, gate| shared.broadcast_mul(&sigmoid(&gate.forward(x)?)?))?;
                join.forward((shared + experts.forward(x, x)?)?)
            }
            Self::Both { units, output, experts, join, norms: [behind, before, last, plain] } => {
                let y = behind.forward(&output.forward(units.forward(x)?)?)?;
                let of_experts = experts.forward(&before.forward(state)?, &plain.forward(state)?)?;
                y + last.forward(&join.forward(of_experts)?)?
            }
        }
    }
}

/// The experts of which this rank has hidden units.
fn own_experts(config: &Config, experts: &Experts, comm: &Comm) -> Range<usize> {
    match config.expert_split {
        ExpertSplit::Within => 0..experts.count,
        ExpertSplit::Over => even_ranges(experts.count, comm.size()).nth(comm.rank()).unwrap_or(0..0),
    }
}
