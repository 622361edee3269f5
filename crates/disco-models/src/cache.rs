//! The keys and values of earlier tokens, and the place of the next ones.

use candle_core::{DType, Device, Error, Result, Tensor};

use crate::attention::{Memory, View};
use crate::heads::Heads;

/// Slots of a new cache, unless the prompt needs more.
const FIRST_SLOTS: usize = 64;

/// Keys and values of a batch of sequences for the kv heads of one rank.
///
/// All sequences end in the same slot: shorter prompts start in a later slot (left padding), so a batch may use more slots
/// than the context of the model has tokens. The capacity doubles when
/// it is used up, so that a text of n tokens copies less than n slots in total.
#[derive(Debug)]
pub struct Cache {
    /// The slot of the first token of each sequence.
    pub(crate) starts: Vec<usize>,
    /// Number of used slots.
    pub(crate) used: usize,
    pub(crate) layers: Vec<Layer>,
    /// The tokens so far, `[sequences, tokens]` each, if the cache may have to be computed again.
    pub(crate) history: Vec<Tensor>,
    /// The place of the next token, since the first step after a prompt or after new memory.
    cursor: Option<Cursor>,
}

/// Keys and values of one layer: `[sequences, kv heads, slots, head_dim]` each.
#[derive(Debug, Default)]
pub(crate) struct Layer(Option<[Tensor; 2]>);

/// The slots of new tokens.
#[derive(Debug)]
pub(crate) enum Slots {
    /// A number of slots from this one on.
    From(usize),
    /// One slot, whose number is on the device, once for each element of the keys of a layer; and how many slots tokens
    /// attend to.
    At { index: Tensor, width: usize },
}

/// A layer, and the slots of the tokens of a forward pass.
pub(crate) struct Slotted<'a> {
    pub(crate) layer: &'a mut Layer,
    pub(crate) slots: &'a Slots,
}

impl Memory for Slotted<'_> {
    fn attend(self, heads: &Heads, view: &View, query: &Tensor, new: [&Tensor; 2]) -> Result<Tensor> {
        let [keys, values] = self.layer.append(self.slots, new)?;
        heads.attend(query, &keys, &values, view.mask.as_ref())
    }
}

/// The place of the next token of each sequence, on the device. A step reads it and moves it on in place, so that the host
/// has no part in a step whose shapes are those of the step before.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The slot of the next token, i64 `[1]`.
    slot: Tensor,
    /// The position of the next token of each sequence, i64 `[sequences]`.
    pub(crate) positions: Tensor,
    /// 0 for slots that the next token attends to, -∞ for others: `[sequences, 1, 1, slots]`.
    mask: Tensor,
    /// As many zeros as sequences: `[sequences, 1, 1, 1]`.
    zeros: Tensor,
    /// The number of each slot, i64 `[slots]`; 0 and -∞ for each slot.
    slots: Tensor,
    open: Tensor,
    closed: Tensor,
}

impl Cache {
    pub(crate) fn new(starts: Vec<usize>, layers: usize) -> Self {
        let layers = std::iter::repeat_with(Layer::default).take(layers).collect();
        Self { starts, used: 0, layers, history: Vec::new(), cursor: None }
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.starts.len()
    }

    /// Number of tokens of a sequence so far.
    pub fn len(&self, sequence: usize) -> usize {
        self.used.saturating_sub(self.starts.get(sequence).copied().unwrap_or(self.used))
    }

    /// Number of tokens of the longest sequence so far.
    pub(crate) fn longest(&self) -> usize {
        self.lengths(self.used).into_iter().max().unwrap_or(0)
    }

    /// Number of tokens of the shortest sequence so far.
    pub(crate) fn shortest(&self) -> usize {
        self.lengths(self.used).into_iter().min().unwrap_or(0)
    }

    /// Number of tokens of each sequence when `used` slots are used.
    pub(crate) fn lengths(&self, used: usize) -> Vec<usize> {
        self.starts.iter().map(|start| used.saturating_sub(*start)).collect()
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

    /// Number of slots of the memory, which is the same for all layers.
    pub(crate) fn capacity(&self) -> usize {
        self.layers.first().map_or(0, Layer::capacity)
    }

    /// Makes room for one more token of each sequence. Returns whether the memory is that of the last step.
    pub(crate) fn make_room(&mut self, dtype: DType, device: &Device) -> Result<bool> {
        let is_same = self.cursor.is_some() && self.used < self.capacity();
        if !is_same {
            // Memory that is half replaced has no place.
            self.cursor = None;
            let used = self.used;
            self.layers.iter_mut().try_for_each(|layer| layer.reserve(used, used + 1))?;
            self.cursor = Some(Cursor::new(&self.starts, used, self.capacity(), dtype, device)?);
        }
        Ok(is_same)
    }

    /// The place of the next token, after [`Cache::make_room`].
    pub(crate) fn cursor(&self) -> Result<&Cursor> {
        self.cursor.as_ref().ok_or_else(|| Error::Msg("the cache has no room for a token".into()))
    }

    /// Counts the slot of a step as used, or forgets the place on the device that a failed step may have moved on.
    pub(crate) fn finish_step<T, E>(&mut self, step: std::result::Result<T, E>) -> std::result::Result<T, E> {
        match &step {
            Ok(_) => self.used += 1,
            Err(_) => self.cursor = None,
        }
        step
    }

    /// Counts slots as used that a prompt has filled.
    pub(crate) fn fill(&mut self, slots: usize) {
        (self.used, self.cursor) = (slots, None);
    }
}

impl Layer {
    fn capacity(&self) -> usize {
        self.0.as_ref().map_or(0, |both| both[0].dims()[2])
    }

    /// Writes keys and values of shape `[sequences, kv heads, tokens, head_dim]` to slots. Returns all keys and values that
    /// the tokens attend to. [`Slots::At`] needs memory that is there.
    pub(crate) fn append(&mut self, slots: &Slots, new: [&Tensor; 2]) -> Result<[Tensor; 2]> {
        let new = [new[0].contiguous()?, new[1].contiguous()?];
        match slots {
            &Slots::From(used) => {
                let end = used + new[0].dim(2)?;
                if self.0.is_none() {
                    let mut shape = new[0].dims().to_vec();
                    shape[2] = capacity_for(end);
                    let zeros = |new: &Tensor| Tensor::zeros(&shape[..], new.dtype(), new.device());
                    self.0 = Some([zeros(&new[0])?, zeros(&new[1])?]);
                }
                self.reserve(used, end)?;
                self.write(end, |memory, new| memory.slice_set(new, 2, used), &new)
            }
            Slots::At { index, width } => self.write(*width, |memory, new| memory.scatter_set(index, new, 2), &new),
        }
    }

    fn write(
        &self,
        width: usize,
        write: impl Fn(&Tensor, &Tensor) -> Result<()>,
        new: &[Tensor; 2],
    ) -> Result<[Tensor; 2]> {
        let [keys, values] = self.0.as_ref().ok_or_else(|| Error::Msg("a step needs a prompt".into()))?;
        write(keys, &new[0])?;
        write(values, &new[1])?;
        Ok([keys.narrow(2, 0, width)?, values.narrow(2, 0, width)?])
    }

    /// Moves the used slots to larger memory, unless the memory has as many slots.
    fn reserve(&mut self, used: usize, slots: usize) -> Result<()> {
        match &mut self.0 {
            Some(both) if both[0].dim(2)? < slots => {
                *both = [grown(&both[0], used, slots)?, grown(&both[1], used, slots)?];
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Cursor {
    fn new(starts: &[usize], used: usize, capacity: usize, dtype: DType, device: &Device) -> Result<Self> {
        let positions = starts.iter().map(|start| used.saturating_sub(*start) as i64);
        let is_open = |start: usize| (0..capacity).map(move |slot| (start..used).contains(&slot));
        let closed = |is_open: bool| if is_open { 0.0 } else { f32::NEG_INFINITY };
        let mask = starts.iter().flat_map(|start| is_open(*start)).map(closed);
        Ok(Self {
            slot: Tensor::new(&[used as i64], device)?,
            positions: Tensor::from_iter(positions, device)?,
            mask: Tensor::from_iter(mask, device)?.reshape((starts.len(), 1, 1, capacity))?.to_dtype(dtype)?,
            zeros: Tensor::zeros((starts.len(), 1, 1, 1), dtype, device)?,
            slots: Tensor::arange(0, capacity as i64, device)?,
            open: Tensor::zeros(capacity, dtype, device)?,
            closed: Tensor::full(f32::NEG_INFINITY, capacity, device)?.to_dtype(dtype)?,
        })
    }

    /// Opens the slot of the next token to all sequences. Returns the mask of the first `width` slots.
    pub(crate) fn open(&self, width: usize) -> Result<Tensor> {
        self.mask.scatter_set(&self.index(self.zeros.dims())?, &self.zeros, 3)?;
        self.mask.narrow(3, 0, width)
    }

    /// The mask of [`open`](Self::open) for a token that attends to the last `window` slots.
    pub(crate) fn windowed(&self, mask: &Tensor, window: usize) -> Result<Tensor> {
        let width = mask.dim(3)?;
        let first = |all: &Tensor| all.narrow(0, 0, width);
        let is_past = first(&self.slots)?.broadcast_lt(&(&self.slot - (window as f64 - 1.0))?)?;
        mask.broadcast_add(&is_past.where_cond(&first(&self.closed)?, &first(&self.open)?)?)
    }

    /// The slot of the next token, once for each element of a tensor of this shape.
    pub(crate) fn index(&self, shape: &[usize]) -> Result<Tensor> {
        self.slot.broadcast_as(shape)?.contiguous()
    }

    /// Moves the place on by one token.
    pub(crate) fn advance(&self) -> Result<()> {
        self.slot.slice_set(&(&self.slot + 1.0)?, 0, 0)?;
        self.positions.slice_set(&(&self.positions + 1.0)?, 0, 0)
    }
}

/// Number of slots of memory for `slots` used ones.
fn capacity_for(slots: usize) -> usize {
    slots.next_power_of_two().max(FIRST_SLOTS)
}

/// Larger memory with the used slots of `old`.
fn grown(old: &Tensor, used: usize, slots: usize) -> Result<Tensor> {
    let mut shape = old.dims().to_vec();
    shape[2] = capacity_for(slots);
    let larger = Tensor::zeros(&shape[..], old.dtype(), old.device())?;
    if used > 0 {
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
        let (mut cache, mut capacities) = (Cache::new(vec![0, 3], 1), Vec::new());
        for used in 0..300 {
            // Prompts of one token, and steps.
            let slots = match used % 5 {
                0 => Slots::From(used),
                _ => {
                    cache.make_room(DType::F32, &Device::Cpu).unwrap();
                    Slots::At { index: cache.cursor().unwrap().index(&[2, 1, 1, 4]).unwrap(), width: used + 1 }
                }
            };
            let new = [&token(used as f32), &token(-(used as f32))];
            let [keys, values] = cache.layers[0].append(&slots, new).unwrap();
            match slots {
                Slots::From(_) => cache.fill(used + 1),
                Slots::At { .. } => {
                    cache.cursor().unwrap().advance().unwrap();
                    cache.used += 1;
                }
            }
            let first = |all: Tensor| {
                all.narrow(0, 1, 1).unwrap().narrow(3, 3, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            let expected: Vec<f32> = (0..=used).map(|slot| slot as f32).collect();
            assert_eq!(first(keys), expected);
            assert_eq!(first(values), expected.iter().map(|number| -number).collect::<Vec<_>>());
            capacities.push(cache.capacity());
        }
        capacities.dedup();
        assert_eq!(capacities, [64, 128, 256, 512]);
    }

    #[test]
    fn the_next_token_attends_to_the_tokens_of_its_sequence() {
        let mut cache = Cache::new(vec![0, 2], 1);
        cache.layers[0].append(&Slots::From(0), [&token(1.0), &token(1.0)]).unwrap();
        cache.fill(4);
        for used in 4..6 {
            assert_eq!(cache.make_room(DType::F32, &Device::Cpu).unwrap(), used > 4);
            let cursor = cache.cursor().unwrap();
            let mask = cursor.open(8).unwrap().squeeze(1).unwrap().squeeze(1).unwrap().to_vec2::<f32>().unwrap();
            let open = |row: &[f32]| row.iter().map(|value| *value == 0.0).collect::<Vec<_>>();
            let expected = |start| (0..8).map(|slot| (start..=used).contains(&slot)).collect::<Vec<_>>();
            assert_eq!([open(&mask[0]), open(&mask[1])], [expected(0), expected(2)]);
            assert_eq!(cursor.positions.to_vec1::<i64>().unwrap(), [used as i64, used as i64 - 2]);
            cursor.advance().unwrap();
            cache.used += 1;
        }
    }
}
