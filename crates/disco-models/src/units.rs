//! The hidden units that a rank has of one feed-forward network or of one expert.

use candle_core::{Module as _, Result, Tensor};
use disco_candle::{Matrix, gelu, sigmoid, silu, silu_gated};

use crate::names::Role;
use crate::parts::{Parts, Stack};
use crate::{Activation, Dense, Inputs, ModelError};

/// Hidden units.
#[derive(Debug)]
pub(crate) struct Units {
    /// Gate and up, or up only.
    inputs: Stack,
    is_gated: bool,
    activation: Activation,
}

impl Units {
    /// This rank's `units` units of a network without experts.
    pub(crate) fn load(
        parts: &Parts<'_>,
        dense: &Dense,
        layer: usize,
        units: usize,
    ) -> std::result::Result<Self, ModelError> {
        let [gate, up, _] = parts.config.layers[layer].feed_forward.dense_roles();
        let inputs = match dense.inputs {
            Inputs::Gated => parts.stack(layer, &[gate, up], dense.bias),
            Inputs::Fused => parts.fused(layer, Role::GateUp, vec![units, units], dense.bias),
            Inputs::Plain => parts.fused(layer, up, vec![units], dense.bias),
        };
        Ok(Self { inputs: inputs?, is_gated: dense.inputs != Inputs::Plain, activation: dense.activation })
    }

    /// Gated units.
    pub(crate) fn new(gate_and_up: Stack, activation: Activation) -> Self {
        Self { inputs: gate_and_up, is_gated: true, activation }
    }

    /// `[.., dim]` to `[.., own units]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.inputs.forward(x)?;
        let active = || activated(&y.at(0)?, self.activation);
        match (self.is_gated, self.activation) {
            (false, _) => active(),
            (true, Activation::Silu) => silu_gated(&y.at(0)?, &y.at(1)?),
            (true, Activation::ClampedSwiglu { limit }) => active()? * (y.at(1)?.clamp(-limit, limit)? + 1.0)?,
            (true, _) => active()? * y.at(1)?,
        }
    }
}

/// An expert, or a part of one.
#[derive(Debug)]
pub(crate) struct Expert {
    pub(crate) units: Units,
    pub(crate) down: Matrix,
    /// Of the output; only where no other rank adds it, too.
    pub(crate) bias: Option<Tensor>,
}

impl Expert {
    /// The output of hidden units.
    pub(crate) fn output(&self, hidden: &Tensor) -> Result<Tensor> {
        let y = self.down.forward(hidden)?;
        self.bias.iter().try_fold(y, |y, bias| y.broadcast_add(bias))
    }
}

/// The activation of a gate, or of units without gates.
pub(crate) fn activated(x: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Silu => silu(x),
        Activation::GeluTanh => gelu(x),
        Activation::Relu => x.relu(),
        Activation::ClampedSwiglu { limit } => {
            let gate = x.minimum(limit)?;
            gate.clone() * sigmoid(&(gate * 1.702)?)?
        }
    }
}
