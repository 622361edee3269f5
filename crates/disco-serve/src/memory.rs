//! The memory for keys and values.

use std::fs;

use anyhow::{Result, ensure};
use disco_candle::HeadPlan;
use disco_models::{BLOCK, Config, Precision};

/// Blocks for keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Number of blocks.
    pub(crate) blocks: usize,
    /// Bytes of a block on the worker with the most kv heads.
    pub(crate) block_bytes: usize,
}

impl Memory {
    /// Blocks in `bytes` of each worker, or as many as `sequences` of `context` tokens can need, if the free memory has room.
    ///
    /// # Errors
    /// The heads can't be split over the workers, or there is no room for one block.
    pub(crate) fn new(
        config: &Config,
        precision: Precision,
        workers: usize,
        bytes: Option<u64>,
        (sequences, context): (usize, usize),
    ) -> Result<Self> {
        let heads = HeadPlan::new(config.heads, config.kv_heads, workers)?;
        let most = (0..workers).map(|rank| heads.kv(rank).len()).max().unwrap_or(0);
        let elements = config.layers * 2 * most * BLOCK * config.head_dim;
        let block_bytes = (elements * precision.dtype().size_in_bytes()).max(1);
        let needed = sequences.saturating_mul(context.div_ceil(BLOCK));
        let blocks = match bytes {
            Some(bytes) => bytes as usize / block_bytes,
            None => needed.min(free_bytes().unwrap_or(4 << 30) as usize / 4 / workers / block_bytes),
        };
        ensure!(
            blocks > 0,
            "there is no room for keys and values: a block of {BLOCK} tokens needs {block_bytes} bytes of each worker"
        );
        Ok(Self { blocks: blocks.min(u32::MAX as usize), block_bytes })
    }

    /// Tokens that the blocks have room for.
    pub(crate) fn tokens(&self) -> usize {
        self.blocks * BLOCK
    }
}

/// The free memory of this machine.
fn free_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}
