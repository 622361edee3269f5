//! Mixtures of experts: a router chooses the experts that compute a token.

use std::ops::Range;

use candle_core::{D, DType, Module as _, Result, Tensor};
use disco_candle::{Comm, Matrix, even_ranges, sigmoid, softmax};

use crate::names::{EXPERT, EXPERT_STACKS, Role, bias};
use crate::parts::{Parts, Stack};
use crate::ranks::{Gather, rows_of};
use crate::units::{Expert, Units};
use crate::{ExpertLayout, ExpertSplit, Experts, FeedForward, Groups, ModelError, Scores, Sums, stacks};

/// The experts of a layer of which this rank has hidden units, and the router, which is on every rank.
#[derive(Debug)]
pub(crate) struct Mixture {
    /// One output for each expert.
    router: Matrix,
    /// `[experts]`.
    router_bias: Option<Tensor>,
    /// Added to scores for the choice, f32 `[1, experts]`.
    correction: Option<Tensor>,
    /// Factors of the shares of the chosen experts, f32 `[experts]`.
    scales: Option<Tensor>,
    units: Vec<Expert>,
    /// The number of the first of them.
    first: usize,
    experts: Experts,
    exchange: Exchange,
    /// The outputs that this rank adds up.
    outputs: Range<usize>,
}

/// What ranks exchange before outputs of experts are added.
#[derive(Debug)]
enum Exchange {
    /// Nothing: each has a summand of all outputs.
    Nothing,
    /// The hidden units of each expert: each has some outputs.
    Units(Gather),
    /// The outputs of whole experts, of which each adds some.
    Outputs {
        /// The experts of each rank.
        experts: Vec<Range<usize>>,
        comm: Comm,
    },
}

/// The rows that an expert computes.
struct Chosen {
    expert: usize,
    /// Their numbers, and their shares of this expert `[rows, 1]`.
    rows: Tensor,
    shares: Tensor,
    count: usize,
}

impl Mixture {
    /// `own`: the experts of which this rank has hidden units.
    pub(crate) fn load(
        parts: &Parts<'_>,
        experts: Experts,
        layer: usize,
        own: Range<usize>,
        comm: &Comm,
    ) -> std::result::Result<Self, ModelError> {
        let (names, activation) = (parts.names, experts.activation);
        let is_split_within = parts.config.expert_split == ExpertSplit::Within;
        let is_whole = parts.config.sums != Sums::Parts;
        let adds_bias = is_whole || !is_split_within || comm.rank() == 0;
        let units: Vec<_> = match experts.layout {
            ExpertLayout::Interleaved | ExpertLayout::Transposed => {
                let own_of = |count| rows_of(count, comm.size()).nth(comm.rank()).filter(|_| is_split_within);
                let units = own_of(experts.ffn).unwrap_or(0..experts.ffn);
                let outputs = own_of(parts.config.dim).filter(|_| is_whole);
                stacks::load(parts, &experts, layer, own.clone(), (units, outputs), adds_bias)?
            }
            ExpertLayout::Joined => {
                let [inputs, downs] = EXPERT_STACKS.map(|role| parts.matrices(&names.module(layer, role)));
                let units = |(matrix, down): (Matrix, Matrix)| {
                    let widths = vec![matrix.outputs()? / 2; 2];
                    let units = Units::new(Stack::Stacked { matrix, bias: None, widths }, activation);
                    Ok::<_, ModelError>(Expert { units, down, bias: None })
                };
                inputs?.into_iter().zip(downs?).map(units).collect::<std::result::Result<_, _>>()?
            }
            ExpertLayout::Apart if names.stacks_experts() => {
                let [gate, up, down] = EXPERT.map(|role| {
                    let name = names.layer(layer, role);
                    let matrices = parts.matrices(&name)?;
                    let count = matrices.len();
                    let is_added = experts.bias && (role != Role::ExpertDown || adds_bias);
                    let biases = is_added.then(|| parts.tensor(&bias(&name))).transpose()?;
                    let of_expert = |expert| biases.as_ref().map(|all| all.get(expert)).transpose();
                    let biases = (0..count).map(of_expert).collect::<Result<Vec<_>>>()?;
                    Ok::<_, ModelError>(matrices.into_iter().zip(biases))
                });
                let units = |(inputs, (down, bias))| {
                    let units = Units::new(Stack::Separate(<[_; 2]>::from(inputs).into()), activation);
                    Expert { units, down, bias }
                };
                gate?.zip(up?).zip(down?).map(units).collect()
            }
            ExpertLayout::Apart => {
                let units = own.clone().map(|expert| {
                    let inputs = [Role::ExpertGate, Role::ExpertUp].map(|role| names.expert(layer, expert, role));
                    let down = parts.matrix(&names.expert(layer, expert, Role::ExpertDown))?;
                    let units = Units::new(parts.stack_of(&inputs, vec![None, None])?, activation);
                    Ok::<_, ModelError>(Expert { units, down, bias: None })
                });
                units.collect::<std::result::Result<_, _>>()?
            }
        };
        let router_bias = experts.bias.then(|| parts.bias(layer, Role::Router)).transpose()?;
        let has_both = matches!(parts.config.layers[layer].feed_forward, FeedForward::Both(..));
        let scales = has_both.then(|| {
            let scales = parts.tensor(&names.layer(layer, Role::ExpertScale))?;
            Ok::<_, ModelError>(scales.to_dtype(DType::F32)?)
        });
        let is_sigmoid = experts.scores == Scores::Sigmoid;
        let correction = is_sigmoid
            .then(|| Ok::<_, ModelError>(parts.wide(&names.layer(layer, Role::RouterCorrection))?.unsqueeze(0)?));
        let name = names.layer(layer, Role::Router);
        let router = parts.shelved_one(&name, || {
            let mut router = parts.tensor(&name)?;
            if has_both {
                let scale = parts.tensor(&names.layer(layer, Role::RouterScale))?;
                router = (router.broadcast_mul(&scale)? * (parts.config.dim as f64).powf(-0.5))?;
            }
            if is_sigmoid || experts.groups.is_some() {
                // Small differences decide.
                router = router.to_dtype(DType::F32)?;
            }
            Ok(Matrix::inference(router)?)
        })?;
        let (scales, correction) = (scales.transpose()?, correction.transpose()?);
        let exchange = match parts.config.expert_split {
            _ if !is_whole => Exchange::Nothing,
            ExpertSplit::Within => Exchange::Units(Gather::of_rows(experts.ffn, comm)),
            ExpertSplit::Over => {
                Exchange::Outputs { experts: even_ranges(experts.count, comm.size()).collect(), comm: comm.clone() }
            }
        };
        let outputs = if is_whole { Gather::of_rows(parts.config.dim, comm).own() } else { 0..parts.config.dim };
        Ok(Self { router, router_bias, correction, scales, units, first: own.start, experts, exchange, outputs })
    }

    /// The sum of the experts' outputs: `[.., dim]` to `[.., own outputs]`, or this rank's summand of it. The experts get `x`, and the
    /// router `input`.
    pub(crate) fn forward(&self, x: &Tensor, input: &Tensor) -> Result<Tensor> {
        let rows = x.flatten_to(x.rank() - 2)?;
        let shares = self.shares(&input.flatten_to(x.rank() - 2)?)?;
        let y = if x.device().is_cpu() { self.routed(&rows, &shares) } else { self.masked(&rows, &shares) }?;
        y.reshape([&x.dims()[..x.rank() - 1], &[y.dim(1)?]].concat())
    }

    /// The share of each expert in each of `rows`, f32 `[rows, experts]`: 0 for those that are not chosen.
    fn shares(&self, rows: &Tensor) -> Result<Tensor> {
        let logits = self.router.forward(&rows.to_dtype(self.router.dtype())?)?;
        let logits = self.router_bias.iter().try_fold(logits, |logits, bias| logits.broadcast_add(bias))?;
        let logits = logits.to_dtype(DType::F32)?;
        let all = match self.experts.scores {
            Scores::Softmax => softmax(&logits)?,
            Scores::Sigmoid => sigmoid(&logits)?,
        };
        let corrected = self.correction.iter().try_fold(all.clone(), |all, bias| all.broadcast_add(bias))?;
        let order = match self.experts.groups {
            Some(groups) => in_best_groups(&corrected, groups)?,
            // Small logits differ where their softmax is 0.
            None if self.experts.scores == Scores::Softmax => logits,
            None => corrected,
        };
        let chosen = order.arg_sort_last_dim(false)?.narrow(1, 0, self.experts.per_token)?.contiguous()?;
        let mut shares = all.gather(&chosen, 1)?;
        if self.experts.normalises {
            // All may be too small for a sum above 0; transformers adds the same.
            shares = shares.broadcast_div(&(shares.sum_keepdim(1)? + 1e-20)?)?;
        }
        if self.experts.factor != 1.0 {
            shares = (shares * self.experts.factor)?;
        }
        let shares = all.zeros_like()?.scatter_add(&chosen, &shares, 1)?;
        self.scales.iter().try_fold(shares, |shares, scales| shares.broadcast_mul(scales))
    }

    /// Each expert computes its tokens, which the host knows. Outputs are added in the order of experts.
    fn routed(&self, rows: &Tensor, shares: &Tensor) -> Result<Tensor> {
        let all = chosen(rows, shares)?;
        let zeros = Tensor::zeros((rows.dim(0)?, self.outputs.len()), rows.dtype(), rows.device())?;
        if all.is_empty() {
            return Ok(zeros);
        }
        let is_own = |chosen: &&Chosen| (self.first..self.first + self.units.len()).contains(&chosen.expert);
        let own: Vec<_> = all.iter().filter(is_own).collect();
        let units = own.iter().map(|chosen| &self.units[chosen.expert - self.first]);
        let hidden =
            units.clone().zip(&own).map(|(units, chosen)| units.units.forward(&rows.index_select(&chosen.rows, 0)?));
        let mut hidden = hidden.collect::<Result<Vec<_>>>()?;
        if let Exchange::Units(gather) = &self.exchange {
            hidden = apart(&gather.forward(Tensor::cat(&hidden, 0)?)?, &all)?;
        }
        let outputs = units.zip(hidden).map(|(units, hidden)| units.output(&hidden));
        let mut outputs = outputs.collect::<Result<Vec<_>>>()?;
        let mut added = own;
        if let Exchange::Outputs { experts, comm } = &self.exchange {
            let count = |rank: &Range<usize>| {
                all.iter().filter(|chosen| rank.contains(&chosen.expert)).map(|chosen| chosen.count).sum()
            };
            let counts: Vec<_> = experts.iter().map(count).collect();
            outputs.push(rows.narrow(0, 0, 0)?);
            let whole = comm.all_gather_uneven(&Tensor::cat(&outputs, 0)?, 0, &counts)?;
            outputs = apart(&whole.narrow(1, self.outputs.start, self.outputs.len())?.contiguous()?, &all)?;
            added = all.iter().collect();
        }
        added
            .into_iter()
            .zip(outputs)
            .try_fold(zeros, |sum, (chosen, y)| sum.index_add(&chosen.rows, &y.broadcast_mul(&chosen.shares)?, 0))
    }

    /// Each expert computes all tokens, so that the host waits for no device. What it computes for the tokens of others is
    /// left out, even if it overflows.
    fn masked(&self, rows: &Tensor, shares: &Tensor) -> Result<Tensor> {
        let zeros = rows.zeros_like()?;
        self.units.iter().enumerate().try_fold(zeros.clone(), |sum, (number, units)| {
            let shares = shares.narrow(D::Minus1, self.first + number, 1)?;
            let y = units.output(&units.units.forward(rows)?)?.broadcast_mul(&shares.to_dtype(rows.dtype())?)?;
            sum + shares.ne(0.0)?.broadcast_as(y.shape())?.where_cond(&y, &zeros)?
        })
    }
}

/// The rows of each expert.
fn apart(all: &Tensor, chosen: &[Chosen]) -> Result<Vec<Tensor>> {
    let mut first = 0;
    let part = |chosen: &Chosen| {
        first += chosen.count;
        all.narrow(0, first - chosen.count, chosen.count)
    };
    chosen.iter().map(part).collect()
}

/// The rows of each expert that has some, in the order of experts.
#[expect(clippy::disallowed_methods, reason = "the shares are on the host")]
fn chosen(rows: &Tensor, shares: &Tensor) -> Result<Vec<Chosen>> {
    let mut all = Vec::new();
    for (expert, shares) in shares.t()?.to_vec2::<f32>()?.into_iter().enumerate() {
        let chosen = (0u32..).zip(shares).filter(|(_, share)| *share != 0.0);
        let (numbers, shares): (Vec<_>, Vec<_>) = chosen.unzip();
        let count = numbers.len();
        if count > 0 {
            let shares = Tensor::new(shares, rows.device())?.unsqueeze(1)?.to_dtype(rows.dtype())?;
            all.push(Chosen { expert, rows: Tensor::new(numbers, rows.device())?, shares, count });
        }
    }
    Ok(all)
}

/// Scores `[rows, experts]`, and minus infinity for experts whose group is none of the best.
fn in_best_groups(scores: &Tensor, Groups { count: groups, chosen, best }: Groups) -> Result<Tensor> {
    let (rows, count) = scores.dims2()?;
    let by_group = scores.reshape((rows, groups, count / groups))?;
    let (sorted, _) = by_group.sort_last_dim(false)?;
    let of_groups = sorted.narrow(2, 0, (count / groups).min(best))?.sum(2)?;
    let best = of_groups.arg_sort_last_dim(false)?.narrow(1, 0, chosen)?.contiguous()?;
    let is_chosen = of_groups.zeros_like()?.scatter_add(&best, &best.ones_like()?.to_dtype(DType::F32)?, 1)?;
    let is_chosen = is_chosen.ne(0.0)?.unsqueeze(2)?.broadcast_as(by_group.shape())?;
    let others = Tensor::full(f32::NEG_INFINITY, by_group.shape(), scores.device())?;
    is_chosen.where_cond(&by_group, &others)?.reshape((rows, count))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::Activation;

    fn random(shape: &[usize]) -> Tensor {
        Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn tokens_get_the_same_from_all_experts_with_shares_as_from_the_chosen_ones() {
        // One expert counts negatively.
        const SCALES: [f32; 4] = [1.0, -0.5, 2.0, 1.0];
        let units = |_| {
            let inputs =
                Stack::Separate(vec![(Matrix::dense(random(&[6, 5])), None), (Matrix::dense(random(&[6, 5])), None)]);
            Expert { units: Units::new(inputs, Activation::Silu), down: Matrix::dense(random(&[5, 6])), bias: None }
        };
        let router = random(&[4, 5]);
        for normalises in [false, true] {
            let experts = Experts { normalises, ..Experts::new(4, 6, 2) };
            // A rank with the experts 1 to 3.
            let mixture = Mixture {
                router: Matrix::dense(router.clone()),
                router_bias: None,
                correction: None,
                scales: Some(Tensor::new(&SCALES, &Device::Cpu).unwrap()),
                units: (1..4).map(units).collect(),
                first: 1,
                experts,
                exchange: Exchange::Nothing,
                outputs: 0..5,
            };
            let rows = random(&[7, 5]);
            let shares = mixture.shares(&rows).unwrap();
            let all = candle_nn::ops::softmax_last_dim(&rows.matmul(&router.t().unwrap()).unwrap()).unwrap();
            let all = all.to_vec2::<f32>().unwrap();
            for (row, all) in shares.to_vec2::<f32>().unwrap().iter().zip(all) {
                let chosen = row.iter().zip(&all).zip(SCALES).filter(|((share, _), _)| **share != 0.0);
                assert_eq!(chosen.clone().count(), 2);
                let whole = if normalises { chosen.clone().map(|((_, all), _)| all).sum() } else { 1.0 };
                for ((share, all), scale) in chosen {
                    assert!((share - scale * all / whole).abs() < 1e-5, "{row:?}, {all:?}");
                }
            }
            let [routed, masked] = [mixture.routed(&rows, &shares), mixture.masked(&rows, &shares)].map(Result::unwrap);
            assert_eq!(masked.dims(), [7, 5]);
            let difference = (routed - masked).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(difference < 1e-4, "{difference}");
        }
    }

    #[test]
    fn experts_in_groups_are_chosen_as_loops_choose_them() {
        const GROUPS: usize = 4;
        let groups = Some(Groups { count: GROUPS, chosen: 2, best: 2 });
        let experts = Experts { scores: Scores::Sigmoid, groups, factor: 2.5, ..Experts::new(12, 1, 3) };
        let (router, correction) = (random(&[12, 5]), random(&[1, 12]));
        let mixture = Mixture {
            router: Matrix::dense(router.clone()),
            router_bias: None,
            correction: Some(correction.clone()),
            scales: None,
            units: Vec::new(),
            first: 0,
            experts,
            exchange: Exchange::Nothing,
            outputs: 0..1,
        };
        let rows = random(&[40, 5]);
        let shares = mixture.shares(&rows).unwrap().to_vec2::<f32>().unwrap();
        let logits = rows.matmul(&router.t().unwrap()).unwrap().to_vec2::<f32>().unwrap();
        let correction = correction.squeeze(0).unwrap().to_vec1::<f32>().unwrap();
        for (found, logits) in shares.into_iter().zip(logits) {
            let scores: Vec<f32> = logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect();
            let corrected = |expert: usize| scores[expert] + correction[expert];
            let descending = |a: f32, b: f32| b.total_cmp(&a);
            let of_group = |group: usize| {
                let mut all: Vec<f32> = (3 * group..3 * group + 3).map(corrected).collect();
                all.sort_by(|a, b| descending(*a, *b));
                all[0] + all[1]
            };
            let mut groups: Vec<usize> = (0..GROUPS).collect();
            groups.sort_by(|a, b| descending(of_group(*a), of_group(*b)));
            let mut chosen: Vec<usize> = (0..12).filter(|expert| groups[..2].contains(&(expert / 3))).collect();
            chosen.sort_by(|a, b| descending(corrected(*a), corrected(*b)));
            chosen.truncate(3);
            let whole: f32 = chosen.iter().map(|expert| scores[*expert]).sum();
            for (expert, found) in found.into_iter().enumerate() {
                let expected = if chosen.contains(&expert) { 2.5 * scores[expert] / whole } else { 0.0 };
                assert!((found - expected).abs() < 1e-5, "expert {expert}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn an_expert_that_overflows_for_the_tokens_of_others_changes_nothing() {
        let matrix = |value: f32| Matrix::dense(Tensor::full(value, (1, 1), &Device::Cpu).unwrap());
        let units = |up| {
            let inputs = Stack::Separate(vec![(matrix(1.0), None), (matrix(up), None)]);
            Expert { units: Units::new(inputs, Activation::Silu), down: matrix(1.0), bias: None }
        };
        // Positive tokens go to the first expert, and the second one computes infinity for them.
        let router = Tensor::new(&[[1f32], [-1.0]], &Device::Cpu).unwrap();
        let experts = Experts::new(2, 1, 1);
        let mixture = Mixture {
            router: Matrix::dense(router),
            router_bias: None,
            correction: None,
            scales: None,
            units: vec![units(1.0), units(f32::INFINITY)],
            first: 0,
            experts,
            exchange: Exchange::Nothing,
            outputs: 0..1,
        };
        let rows = Tensor::new(&[[2f32]], &Device::Cpu).unwrap();
        let y = mixture.masked(&rows, &mixture.shares(&rows).unwrap()).unwrap().to_vec2::<f32>().unwrap();
        assert!((y[0][0] - 4.0 / (1.0 + (-2f32).exp())).abs() < 1e-5, "{y:?}");
    }
}
