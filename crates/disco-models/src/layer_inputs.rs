//! Inputs of layers beside the hidden state: a second table of embeddings, with a part for each layer.

use candle_core::{Module as _, Result, Tensor};
use disco_candle::{Comm, Matrix, VocabParallelEmbedding, even_ranges};

use crate::names::Role;
use crate::norm::Norm;
use crate::parts::Parts;
use crate::units::activated;
use crate::{Activation, LayerInputs, ModelError};

/// The table, of which each rank has the rows of some tokens, and the part of the inputs that depends on the embeddings.
#[derive(Debug)]
pub(crate) struct InputTable {
    table: VocabParallelEmbedding,
    projection: Matrix,
    norm: Norm,
    layers: usize,
    width: usize,
    dim: usize,
}

impl InputTable {
    pub(crate) fn load(
        parts: &Parts<'_>,
        LayerInputs { rows, width, .. }: LayerInputs,
        comm: &Comm,
    ) -> std::result::Result<Self, ModelError> {
        let [table, projection, norm] = parts.names.layer_inputs();
        let own = even_ranges(rows, comm.size()).nth(comm.rank()).unwrap_or(0..0);
        Ok(Self {
            table: VocabParallelEmbedding::new(parts.table(&table)?, own, comm.clone())?,
            projection: parts.matrix(&projection)?,
            norm: parts.norm(&norm)?,
            layers: parts.config.layers.len(),
            width,
            dim: parts.config.dim,
        })
    }

    /// The inputs of all layers, `[1, tokens, layers, width]`, for tokens `[1, tokens]` and their embeddings.
    pub(crate) fn forward(&self, tokens: &Tensor, embedded: &Tensor) -> Result<Tensor> {
        let (one, count) = tokens.dims2()?;
        let of_layers = |x: Tensor| x.reshape((one, count, self.layers, self.width));
        let known = (of_layers(self.table.forward(tokens)?.to_dtype(embedded.dtype())?)? * (self.width as f64).sqrt())?;
        let projected = (of_layers(self.projection.forward(embedded)?)? * (self.dim as f64).powf(-0.5))?;
        (self.norm.forward(&projected.contiguous()?)? + known)? * 0.5f64.sqrt()
    }
}

/// The matrices of one layer for its input, whole on each rank.
#[derive(Debug)]
pub(crate) struct LayerInput {
    gate: Matrix,
    projection: Matrix,
    norm: Norm,
    activation: Activation,
    layer: usize,
}

impl LayerInput {
    pub(crate) fn load(
        parts: &Parts<'_>,
        activation: Activation,
        layer: usize,
    ) -> std::result::Result<Self, ModelError> {
        Ok(Self {
            gate: parts.layer_matrix(layer, Role::InputGate)?,
            projection: parts.layer_matrix(layer, Role::InputProjection)?,
            norm: parts.norm(&parts.names.layer(layer, Role::InputNorm))?,
            activation,
            layer,
        })
    }

    /// The layer's input, gated by the hidden states `x`, for their sum.
    pub(crate) fn forward(&self, x: &Tensor, inputs: &Tensor) -> Result<Tensor> {
        let own = inputs.narrow(2, self.layer, 1)?.squeeze(2)?;
        let y = (activated(&self.gate.forward(x)?, self.activation)? * own)?;
        self.norm.forward(&self.projection.forward(&y)?)
    }
}
