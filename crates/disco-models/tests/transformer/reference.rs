//! The models of candle-transformers, in this process.

use std::fs::{self, File};
use std::path::Path;

use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
use candle_transformers::models::quantized_llama::ModelWeights;

use super::random::folder;

/// A model that computes the logits of one sequence.
pub(crate) enum Reference {
    Gguf(Box<ModelWeights>),
    Safetensors(Box<(Llama, Config, Cache)>),
}

impl Reference {
    pub(crate) fn open(path: &Path) -> Self {
        if path.extension().is_some_and(|extension| extension == "gguf") {
            let mut file = File::open(path).unwrap();
            let content = Content::read(&mut file).unwrap();
            return Self::Gguf(Box::new(ModelWeights::from_gguf(content, &mut file, &Device::Cpu).unwrap()));
        }
        let config = fs::read_to_string(folder(path).join("config.json")).unwrap();
        let config: LlamaConfig = serde_json::from_str(&config).unwrap();
        let config = config.into_config(false);
        let tensors = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
        let weights = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        let cache = Cache::new(true, DType::F32, &config, &Device::Cpu).unwrap();
        Self::Safetensors(Box::new((Llama::load(weights, &config).unwrap(), config, cache)))
    }

    /// Starts a new sequence.
    fn clear(&mut self) {
        match self {
            Self::Gguf(model) => model.clear_kv_cache(),
            Self::Safetensors(model) => model.2 = Cache::new(true, DType::F32, &model.1, &Device::Cpu).unwrap(),
        }
    }

    /// The logits of the last token.
    fn forward(&mut self, tokens: &[u32], position: usize) -> Vec<f32> {
        let tokens = Tensor::new(tokens, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        let logits = match self {
            Self::Gguf(model) => model.forward(&tokens, position),
            Self::Safetensors(model) => model.0.forward(&tokens, position, &mut model.2),
        };
        logits.unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    /// The greedy tokens after a prompt, and the logits from which each was chosen.
    pub(crate) fn generate(&mut self, prompt: &[u32], count: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
        self.clear();
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
