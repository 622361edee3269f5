//! The hidden units that a rank has of one feed-forward network or of one expert.

use candle_core::{Module as _, Result, Tensor};
use candle_nn::ops;
use disco_candle::{Comm, Matrix, silu_gated};

use crate::names::Role;
use crate::parts::{Parts, Stack};
use crate::ranks::Gather;
use crate::{Activation, Dense, Inputs, ModelError};

/// Hidden units, and the columns of the matrix that sums them.
#[derive(Debug)]
pub(crate) struct Units {
    /// Gate and up, or up only.
    inputs: Stack,
    is_gated: bool,
    /// Of hidden units, on hosts; that of experts is the mixture's.
    gather: Option<Gather>,
    down: Matrix,
    /// Of the output; only where no other rank adds it, too.
    bias: Option<Tensor>,
    activation: Activation,
}

impl Units {
    pub(crate) fn load(
        parts: &Parts<'_>,
        dense: &Dense,
        layer: usize,
        comm: &Comm,
    ) -> std::result::Result<Self, ModelError> {
        let [gate, up, down] = parts.config.layers[layer].feed_forward.dense_roles();
        let down = parts.layer_matrix(layer, down)?;
        let gather = parts.is_host().then(|| Gather::of_rows(dense.ffn, comm));
        let units = gather.as_ref().map_or_else(|| down.inputs(), |gather| Ok(gather.own().len()))?;
        let inputs = match dense.inputs {
            Inputs::Gated => parts.stack(layer, &[gate, up], dense.bias),
            Inputs::Fused => parts.fused(layer, Role::GateUp, vec![units, units], dense.bias),
            Inputs::Plain => parts.fused(layer, up, vec![units], dense.bias),
        };
        let is_gated = dense.inputs != Inputs::Plain;
        Ok(Self { inputs: inputs?, is_gated, gather, down, bias: None, activation: dense.activation })
    }

    /// Gated units.
    pub(crate) fn new(gate_and_up: Stack, down: Matrix, activation: Activation) -> Self {
        Self { inputs: gate_and_up, is_gated: true, gather: None, down, bias: None, activation }
    }

    /// Adds a bias to the output.
    pub(crate) fn with_bias(self, bias: Option<Tensor>) -> Self {
        Self { bias, ..self }
    }

    /// This rank's part of the output, `[.., dim]` to `[.., own outputs]`, or its summand.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.hidden(x)?;
        self.output(&self.gather.iter().try_fold(hidden, |hidden, gather| gather.forward(hidden))?)
    }

    /// The hidden units of this rank: `[.., dim]` to `[.., own units]`.
    pub(crate) fn hidden(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.inputs.forward(x)?;
        let active = || activated(&y.at(0)?, self.activation);
        match (self.is_gated, self.activation) {
            (false, _) => active(),
            (true, Activation::Silu) => silu_gated(&y.at(0)?, &y.at(1)?),
            (true, Activation::ClampedSwiglu { limit }) => active()? * (y.at(1)?.clamp(-limit, limit)? + 1.0)?,
            (true, _) => active()? * y.at(1)?,
        }
    }

    /// What the matrix `down` and the bias make of hidden units.
    pub(crate) fn output(&self, hidden: &Tensor) -> Result<Tensor> {
        let y = self.down.forward(hidden)?;
        self.bias.iter().try_fold(y, |y, bias| y.broadcast_add(bias))
    }
}

/// The activation of a gate, or of units without gates.
pub(crate) fn activated(x: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Silu => x.silu(),
        Activation::GeluTanh => x.gelu(),
        Activation::Relu => x.relu(),
        Activation::ClampedSwiglu { limit } => {
            let gate = x.minimum(limit)?;
            gate.clone() * ops::sigmoid(&(gate * 1.702)?)?
        }
    }
}
