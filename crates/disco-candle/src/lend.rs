//! Memory of candle's CPU storage, lent to a tensor of Disco while a collective runs.

use std::mem;
use std::ops::Range;

use bytemuck::Zeroable as _;
use candle_core::CpuStorage;
use candle_core::backend::BackendStorage as _;
use disco_core::{Element, Error, Result, Tensor};

/// Matches a storage whose elements have a type of Disco: `$elements` is its vector, `$variant` its variant.
macro_rules! with_elements {
    ($storage:expr, |$variant:ident, $elements:ident| $body:expr) => {
        with_elements!($storage, |$variant, $elements| $body; U8 U32 I16 I32 I64 BF16 F16 F32 F64)
    };
    ($storage:expr, |$variant:ident, $elements:ident| $body:expr; $($dtype:ident)*) => {
        match $storage {
            $(CpuStorage::$dtype($elements) => {
                #[allow(unused_imports, reason = "not each body makes a storage")]
                use CpuStorage::$dtype as $variant;
                $body
            })*
            other => Err(Error::invalid(format!(
                "collectives of candle tensors do not support {}",
                other.dtype().as_str()
            ))),
        }
    };
}

/// Runs `run` on a tensor of the elements `range` of `storage`, without a copy.
///
/// If a library that can't cancel an aborted operation keeps the memory, the storage gets new memory with unspecified
/// elements.
pub(crate) fn lend_storage(
    storage: &mut CpuStorage,
    range: Range<usize>,
    run: impl FnOnce(&Tensor) -> Result<()>,
) -> Result<()> {
    with_elements!(storage, |Variant, elements| lend(elements, range, run))
}

/// A storage of `len` elements: the elements `range` of `source` at position `at`, zeros elsewhere.
pub(crate) fn arranged(source: &CpuStorage, range: Range<usize>, len: usize, at: usize) -> Result<CpuStorage> {
    with_elements!(source, |Variant, elements| {
        let part = &elements[range];
        if part.len() == len {
            return Ok(Variant(part.to_vec()));
        }
        let mut arranged = vec![<_>::zeroed(); len];
        arranged[at..at + part.len()].copy_from_slice(part);
        Ok(Variant(arranged))
    })
}

/// Keeps the first `len` elements.
pub(crate) fn truncate(storage: &mut CpuStorage, len: usize) -> Result<()> {
    with_elements!(storage, |Variant, elements| {
        elements.truncate(len);
        Ok(())
    })
}

fn lend<T: Element>(elements: &mut Vec<T>, range: Range<usize>, run: impl FnOnce(&Tensor) -> Result<()>) -> Result<()> {
    let len = elements.len();
    let tensor = Tensor::from_vec(mem::take(elements), len)?;
    let window = tensor.window(range.start, range.len());
    let loan = Loan { elements, tensor: Some(tensor) };
    let result = window.and_then(|window| run(&window));
    drop(loan);
    result
}

/// Gives the vector back when it is dropped, also by a panic.
struct Loan<'a, T: Element> {
    elements: &'a mut Vec<T>,
    tensor: Option<Tensor>,
}

impl<T: Element> Drop for Loan<'_, T> {
    fn drop(&mut self) {
        let Some(tensor) = self.tensor.take() else { return };
        *self.elements = tensor.into_vec().unwrap_or_else(|kept| {
            tracing::warn!("an operation keeps {kept}; candle's tensor gets new memory");
            kept.to_vec().unwrap_or_else(|_| vec![T::zeroed(); kept.elements()])
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_storage_has_the_same_memory_after_a_loan() {
        let mut storage = CpuStorage::F32(vec![1.0, 2.0, 3.0, 4.0]);
        let address = |storage: &CpuStorage| storage.as_slice::<f32>().unwrap().as_ptr().addr();
        let before = address(&storage);
        lend_storage(&mut storage, 1..3, |lent| {
            assert_eq!(lent.data().addr(), before + 4);
            lent.write(&[7f32, 8.0])
        })
        .unwrap();
        assert_eq!((address(&storage), storage.as_slice::<f32>().unwrap()), (before, &[1.0, 7.0, 8.0, 4.0][..]));
    }

    #[test]
    fn the_storage_is_whole_after_an_error_a_panic_and_a_kept_tensor() {
        let mut storage = CpuStorage::U8(vec![1, 2, 3]);
        let error = lend_storage(&mut storage, 0..3, |_| Err(Error::NoCommunicator));
        assert!(matches!(error, Err(Error::NoCommunicator)));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            lend_storage(&mut storage, 0..3, |_| panic!("planted"))
        }));
        assert!(panicked.is_err());
        assert_eq!(storage.as_slice::<u8>().unwrap(), [1, 2, 3]);

        let mut kept = None;
        lend_storage(&mut storage, 0..3, |lent| {
            kept = Some(lent.clone());
            Ok(())
        })
        .unwrap();
        assert_eq!(storage.as_slice::<u8>().unwrap(), [1, 2, 3]);
        kept.unwrap().write(&[9u8, 9, 9]).unwrap();
        assert_eq!(storage.as_slice::<u8>().unwrap(), [1, 2, 3], "the kept memory is no longer the storage's");
    }

    #[test]
    fn types_without_arithmetic_in_disco_are_refused() {
        let error = lend_storage(&mut CpuStorage::F4(vec![0]), 0..1, |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "collectives of candle tensors do not support f4");
        let arranged = arranged(&CpuStorage::I64(vec![5, 6]), 1..2, 3, 1).unwrap();
        assert_eq!(arranged.as_slice::<i64>().unwrap(), [0, 6, 0]);
    }
}
