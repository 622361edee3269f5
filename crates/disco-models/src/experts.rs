//! Mixtures of experts: a router chooses the experts that compute a token.

use std::ops::Range;

use candle_core::{D, DType, Result, Tensor};
use disco_candle::{Comm, even_ranges};

use crate::names::{EXPERT, Role};
use crate::parts::{Parts, Stack};
use crate::units::Units;
use crate::{ExpertLayout, ExpertSplit, Experts, FeedForward, ModelError, stacks};

/// The experts of a layer of which this rank has hidden units, and the router, which is on every rank.
#[derive(Debug)]
pub(crate) struct Mixture {
    /// `[experts, dim]`.
    router: Tensor,
    /// `[experts]`.
    router_bias: Option<Tensor>,
    /// Factors of the shares of the chosen experts, f32 `[experts]`.
    scales: Option<Tensor>,
    units: Vec<Units>,
    /// The number of the first of them.
    first: usize,
    experts: Experts,
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
        let router = parts.tensor(&names.layer(layer, Role::Router))?;
        let is_split_within = parts.config.expert_split == ExpertSplit::Within;
        let units: Vec<_> = if experts.layout.has_one_input() {
            let all = even_ranges(experts.ffn, comm.size()).nth(comm.rank()).filter(|_| is_split_within);
            let adds_bias = !is_split_within || comm.rank() == 0;
            stacks::load(parts, &experts, layer, own.clone(), all.unwrap_or(0..experts.ffn), adds_bias)?
        } else if names.stacks_experts() {
            let [gate, up, down] = EXPERT.map(|role| parts.matrices(&names.layer(layer, role)));
            let pairs = gate?.into_iter().zip(up?).map(|(gate, up)| Stack::separate([gate, up]));
            pairs.zip(down?).map(|(inputs, down)| Units::new(inputs, down, activation)).collect()
        } else {
            let units = own.clone().map(|expert| {
                let inputs = [Role::ExpertGate, Role::ExpertUp].map(|role| names.expert(layer, expert, role));
                let down = parts.matrix(&names.expert(layer, expert, Role::ExpertDown))?;
                Ok::<_, ModelError>(Units::new(parts.stack_of(&inputs, vec![None, None])?, down, activation))
            });
            units.collect::<std::result::Result<_, _>>()?
        };
        let has_bias = experts.layout == ExpertLayout::Interleaved;
        let router_bias = has_bias.then(|| parts.bias(layer, Role::Router)).transpose()?;
        let (router, scales) = match parts.config.layers[layer].feed_forward {
            FeedForward::Both(..) => {
                let scale = parts.tensor(&names.module(layer, Role::RouterScale))?;
                let router = (router.broadcast_mul(&scale)? * (parts.config.dim as f64).powf(-0.5))?;
                let scales = parts.tensor(&names.module(layer, Role::ExpertScale))?.to_dtype(DType::F32)?;
                (router, Some(scales))
            }
            _ => (router, None),
        };
        Ok(Self { router, router_bias, scales, units, first: own.start, experts })
    }

    /// The sum of this rank's part of the experts' outputs: `[.., dim]` to `[.., dim]`. The experts get `x`, and the router
    /// `input`.
    pub(crate) fn forward(&self, x: &Tensor, input: &Tensor) -> Result<Tensor> {
        let rows = x.flatten_to(x.rank() - 2)?;
        let shares = self.shares(&input.flatten_to(x.rank() - 2)?)?;
        let y = if x.device().is_cpu() { self.routed(&rows, &shares) } else { self.masked(&rows, &shares) };
        y?.reshape(x.shape())
    }

    /// The share of each expert in each of `rows`, f32 `[rows, experts]`: 0 for those that are not chosen.
    fn shares(&self, rows: &Tensor) -> Result<Tensor> {
        let logits = rows.matmul(&self.router.t()?)?;
        let logits = self.router_bias.iter().try_fold(logits, |logits, bias| logits.broadcast_add(bias))?;
        let logits = logits.to_dtype(DType::F32)?;
        let all = candle_nn::ops::softmax_last_dim(&logits)?;
        let chosen = logits.arg_sort_last_dim(false)?.narrow(1, 0, self.experts.per_token)?.contiguous()?;
        let mut shares = all.gather(&chosen, 1)?;
        if self.experts.normalises {
            shares = shares.broadcast_div(&shares.sum_keepdim(1)?)?;
        }
        let shares = all.zeros_like()?.scatter_add(&chosen, &shares, 1)?;
        self.scales.iter().try_fold(shares, |shares, scales| shares.broadcast_mul(scales))
    }

    /// Each expert computes its tokens, which the host knows.
    #[expect(clippy::disallowed_methods, reason = "the shares are on the host")]
    fn routed(&self, rows: &Tensor, shares: &Tensor) -> Result<Tensor> {
        let by_expert = shares.t()?.to_vec2::<f32>()?;
        let mut sum = rows.zeros_like()?;
        for (units, shares) in self.units.iter().zip(&by_expert[self.first..]) {
            let tokens: Vec<u32> = (0..).zip(shares).filter(|(_, share)| **share != 0.0).map(|(row, _)| row).collect();
            if tokens.is_empty() {
                continue;
            }
            let shares: Vec<f32> = tokens.iter().map(|row| shares[*row as usize]).collect();
            let shares = Tensor::new(shares, rows.device())?.unsqueeze(1)?.to_dtype(rows.dtype())?;
            let tokens = Tensor::new(tokens, rows.device())?;
            let y = units.forward(&rows.index_select(&tokens, 0)?)?;
            sum = sum.index_add(&tokens, &y.broadcast_mul(&shares)?, 0)?;
        }
        Ok(sum)
    }

    /// Each expert computes all tokens, so that the host waits for no device. What it computes for the tokens of others is
    /// left out, even if it overflows.
    fn masked(&self, rows: &Tensor, shares: &Tensor) -> Result<Tensor> {
        let zeros = rows.zeros_like()?;
        self.units.iter().enumerate().try_fold(zeros.clone(), |sum, (number, units)| {
            let shares = shares.narrow(D::Minus1, self.first + number, 1)?;
            let y = units.forward(rows)?.broadcast_mul(&shares.to_dtype(rows.dtype())?)?;
            sum + shares.ne(0.0)?.broadcast_as(y.shape())?.where_cond(&y, &zeros)?
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use disco_candle::Matrix;

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
            let inputs = Stack::separate([random(&[6, 5]), random(&[6, 5])].map(Matrix::dense));
            Units::new(inputs, Matrix::dense(random(&[5, 6])), Activation::Silu)
        };
        for normalises in [false, true] {
            let experts = Experts {
                count: 4,
                ffn: 6,
                per_token: 2,
                normalises,
                activation: Activation::Silu,
                layout: ExpertLayout::Apart,
            };
            // A rank with the experts 1 to 3.
            let mixture = Mixture {
                router: random(&[4, 5]),
                router_bias: None,
                scales: Some(Tensor::new(&SCALES, &Device::Cpu).unwrap()),
                units: (1..4).map(units).collect(),
                first: 1,
                experts,
            };
            let rows = random(&[7, 5]);
            let shares = mixture.shares(&rows).unwrap();
            let all = candle_nn::ops::softmax_last_dim(&rows.matmul(&mixture.router.t().unwrap()).unwrap()).unwrap();
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
    fn an_expert_that_overflows_for_the_tokens_of_others_changes_nothing() {
        let matrix = |value: f32| Matrix::dense(Tensor::full(value, (1, 1), &Device::Cpu).unwrap());
        let units = |up| Units::new(Stack::separate([matrix(1.0), matrix(up)]), matrix(1.0), Activation::Silu);
        // Positive tokens go to the first expert, and the second one computes infinity for them.
        let router = Tensor::new(&[[1f32], [-1.0]], &Device::Cpu).unwrap();
        let experts = Experts {
            count: 2,
            ffn: 1,
            per_token: 1,
            normalises: true,
            activation: Activation::Silu,
            layout: ExpertLayout::Apart,
        };
        let mixture = Mixture {
            router,
            router_bias: None,
            scales: None,
            units: vec![units(1.0), units(f32::INFINITY)],
            first: 0,
            experts,
        };
        let rows = Tensor::new(&[[2f32]], &Device::Cpu).unwrap();
        let y = mixture.masked(&rows, &mixture.shares(&rows).unwrap()).unwrap().to_vec2::<f32>().unwrap();
        assert!((y[0][0] - 4.0 / (1.0 + (-2f32).exp())).abs() < 1e-5, "{y:?}");
    }
}
