//! Choosing the next token.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// Chooses tokens from logits: greedily, or by chance with a temperature, of the most probable tokens only.
///
/// The choice depends only on the logits, the seed, the sequence and the position, so all ranks choose the same token,
/// and a program that repeats a position chooses the same token again.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Sampler {
    /// Temperature; 0 chooses the most probable token.
    pub temperature: f64,
    /// Tokens are chosen from the smallest set of the most probable tokens whose probabilities sum up to this.
    pub top_p: f64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Tokens are chosen from so many of the most probable ones; 0 from all.
    #[serde(default)]
    pub top_k: u32,
    /// The least probability, as a share of that of the most probable token.
    #[serde(default)]
    pub min_p: f64,
}

impl Sampler {
    /// A sampler that always chooses the most probable token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0, top_k: 0, min_p: 0.0 };

    /// A sampler with a temperature above 0, or the greedy one for 0.
    pub fn new(temperature: f64, top_p: f64, seed: u64) -> Self {
        Self { temperature, top_p, seed, ..Self::GREEDY }
    }

    /// Whether the most probable token is chosen always, for which the largest logit of each rank is enough.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// Chooses the token at `position` of a sequence. Returns token 0 if there are no logits.
    pub fn choose(&self, logits: &[f32], sequence: usize, position: usize) -> u32 {
        let Some(best) = largest(logits) else { return 0 };
        if self.is_greedy() {
            return best as u32;
        }
        // Tokens that are less probable by this factor than the best one do not count.
        const NEGLIGIBLE: f64 = 1e-9;
        let least = (self.min_p.max(NEGLIGIBLE).ln() * self.temperature) as f32;
        let (highest, factor) = (logits[best], 1.0 / self.temperature);
        let mut ranking = Ranking::new(logits, |logit| logit - highest >= least);
        ranking.truncate(self.top_k as usize);
        let weight = |logit: f32| (f64::from(logit - highest) * factor).exp();
        let mut sum: f64 = ranking.tokens.iter().map(|(_, logit)| weight(*logit)).sum();
        if self.top_p < 1.0 {
            let most = self.top_p * sum;
            sum = ranking.until(weight, |sum| sum >= most).1;
        }
        let drawn = self.uniform(sequence, position) * sum;
        ranking.until(weight, |sum| sum > drawn).0
    }

    /// A random number in 0..1 that depends on the seed and the place only.
    fn uniform(&self, sequence: usize, position: usize) -> f64 {
        let mixed = mix(mix(mix(self.seed) ^ sequence as u64) ^ position as u64);
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Tokens and their logits, the most probable ones first as far as they are sorted: nearly all tokens are drawn from the first few.
struct Ranking {
    tokens: Vec<(u32, f32)>,
    sorted: usize,
}

impl Ranking {
    /// The tokens whose logits are `kept`, at least one.
    fn new(logits: &[f32], kept: impl Fn(f32) -> bool) -> Self {
        let (mut tokens, mut count) = (vec![(0, 0.0); logits.len()], 0);
        for (token, logit) in logits.iter().enumerate() {
            // Without a branch, which no processor would predict.
            tokens[count] = (token as u32, *logit);
            count += usize::from(kept(*logit));
        }
        tokens.truncate(count);
        Self { tokens, sorted: 0 }
    }

    /// Keeps the `count` most probable tokens; 0: all.
    fn truncate(&mut self, count: usize) {
        if (1..self.tokens.len()).contains(&count) {
            self.tokens.select_nth_unstable_by(count, order);
            self.tokens.truncate(count);
        }
    }

    /// The token at which the sum of the weights so far is enough, or the last one; and this sum.
    fn until(&mut self, weight: impl Fn(f32) -> f64, is_enough: impl Fn(f64) -> bool) -> (u32, f64) {
        let (mut last, mut sum) = (0, 0.0);
        for place in 0..self.tokens.len() {
            if place == self.sorted {
                self.sort_more();
            }
            let (token, logit) = self.tokens[place];
            (last, sum) = (token, sum + weight(logit));
            if is_enough(sum) {
                break;
            }
        }
        (last, sum)
    }

    fn sort_more(&mut self) {
        const FIRST: usize = 64;
        let rest = &mut self.tokens[self.sorted..];
        let more = (7 * self.sorted).max(FIRST).min(rest.len());
        if more < rest.len() {
            rest.select_nth_unstable_by(more, order);
        }
        rest[..more].sort_unstable_by(order);
        self.sorted += more;
    }
}

/// Ties are in the order of the tokens, so that all ranks agree.
fn order(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The place of the largest logit, the first one of equals.
pub(crate) fn largest(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a })
}

/// The output function of SplitMix64, after one step of its state.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_of_samples_are_the_probabilities() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        let sampler = Sampler::new(0.7, 1.0, 5);
        let weights = logits.map(|logit| (f64::from(logit) / 0.7).exp());
        const COUNT: usize = 20_000;
        let mut counts = [0usize; 4];
        (0..COUNT).for_each(|position| counts[sampler.choose(&logits, 0, position) as usize] += 1);
        for (count, weight) in counts.iter().zip(weights) {
            let expected = weight / weights.iter().sum::<f64>();
            let deviation = (expected * (1.0 - expected) / COUNT as f64).sqrt();
            assert!((*count as f64 / COUNT as f64 - expected).abs() < 5.0 * deviation, "{counts:?}");
        }
    }

    #[test]
    fn top_p_excludes_improbable_tokens() {
        // Probabilities 0.6, 0.3 and 0.1.
        let logits = [0.1f32.ln(), 0.6f32.ln(), 0.3f32.ln()];
        let chosen = |top_p| {
            (0..1000)
                .map(|position| Sampler::new(1.0, top_p, 1).choose(&logits, 0, position))
                .collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(chosen(0.5).into_iter().collect::<Vec<_>>(), [1]);
        assert_eq!(chosen(0.8).into_iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(chosen(1.0).into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn top_k_and_min_p_exclude_improbable_tokens() {
        // Probabilities 0.1, 0.6, 0.2 and 0.1.
        let logits = [0.1f32, 0.6, 0.2, 0.1].map(f32::ln);
        let chosen = |sampler: Sampler| {
            (0..1000).map(|position| sampler.choose(&logits, 0, position)).collect::<std::collections::BTreeSet<_>>()
        };
        let any = Sampler::new(1.0, 1.0, 3);
        assert_eq!(chosen(Sampler { top_k: 1, ..any }).into_iter().collect::<Vec<_>>(), [1]);
        // Of equals, the first one.
        assert_eq!(chosen(Sampler { top_k: 3, ..any }).into_iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(chosen(Sampler { min_p: 0.3, ..any }).into_iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(chosen(Sampler { min_p: 0.1, ..any }).len(), 4);
    }

    #[test]
    fn tokens_are_those_that_a_sum_over_all_sorted_tokens_gives() {
        let logits: Vec<f32> = (0..3000).map(|token| (mix(token) % 1000) as f32 / 60.0).collect();
        let mut sorted: Vec<_> = (0..).zip(logits.iter().copied()).collect();
        sorted.sort_unstable_by(order);
        for (temperature, top_p, top_k) in [(0.5, 1.0, 0), (1.0, 0.9, 0), (3.0, 0.999, 0), (2.0, 1.0, 500)] {
            let sampler = Sampler { top_k, ..Sampler::new(temperature, top_p, 9) };
            let among = if top_k == 0 { &sorted } else { &sorted[..top_k as usize] };
            let weights: Vec<_> = among.iter().map(|(_, logit)| (f64::from(*logit) / temperature).exp()).collect();
            let sums: Vec<_> = weights
                .iter()
                .scan(0.0, |sum, weight| {
                    *sum += weight;
                    Some(*sum)
                })
                .collect();
            let most = top_p * sums[sums.len() - 1];
            let nucleus = sums.iter().copied().find(|sum| *sum >= most * (1.0 - 1e-12)).unwrap();
            for position in 0..200 {
                let drawn = sampler.uniform(0, position) * nucleus;
                let expected = among[sums.iter().position(|sum| *sum > drawn).unwrap()].0;
                assert_eq!(sampler.choose(&logits, 0, position), expected, "{sampler:?} at {position}");
            }
        }
    }

    #[test]
    fn a_greedy_sampler_chooses_the_first_of_the_largest_logits() {
        assert_eq!(Sampler::GREEDY.choose(&[1.0, 3.0, 3.0, f32::NEG_INFINITY], 0, 0), 1);
    }
}
