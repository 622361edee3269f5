//! Values and tensors in place of the recorded ones, of which a log has only descriptions.

use std::collections::HashMap;

use anyhow::{bail, ensure};
use disco::{DType, Shape, Tensor, Value};
use disco_trace::command_log::Described;

/// Largest value that a replay makes, in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// Largest number of bytes of the tensors that are kept for later arguments.
const MAX_KEPT_BYTES: usize = 1 << 28;

/// Makes values with the kinds and sizes of descriptions.
#[derive(Default)]
pub(super) struct Values {
    /// Tensors of zeros, which arguments share.
    tensors: HashMap<(DType, Box<[i64]>), Tensor>,
    kept_bytes: usize,
}

impl Values {
    /// A value for a description. Zeros replace unknown content, blanks that of a string.
    ///
    /// # Errors
    /// The description is that of a register, or of a value larger than 1 GiB.
    pub(super) fn value(&mut self, described: &Described) -> anyhow::Result<Value> {
        Ok(match described {
            Described::None => Value::None,
            Described::Int(int) => (*int).into(),
            Described::Bool(bool) => (*bool).into(),
            Described::Float(float) => (*float).into(),
            Described::Str(text) => (&**text).into(),
            Described::Dtype(dtype) => (*dtype).into(),
            Described::Device(device) => (*device).into(),
            Described::Shape(extents) => Shape::from(&**extents).into(),
            Described::Tensor(dtype, extents) => self.tensor(*dtype, extents)?.into(),
            Described::Array(items) => {
                let items: Vec<Value> = items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?;
                items.into()
            }
            Described::Map(items) => {
                let mut pair = |(key, value): &(Described, Described)| Ok((self.value(key)?, self.value(value)?));
                let items: Vec<(Value, Value)> = items.iter().map(&mut pair).collect::<anyhow::Result<_>>()?;
                items.into()
            }
            Described::Sized(kind, bytes) => {
                ensure!(*bytes <= MAX_BYTES, "{kind} of {bytes} bytes: a replay makes values of up to 1 GiB");
                match &**kind {
                    "string" => " ".repeat(*bytes as usize).into(),
                    _ => vec![0_u8; *bytes as usize].into(),
                }
            }
            other => bail!("{other:?} can't be a value"),
        })
    }

    /// A tensor of zeros. Arguments of equal dtype and shape share it.
    pub(super) fn tensor(&mut self, dtype: DType, extents: &[i64]) -> anyhow::Result<Tensor> {
        if let Some(tensor) = self.tensors.get(&(dtype, extents.into())) {
            return Ok(tensor.clone());
        }
        let tensor = self.own_tensor(dtype, extents)?;
        if self.kept_bytes + tensor.byte_len() <= MAX_KEPT_BYTES {
            self.kept_bytes += tensor.byte_len();
            self.tensors.insert((dtype, extents.into()), tensor.clone());
        }
        Ok(tensor)
    }

    /// A tensor of zeros that nothing shares.
    pub(super) fn own_tensor(&self, dtype: DType, extents: &[i64]) -> anyhow::Result<Tensor> {
        Ok(Tensor::zeros(dtype, Shape::from(extents))?)
    }
}
