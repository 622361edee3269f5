//! Rotary position embeddings.

use std::f32::consts::TAU;

use candle_core::{D, DType, Device, Result, Tensor};

use crate::{Growth, Pairs, Rotary, Scaling};

/// The frequencies of the rotated pairs of a head. Cosines and sines are computed for the positions of each pass, so that
/// a long context takes no memory before it is used.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// `[1, pairs]`.
    frequencies: Tensor,
    /// Those of sequences that are longer than the original context, if they differ.
    long: Option<Long>,
    /// The original context.
    context: usize,
    /// Factor of the rotated elements.
    factor: f64,
    pairs: Pairs,
    /// Number of elements of a head that are rotated.
    rotated: usize,
    growth: Option<Growth>,
    dtype: DType,
}

/// Frequencies of long sequences.
#[derive(Clone, Debug)]
enum Long {
    /// `[1, pairs]`.
    Fixed(Tensor),
    /// They depend on the length.
    Dynamic { base: f32, factor: f32 },
}

/// Cosines and sines of the positions of one forward pass.
#[derive(Debug)]
pub(crate) struct Rotation {
    cos: Tensor,
    sin: Tensor,
    pairs: Pairs,
    rotated: usize,
    /// The factor of queries of each token, `[tokens, 1]` or `[sequences, 1, tokens, 1]`.
    growth: Option<Tensor>,
}

impl Rope {
    /// `context` is that of the model; `divisors` are the [tensors](Scaling::tensors) of the scaling.
    pub(crate) fn new(
        rotary: &Rotary,
        context: usize,
        divisors: &[Tensor],
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let (base, rotated) = (rotary.base, rotary.elements);
        let row = |frequencies: Vec<f32>| Tensor::new(frequencies, device)?.unsqueeze(0);
        let plain = plain(base, rotated);
        let divided = |factors: &[f32]| row(plain.iter().zip(factors).map(|(frequency, by)| frequency / by).collect());
        let mut rope = Self {
            frequencies: row(plain.iter().enumerate().map(|(i, frequency)| scaled(i, *frequency, rotary)).collect())?,
            long: None,
            context,
            factor: 1.0,
            pairs: rotary.pairs,
            rotated,
            growth: rotary.growth,
            dtype,
        };
        let all = rope.frequencies.clone();
        let by = |divisors: &Tensor| &all / divisors.to_dtype(DType::F32)?.flatten_all()?.unsqueeze(0)?;
        match &rotary.scaling {
            Scaling::InFile => rope.frequencies = divisors.first().map_or_else(|| Ok(all.clone()), by)?,
            Scaling::LongInFile { context, attention } => {
                if let [short, long] = divisors {
                    (rope.frequencies, rope.long) = (by(short)?, Some(Long::Fixed(by(long)?)));
                }
                (rope.context, rope.factor) = (*context, (*attention).into());
            }
            Scaling::Yarn { attention, .. } => rope.factor = (*attention).into(),
            Scaling::Long { short, long, context, attention } => {
                (rope.frequencies, rope.long) = (divided(short)?, Some(Long::Fixed(divided(long)?)));
                (rope.context, rope.factor) = (*context, (*attention).into());
            }
            Scaling::Dynamic { factor, context } => {
                (rope.long, rope.context) = (Some(Long::Dynamic { base, factor: *factor }), *context);
            }
            _ => (),
        }
        Ok(rope)
    }

    /// Whether the frequencies of a sequence of `length` tokens differ from those of short ones.
    fn is_long(&self, length: usize) -> bool {
        self.long.is_some() && length > self.context
    }

    /// Whether one of sequences of `lengths` tokens becomes a long one with its next token, and has to be computed again.
    pub(crate) fn restarts(&self, lengths: &[usize]) -> bool {
        matches!(self.long, Some(Long::Fixed(_))) && lengths.contains(&self.context)
    }

    /// Whether [`restarts`](Self::restarts) may hold later for sequences of `lengths` tokens.
    pub(crate) fn may_restart(&self, lengths: &[usize]) -> bool {
        matches!(self.long, Some(Long::Fixed(_))) && lengths.iter().any(|length| *length <= self.context)
    }

    fn is_dynamic(&self) -> bool {
        matches!(self.long, Some(Long::Dynamic { .. }))
    }

    /// Whether the host chooses the frequencies of each token of sequences of `lengths` tokens.
    pub(crate) fn changes(&self, lengths: &[usize]) -> bool {
        match self.long {
            None => false,
            // A sequence can become long.
            Some(Long::Fixed(_)) => !lengths.iter().all(|length| self.is_long(*length)),
            Some(Long::Dynamic { .. }) => lengths.iter().any(|length| self.is_long(*length)),
        }
    }

    /// The frequencies of sequences of `lengths` tokens: `[1, pairs]` if they have the same ones, else
    /// `[sequences, 1, pairs]`.
    fn frequencies(&self, lengths: &[usize]) -> Result<Tensor> {
        let first = lengths.first().copied().unwrap_or(0);
        let is_same = |length: &usize| {
            self.is_long(*length) == self.is_long(first)
                && (*length == first || !self.is_long(first) || !self.is_dynamic())
        };
        if lengths.iter().all(is_same) {
            return self.frequencies_of(first);
        }
        let rows = lengths.iter().map(|length| self.frequencies_of(*length)).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&rows, 0)
    }

    fn frequencies_of(&self, length: usize) -> Result<Tensor> {
        match &self.long {
            Some(Long::Fixed(long)) if self.is_long(length) => Ok(long.clone()),
            // Source: transformers, `_compute_dynamic_ntk_parameters`.
            Some(Long::Dynamic { base, factor }) if self.is_long(length) => {
                let (base, factor, rotated) = (f64::from(*base), f64::from(*factor), self.rotated as f64);
                let stretched = factor * length as f64 / self.context as f64 - (factor - 1.0);
                let base = base * stretched.powf(rotated / (rotated - 2.0));
                Tensor::new(plain(base as f32, self.rotated), self.frequencies.device())?.unsqueeze(0)
            }
            _ => Ok(self.frequencies.clone()),
        }
    }

    /// The rotation of slots `from..from + count` of sequences whose first tokens are in the slots `starts`, and which have
    /// `lengths` tokens. Slots before the start of a sequence are rotated as position 0; masks exclude them.
    pub(crate) fn rotation(&self, starts: &[usize], from: usize, count: usize, lengths: &[usize]) -> Result<Rotation> {
        let device = self.frequencies.device();
        let positions = |start: usize| (from..from + count).map(move |slot| slot.saturating_sub(start) as f32);
        let positions = match starts {
            [first, rest @ ..] if rest.iter().any(|start| start != first) => {
                let all = starts.iter().flat_map(|start| positions(*start));
                Tensor::from_iter(all, device)?.reshape((starts.len(), count, 1))?
            }
            _ => Tensor::from_iter(positions(starts.first().copied().unwrap_or(0)), device)?.unsqueeze(1)?,
        };
        self.turned(&positions, lengths)
    }

    /// The rotation of one token of each sequence, at positions that are on the device: i64 `[sequences]`.
    pub(crate) fn rotation_at(&self, positions: &Tensor, lengths: &[usize]) -> Result<Rotation> {
        self.turned(&positions.to_dtype(DType::F32)?.reshape(((), 1, 1))?, lengths)
    }

    /// The rotation of tokens `[1, tokens]` at these positions, of sequences that are at most as long as the
    /// [first context](Config::first_context).
    pub(crate) fn rotation_of(&self, positions: impl Iterator<Item = usize>) -> Result<Rotation> {
        let positions = Tensor::from_iter(positions.map(|position| position as f32), self.frequencies.device())?;
        self.turned(&positions.unsqueeze(1)?, &[])
    }

    /// Cosines and sines of positions `[.., 1]`.
    fn turned(&self, positions: &Tensor, lengths: &[usize]) -> Result<Rotation> {
        let angles = positions.broadcast_mul(&self.frequencies(lengths)?)?;
        let scaled = |x: Tensor| if self.factor == 1.0 { Ok(x) } else { x * self.factor };
        Ok(Rotation {
            cos: scaled(angles.cos()?)?.to_dtype(self.dtype)?,
            sin: scaled(angles.sin()?)?.to_dtype(self.dtype)?,
            pairs: self.pairs,
            rotated: self.rotated,
            growth: self.growth.map(|growth| self.grown(positions, growth)).transpose()?,
        })
    }

    /// The factors of queries at positions `[.., 1]`.
    fn grown(&self, positions: &Tensor, Growth { beta, context }: Growth) -> Result<Tensor> {
        let factors = (((positions / context as f64)?.floor()? + 1.0)?.log()? * beta)? + 1.0;
        let factors = factors?.to_dtype(self.dtype)?;
        // Heads come before tokens.
        if factors.rank() == 3 { factors.unsqueeze(1) } else { Ok(factors) }
    }
}

impl Rotation {
    /// Queries `[sequences, heads, tokens, head_dim]` times their factors.
    pub(crate) fn grown(&self, query: Tensor) -> Result<Tensor> {
        self.growth.iter().try_fold(query, |query, factors| query.broadcast_mul(factors))
    }

    /// Rotates queries or keys of shape `[sequences, heads, tokens, head_dim]`.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let rotate = |x: &Tensor| match self.pairs {
            Pairs::Interleaved => candle_nn::rotary_emb::rope_i(x, &self.cos, &self.sin),
            Pairs::Halves => candle_nn::rotary_emb::rope(x, &self.cos, &self.sin),
        };
        let width = x.dim(D::Minus1)?;
        if self.rotated == width {
            return rotate(&x.contiguous()?);
        }
        let first = x.narrow(D::Minus1, 0, self.rotated)?.contiguous()?;
        Tensor::cat(&[rotate(&first)?, x.narrow(D::Minus1, self.rotated, width - self.rotated)?], D::Minus1)
    }
}

/// The frequencies of `rotated` elements without scaling.
fn plain(base: f32, rotated: usize) -> Vec<f32> {
    (0..rotated / 2).map(|i| base.powf(-((2 * i) as f32) / rotated as f32)).collect()
}

/// The frequency with the number `index`.
fn scaled(index: usize, frequency: f32, rotary: &Rotary) -> f32 {
    match rotary.scaling {
        Scaling::None | Scaling::InFile | Scaling::Dynamic { .. } => frequency,
        // Their divisors replace these frequencies.
        Scaling::Long { .. } | Scaling::LongInFile { .. } => frequency,
        Scaling::Linear { factor } => frequency / factor,
        Scaling::Llama3 { factor, low, high, context } => {
            let rotations = context as f32 * frequency / TAU;
            // 0 for low frequencies, 1 for high ones.
            let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (kept + (1.0 - kept) / factor)
        }
        Scaling::Yarn { factor, fast, slow, context, truncates, .. } => {
            let width = rotary.elements as f32;
            // The element whose frequency rotates so often in the original context.
            let element = |rotations: f32| {
                let rotation = context as f32 / (rotations * TAU);
                width * rotation.ln() / (2.0 * rotary.base.ln())
            };
            let (low, high) =
                if truncates { (element(fast).floor(), element(slow).ceil()) } else { (element(fast), element(slow)) };
            let (low, high) = (low.max(0.0), high.min(width - 1.0));
            let high = if low == high { high + 0.001 } else { high };
            let divided = ((index as f32 - low) / (high - low)).clamp(0.0, 1.0);
            frequency * ((1.0 - divided) + divided / factor)
        }
    }
}
