//! Memory of new tensors, which is filled from a file without a second copy.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use candle_core::quantized::k_quants;
use half::{bf16, f16};

use crate::weights::WeightsError;
use crate::weights::layout::Layout;
use crate::weights::source::Source;

/// Elements that any bytes make valid.
///
/// # Safety
/// Every sequence of `size_of::<Self>()` bytes is a valid value.
pub(super) unsafe trait AnyBytes {}

macro_rules! any_bytes {
    ($($element:ty: $fact:literal;)*) => {$(
        #[doc = concat!("SAFETY: ", $fact)]
        // SAFETY: the fact in the row of the table.
        unsafe impl AnyBytes for $element {}
    )*};
}

any_bytes! {
    u8: "an integer";
    u32: "an integer";
    i16: "an integer";
    i32: "an integer";
    i64: "an integer";
    f16: "a transparent u16";
    bf16: "a transparent u16";
    f32: "every bit pattern is a number or NaN";
    f64: "every bit pattern is a number or NaN";
    k_quants::BlockQ4_0: "`repr(C)`, an f16 and arrays of integers";
    k_quants::BlockQ4_1: "`repr(C)`, two f16 and arrays of integers";
    k_quants::BlockQ5_0: "`repr(C)`, an f16 and arrays of integers";
    k_quants::BlockQ5_1: "`repr(C)`, two f16 and arrays of integers";
    k_quants::BlockQ8_0: "`repr(C)`, an f16 and arrays of integers";
    k_quants::BlockQ8_1: "`repr(C)`, two f16 and arrays of integers";
    k_quants::BlockQ2K: "`repr(C)`, two f16 and arrays of integers";
    k_quants::BlockQ3K: "`repr(C)`, an f16 and arrays of integers";
    k_quants::BlockQ4K: "`repr(C)`, two f16 and arrays of integers";
    k_quants::BlockQ5K: "`repr(C)`, two f16 and arrays of integers";
    k_quants::BlockQ6K: "`repr(C)`, an f16 and arrays of integers";
    k_quants::BlockQ8K: "`repr(C)`, an f32 and arrays of integers";
}

/// Reads the elements of `layout` into new memory.
pub(super) fn read<T: AnyBytes>(name: &str, source: &Source, layout: &Layout) -> Result<Vec<T>, WeightsError> {
    let bytes = usize::try_from(layout.bytes).unwrap_or(usize::MAX);
    let mut elements = reserve::<T>(name, source, bytes / size_of::<T>())?;
    let mut room = as_bytes(elements.spare_capacity_mut());
    let mut filled = 0;
    let map = if layout.is_scattered() { source.mapped(name, layout.end())? } else { None };
    for segment in layout.segments() {
        let len = usize::try_from(segment.end - segment.start).unwrap_or(usize::MAX);
        // The reservation covers the segments, whose lengths add up to the bytes of the layout.
        let Some((part, rest)) = room.split_at_mut_checked(len) else { break };
        let mapped = map.and_then(|map| map.get(segment.start as usize..segment.end as usize));
        match mapped {
            Some(bytes) => drop(part.write_copy_of_slice(bytes)),
            None => source.read_at(name, part, segment.start)?,
        }
        filled += len;
        room = rest;
    }
    if map.is_some() {
        source.count(filled as u64);
    }
    // SAFETY: the loop filled the first `filled` bytes, any bytes are a valid element, and the capacity holds them.
    unsafe { elements.set_len(filled / size_of::<T>()) };
    Ok(elements)
}

/// An empty vector with room for `count` elements.
pub(super) fn reserve<T>(name: &str, source: &Source, count: usize) -> Result<Vec<T>, WeightsError> {
    let mut elements = Vec::new();
    let refused = elements.try_reserve_exact(count);
    refused.map_err(|_| WeightsError::OutOfMemory {
        file: source.path.to_path_buf(),
        tensor: name.to_owned(),
        bytes: count.saturating_mul(size_of::<T>()),
    })?;
    Ok(elements)
}

fn as_bytes<T>(room: &mut [MaybeUninit<T>]) -> &mut [MaybeUninit<u8>] {
    let len = size_of_val(room);
    // SAFETY: the bytes are those of `room`, which is borrowed as long; uninitialised bytes are valid in both types.
    unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_machine_lacks_is_an_error_with_the_size() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = Source::open(file.path()).unwrap();
        let error = reserve::<f32>("blk.0.ffn_up", &source, usize::MAX / 8).unwrap_err().to_string();
        let expected = format!(
            "`{}`: no room for 9223372036854775804 bytes of host memory for tensor `blk.0.ffn_up`; use more ranks, a \
             smaller element type or a machine with more memory",
            file.path().display()
        );
        assert_eq!(error, expected);
    }
}
