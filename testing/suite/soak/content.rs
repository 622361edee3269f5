//! Values of any size, which the controller and its workers generate from the same three numbers.

use disco::{DType, Json, Result, Tensor, Value};
use serde::{Deserialize, Serialize};

use super::exchange;
use super::random::Random;

/// Sizes of values in bytes: small, around the limit of inline values, and above the capacity of a command ring or a
/// socket buffer.
const SIZES: [usize; 10] =
    [0, 1, 1000, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 100_000, 300_000, 1 << 20, (5 << 20) + 3];
/// Size of a rare large value, in bytes.
const LARGEST: usize = 32 << 20;
/// Probability of [`LARGEST`], in percent.
const LARGEST_PERCENT: usize = 1;

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Tensor(DType),
    Bytes,
    Text,
    /// A [`Record`] in `Json`.
    Record,
}

/// A type with serde implementations.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    name: String,
    numbers: Vec<u32>,
}

/// A description of a value: the numbers that generate it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub(crate) form: Form,
    size: usize,
    pub(crate) seed: usize,
}

impl Content {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let form = match random.below(6) {
            0..3 => Form::Tensor(random.pick(&exchange::DTYPES)),
            3 => Form::Bytes,
            4 => Form::Text,
            _ => Form::Record,
        };
        // No large records, because their JSON is longer than `size`.
        let is_largest = form != Form::Record && random.chance(LARGEST_PERCENT);
        let size = if is_largest { LARGEST } else { random.pick(&SIZES) };
        Self { form, size, seed: random.below(1 << 20) }
    }

    /// A value of the same form and size.
    pub(crate) fn with_seed(self, seed: usize) -> Self {
        Self { seed, ..self }
    }

    /// The same size and seed, as bytes.
    pub(crate) fn as_bytes(self) -> Self {
        Self { form: Form::Bytes, ..self }
    }

    /// Whether another value has the same form and size.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.form, self.size) == (other.form, other.size)
    }

    /// The form's number, the size and the seed, as arguments of a worker function.
    pub(crate) fn args(&self) -> (usize, usize, usize) {
        let form = match self.form {
            Form::Tensor(dtype) => exchange::DTYPES.iter().position(|other| *other == dtype).unwrap_or(0),
            Form::Bytes => exchange::DTYPES.len(),
            Form::Text => exchange::DTYPES.len() + 1,
            Form::Record => exchange::DTYPES.len() + 2,
        };
        (form, self.size, self.seed)
    }

    pub(crate) fn from_args((form, size, seed): (usize, usize, usize)) -> Self {
        let form = match (exchange::DTYPES.get(form), form - exchange::DTYPES.len().min(form)) {
            (Some(dtype), _) => Form::Tensor(*dtype),
            (None, 0) => Form::Bytes,
            (None, 1) => Form::Text,
            _ => Form::Record,
        };
        Self { form, size, seed }
    }

    pub(crate) fn of_record(size: usize, seed: usize) -> Self {
        Self { form: Form::Record, size, seed }
    }

    pub(crate) fn is_tensor(&self) -> bool {
        matches!(self.form, Form::Tensor(_))
    }

    pub(crate) fn value(&self) -> Result<Value> {
        let bytes = self.bytes();
        Ok(match self.form {
            Form::Tensor(dtype) => {
                let tensor = Tensor::zeros(dtype, [self.elements(dtype)])?;
                tensor.bytes_mut()?.copy_from_slice(&bytes);
                tensor.into()
            }
            Form::Bytes => bytes.into(),
            Form::Text => String::from_utf8_lossy(&bytes).into_owned().into(),
            Form::Record => Json(self.record()).to_value()?,
        })
    }

    pub(crate) fn record(&self) -> Record {
        let bytes = self.bytes();
        let (numbers, _) = bytes.as_chunks();
        let numbers = numbers.iter().map(|number| u32::from_le_bytes(*number)).collect();
        Record { name: format!("record \"{}\"", self.seed), numbers }
    }

    /// Whether a value has this content.
    pub(crate) fn is(&self, value: &Value) -> bool {
        match (self.form, value) {
            (Form::Tensor(dtype), Value::Tensor(tensor)) => {
                tensor.dtype() == dtype
                    && tensor.dims() == [self.elements(dtype)]
                    && tensor.bytes().is_ok_and(|found| *found == *self.bytes())
            }
            (Form::Bytes, Value::Bytes(bytes)) => **bytes == *self.bytes(),
            (Form::Text, Value::Str(text)) => text.as_bytes() == self.bytes(),
            (Form::Record, Value::Str(text)) => {
                serde_json::from_str::<Record>(text).is_ok_and(|record| record == self.record())
            }
            _ => false,
        }
    }

    /// The expected [`digest`] of the value.
    pub(crate) fn digest(&self) -> i64 {
        exchange::hash(&match self.form {
            Form::Record => serde_json::to_vec(&self.record()).unwrap(),
            _ => self.bytes(),
        })
    }

    fn elements(&self, dtype: DType) -> usize {
        self.size / dtype.size()
    }

    fn bytes(&self) -> Vec<u8> {
        let size = match self.form {
            Form::Tensor(dtype) => self.elements(dtype) * dtype.size(),
            _ => self.size,
        };
        // Text consists of one-byte characters.
        let (mask, least) =
            if self.form == Form::Text { (0x3f3f_3f3f_3f3f_3f3f, 0x2020_2020_2020_2020) } else { (u64::MAX, 0) };
        let mut bytes = Vec::with_capacity(size + 8);
        let mut word = (self.seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while bytes.len() < size {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            bytes.extend_from_slice(&(((word >> 7) & mask) | least).to_le_bytes());
        }
        bytes.truncate(size);
        bytes
    }
}

/// A hash of a value's content.
pub(crate) fn digest(value: &Value) -> Result<i64> {
    Ok(match value {
        Value::Tensor(tensor) => exchange::hash(&tensor.bytes()?),
        Value::Bytes(bytes) => exchange::hash(bytes),
        Value::Str(text) => exchange::hash(text.as_bytes()),
        other => exchange::hash(other.to_string().as_bytes()),
    })
}
