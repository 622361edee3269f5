//! Reductions: elements of all ranks, in rank order, into one.
//!
//! | dtypes | accumulated in | |
//! |---|---|---|
//! | integers | `i128` | cut to the type's bits, which is wrapping; avg is exact, then truncated toward zero |
//! | bool | `i128` | any byte but 0 counts as 1, the result is 0 or 1 |
//! | f16, bf16, f8e4m3, f8e5m2 | `f32` | rounded once, at the end |
//! | f32, f64 | themselves | |

use disco_core::{DType, Error, Reduction, Result, Tensor};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::backend;
use crate::number::{Bool, Element, Wide};
use crate::turn::Copying;

/// Elements that are reduced at a time: they and their accumulators stay in a core's first cache.
const BLOCK: usize = 1024;

/// Overwrites `dst` with the reduction of `inputs`, which have as many elements and the same dtype each. An input may be
/// `dst` itself.
pub(crate) fn reduce(copying: &Copying<'_>, reduction: Reduction, inputs: &[Tensor], dst: &Tensor) -> Result<()> {
    let by = match dst.dtype() {
        DType::Bool => by::<Bool>,
        DType::I8 => by::<i8>,
        DType::U8 => by::<u8>,
        DType::I16 => by::<i16>,
        DType::U16 => by::<u16>,
        DType::I32 => by::<i32>,
        DType::U32 => by::<u32>,
        DType::I64 => by::<i64>,
        DType::U64 => by::<u64>,
        DType::F16 => by::<f16>,
        DType::BF16 => by::<bf16>,
        DType::F32 => by::<f32>,
        DType::F64 => by::<f64>,
        DType::F8E4M3 => by::<F8E4M3>,
        DType::F8E5M2 => by::<F8E5M2>,
        _ => return unsupported(reduction, dst),
    };
    by(copying, reduction, inputs, dst)
}

fn by<T: Element>(copying: &Copying<'_>, reduction: Reduction, inputs: &[Tensor], dst: &Tensor) -> Result<()> {
    let ranks = inputs.len();
    match reduction {
        Reduction::Sum => fold::<T>(copying, inputs, dst, Wide::sum, |x| x),
        Reduction::Prod => fold::<T>(copying, inputs, dst, Wide::prod, |x| x),
        Reduction::Min => fold::<T>(copying, inputs, dst, Wide::min, |x| x),
        Reduction::Max => fold::<T>(copying, inputs, dst, Wide::max, |x| x),
        Reduction::Avg => fold::<T>(copying, inputs, dst, Wide::sum, |x| x.over(ranks)),
        _ => unsupported(reduction, dst),
    }
}

fn fold<T: Element>(
    copying: &Copying<'_>,
    inputs: &[Tensor],
    dst: &Tensor,
    join: impl Fn(T::Wide, T::Wide) -> T::Wide,
    finish: impl Fn(T::Wide) -> T::Wide,
) -> Result<()> {
    let Some((first, rest)) = inputs.split_first() else { return Ok(()) };
    let mut wide: Vec<T::Wide> = Vec::with_capacity(BLOCK);
    let mut narrow = [T::zeroed(); BLOCK];
    for start in (0..dst.elements()).step_by(BLOCK) {
        let narrow = &mut narrow[..BLOCK.min(dst.elements() - start)];
        let offset = start * size_of::<T>();
        copying.read(first, offset, bytemuck::cast_slice_mut(narrow))?;
        wide.clear();
        wide.extend(narrow.iter().map(|x| x.widen()));
        for input in rest {
            copying.read(input, offset, bytemuck::cast_slice_mut(narrow))?;
            for (sum, x) in wide.iter_mut().zip(&*narrow) {
                *sum = join(*sum, x.widen());
            }
        }
        for (x, sum) in narrow.iter_mut().zip(&wide) {
            *x = T::narrow(finish(*sum));
        }
        copying.write(dst, offset, bytemuck::cast_slice(narrow))?;
    }
    Ok(())
}

fn unsupported<T>(reduction: Reduction, dst: &Tensor) -> Result<T> {
    let operation = format!("reduction {reduction}");
    Err(Error::Unsupported { backend: backend::NAME, operation, dtype: Some(dst.dtype()) })
}
