//! Rotary position embeddings.

use candle_core::{DType, Device, Result, Tensor};

use crate::{Config, Pairs, Scaling};

/// Cosines and sines of all positions of a context.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    cos: Tensor,
    sin: Tensor,
    pairs: Pairs,
}

/// Cosines and sines of the positions of one forward pass.
#[derive(Debug)]
pub(crate) struct Rotation {
    cos: Tensor,
    sin: Tensor,
    pairs: Pairs,
}

impl Rope {
    /// `divisors`: the divisor of each frequency, for [`Scaling::InFile`].
    pub(crate) fn new(config: &Config, divisors: Option<&Tensor>, dtype: DType, device: &Device) -> Result<Self> {
        let half = config.head_dim / 2;
        let frequencies = (0..half).map(|i| {
            let frequency = config.rope_base.powf(-((2 * i) as f32) / config.head_dim as f32);
            scaled(i, frequency, config)
        });
        let mut frequencies = Tensor::from_iter(frequencies, device)?;
        if let Some(divisors) = divisors {
            frequencies = (frequencies / divisors.to_dtype(DType::F32)?.flatten_all()?)?;
        }
        let frequencies = frequencies.unsqueeze(0)?;
        let positions = Tensor::arange(0, config.context as u32, device)?.to_dtype(DType::F32)?;
        let angles = positions.reshape((config.context, 1))?.broadcast_mul(&frequencies)?;
        let factor = match config.scaling {
            Scaling::Yarn { attention, .. } => f64::from(attention),
            _ => 1.0,
        };
        let cos = (angles.cos()? * factor)?.to_dtype(dtype)?;
        let sin = (angles.sin()? * factor)?.to_dtype(dtype)?;
        Ok(Self { cos, sin, pairs: config.pairs })
    }

    /// The rotation of slots `from..from + count` of sequences whose first tokens are in the slots `starts`. Slots
    /// before the start of a sequence are rotated as position 0; masks exclude them.
    pub(crate) fn rotation(&self, starts: &[usize], from: usize, count: usize) -> Result<Rotation> {
        let pick = |table: &Tensor| match starts {
            [] => table.narrow(0, 0, count),
            [first, rest @ ..] if rest.iter().all(|start| start == first) && *first <= from => {
                table.narrow(0, from - first, count)
            }
            _ => {
                let positions =
                    starts.iter().flat_map(|start| (from..from + count).map(|slot| slot.saturating_sub(*start) as u32));
                let positions = Tensor::from_iter(positions, table.device())?;
                table.index_select(&positions, 0)?.reshape((starts.len(), count, ()))
            }
        };
        Ok(Rotation { cos: pick(&self.cos)?, sin: pick(&self.sin)?, pairs: self.pairs })
    }

    /// The rotation of one token of each sequence, at positions that are on the device: i64 `[sequences]`.
    pub(crate) fn rotation_at(&self, positions: &Tensor) -> Result<Rotation> {
        let pick = |table: &Tensor| table.index_select(positions, 0)?.unsqueeze(1);
        Ok(Rotation { cos: pick(&self.cos)?, sin: pick(&self.sin)?, pairs: self.pairs })
    }
}

impl Rotation {
    /// Rotates queries or keys of shape `[sequences, heads, tokens, head_dim]`.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.contiguous()?;
        match self.pairs {
            Pairs::Interleaved => candle_nn::rotary_emb::rope_i(&x, &self.cos, &self.sin),
            Pairs::Halves => candle_nn::rotary_emb::rope(&x, &self.cos, &self.sin),
        }
    }
}

/// The frequency with the number `index`.
fn scaled(index: usize, frequency: f32, config: &Config) -> f32 {
    match config.scaling {
        Scaling::None | Scaling::InFile => frequency,
        Scaling::Linear { factor } => frequency / factor,
        Scaling::Llama3 { factor, low, high, context } => {
            let rotations = context as f32 * frequency / std::f32::consts::TAU;
            // 0 for low frequencies, 1 for high ones.
            let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (kept + (1.0 - kept) / factor)
        }
        Scaling::Yarn { factor, fast, slow, context, truncates, .. } => {
            let last = config.head_dim as f32 - 1.0;
            // The element whose frequency rotates so often in the original context.
            let element = |rotations: f32| {
                let rotation = context as f32 / (rotations * std::f32::consts::TAU);
                config.head_dim as f32 * rotation.ln() / (2.0 * config.rope_base.ln())
            };
            let (low, high) =
                if truncates { (element(fast).floor(), element(slow).ceil()) } else { (element(fast), element(slow)) };
            let (low, high) = (low.max(0.0), high.min(last));
            let high = if low == high { high + 0.001 } else { high };
            let divided = ((index as f32 - low) / (high - low)).clamp(0.0, 1.0);
            frequency * ((1.0 - divided) + divided / factor)
        }
    }
}
