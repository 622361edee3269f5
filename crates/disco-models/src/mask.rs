//! Attention masks.

use candle_core::{DType, Device, Result, Tensor};

/// The mask of tokens in the slots `from..from + count`: `[sequences, 1, count, from + count]`, 0 where a token attends
/// to a slot and -∞ elsewhere. None if every token attends to every slot.
///
/// A token attends to its own slot and to earlier slots of its sequence, at most `window` slots in all. A slot before the start of its sequence attends
/// to itself only, so that its softmax is finite.
pub(crate) fn mask(
    starts: &[usize],
    from: usize,
    count: usize,
    window: Option<usize>,
    (dtype, device): (DType, &Device),
) -> Result<Option<Tensor>> {
    let slots = from + count;
    let window = window.unwrap_or(usize::MAX);
    if count == 1 && slots <= window && starts.iter().all(|start| *start == 0) {
        return Ok(None);
    }
    let mut mask = Vec::with_capacity(starts.len() * count * slots);
    for start in starts {
        for own in from..slots {
            let is_seen = |slot| slot == own || (*start..own).contains(&slot) && own - slot < window;
            mask.extend((0..slots).map(|slot| if is_seen(slot) { 0.0 } else { f32::NEG_INFINITY }));
        }
    }
    Tensor::from_vec(mask, (starts.len(), 1, count, slots), device)?.to_dtype(dtype).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_attend_to_earlier_tokens_of_their_sequence_and_padding_to_itself() {
        let mask = mask(&[0, 2], 1, 2, None, (DType::F32, &Device::Cpu)).unwrap().unwrap();
        let open = mask
            .flatten_all()
            .unwrap()
            .to_vec1::<f32>()
            .unwrap()
            .iter()
            .map(|m| u8::from(*m == 0.0))
            .collect::<Vec<_>>();
        // Slots 0, 1, 2 for the tokens in slots 1 and 2: a sequence from slot 0, and one from slot 2.
        assert_eq!(open, [1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1]);
        assert!(super::mask(&[0, 0], 7, 1, Some(8), (DType::F32, &Device::Cpu)).unwrap().is_none());
    }
}
