//! The hidden units that a rank has of one feed-forward network or of one expert.

use candle_core::{Module as _, Result, Tensor};
use disco_candle::Matrix;

use crate::names::Role;
use crate::parts::{Parts, Stack};
use crate::{Activation, ModelError};

/// Hidden units, and the columns of the matrix that sums them.
#[derive(Debug)]
pub(crate) struct Units {
    gate_and_up: Stack,
    down: Matrix,
    activation: Activation,
}

impl Units {
    pub(crate) fn load(parts: &Parts<'_>, layer: usize) -> std::result::Result<Self, ModelError> {
        let down = parts.matrix(&parts.names.layer(layer, Role::Down))?;
        let gate_and_up = if parts.features.fused {
            // As many units as the other matrix has columns.
            let units = down.inputs()?;
            parts.fused(layer, Role::GateUp, vec![units, units])
        } else {
            parts.stack(layer, &[Role::Gate, Role::Up])
        };
        Ok(Self::new(gate_and_up?, down, parts.features.activation))
    }

    pub(crate) fn new(gate_and_up: Stack, down: Matrix, activation: Activation) -> Self {
        Self { gate_and_up, down, activation }
    }

    /// The output of these hidden units: `[.., dim]` to `[.., dim]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.gate_and_up.forward(x)?;
        let gate = match self.activation {
            Activation::Silu => y.at(0)?.silu(),
            Activation::GeluTanh => y.at(0)?.gelu(),
        };
        self.down.forward(&(gate? * y.at(1)?)?)
    }
}
