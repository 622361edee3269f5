//! The collectives of a [`Comm`] on tensors of candle, along any dimension.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use disco_core::{Rank, Reduction};

use crate::collective::{Collective, WithGradient, part};
use crate::comm::Comm;

/// Collectives in place: on the memory of the tensor itself, without a copy. The tensor is contiguous. All its clones see
/// the result. These methods have no gradient: use them on tensors that no gradient flows through.
///
/// Collectives with gradients return a new tensor. In a sum of all ranks' losses, the gradient of
/// [`all_reduce`](Comm::all_reduce), [`all_gather`](Comm::all_gather), [`reduce_scatter`](Comm::reduce_scatter) and
/// [`all_to_all`](Comm::all_to_all) is exact. Megatron-LM's pairs, [`copy_to_ranks`](Comm::copy_to_ranks) with
/// [`reduce_from_ranks`](Comm::reduce_from_ranks) and [`scatter_to_ranks`](Comm::scatter_to_ranks) with
/// [`gather_from_ranks`](Comm::gather_from_ranks), are for a loss that every rank computes alike, which counts once.
///
/// All ranks call the same collectives in the same order, with the same shapes. Errors are those of
/// [`Communicator::enqueue`](disco_core::Communicator::enqueue); [`find_disco_error`](crate::find_disco_error) gives
/// them as values.
impl Comm {
    /// Each element becomes the reduction of all ranks' elements, in place.
    ///
    /// # Errors
    /// The tensor is not contiguous, the backend does not support its dtype, or the communicator fails.
    pub fn all_reduce_in_place(&self, tensor: &Tensor, reduction: Reduction) -> Result<()> {
        Collective::AllReduce(reduction).run_in_place(self, tensor)
    }

    /// The elements become those of rank `root`, in place.
    ///
    /// # Errors
    /// As [`Comm::all_reduce_in_place`].
    pub fn broadcast_in_place(&self, tensor: &Tensor, root: usize) -> Result<()> {
        Collective::Broadcast(Rank::new(root as u32)).run_in_place(self, tensor)
    }

    /// `tensor` has one block for each rank, of equal extents along dimension 0. The block of rank `r` becomes that
    /// rank's block `r`, in place.
    ///
    /// # Errors
    /// As [`Comm::all_reduce_in_place`], and if dimension 0 does not divide by the number of ranks.
    pub fn all_gather_in_place(&self, tensor: &Tensor) -> Result<()> {
        let parts = self.even_parts("all_gather", tensor, 0)?;
        Collective::AllGather(elements(&parts, tensor.dims(), 0)).run_in_place(self, tensor)
    }

    /// `tensor` has one block for each rank, of equal extents along dimension 0. Its first block becomes the sum of all
    /// ranks' blocks with the number of this rank, in place; the other blocks are unspecified.
    ///
    /// # Errors
    /// As [`Comm::all_gather_in_place`].
    pub fn reduce_scatter_in_place(&self, tensor: &Tensor) -> Result<()> {
        let parts = self.even_parts("reduce_scatter", tensor, 0)?;
        Collective::ReduceScatter(elements(&parts, tensor.dims(), 0)).run_in_place(self, tensor)
    }

    /// `tensor` has one block for each rank, of equal extents along dimension 0. Block `s` becomes rank `s`'s block with
    /// the number of this rank, in place.
    ///
    /// # Errors
    /// As [`Comm::all_gather_in_place`].
    pub fn all_to_all_in_place(&self, tensor: &Tensor) -> Result<()> {
        self.even_parts("all_to_all", tensor, 0)?;
        Collective::AllToAll.run_in_place(self, tensor)
    }
}

/// Collectives with gradients.
impl Comm {
    /// The reduction of all ranks' tensors. Sums and averages have a gradient: the same reduction of the gradients.
    ///
    /// # Errors
    /// The backend does not support the dtype, or the communicator fails.
    pub fn all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let forward = Collective::AllReduce(reduction);
        let is_linear = matches!(reduction, Reduction::Sum | Reduction::Avg);
        let backward = is_linear.then(|| forward.clone());
        self.apply(tensor, forward, backward)
    }

    /// The tensor of rank `root`, which has the same shape on all ranks. It has no gradient.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor> {
        self.apply(tensor, Collective::Broadcast(Rank::new(root as u32)), None)
    }

    /// The concatenation of all ranks' tensors along dimension `dim`, in rank order. The gradient is this rank's part
    /// of the sum of all ranks' gradients (a reduce_scatter).
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_gather(&self, tensor: &Tensor, dim: usize) -> Result<Tensor> {
        self.all_gather_uneven(tensor, dim, &vec![tensor.dim(dim)?; self.size()])
    }

    /// As [`Comm::all_gather`], where rank `r` has `extents[r]` along `dim`.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], and if the tensor does not have this rank's extent.
    pub fn all_gather_uneven(&self, tensor: &Tensor, dim: usize, extents: &[usize]) -> Result<Tensor> {
        self.gather(tensor, dim, extents, Collective::ReduceScatter)
    }

    /// This rank's part, along dimension `dim`, of the sum of all ranks' tensors. The gradient is the concatenation of
    /// all ranks' gradients (an all_gather).
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], and if the extent does not divide by the number of ranks.
    pub fn reduce_scatter(&self, tensor: &Tensor, dim: usize) -> Result<Tensor> {
        let extents = self.even_parts("reduce_scatter", tensor, dim)?;
        self.scatter(tensor, dim, &extents, Collective::ReduceScatter)
    }

    /// Splits the tensor into equal parts along dimension `dim`. Part `s` of the result is rank `s`'s part with the
    /// number of this rank. The gradient is an all_to_all of the gradients.
    ///
    /// # Errors
    /// As [`Comm::reduce_scatter`].
    pub fn all_to_all(&self, tensor: &Tensor, dim: usize) -> Result<Tensor> {
        let extents = self.even_parts("all_to_all", tensor, dim)?;
        let row = to_row(tensor, dim, &extents)?;
        let row = self.apply(&row, Collective::AllToAll, Some(Collective::AllToAll))?;
        from_row(&row, tensor.dims(), dim, &extents)
    }

    /// The tensor itself; its gradient is the sum of all ranks' gradients. Before a column-parallel layer.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], when the gradient is computed.
    pub fn copy_to_ranks(&self, tensor: &Tensor) -> Result<Tensor> {
        self.apply(tensor, Collective::Identity, Some(Collective::AllReduce(Reduction::Sum)))
    }

    /// The sum of all ranks' tensors; its gradient is passed on as it is. After a row-parallel layer.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn reduce_from_ranks(&self, tensor: &Tensor) -> Result<Tensor> {
        self.apply(tensor, Collective::AllReduce(Reduction::Sum), Some(Collective::Identity))
    }

    /// The concatenation of all ranks' tensors along dimension `dim`, where rank `r` has `extents[r]`. The gradient is
    /// this rank's part of the gradient.
    ///
    /// # Errors
    /// As [`Comm::all_gather_uneven`].
    pub fn gather_from_ranks(&self, tensor: &Tensor, dim: usize, extents: &[usize]) -> Result<Tensor> {
        self.gather(tensor, dim, extents, Collective::OwnPart)
    }

    /// This rank's part of a tensor that all ranks have: `extents[r]` along dimension `dim` belong to rank `r`. The
    /// gradient is the concatenation of all ranks' gradients.
    ///
    /// # Errors
    /// As [`Comm::all_gather_uneven`], when the gradient is computed.
    pub fn scatter_to_ranks(&self, tensor: &Tensor, dim: usize, extents: &[usize]) -> Result<Tensor> {
        self.scatter(tensor, dim, extents, Collective::OwnPart)
    }

    fn apply(&self, tensor: &Tensor, forward: Collective, backward: Option<Collective>) -> Result<Tensor> {
        WithGradient { comm: self.clone(), forward, backward }.apply(tensor)
    }

    fn gather(
        &self,
        tensor: &Tensor,
        dim: usize,
        extents: &[usize],
        backward: fn(Arc<[usize]>) -> Collective,
    ) -> Result<Tensor> {
        self.check_extents(extents)?;
        if tensor.dim(dim)? != extents[self.rank()] {
            let (rank, shape) = (self.rank(), tensor.shape());
            return refused(format!("all_gather: rank {rank} has {shape:?}, not extent {} at {dim}", extents[rank]));
        }
        let mut dims = tensor.dims().to_vec();
        let parts = elements(extents, &dims, dim);
        dims[dim] = extents.iter().sum();
        let row = self.apply(&tensor.flatten_all()?, Collective::AllGather(parts.clone()), Some(backward(parts)))?;
        from_row(&row, &dims, dim, extents)
    }

    fn scatter(
        &self,
        tensor: &Tensor,
        dim: usize,
        extents: &[usize],
        forward: fn(Arc<[usize]>) -> Collective,
    ) -> Result<Tensor> {
        self.check_extents(extents)?;
        let (mut dims, whole) = (tensor.dims().to_vec(), tensor.dim(dim)?);
        if whole != extents.iter().sum::<usize>() {
            let (operation, shape) = (forward(Arc::default()).name(), tensor.shape());
            return refused(format!("{operation}: the parts {extents:?} do not fill dimension {dim} of {shape:?}"));
        }
        let parts = elements(extents, &dims, dim);
        dims[dim] = extents[self.rank()];
        let row = to_row(tensor, dim, extents)?;
        self.apply(&row, forward(parts.clone()), Some(Collective::AllGather(parts)))?.reshape(dims)
    }

    fn check_extents(&self, extents: &[usize]) -> Result<()> {
        if extents.len() == self.size() {
            Ok(())
        } else {
            refused(format!("{} extents for {} ranks", extents.len(), self.size()))
        }
    }

    /// Equal extents of all ranks along `dim`.
    fn even_parts(&self, operation: &str, tensor: &Tensor, dim: usize) -> Result<Vec<usize>> {
        let (whole, size) = (tensor.dim(dim)?, self.size());
        if whole % size != 0 {
            let shape = tensor.shape();
            return refused(format!("{operation}: dimension {dim} of {shape:?} does not divide by {size} ranks"));
        }
        Ok(vec![whole / size; size])
    }
}

fn refused<T>(why: String) -> Result<T> {
    Err(candle_core::Error::Msg(why))
}

/// The number of elements of each part of a tensor of shape `dims` that is split along `dim`.
fn elements(extents: &[usize], dims: &[usize], dim: usize) -> Arc<[usize]> {
    let others: usize = dims.iter().enumerate().filter(|(i, _)| *i != dim).map(|(_, extent)| extent).product();
    extents.iter().map(|extent| extent * others).collect()
}

/// The elements, so that each part along `dim` is one range.
fn to_row(tensor: &Tensor, dim: usize, extents: &[usize]) -> Result<Tensor> {
    if tensor.dims()[..dim].iter().all(|dim| *dim == 1) {
        return tensor.flatten_all();
    }
    let parts = (0..extents.len()).map(|rank| {
        let range = part(extents, rank);
        tensor.narrow(dim, range.start, range.len())?.flatten_all()
    });
    Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
}

/// The tensor of shape `dims` from the row of its parts along `dim`.
fn from_row(row: &Tensor, dims: &[usize], dim: usize, extents: &[usize]) -> Result<Tensor> {
    if dims[..dim].iter().all(|dim| *dim == 1) {
        return row.reshape(dims);
    }
    let counts = elements(extents, dims, dim);
    let parts = (0..extents.len()).map(|rank| {
        let (mut dims, range) = (dims.to_vec(), part(&counts, rank));
        dims[dim] = extents[rank];
        row.narrow(0, range.start, range.len())?.reshape(dims)
    });
    Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, dim)
}
