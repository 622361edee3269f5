//! The plan of a model's splits.

use disco_candle::weights::{Block, Cut, Encoding, Plan, Split, Weights};
use disco_candle::{HeadPlan, Matrix, even_ranges};

use crate::names::{EXPERT, Names, Role};
use crate::{Config, ExpertSplit, Experts, ModelError, tensors};

/// Columns of a quantised matrix that products take together.
const PACKED: usize = 32;

/// The plan of splits for `ranks` ranks: which part of each tensor a rank reads.
///
/// Query and kv heads are split as [`HeadPlan`] says, so kv heads may be on several ranks. Hidden units of the
/// feed-forward networks are split in units of the file's quantisation blocks, or of parts of blocks if there are fewer
/// blocks than ranks; those of experts, too, or whole experts are ([`Config::expert_split`]). The vocabulary is split by rows. Norms are on every rank.
///
/// # Errors
/// There are more ranks than query heads, units of hidden units, or experts. The weights lack a tensor of the model,
/// have it in another shape than the configuration says, or have one that would change the results and is not used (a
/// bias, a scale, an adapter).
pub fn plan(config: &Config, weights: &Weights, ranks: usize) -> Result<Plan, ModelError> {
    tensors::check(config, weights)?;
    let names = Names::of(weights);
    let plan = attention(config, names, ranks)?;
    let plan = match (config.features.experts, config.expert_split) {
        (None, _) => plan,
        (Some(experts), ExpertSplit::Over) => whole_experts(plan, config, experts, names, ranks)?,
        (Some(experts), ExpertSplit::Within) => units_of_experts(plan, config, experts, names, weights, ranks)?,
    };
    let plan = hidden_units(plan, config, names, weights, ranks)?;
    Ok(plan.with(names.embedding(), Split::even(0, 1)).with(names.logits(), Split::even(0, 1)).with("*", Split::Whole))
}

fn attention(config: &Config, names: Names, ranks: usize) -> Result<Plan, ModelError> {
    let heads = HeadPlan::new(config.heads, config.kv_heads, ranks)?;
    let width = config.head_dim;
    let elements = |heads: std::ops::Range<usize>| heads.start * width..heads.end * width;
    let query = |rank| elements(heads.query(rank));
    let kv = |rank| elements(heads.kv(rank));
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
    Ok(Plan::new()
        .with(&all(Role::Query), Split::ranges(0, (0..ranks).map(query)))
        .with(&all(Role::Key), Split::ranges(0, (0..ranks).map(kv)))
        .with(&all(Role::Value), Split::ranges(0, (0..ranks).map(kv)))
        .with(&all(Role::Output), Split::ranges(1, (0..ranks).map(query)))
        .with(&bias(Role::Query), Split::ranges(0, (0..ranks).map(query)))
        .with(&bias(Role::Key), Split::ranges(0, (0..ranks).map(kv)))
        .with(&bias(Role::Value), Split::ranges(0, (0..ranks).map(kv)))
        .with(&all(Role::Qkv), Split::fused(0, [queries, keys.clone(), keys]))
        .with(&all(Role::QueryNorm), query_norm)
        .with(&all(Role::KeyNorm), key_norm))
}

/// Hidden units that stay together: a quantisation block of the matrix `down`, whose columns they are. If there are fewer
/// blocks than ranks, parts of blocks, which can be packed anew.
///
/// # Errors
/// There are fewer hidden units than ranks.
fn unit_of(down: &str, units: usize, weights: &Weights, ranks: usize) -> Result<usize, ModelError> {
    let sizes = match weights.info(down)?.encoding() {
        Encoding::Ggml(dtype) => [Matrix::unit(dtype), dtype.block_size(), dtype.block_size().min(PACKED), 1],
        _ => [1; 4],
    };
    let fits = |size: &usize| units.is_multiple_of(*size) && units / size >= ranks;
    sizes.into_iter().find(fits).ok_or_else(|| {
        ModelError::Call(format!("{units} hidden units ({down}) can't be split over {ranks} ranks; use 1 to {units}"))
    })
}

/// Hidden units of the feed-forward network are split over the ranks, in the layers that have it.
fn hidden_units(
    plan: Plan,
    config: &Config,
    names: Names,
    weights: &Weights,
    ranks: usize,
) -> Result<Plan, ModelError> {
    let features = &config.features;
    let Some(layer) = (0..config.layers).find(|layer| features.experts_of(*layer).is_none()) else { return Ok(plan) };
    let unit = unit_of(&names.layer(layer, Role::Down), config.ffn, weights, ranks)?;
    let plan = plan.with(&names.layer("*", Role::Down), Split::even(1, unit));
    // A GGUF file has one name for the fused matrix and for the half of it.
    if features.fused {
        let units = Block::even(config.ffn, unit);
        return Ok(plan.with(&names.layer("*", Role::GateUp), Split::fused(0, [units.clone(), units])));
    }
    Ok(plan
        .with(&names.layer("*", Role::Gate), Split::even(0, unit))
        .with(&names.layer("*", Role::Up), Split::even(0, unit))
        .with(&names.bias("*", Role::Gate), Split::even(0, unit))
        .with(&names.bias("*", Role::Up), Split::even(0, unit)))
}

/// Hidden units of each expert are split over the ranks.
fn units_of_experts(
    plan: Plan,
    config: &Config,
    experts: Experts,
    names: Names,
    weights: &Weights,
    ranks: usize,
) -> Result<Plan, ModelError> {
    let features = &config.features;
    let Some(layer) = (0..config.layers).find(|layer| features.experts_of(*layer).is_some()) else { return Ok(plan) };
    let unit = unit_of(&names.expert(layer, 0, Role::Down), experts.ffn, weights, ranks)?;
    // The experts of a layer are one tensor in GGUF files.
    let first = usize::from(names == Names::Gguf);
    let rules = [(Role::Gate, first), (Role::Up, first), (Role::Down, first + 1)];
    let rule = |plan: Plan, (role, dim)| plan.with(&names.expert("*", "*", role), Split::even(dim, unit));
    Ok(rules.into_iter().fold(plan, rule))
}

/// Each rank has some experts whole.
fn whole_experts(
    mut plan: Plan,
    config: &Config,
    experts: Experts,
    names: Names,
    ranks: usize,
) -> Result<Plan, ModelError> {
    let count = experts.count;
    if count < ranks {
        return Err(ModelError::Call(format!("{count} experts can't be split over {ranks} ranks; use 1 to {count}")));
    }
    for role in EXPERT {
        if names == Names::Gguf {
            plan = plan.with(&names.expert("*", "", role), Split::even(0, 1));
            continue;
        }
        let rows = if role == Role::Down { config.dim } else { experts.ffn };
        for expert in 0..count {
            let own = even_ranges(count, ranks).map(|own| if own.contains(&expert) { 0..rows } else { 0..0 });
            plan = plan.with(&names.expert("*", expert, role), Split::ranges(0, own));
        }
    }
    Ok(plan)
}
