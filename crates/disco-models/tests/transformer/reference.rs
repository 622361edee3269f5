//! The models of candle-transformers, in this process.

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;

/// A model of a GGUF file that computes the logits of one sequence.
pub(crate) struct Reference(ModelWeights);

impl Reference {
    pub(crate) fn open(path: &Path) -> Self {
        let mut file = File::open(path).unwrap();
        let content = Content::read(&mut file).unwrap();
        Self(ModelWeights::from_gguf(content, &mut file, &Device::Cpu).unwrap())
    }

    /// The logits of the last token.
    fn forward(&mut self, tokens: &[u32], position: usize) -> Vec<f32> {
        let tokens = Tensor::new(tokens, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        self.0.forward(&tokens, position).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    /// The greedy tokens after a prompt, and the logits from which each was chosen.
    pub(crate) fn generate(&mut self, prompt: &[u32], count: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
        self.0.clear_kv_cache();
        let (mut tokens, mut all) = (Vec::new(), Vec::new());
        let mut logits = self.forward(prompt, 0);
        for position in prompt.len()..prompt.len() + count {
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
            let next = self.forward(&[best], position);
            all.push(std::mem::replace(&mut logits, next));
            tokens.push(best);
        }
        (tokens, all)
    }
}
