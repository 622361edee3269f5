//! The plan of a model's splits.

use disco_candle::HeadPlan;
use disco_candle::weights::{Block, Cut, Encoding, Plan, Split, Weights};

use crate::names::{Names, Role};
use crate::parts::unit;
use crate::{Config, ModelError, tensors};

/// The plan of splits for `ranks` ranks: which part of each tensor a rank reads.
///
/// Query and kv heads are split as [`HeadPlan`] says, so kv heads may be on several ranks. Hidden units of the
/// feed-forward networks are split in units of the file's quantisation blocks. The vocabulary is split by rows. Norms
/// are on every rank.
///
/// # Errors
/// There are more ranks than query heads or units of hidden units. The weights lack a tensor of the model, have it in
/// another shape than the configuration says, or have one that would change the results and is not used (a bias, a
/// scale).
pub fn plan(config: &Config, weights: &Weights, ranks: usize) -> Result<Plan, ModelError> {
    tensors::check(config, weights)?;
    let names = Names::of(weights);
    let heads = HeadPlan::new(config.heads, config.kv_heads, ranks)?;
    let width = config.head_dim;
    let elements = |heads: std::ops::Range<usize>| heads.start * width..heads.end * width;
    let query = |rank| elements(heads.query(rank));
    let kv = |rank| elements(heads.kv(rank));
    let unit = match weights.info(&names.layer(0, Role::Down))?.encoding() {
        Encoding::Ggml(dtype) if config.ffn.is_multiple_of(unit(dtype)) => unit(dtype),
        Encoding::Ggml(dtype) if config.ffn.is_multiple_of(dtype.block_size()) => dtype.block_size(),
        _ => 1,
    };
    let units = config.ffn / unit;
    if units < ranks {
        return Err(ModelError::Call(format!(
            "{units} blocks of {unit} hidden units can't be split over {ranks} ranks; use 1 to {units}"
        )));
    }
    let all = |role| names.layer("*", role);
    let bias = |role| names.bias("*", role);
    let head_norms = if config.features.joint_head_norms {
        [Split::ranges(0, (0..ranks).map(query)), Split::ranges(0, (0..ranks).map(kv))]
    } else {
        [Split::Whole, Split::Whole]
    };
    let [query_norm, key_norm] = head_norms;
    let queries = Block::new(config.heads * width, Cut::Ranges((0..ranks).map(query).collect()));
    let keys = Block::new(config.kv_heads * width, Cut::Ranges((0..ranks).map(kv).collect()));
    let units = Block::even(config.ffn, unit);
    Ok(Plan::new()
        .with(&all(Role::Query), Split::ranges(0, (0..ranks).map(query)))
        .with(&all(Role::Key), Split::ranges(0, (0..ranks).map(kv)))
        .with(&all(Role::Value), Split::ranges(0, (0..ranks).map(kv)))
        .with(&all(Role::Output), Split::ranges(1, (0..ranks).map(query)))
        .with(&all(Role::Gate), Split::even(0, unit))
        .with(&all(Role::Up), Split::even(0, unit))
        .with(&all(Role::Down), Split::even(1, unit))
        .with(&bias(Role::Query), Split::ranges(0, (0..ranks).map(query)))
        .with(&bias(Role::Key), Split::ranges(0, (0..ranks).map(kv)))
        .with(&bias(Role::Value), Split::ranges(0, (0..ranks).map(kv)))
        .with(&all(Role::Qkv), Split::fused(0, [queries, keys.clone(), keys]))
        .with(&all(Role::GateUp), Split::fused(0, [units.clone(), units]))
        .with(&all(Role::QueryNorm), query_norm)
        .with(&all(Role::KeyNorm), key_norm)
        .with(&bias(Role::Gate), Split::even(0, unit))
        .with(&bias(Role::Up), Split::even(0, unit))
        .with(names.embedding(), Split::even(0, 1))
        .with(names.logits(), Split::even(0, 1))
        .with("*", Split::Whole))
}
