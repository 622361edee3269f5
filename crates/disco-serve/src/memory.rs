//! The memory for keys and values.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use candle_core::Device;
use disco::Settings;
use disco_candle::weights::{Plan, Shards, Weights};
use disco_models::{BLOCK, Config, Precision, block_bytes, memory_bytes, state_bytes};
use sysinfo::{Process, ProcessesToUpdate, System};

use crate::args::Args;

/// Backends whose workers compute on the host.
const ON_THE_HOST: [&str; 3] = ["local", "tcp", "mpi"];

/// Whether the workers of a session compute on the host.
pub(crate) fn is_on_the_host(settings: &Settings) -> bool {
    ON_THE_HOST.contains(&settings.backend.as_str())
}

/// Blocks for keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Number of blocks.
    pub(crate) blocks: usize,
    /// Bytes of a block on the worker with the most kv heads.
    block_bytes: usize,
    /// Number of states of linear attention beside those of sequences that run; `None`: the model has none.
    pub(crate) kept_states: Option<u32>,
    /// Bytes of all states on the worker with the most heads.
    state_bytes: usize,
}

impl Memory {
    /// Blocks in the bytes of each worker that the user gives, or as many as all texts of `context` tokens can need, if the
    /// free memory has room.
    ///
    /// # Errors
    /// There is no room for one block, or it can't be known.
    pub(crate) fn new(
        args: &Args,
        settings: &Settings,
        config: &Config,
        (weights, plan): (&Arc<Weights>, &Plan),
        context: usize,
    ) -> Result<Self> {
        let (workers, precision) = (settings.workers, args.precision());
        let block_bytes = block_bytes(config, workers, precision)?.max(1);
        // As many are kept for prefixes as sequences can run.
        let kept_states = config.is_recurrent().then_some(args.max_num_seqs);
        let states = args.max_num_seqs as usize + kept_states.unwrap_or(0) as usize;
        let state_bytes = states.saturating_mul(state_bytes(config, workers));
        let blocks_in = |bytes: u64| (bytes as usize).saturating_sub(state_bytes) / block_bytes;
        let needed = (args.max_num_seqs as usize).saturating_mul(context.div_ceil(BLOCK));
        let is_on_the_host = is_on_the_host(settings);
        let free = || {
            let free = free_bytes().context("the free memory is not known: set --kv-cache-bytes")?;
            Ok::<_, anyhow::Error>(free.saturating_sub(weights_bytes(config, weights, plan, precision, workers)))
        };
        let blocks = match args.kv_cache_bytes {
            Some(bytes) => {
                let all = bytes.saturating_mul(workers as u64);
                ensure!(
                    !is_on_the_host || settings.nodes > 1 || free().map_or(true, |free| all <= free),
                    "--kv-cache-bytes {bytes}: {workers} workers have no room for {all} bytes beside the weights"
                );
                blocks_in(bytes)
            }
            None => {
                ensure!(
                    is_on_the_host,
                    "the backend {} uses devices, whose free memory is not known: set --kv-cache-bytes",
                    settings.backend
                );
                needed.min(blocks_in(free()? / 4 / workers as u64))
            }
        };
        ensure!(
            blocks > 0,
            "there is no room for keys and values: a block of {BLOCK} tokens needs {block_bytes} bytes of each worker{}",
            if kept_states.is_some() {
                format!(", and {states} states, two for each text (--max-num-seqs), need {state_bytes}")
            } else {
                String::new()
            }
        );
        Ok(Self { blocks: blocks.min(u32::MAX as usize), block_bytes, kept_states, state_bytes })
    }

    /// Bytes of all blocks and states.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks * self.block_bytes + self.state_bytes
    }

    /// Tokens that the blocks have room for.
    pub(crate) fn tokens(&self) -> usize {
        self.blocks * BLOCK
    }
}

/// Bytes of the weights of all workers in memory.
fn weights_bytes(config: &Config, weights: &Arc<Weights>, plan: &Plan, precision: Precision, workers: usize) -> u64 {
    let of = |rank| {
        let shards = Shards::new(weights.clone(), plan.clone(), rank, workers, precision.dtype(), Device::Cpu);
        memory_bytes(config, &shards, precision)
    };
    (0..workers).map(of).sum()
}

/// The free memory of this machine, or of the control groups that this process is in.
fn free_bytes() -> Option<u64> {
    let mut system = System::new().ok()?;
    system.refresh_memory();
    let own = sysinfo::get_current_pid().ok()?;
    system.refresh_processes(ProcessesToUpdate::Some(&[own]), false);
    let groups = system.process(own).and_then(Process::cgroup_limits);
    let free = groups.map_or(u64::MAX, |limits| limits.free_memory);
    Some(system.available_memory().min(free))
}
