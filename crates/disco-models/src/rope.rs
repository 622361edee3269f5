//! Rotary position embeddings.

use std::f32::consts::TAU;

use candle_core::{D, DType, Device, Result, Tensor};

use crate::states::Span;
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
    /// The factor of queries of each token, `[tokens, 1]`.
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

    /// Whether a sequence of `length` tokens becomes a long one with its next token, and has to be computed again.
    pub(crate) fn restarts(&self, length: usize) -> bool {
        matches!(self.long, Some(Long::Fixed(_))) && length == self.context
    }

    /// Whether [`restarts`](Self::restarts) may hold later for a sequence of `length` tokens.
    pub(crate) fn may_restart(&self, length: usize) -> bool {
        matches!(self.long, Some(Long::Fixed(_))) && length <= self.context
    }

    /// Whether a sequence of `length` tokens may have other frequencies later.
    pub(crate) fn changes(&self, length: usize) -> bool {
        match self.long {
            None => false,
            Some(Long::Fixed(_)) => !self.is_long(length),
            Some(Long::Dynamic { .. }) => self.is_long(length),
        }
    }

    /// The frequencies of tokens: `[1, pairs]` if they have the same ones, else `[tokens, pairs]`.
    fn frequencies(&self, spans: &[Span]) -> Result<Tensor> {
        let first = spans.first().map_or(0, |span| span.length);
        let is_dynamic = matches!(self.long, Some(Long::Dynamic { .. }));
        let is_same = |length: usize| {
            self.is_long(length) == self.is_long(first) && (length == first || !self.is_long(first) || !is_dynamic)
        };
        if spans.iter().all(|span| is_same(span.length)) {
            return self.frequencies_of(first);
        }
        let rows = spans.iter().map(|span| self.frequencies_of(span.length)?.repeat((span.count, 1)));
        Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
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

    /// The rotation of tokens at `positions`, u32 `[tokens]`, of which each is in one of the spans.
    pub(crate) fn rotation(&self, positions: &Tensor, spans: &[Span]) -> Result<Rotation> {
        let positions = positions.to_dtype(DType::F32)?.unsqueeze(1)?;
        let angles = positions.broadcast_mul(&self.frequencies(spans)?)?;
        let scaled = |x: Tensor| if self.factor == 1.0 { Ok(x) } else { x * self.factor };
        Ok(Rotation {
            cos: scaled(disco_candle::cos(&angles)?)?.to_dtype(self.dtype)?,
            sin: scaled(disco_candle::sin(&angles)?)?.to_dtype(self.dtype)?,
            pairs: self.pairs,
            rotated: self.rotated,
            growth: self.growth.map(|growth| self.grown(&positions, growth)).transpose()?,
        })
    }

    /// The factors of queries at positions `[tokens, 1]`.
    fn grown(&self, positions: &Tensor, Growth { beta, context }: Growth) -> Result<Tensor> {
        let factors = (((positions / context as f64)?.floor()? + 1.0)?.log()? * beta)? + 1.0;
        factors?.to_dtype(self.dtype)
    }
}

impl Rotation {
    /// Queries `[1, heads, tokens, head_dim]` times their factors.
    pub(crate) fn grown(&self, query: Tensor) -> Result<Tensor> {
        self.growth.iter().try_fold(query, |query, factors| query.broadcast_mul(factors))
    }

    /// Rotates queries or keys of shape `[1, heads, tokens, head_dim]`.
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
        Scaling::Proportional { share, factor } => {
            let rotated = (share * rotary.elements as f32 / 2.0) as usize;
            if index < rotated { frequency / factor } else { 0.0 }
        }
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
