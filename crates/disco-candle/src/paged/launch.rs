//! The kernel of a launch on a CUDA device, its grid and its numbers.

use candle_core::{DType, Error, Result};

use super::{Scope, Sizes};

/// Threads of a block: eight warps, as in `attention.cu`.
pub(super) const THREADS: u32 = 256;
/// Rows that a block of threads computes, as in `attention.cu`.
pub(super) const ROWS: usize = 4;
/// The kernels, by the type of elements and the largest width of a head.
pub(super) const KERNELS: [(DType, usize, &str); 9] = [
    (DType::F32, 64, "disco_attention_f32_64"),
    (DType::F32, 128, "disco_attention_f32_128"),
    (DType::F32, 256, "disco_attention_f32_256"),
    (DType::F16, 64, "disco_attention_f16_64"),
    (DType::F16, 128, "disco_attention_f16_128"),
    (DType::F16, 256, "disco_attention_f16_256"),
    (DType::BF16, 64, "disco_attention_bf16_64"),
    (DType::BF16, 128, "disco_attention_bf16_128"),
    (DType::BF16, 256, "disco_attention_bf16_256"),
];

/// A launch. The kernel reads words of 32 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    pub(super) kernel: &'static str,
    pub(super) grid: (u32, u32, u32),
    pub(super) tokens: u32,
    /// Words of a row.
    pub(super) words: u32,
    pub(super) window: u32,
    pub(super) cap: f32,
}

impl Launch {
    /// # Errors
    /// There is no kernel for the type and the width; elements do not begin with a word; there are no tokens or no heads.
    pub(super) fn of(scope: &Scope<'_>, sizes: &Sizes, dtype: DType) -> Result<Self> {
        let Scope { plan, window, cap, .. } = *scope;
        let width = sizes.width;
        let kernel = KERNELS.iter().find(|row| row.0 == dtype && width <= row.1);
        let of_word = 4 / dtype.size_in_bytes();
        let is_whole = |count: usize| count.is_multiple_of(of_word);
        let is_whole = is_whole(width) && sizes.ranges.iter().all(|(start, _)| is_whole(*start));
        let Some((_, _, kernel)) = kernel.filter(|_| is_whole) else {
            return Err(Error::Msg(format!(
                "on CUDA devices, there is no attention to blocks for heads of {width} elements of {}",
                dtype.as_str()
            )));
        };
        let parts = plan.rows().div_ceil(ROWS);
        if parts == 0 || width == 0 {
            return Err(Error::Msg("attention to blocks without tokens or heads".into()));
        }
        Ok(Self {
            kernel,
            grid: (plan.tiles() as u32, sizes.kv_heads as u32, parts as u32),
            tokens: plan.tokens as u32,
            words: (width / of_word) as u32,
            window: window.map_or(u32::MAX, |window| window.try_into().unwrap_or(u32::MAX)),
            cap: cap.unwrap_or(0.0) as f32,
        })
    }
}
