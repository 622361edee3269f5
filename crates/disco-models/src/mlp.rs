//! The feed-forward network of one rank.

use candle_core::{Module as _, Tensor};
use disco_candle::Comm;
use disco_candle::RowParallelLinear;

use crate::names::Role;
use crate::parts::{Parts, Stack};
use crate::{Activation, ModelError};

/// A rank's hidden units of one feed-forward network.
#[derive(Debug)]
pub(crate) struct Mlp {
    gate_and_up: Stack,
    down: RowParallelLinear,
    activation: Activation,
}

impl Mlp {
    pub(crate) fn load(parts: &Parts<'_>, layer: usize, comm: &Comm) -> Result<Self, ModelError> {
        let matrix = parts.matrix(&parts.names.layer(layer, Role::Down))?;
        let gate_and_up = if parts.features.fused {
            // As many units as the other matrix has columns.
            let units = matrix.inputs()?;
            parts.fused(layer, Role::GateUp, vec![units, units])
        } else {
            parts.stack(layer, &[Role::Gate, Role::Up])
        };
        Ok(Self {
            gate_and_up: gate_and_up?,
            down: RowParallelLinear::new(matrix, parts.bias(layer, Role::Down)?, comm.clone()),
            activation: parts.features.activation,
        })
    }

    /// The output of all ranks' hidden units.
    pub(crate) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = self.gate_and_up.forward(x)?;
        let gate = match self.activation {
            Activation::Silu => y.at(0)?.silu(),
            Activation::GeluTanh => y.at(0)?.gelu(),
        };
        self.down.forward(&(gate? * y.at(1)?)?)
    }
}
