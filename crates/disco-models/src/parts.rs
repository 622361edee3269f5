//! The parts of a model's tensors that one rank reads.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::quantized::{QStorage, QTensor};
use candle_core::{D, DType, Device, Module as _, Tensor};
use candle_nn::LayerNorm;
use disco_candle::paged::Sinks;
use disco_candle::weights::{Part, Shards, WeightsError};
use disco_candle::{Comm, Matrix, NodesLinear, Numbered, Shelf};
use serde::{Deserialize, Serialize};

use crate::adapter::Adapter;
use crate::names::{Names, Role, bias};
use crate::norm::{Norm, Rms};
use crate::packed::Packed;
use crate::ranks::{Gather, Join, Last, Output, OutputKind};
use crate::scales::{scaled, scales_of};
use crate::{Config, Dense, ModelError, NormKind, Sums};

/// The type of the elements that a model computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub enum Precision {
    /// 32-bit floats; quantised weights are dequantised while they are read, as for the next two.
    #[default]
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit floats with the exponents of 32-bit floats.
    Bf16,
    /// Matrices are as in the file: quantised blocks, or on hosts 16-bit floats; states have 32 bits. Other matrices are dense with 32
    /// bits, and so are those whose rows are not whole blocks, or on devices parts of rows that are not.
    File,
}

impl Precision {
    /// The type of hidden states, and of weights that are not quantised.
    pub fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
            Self::F32 | Self::File => DType::F32,
        }
    }
}

/// Reads the tensors of one rank and counts the memory that they take.
pub(crate) struct Parts<'a> {
    pub(crate) shards: &'a Shards,
    pub(crate) names: Names,
    pub(crate) config: &'a Config,
    pub(crate) precision: Precision,
    /// The shapes of all matrices in whole.
    pub(crate) shapes: HashMap<String, [usize; 2]>,
    pub(crate) adapter: Option<&'a Adapter>,
    /// Where matrices outlive the worker.
    pub(crate) shelf: Option<&'a Shelf>,
    pub(crate) bytes: Cell<usize>,
}

/// Matrices with the same input. Dense matrices are stacked, so that one multiplication computes all outputs.
#[derive(Debug)]
pub(crate) enum Stack {
    Stacked { matrix: Matrix, bias: Option<Tensor>, widths: Vec<usize> },
    Separate(Vec<(Matrix, Option<Tensor>)>),
}

/// The outputs of a [`Stack`].
pub(crate) enum Outputs<'a> {
    Stacked { all: Tensor, widths: &'a [usize] },
    Separate(Vec<Tensor>),
}

impl Parts<'_> {
    /// This rank's part of a tensor.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor, ModelError> {
        let tensor = match self.packed(name) {
            Some(packed) => packed.part(self.shards, name)?,
            None => match scales_of(self.shards.weights(), name)? {
                Some(scales) => scaled(self.shards, name, &scales, self.config.scale_block)?,
                None => self.shards.tensor(name)?,
            },
        };
        let tensor = match (self.adapter, self.shapes.get(name)) {
            (Some(adapter), Some(shape)) if adapter.changes(name) => {
                adapter.merged(self.shards, name, *shape, &tensor)?
            }
            _ => tensor,
        };
        self.count(tensor.elem_count() * tensor.dtype().size_in_bytes());
        Ok(tensor)
    }

    /// This rank's part of a matrix that is no blocks: with [`Precision::File`], the host keeps 16-bit floats of the file.
    fn dense(&self, name: &str) -> Result<Tensor, ModelError> {
        let (before, tensor) = (self.bytes.get(), self.tensor(name)?);
        let is_kept = self.precision == Precision::File
            && self.is_host()
            && self.packed(name).is_none()
            && !self.adapter.is_some_and(|adapter| adapter.changes(name));
        let kept = if is_kept { self.shards.weights().info(name)?.encoding().dense() } else { None };
        let Some(kept) = kept.filter(|kept| matches!(kept, DType::F16 | DType::BF16)) else { return Ok(tensor) };
        self.bytes.set(before + tensor.elem_count() * kept.size_in_bytes());
        Ok(tensor.to_dtype(kept)?)
    }

    /// A whole tensor with 32 bits, whatever the model computes with.
    pub(crate) fn wide(&self, name: &str) -> Result<Tensor, ModelError> {
        let tensor = self.shards.weights().read(name, &Part::Whole, DType::F32, self.shards.device())?;
        self.count(tensor.elem_count() * DType::F32.size_in_bytes());
        Ok(tensor)
    }

    /// A tensor of the host as one of the model: of its type, on its device.
    pub(crate) fn taken(&self, tensor: Tensor) -> Result<Tensor, ModelError> {
        let tensor = tensor.to_dtype(self.precision.dtype())?.to_device(self.shards.device())?;
        self.count(tensor.elem_count() * tensor.dtype().size_in_bytes());
        Ok(tensor)
    }

    /// The matrix, if it is packed in 4 bits.
    fn packed<'b>(&'b self, name: &'b str) -> Option<Packed<'b>> {
        Packed::find(self.config.packing, self.shards.weights(), name, *self.shapes.get(name)?)
    }

    /// The matrices with a key, which `make` makes if they are not on the shelf.
    pub(crate) fn shelved(
        &self,
        key: &str,
        make: impl FnOnce() -> Result<Vec<Matrix>, ModelError>,
    ) -> Result<Vec<Matrix>, ModelError> {
        Ok(self.shelved_with(key, || Ok((make()?, Vec::new())))?.0)
    }

    /// As [`shelved`](Self::shelved), with numbers.
    fn shelved_with(
        &self,
        key: &str,
        make: impl FnOnce() -> Result<Numbered, ModelError>,
    ) -> Result<Numbered, ModelError> {
        let Some(shelf) = self.shelf else { return make() };
        let mut is_made = false;
        let all = shelf.matrices(key, || {
            is_made = true;
            make()
        })?;
        if !is_made {
            self.count(all.0.iter().map(Matrix::bytes).sum());
        }
        Ok(all)
    }

    /// A matrix that `make` makes if it is not on the shelf.
    pub(crate) fn shelved_one(
        &self,
        key: &str,
        make: impl FnOnce() -> Result<Matrix, ModelError>,
    ) -> Result<Matrix, ModelError> {
        let one = self.shelved(key, || Ok(vec![make()?]))?.pop();
        one.ok_or_else(|| ModelError::Call(format!("no matrix {key:?}")))
    }

    /// This rank's part of a matrix.
    pub(crate) fn matrix(&self, name: &str) -> Result<Matrix, ModelError> {
        let matrix = self.part(name, None)?.pop();
        matrix.ok_or_else(|| ModelError::Call(format!("no columns of {name:?}")))
    }

    /// This rank's part of a matrix, or some ranges of its columns.
    fn part(&self, name: &str, some: Option<&[Range<usize>]>) -> Result<Vec<Matrix>, ModelError> {
        self.shelved(&format!("{name} {some:?}"), || self.read_part(name, some))
    }

    fn read_part(&self, name: &str, some: Option<&[Range<usize>]>) -> Result<Vec<Matrix>, ModelError> {
        let blocks = match self.packed(name).filter(|_| self.is_quantized(name).unwrap_or(false)) {
            Some(packed) => packed.blocks(self.shards, name)?.map(|blocks| {
                let all = 0..blocks.shape().dims().last().copied().unwrap_or(0);
                of_columns(&Arc::new(blocks), &within(all, some))
            }),
            None => self.blocks(name, some)?.map(|matrices| Ok(Some(matrices))),
        };
        if let Some(matrices) = blocks.transpose()?.flatten() {
            self.count(matrices.iter().map(Matrix::bytes).sum());
            return Ok(matrices);
        }
        columns_of(&self.dense(name)?, some)
    }

    /// Some ranges of the columns of this rank's part of a matrix of a layer.
    fn columns(&self, layer: usize, role: Role, some: &[Range<usize>]) -> Result<Vec<Matrix>, ModelError> {
        let name = self.names.layer(layer, role);
        if !self.names.is_transposed() {
            return self.part(&name, Some(some));
        }
        self.shelved(&format!("{name} {some:?}"), || columns_of(&self.dense(&name)?.t()?, Some(some)))
    }

    /// This rank's rows of a table of embeddings, of which rows are read, too.
    pub(crate) fn table(&self, name: &str) -> Result<Matrix, ModelError> {
        if self.is_host() { self.matrix(name) } else { Ok(Matrix::inference(self.tensor(name)?)?) }
    }

    /// This rank's part of a matrix, or of each matrix of a stack, or some ranges of its columns, if it is used as quantised blocks. On a
    /// device other than the host, blocks that are cut can't be multiplied.
    fn blocks(&self, name: &str, some: Option<&[Range<usize>]>) -> Result<Option<Vec<Matrix>>, ModelError> {
        // A rank without rows has no blocks.
        if !self.is_quantized(name)? || self.shards.memory_bytes_of(name, false)? == 0 {
            return Ok(None);
        }
        let is_host = self.is_host();
        let encoding = self.shards.weights().info(name)?.encoding();
        let read = || {
            if is_host && encoding.run().is_some() {
                let (runs, columns) = self.shards.runs(name)?;
                let matrices = within(columns, some).into_iter().map(|some| runs.matrices(some));
                let matrices = matrices.collect::<Option<Vec<_>>>().map(|all| all.concat());
                if matrices.is_some() || encoding.quantized().is_none() {
                    return Ok(matrices);
                }
            }
            let (blocks, columns) = if is_host {
                self.shards.covering(name)?
            } else {
                let blocks = self.shards.quantized(name)?;
                let columns = 0..blocks.shape().dims().last().copied().unwrap_or(0);
                (blocks, columns)
            };
            Ok::<_, ModelError>(match blocks.rank() {
                2 => of_columns(&Arc::new(blocks), &within(columns, some))?,
                _ => unstacked(&blocks, &columns)?,
            })
        };
        match read() {
            Err(ModelError::Weights(error))
                if matches!(*error, WeightsError::CutBlock { .. } | WeightsError::NotQuantized { .. }) =>
            {
                Ok(None)
            }
            matrices => matrices,
        }
    }

    /// A norm of the model, which is whole on every rank.
    pub(crate) fn norm(&self, name: &str) -> Result<Norm, ModelError> {
        let eps = self.config.eps;
        let (offset, is_wide) = match self.config.norm {
            NormKind::Rms { offset, wide } => (offset, wide && self.precision.dtype() != DType::F32),
            NormKind::LayerNorm { bias: false } => {
                return Ok(Norm::Layer(LayerNorm::new_no_bias(self.tensor(name)?, eps)));
            }
            NormKind::LayerNorm { bias: true } => {
                return Ok(Norm::Layer(LayerNorm::new(self.tensor(name)?, self.tensor(&bias(name))?, eps)));
            }
        };
        let weight = if is_wide { self.wide(name)? } else { self.tensor(name)? };
        Ok(Norm::Rms(Rms::new(if offset == 0.0 { weight } else { (weight + offset)? }, eps)?))
    }

    /// A root mean square norm with an epsilon of its own.
    pub(crate) fn norm_with(&self, name: &str, eps: f64) -> Result<Norm, ModelError> {
        Ok(Norm::Rms(Rms::new(self.tensor(name)?, eps)?))
    }

    /// A norm of `width` elements without weights.
    pub(crate) fn plain_norm(&self, width: usize) -> Result<Norm, ModelError> {
        let ones = Tensor::ones(width, DType::F32, self.shards.device())?;
        Ok(Norm::Rms(Rms::new(ones, self.config.eps)?))
    }

    /// This rank's part of the bias beside a matrix of a layer.
    pub(crate) fn bias(&self, layer: usize, role: Role) -> Result<Tensor, ModelError> {
        self.tensor(&bias(&self.names.layer(layer, role)))
    }

    /// The attention sinks of the query heads `heads`.
    #[expect(clippy::disallowed_methods, reason = "the tensor is on the host")]
    pub(crate) fn sinks(&self, layer: usize, heads: Range<usize>) -> Result<Sinks, ModelError> {
        let (name, part) = (self.names.layer(layer, Role::Sinks), Part::Range { dim: 0, range: heads });
        let sinks = self.shards.weights().read(&name, &part, DType::F32, &Device::Cpu)?;
        Ok(Sinks::new(sinks.to_vec1()?, self.shards.device())?)
    }

    /// The matrix `role` behind heads or hidden units, of which each rank has those elements, in whole `unit`s.
    pub(crate) fn output(
        &self,
        (layer, role, bias): (usize, Role, bool),
        (elements, unit): (&[Range<usize>], usize),
        comm: &Comm,
    ) -> Result<Output, ModelError> {
        let bias = bias.then(|| self.bias(layer, role)).transpose()?;
        let inputs = elements.last().map_or(0, |last| last.end);
        let kind = match self.config.sums.nodes(inputs, unit, comm.size()) {
            Some(parts) => {
                let load = |some: &[Range<usize>]| self.columns(layer, role, some);
                OutputKind::Nodes(NodesLinear::new([inputs, self.config.dim], &parts, load, comm)?)
            }
            None => OutputKind::Joined(self.last(layer, role, elements, comm)?, self.join(comm)),
        };
        Ok(Output { kind, bias })
    }

    /// As [`output`](Self::output), without nodes of sums.
    pub(crate) fn last(
        &self,
        layer: usize,
        role: Role,
        elements: &[Range<usize>],
        comm: &Comm,
    ) -> Result<Last, ModelError> {
        let extents = || elements.iter().map(Range::len).collect();
        let inputs = (self.config.sums != Sums::Parts).then(|| Gather::new(extents(), comm));
        Ok(Last { inputs, matrix: self.layer_matrix(layer, role)? })
    }

    /// The hidden units of each rank in the network of a layer, without those of experts.
    pub(crate) fn units(&self, layer: usize, dense: &Dense, ranks: usize) -> Result<Vec<Range<usize>>, ModelError> {
        let network = &self.config.layers[layer].feed_forward;
        if self.config.sums != Sums::Parts || ranks == 1 {
            return Ok(self.config.sums.of_units(network).units(dense.ffn, ranks));
        }
        // As many as the other matrix has columns.
        let [_, _, down] = network.dense_roles().map(|role| self.names.layer(layer, role));
        let of_rank = |rank| {
            let part = self.shards.plan().part(&down, &self.shapes[&down], rank, ranks)?;
            Ok(if let Part::Range { range, .. } = part { range } else { 0..dense.ffn })
        };
        (0..ranks).map(of_rank).collect()
    }

    /// How the outputs of the last matrices of ranks become those of all.
    pub(crate) fn join(&self, comm: &Comm) -> Join {
        match self.config.sums {
            Sums::Parts => Join::Sum(comm.clone()),
            Sums::Whole | Sums::Nodes => Join::Gather(Gather::of_rows(self.config.dim, comm)),
        }
    }

    pub(crate) fn is_host(&self) -> bool {
        self.shards.device().is_cpu()
    }

    /// This rank's part of a matrix of a layer, as outputs × inputs.
    pub(crate) fn layer_matrix(&self, layer: usize, role: Role) -> Result<Matrix, ModelError> {
        let name = self.names.layer(layer, role);
        if !self.names.is_transposed() {
            return self.matrix(&name);
        }
        self.shelved_one(&name, || Ok(Matrix::inference(self.dense(&name)?.t()?)?))
    }

    /// This rank's parts of the matrices that a tensor stacks, `[matrices, outputs, inputs]`.
    pub(crate) fn matrices(&self, name: &str) -> Result<Vec<Matrix>, ModelError> {
        self.shelved(name, || self.read_matrices(name))
    }

    fn read_matrices(&self, name: &str) -> Result<Vec<Matrix>, ModelError> {
        if let Some(matrices) = self.blocks(name, None)? {
            self.count(matrices.iter().map(Matrix::bytes).sum());
            return Ok(matrices);
        }
        let all = self.dense(name)?;
        let count = all.dim(0)?;
        Ok((0..count).map(|index| Matrix::inference(all.get(index)?)).collect::<candle_core::Result<_>>()?)
    }

    /// This rank's parts of matrices of a layer with the same input, and of their biases, if they have some.
    pub(crate) fn stack(&self, layer: usize, roles: &[Role], has_bias: bool) -> Result<Stack, ModelError> {
        let names: Vec<_> = roles.iter().map(|role| self.names.layer(layer, *role)).collect();
        let bias = |role: &Role| has_bias.then(|| self.bias(layer, *role)).transpose();
        self.stack_of(&names, roles.iter().map(bias).collect::<Result<_, _>>()?)
    }

    /// This rank's parts of the matrices `names` with the same input, and their biases.
    pub(crate) fn stack_of(&self, names: &[String], biases: Vec<Option<Tensor>>) -> Result<Stack, ModelError> {
        for name in names {
            if self.is_quantized(name)? {
                let matrices = names.iter().map(|name| self.matrix(name)).collect::<Result<Vec<_>, _>>()?;
                return Ok(Stack::Separate(matrices.into_iter().zip(biases).collect()));
            }
        }
        let biases: Option<Vec<_>> = biases.into_iter().collect();
        let bias = biases.map(|biases| Tensor::cat(&biases, 0)).transpose()?;
        let tensors = || {
            let mut tensors = names.iter().map(|name| self.dense(name)).collect::<Result<Vec<_>, _>>()?;
            if tensors.iter().any(|tensor| tensor.dtype() != tensors[0].dtype()) {
                tensors = tensors.into_iter().map(|it| it.to_dtype(DType::F32)).collect::<candle_core::Result<_>>()?;
            }
            Ok(tensors)
        };
        self.stacked(&names.join(" "), bias, tensors)
    }

    /// A stack of the matrices that `tensors` reads if they are not on the shelf, and the bias of all.
    pub(crate) fn stacked(
        &self,
        key: &str,
        bias: Option<Tensor>,
        tensors: impl FnOnce() -> Result<Vec<Tensor>, ModelError>,
    ) -> Result<Stack, ModelError> {
        let (mut matrix, widths) = self.shelved_with(key, || {
            let tensors = tensors()?;
            let widths = tensors.iter().map(|tensor| tensor.dim(0)).collect::<candle_core::Result<_>>()?;
            Ok((vec![Matrix::inference(Tensor::cat(&tensors, 0)?)?], widths))
        })?;
        let matrix = matrix.pop().ok_or_else(|| ModelError::Call(format!("no matrix {key:?}")))?;
        Ok(Stack::Stacked { matrix, bias, widths })
    }

    /// This rank's part of one matrix of a layer that has several ones with outputs of `widths`.
    pub(crate) fn fused(
        &self,
        layer: usize,
        role: Role,
        widths: Vec<usize>,
        has_bias: bool,
    ) -> Result<Stack, ModelError> {
        let bias = has_bias.then(|| self.bias(layer, role)).transpose()?;
        Ok(Stack::Stacked { matrix: self.layer_matrix(layer, role)?, bias, widths })
    }

    /// Whether a matrix is used as quantised blocks.
    pub(crate) fn is_quantized(&self, name: &str) -> Result<bool, ModelError> {
        if self.adapter.is_some_and(|adapter| adapter.changes(name)) {
            return Ok(false);
        }
        if let Some(packed) = self.packed(name) {
            return Ok(self.precision == Precision::File && self.is_host() && packed.may_be_blocks());
        }
        let encoding = self.shards.weights().info(name)?.encoding();
        let has_blocks = encoding.quantized().is_some_and(|dtype| dtype.block_size() > 1);
        Ok(self.precision == Precision::File && (has_blocks || self.is_host() && encoding.run().is_some()))
    }

    fn count(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }
}

/// Some ranges of `all` columns, or all.
fn within(all: Range<usize>, some: Option<&[Range<usize>]>) -> Vec<Range<usize>> {
    let within = |some: &Range<usize>| all.start + some.start..all.start + some.end;
    some.map_or_else(|| vec![all.clone()], |some| some.iter().map(within).collect())
}

/// Ranges of columns of quantised blocks; `None` if they can't be multiplied as blocks.
fn of_columns(blocks: &Arc<QTensor>, columns: &[Range<usize>]) -> Result<Option<Vec<Matrix>>, ModelError> {
    let matrices = columns.iter().map(|some| Matrix::quantized_columns(blocks.clone(), some.clone()));
    Ok(matrices.collect::<candle_core::Result<_>>()?)
}

/// Ranges of columns of a dense matrix, or all.
fn columns_of(all: &Tensor, some: Option<&[Range<usize>]>) -> Result<Vec<Matrix>, ModelError> {
    let matrix = |some: Range<usize>| Matrix::inference(all.narrow(1, some.start, some.len())?);
    Ok(within(0..all.dim(1)?, some).into_iter().map(matrix).collect::<candle_core::Result<_>>()?)
}

/// The columns `columns` of the matrices of a stack of quantised ones; `None` if they can't be multiplied as blocks.
fn unstacked(all: &QTensor, columns: &Range<usize>) -> Result<Option<Vec<Matrix>>, ModelError> {
    let &[count, outputs, inputs] = all.shape().dims() else {
        return Err(ModelError::Call(format!("a stack of matrices has the shape {:?}", all.shape())));
    };
    let data = all.data()?;
    let matrix = |bytes: &[u8]| {
        let storage = QStorage::from_data(bytes.to_vec().into(), &all.device(), all.dtype())?;
        Matrix::quantized_columns(Arc::new(QTensor::new(storage, (outputs, inputs))?), columns.clone())
    };
    Ok(data.chunks_exact((data.len() / count.max(1)).max(1)).map(matrix).collect::<candle_core::Result<_>>()?)
}

impl Stack {
    /// The outputs of all matrices.
    pub(crate) fn forward(&self, x: &Tensor) -> candle_core::Result<Outputs<'_>> {
        Ok(match self {
            Self::Stacked { matrix, bias, widths } => Outputs::Stacked { all: add(matrix.forward(x)?, bias)?, widths },
            Self::Separate(matrices) => {
                let outputs = matrices.iter().map(|(matrix, bias)| add(matrix.forward(x)?, bias));
                Outputs::Separate(outputs.collect::<Result<_, _>>()?)
            }
        })
    }
}

impl Outputs<'_> {
    /// The output of one matrix.
    pub(crate) fn at(&self, index: usize) -> candle_core::Result<Tensor> {
        match self {
            Self::Stacked { all, widths } => all.narrow(D::Minus1, widths[..index].iter().sum(), widths[index]),
            Self::Separate(outputs) => Ok(outputs[index].clone()),
        }
    }
}

/// `y` with a bias, if there is one.
fn add(y: Tensor, bias: &Option<Tensor>) -> candle_core::Result<Tensor> {
    bias.iter().try_fold(y, |y, bias| y.broadcast_add(bias))
}
