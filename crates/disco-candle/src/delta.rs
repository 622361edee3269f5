//! Gated delta nets on the host: a convolution over the last tokens, then a matrix for each head that every token changes.
//!
//! For queries q, keys k, values v, a decay g and a rate β of a token: `S ← g S`, `S ← S + k ⊗ β (v − kᵀ S)`, and the output is
//! `qᵀ S`, normed and gated. Source: <https://arxiv.org/abs/2412.06464>; the order of operations is that of transformers'
//! `torch_recurrent_gated_delta_rule`.

use rayon::prelude::*;

use crate::functions::{each, exp, sigmoid, silu, softplus};
use crate::products::Level;

/// Multiplications below which one thread is as fast as several.
const MIN_WORK: usize = 1 << 16;

/// Added to the squares of a query or key before the division by its length.
const LENGTH_EPS: f32 = 1e-6;

/// The heads of one rank in one layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delta {
    /// The number of the key head of each value head.
    pub key_of: Vec<usize>,
    /// Number of key heads.
    pub key_heads: usize,
    /// Width of a head of queries or keys.
    pub key_dim: usize,
    /// Width of a head of values.
    pub value_dim: usize,
    /// Weights of the convolution, `[kernel, channels]`, the oldest token first. Channels are queries, then keys, then values.
    pub convolution: Vec<f32>,
    /// The logarithm of a head's decay is this, a negative number, times softplus of the token's, `[heads]`.
    pub scales: Vec<f32>,
    /// Added to a token's decay before softplus, `[heads]`.
    pub biases: Vec<f32>,
    /// Weights of the norm of a head's output, `[value_dim]`.
    pub norm: Vec<f32>,
    /// Epsilon of that norm.
    pub eps: f32,
}

/// What a sequence leaves behind in one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaState {
    /// The inputs of the convolution of the last tokens, `[kernel - 1, channels]`.
    last: Vec<f32>,
    /// The matrices of the heads, `[heads, key_dim, value_dim]`.
    heads: Vec<f32>,
}

/// The projections of tokens that follow each other.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DeltaTokens<'a> {
    /// Queries, keys and values, `[tokens, channels]`.
    pub mixed: &'a [f32],
    /// Gates of the outputs, `[tokens, heads · value_dim]`.
    pub gates: &'a [f32],
    /// Rates before the sigmoid, `[tokens, heads]`.
    pub rates: &'a [f32],
    /// Decays before softplus, `[tokens, heads]`.
    pub decays: &'a [f32],
}

impl<'a> DeltaTokens<'a> {
    /// Projections of these shapes.
    pub fn new(mixed: &'a [f32], gates: &'a [f32], rates: &'a [f32], decays: &'a [f32]) -> Self {
        Self { mixed, gates, rates, decays }
    }
}

impl DeltaState {
    /// Number of its numbers.
    pub fn count(&self) -> usize {
        self.last.len() + self.heads.len()
    }

    /// Writes its numbers to `to`, which has [`count`](Self::count) elements.
    ///
    /// # Panics
    /// `to` has another length.
    pub fn save(&self, to: &mut [f32]) {
        let (last, heads) = to.split_at_mut(self.last.len());
        last.copy_from_slice(&self.last);
        heads.copy_from_slice(&self.heads);
    }

    /// Becomes the state whose numbers were [saved](Self::save).
    ///
    /// # Panics
    /// `from` has another length.
    pub fn restore(&mut self, from: &[f32]) {
        let (last, heads) = from.split_at(self.last.len());
        self.last.copy_from_slice(last);
        self.heads.copy_from_slice(heads);
    }
}

impl Delta {
    /// Heads that share key heads as `key_of` says, with the weights of the convolution and of the heads.
    pub fn new(key_of: Vec<usize>, [key_heads, key_dim, value_dim]: [usize; 3], convolution: Vec<f32>) -> Self {
        let heads = key_of.len();
        Self {
            key_of,
            key_heads,
            key_dim,
            value_dim,
            convolution,
            scales: vec![-1.0; heads],
            biases: vec![0.0; heads],
            norm: vec![1.0; value_dim],
            eps: 1e-6,
        }
    }

    /// Number of channels of the convolution.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.key_of.len() * self.value_dim
    }

    /// The state before the first token.
    pub fn start(&self) -> DeltaState {
        let rows = self.convolution.len() / self.channels().max(1);
        DeltaState {
            last: vec![0.0; rows.saturating_sub(1) * self.channels()],
            heads: vec![0.0; self.key_of.len() * self.key_dim * self.value_dim],
        }
    }

    /// The outputs of tokens, `[tokens, heads · value_dim]`, whose state becomes that behind the last one.
    ///
    /// # Panics
    /// The slices have not the shapes that [`DeltaTokens`] says, or the state is another net's.
    pub fn forward(&self, state: &mut DeltaState, tokens: DeltaTokens<'_>) -> Vec<f32> {
        let (heads, channels, width) = (self.key_of.len(), self.channels(), self.value_dim);
        let count = tokens.rates.len() / heads.max(1);
        assert_eq!(tokens.mixed.len(), count * channels, "queries, keys and values of each token");
        assert_eq!(tokens.gates.len(), count * heads * width, "gates of each token");
        assert_eq!(tokens.decays.len(), count * heads, "decays of each token");
        if count * heads * self.key_dim * width == 0 {
            return vec![0.0; tokens.gates.len()];
        }
        let mut mixed = self.convolved(&mut state.last, tokens.mixed, count);
        self.normalise(&mut mixed);
        let level = Level::detect();
        let mut by_head = vec![0.0; heads * count * width];
        let size = self.key_dim * width;
        let compute = |(head, (own, y)): (usize, (&mut [f32], &mut [f32]))| {
            let run = Run { delta: self, head, mixed: &mixed, tokens: &tokens };
            run.compute(own, y, level);
        };
        let (states, outputs) = (state.heads.chunks_mut(size), by_head.chunks_mut(count * width));
        if count * heads * size < MIN_WORK || rayon::current_num_threads() == 1 {
            states.zip(outputs).enumerate().for_each(compute);
        } else {
            let states = state.heads.par_chunks_mut(size);
            states.zip(by_head.par_chunks_mut(count * width)).enumerate().for_each(compute);
        }
        let mut y = vec![0.0; by_head.len()];
        for (head, outputs) in by_head.chunks(count * width).enumerate() {
            for (token, output) in outputs.chunks(width).enumerate() {
                let at = (token * heads + head) * width;
                self.norm_and_gate(output, &tokens.gates[at..at + width], &mut y[at..at + width]);
            }
        }
        y
    }

    /// The convolution of each channel over the last tokens, and its activation. `last` becomes the inputs of the last tokens.
    fn convolved(&self, last: &mut Vec<f32>, mixed: &[f32], count: usize) -> Vec<f32> {
        let channels = self.channels();
        let before = last.len() / channels.max(1);
        last.extend_from_slice(mixed);
        let mut y = vec![0.0; count * channels];
        for (token, y) in y.chunks_mut(channels.max(1)).enumerate() {
            let inputs = last[token * channels..].chunks(channels);
            for (weights, inputs) in self.convolution.chunks(channels).zip(inputs) {
                for channel in 0..channels {
                    y[channel] += weights[channel] * inputs[channel];
                }
            }
        }
        each(Level::detect(), &mut y, silu);
        last.drain(..last.len() - before * channels);
        y
    }

    /// Divides queries and keys by their lengths, and queries by the root of their width.
    fn normalise(&self, mixed: &mut [f32]) {
        let (keys, scale) = (self.key_heads * self.key_dim, (self.key_dim as f32).sqrt().recip());
        for row in mixed.chunks_mut(self.channels().max(1)) {
            for (number, head) in row[..2 * keys].chunks_mut(self.key_dim).enumerate() {
                let square: f32 = head.iter().map(|x| x * x).sum();
                let factor = (square + LENGTH_EPS).sqrt().recip() * if number < self.key_heads { scale } else { 1.0 };
                head.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }

    fn norm_and_gate(&self, output: &[f32], gates: &[f32], y: &mut [f32]) {
        let mean = output.iter().map(|x| x * x).sum::<f32>() / self.value_dim as f32;
        let factor = (mean + self.eps).sqrt().recip();
        for (index, y) in y.iter_mut().enumerate() {
            *y = output[index] * factor * self.norm[index] * silu(gates[index]);
        }
    }
}

/// The tokens of one head.
struct Run<'a> {
    delta: &'a Delta,
    head: usize,
    /// Queries, keys and values behind the convolution.
    mixed: &'a [f32],
    tokens: &'a DeltaTokens<'a>,
}

impl Run<'_> {
    /// Changes the head's state token by token. The order of additions is the same whatever the processor has.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "only x86-64 has AVX2"))]
    fn compute(&self, state: &mut [f32], y: &mut [f32], level: Level) {
        #[cfg(target_arch = "x86_64")]
        if level != Level::Scalar {
            // SAFETY: `Level` has found AVX2.
            #[allow(unsafe_code, reason = "a function for processors that have AVX2")]
            return unsafe { self.compute_avx2(state, y) };
        }
        self.compute_inline(state, y);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn compute_avx2(&self, state: &mut [f32], y: &mut [f32]) {
        self.compute_inline(state, y);
    }

    #[inline(always)]
    fn compute_inline(&self, state: &mut [f32], y: &mut [f32]) {
        let &Delta { key_heads, key_dim, value_dim, .. } = self.delta;
        let (heads, channels, key_head) =
            (self.delta.key_of.len(), self.delta.channels(), self.delta.key_of[self.head]);
        let mut known = vec![0.0; value_dim];
        let known = &mut known[..value_dim];
        for (token, y) in y.chunks_mut(value_dim).enumerate() {
            let row = &self.mixed[token * channels..(token + 1) * channels];
            let query = &row[key_head * key_dim..][..key_dim];
            let key = &row[(key_heads + key_head) * key_dim..][..key_dim];
            let value = &row[2 * key_heads * key_dim + self.head * value_dim..][..value_dim];
            let place = token * heads + self.head;
            let decay = softplus(self.tokens.decays[place] + self.delta.biases[self.head]);
            let decay = exp(self.delta.scales[self.head] * decay);
            let rate = sigmoid(self.tokens.rates[place]);
            known.fill(0.0);
            for index in 0..key_dim {
                let row = &mut state[index * value_dim..(index + 1) * value_dim];
                for at in 0..value_dim {
                    row[at] *= decay;
                    known[at] += row[at] * key[index];
                }
            }
            for at in 0..value_dim {
                known[at] = (value[at] - known[at]) * rate;
            }
            y.fill(0.0);
            for index in 0..key_dim {
                let row = &mut state[index * value_dim..(index + 1) * value_dim];
                for at in 0..value_dim {
                    row[at] += key[index] * known[at];
                    y[at] += row[at] * query[index];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    const KERNEL: usize = 4;

    fn random(count: usize) -> Vec<f32> {
        Tensor::rand(-1f32, 1.0, count, &Device::Cpu).unwrap().to_vec1().unwrap()
    }

    fn delta(key_of: Vec<usize>, widths: [usize; 3]) -> Delta {
        let mut delta = Delta::new(key_of, widths, Vec::new());
        delta.convolution = random(KERNEL * delta.channels());
        delta.biases = random(delta.key_of.len());
        delta.scales = random(delta.key_of.len()).into_iter().map(|x| -x.abs()).collect();
        delta.norm = random(delta.value_dim);
        delta
    }

    /// Plain loops in 64 bits over all tokens.
    fn slow(delta: &Delta, tokens: DeltaTokens<'_>) -> Vec<f64> {
        let (channels, heads) = (delta.channels(), delta.key_of.len());
        let (key_dim, value_dim) = (delta.key_dim, delta.value_dim);
        let count = tokens.rates.len() / heads;
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let mixed = |token: usize, channel: usize| {
            let of = |back: usize| {
                let weight = f64::from(delta.convolution[(KERNEL - 1 - back) * channels + channel]);
                if back > token { 0.0 } else { weight * f64::from(tokens.mixed[(token - back) * channels + channel]) }
            };
            silu((0..KERNEL).map(of).sum())
        };
        let mut y = vec![0.0; count * heads * value_dim];
        for head in 0..heads {
            let mut state = vec![vec![0.0; value_dim]; key_dim];
            let keys = delta.key_heads * key_dim;
            for token in 0..count {
                let part =
                    |first: usize, len: usize| (first..first + len).map(|at| mixed(token, at)).collect::<Vec<_>>();
                let unit = |x: Vec<f64>| {
                    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.into_iter().map(|x| x / length).collect::<Vec<_>>()
                };
                let query = unit(part(delta.key_of[head] * key_dim, key_dim));
                let key = unit(part(keys + delta.key_of[head] * key_dim, key_dim));
                let value = part(2 * keys + head * value_dim, value_dim);
                let at = token * heads + head;
                let decay = f64::from(delta.scales[head])
                    * (1.0 + (f64::from(tokens.decays[at]) + f64::from(delta.biases[head])).exp()).ln();
                let rate = 1.0 / (1.0 + (-f64::from(tokens.rates[at])).exp());
                state.iter_mut().flatten().for_each(|x| *x *= decay.exp());
                let column = |state: &[Vec<f64>], by: &[f64], at: usize| {
                    state.iter().zip(by).map(|(row, by)| row[at] * by).sum::<f64>()
                };
                let change: Vec<_> = (0..value_dim).map(|at| rate * (value[at] - column(&state, &key, at))).collect();
                for (row, key) in state.iter_mut().zip(&key) {
                    row.iter_mut().zip(&change).for_each(|(x, change)| *x += key * change);
                }
                let output: Vec<_> =
                    (0..value_dim).map(|at| column(&state, &query, at) / (key_dim as f64).sqrt()).collect();
                let mean = output.iter().map(|x| x * x).sum::<f64>() / value_dim as f64;
                for (index, output) in output.into_iter().enumerate() {
                    let place = at * value_dim + index;
                    let norm = f64::from(delta.norm[index]) / (mean + f64::from(delta.eps)).sqrt();
                    y[place] = output * norm * silu(f64::from(tokens.gates[place]));
                }
            }
        }
        y
    }

    #[test]
    fn tokens_in_parts_give_what_plain_loops_give_for_all() {
        // The second shape has work for several threads.
        for (key_of, widths, count) in
            [(vec![0, 0, 1], [2, 6, 5], 9), (vec![0, 1, 1, 2], [3, 32, 48], 40), (vec![0], [1, 1, 1], 3)]
        {
            let delta = delta(key_of, widths);
            let heads = delta.key_of.len();
            let mixed = random(count * delta.channels());
            let gates = random(count * heads * delta.value_dim);
            let (rates, decays) = (random(count * heads), random(count * heads));
            let expected = slow(&delta, DeltaTokens::new(&mixed, &gates, &rates, &decays));
            for parts in [vec![count], vec![1, count - 1], vec![1; count], vec![0, count - 1, 1]] {
                let (mut state, mut found, mut from) = (delta.start(), Vec::new(), 0);
                for part in parts {
                    let rows = |all: &'_ [f32], width: usize| all[from * width..(from + part) * width].to_vec();
                    let [mixed, gates] = [rows(&mixed, delta.channels()), rows(&gates, heads * delta.value_dim)];
                    let [rates, decays] = [rows(&rates, heads), rows(&decays, heads)];
                    found.extend(delta.forward(&mut state, DeltaTokens::new(&mixed, &gates, &rates, &decays)));
                    from += part;
                }
                for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let difference = (f64::from(*found) - expected).abs();
                    assert!(difference < 1e-4, "element {index}: {found}, not {expected}");
                }
                assert_eq!(found.len(), expected.len());
            }
        }
    }

    #[test]
    fn processors_with_and_without_avx2_give_the_same_bits() {
        let delta = delta(vec![0, 0], [1, 24, 40]);
        let mixed = random(6 * delta.channels());
        let (gates, rates) = (random(6 * 80), random(12));
        let tokens = DeltaTokens::new(&mixed, &gates, &rates, &rates);
        let [fast, plain] = [Level::detect(), Level::Scalar].map(|level| {
            let run = Run { delta: &delta, head: 1, mixed: &mixed, tokens: &tokens };
            let (mut state, mut y) = (vec![0.0; 24 * 40], vec![0.0; 6 * 40]);
            run.compute(&mut state, &mut y, level);
            (state, y)
        });
        assert!(fast == plain);
    }
}
