//! The keys and values of earlier tokens.

use candle_core::{DType, Device, Result, Tensor};

/// Slots of a new cache, unless the prompt needs more.
const FIRST_SLOTS: usize = 64;

/// Keys and values of a batch of sequences for the kv heads of one rank.
///
/// All sequences end in the same slot: shorter prompts start in a later slot (left padding). The capacity doubles when
/// it is used up, so that a text of n tokens copies less than n slots in total.
#[derive(Debug)]
pub struct Cache {
    /// The slot of the first token of each sequence.
    pub(super) starts: Vec<usize>,
    /// Number of used slots.
    pub(super) used: usize,
    pub(super) layers: Vec<Layer>,
}

/// Keys and values of one layer: `[sequences, kv heads, slots, head_dim]` each.
#[derive(Debug, Default)]
pub(super) struct Layer(Option<[Tensor; 2]>);

impl Cache {
    pub(super) fn new(starts: Vec<usize>, layers: usize) -> Self {
        Self { starts, used: 0, layers: std::iter::repeat_with(Layer::default).take(layers).collect() }
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.starts.len()
    }

    /// Number of tokens of a sequence so far.
    pub fn len(&self, sequence: usize) -> usize {
        self.used.saturating_sub(self.starts.get(sequence).copied().unwrap_or(self.used))
    }

    /// Whether no token has been processed.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Size in bytes of the memory for keys and values on this rank.
    pub fn bytes(&self) -> usize {
        let tensors = self.layers.iter().filter_map(|layer| layer.0.as_ref()).flatten();
        tensors.map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes()).sum()
    }
}

impl Layer {
    /// Writes keys and values of shape `[sequences, kv heads, tokens, head_dim]` to the slots from `used` on. Returns
    /// all keys and values so far.
    pub(super) fn append(&mut self, used: usize, new: [&Tensor; 2]) -> Result<[Tensor; 2]> {
        let (sequences, heads, count, width) = new[0].dims4()?;
        let slots = used + count;
        let [keys, values] = match self.0.take() {
            Some(both) if both[0].dim(2)? >= slots => both,
            old => {
                let capacity = slots.next_power_of_two().max(FIRST_SLOTS);
                let shape = [sequences, heads, capacity, width];
                let grow =
                    |i: usize| grown(old.as_ref().map(|both| &both[i]), used, &shape, new[i].dtype(), new[i].device());
                [grow(0)?, grow(1)?]
            }
        };
        keys.slice_set(&new[0].contiguous()?, 2, used)?;
        values.slice_set(&new[1].contiguous()?, 2, used)?;
        let all = [keys.narrow(2, 0, slots)?, values.narrow(2, 0, slots)?];
        self.0 = Some([keys, values]);
        Ok(all)
    }
}

/// A larger tensor with the used slots of `old`.
fn grown(old: Option<&Tensor>, used: usize, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let larger = Tensor::zeros(shape, dtype, device)?;
    if let Some(old) = old.filter(|_| used > 0) {
        larger.slice_set(&old.narrow(2, 0, used)?.contiguous()?, 2, 0)?;
    }
    Ok(larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys or values of one token.
    fn token(number: f32) -> Tensor {
        Tensor::full(number, (2, 1, 1, 4), &Device::Cpu).unwrap()
    }

    #[test]
    fn every_slot_keeps_its_token_while_the_capacity_doubles() {
        let (mut layer, mut capacities) = (Layer::default(), Vec::new());
        for used in 0..300 {
            let [keys, values] = layer.append(used, [&token(used as f32), &token(-(used as f32))]).unwrap();
            let first = |all: Tensor| {
                all.narrow(0, 1, 1).unwrap().narrow(3, 3, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            let expected: Vec<f32> = (0..=used).map(|slot| slot as f32).collect();
            assert_eq!(first(keys), expected);
            assert_eq!(first(values), expected.iter().map(|number| -number).collect::<Vec<_>>());
            capacities.push(layer.0.as_ref().unwrap()[0].dim(2).unwrap());
        }
        capacities.dedup();
        assert_eq!(capacities, [64, 128, 256, 512]);
    }
}
