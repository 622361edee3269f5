//! Parts of encodings that several kinds of values share.

use super::{Reader, WireError, Writer};
use crate::dtype::DType;
use crate::tensor::{Tensor, View};

/// Shortest string, in bytes, that TVM does not count as a short string.
pub(super) const SHORT: usize = 8;

pub(super) fn object_head(to: &mut Writer, index: i32) {
    to.i32(index);
    to.i32(index);
}

pub(super) fn write_dtype(dtype: DType, to: &mut Writer) {
    let (code, bits) = dtype.dlpack();
    to.u8(code);
    to.u8(bits);
    to.u16(1);
}

pub(super) fn read_dtype(from: &mut Reader<'_>) -> Result<DType, WireError> {
    let (code, bits, lanes) = (from.u8()?, from.u8()?, from.u16()?);
    let number = i64::from(code) << 24 | i64::from(bits) << 16 | i64::from(lanes);
    DType::from_dlpack(code, bits, lanes).ok_or(WireError::Unknown { what: "dtype", number })
}

/// The bytes of a tensor that is sent to another process.
pub(super) fn tensor_bytes(tensor: &Tensor) -> Result<View<'_, u8>, WireError> {
    tensor.bytes().map_err(|error| WireError::TensorKind(error.to_string()))
}

pub(super) fn read_axes(from: &mut Reader<'_>) -> Result<u64, WireError> {
    let axes = from.i32()?;
    u64::try_from(axes).map_err(|_| WireError::Unknown { what: "number of axes", number: axes.into() })
}

/// Takes a length and that number of bytes: the elements of a tensor of this type and shape.
pub(super) fn read_elements(dtype: DType, shape: Vec<i64>, from: &mut Reader<'_>) -> Result<Tensor, WireError> {
    let bytes = from.bytes()?;
    let shape = crate::Shape::from(shape);
    if shape.elements().and_then(|n| n.checked_mul(dtype.size())) != Some(bytes.len()) {
        return Err(WireError::Expected("as many bytes as the tensor's shape says"));
    }
    let tensor = Tensor::zeros(dtype, shape).map_err(WireError::of_tensor)?;
    let mut view = tensor.bytes_mut().map_err(WireError::of_tensor)?;
    view.copy_from_slice(bytes);
    drop(view);
    Ok(tensor)
}
