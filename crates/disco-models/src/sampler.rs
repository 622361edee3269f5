//! Choosing the next token.

use serde::{Deserialize, Serialize};

/// Chooses tokens from logits: greedily, or by chance with a temperature and top-p.
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
}

impl Sampler {
    /// A sampler that always chooses the most probable token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0 };

    /// A sampler with a temperature above 0, or the greedy one for 0.
    pub fn new(temperature: f64, top_p: f64, seed: u64) -> Self {
        Self { temperature, top_p, seed }
    }

    /// Whether the most probable token is chosen always, for which the largest logit of each rank is enough.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// Chooses the token at `position` of a sequence. Returns token 0 if there are no logits.
    pub fn choose(&self, logits: &[f32], sequence: usize, position: usize) -> u32 {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |token: u32| logits[token as usize];
        let Some(best) = order.iter().copied().reduce(|a, b| if logit(b) > logit(a) { b } else { a }) else { return 0 };
        if self.is_greedy() {
            return best;
        }
        // Tokens that are less probable by this factor than the best one do not count.
        const NEGLIGIBLE: f64 = 1e-9;
        let weight = |token: u32| (f64::from(logit(token) - logit(best)) / self.temperature).exp();
        let total: f64 = order.iter().map(|token| weight(*token)).sum();
        order.retain(|token| weight(*token) >= NEGLIGIBLE);
        // Ties are in the order of the tokens, so that all ranks agree.
        order.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b)));
        let mut kept = 0.0;
        let nucleus = order.iter().take_while(|token| {
            let is_kept = kept < self.top_p * total;
            kept += if is_kept { weight(**token) } else { 0.0 };
            is_kept
        });
        let nucleus = nucleus.count().max(1);
        let mut left = self.uniform(sequence, position) * kept;
        let chosen = order[..nucleus].iter().find(|token| {
            left -= weight(**token);
            left < 0.0
        });
        chosen.or(order[..nucleus].last()).copied().unwrap_or(best)
    }

    /// A random number in 0..1 that depends on the seed and the place only.
    fn uniform(&self, sequence: usize, position: usize) -> f64 {
        let mixed = mix(mix(mix(self.seed) ^ sequence as u64) ^ position as u64);
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
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
    fn a_greedy_sampler_chooses_the_first_of_the_largest_logits() {
        assert_eq!(Sampler::GREEDY.choose(&[1.0, 3.0, 3.0, f32::NEG_INFINITY], 0, 0), 1);
    }
}
