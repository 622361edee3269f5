//! BERT and (XLM-)RoBERTa, split over ranks by heads and by hidden units.

use candle_core::{D, DType, IndexOp as _, Module as _, Tensor};
use candle_nn::LayerNorm;
use disco_candle::weights::{Plan, Shards, Split};
use disco_candle::{
    ColumnParallelLinear, Comm, HeadPlan, Matrix, RowParallelLinear, VocabParallelEmbedding, even_ranges,
};
use serde::Deserialize;

use crate::ModelError;
use crate::plan::check_split;

/// The tokens whose attention to all others is computed together, which bounds the memory of a long text.
const ROWS: usize = 512;

/// The hyperparameters, from `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    layer_norm_eps: f64,
    #[serde(default)]
    hidden_act: Option<String>,
    #[serde(default)]
    position_embedding_type: Option<String>,
    #[serde(default)]
    model_type: Option<String>,
    #[serde(default)]
    pad_token_id: Option<usize>,
}

impl Config {
    /// # Errors
    /// A key says that the model is not one of BERT as it is computed here.
    fn check(&self) -> Result<(), ModelError> {
        let keys = [
            ("hidden_act", &self.hidden_act, "gelu"),
            ("position_embedding_type", &self.position_embedding_type, "absolute"),
        ];
        let known = ["bert", "roberta", "xlm-roberta"];
        let kind = self.model_type.as_deref().filter(|kind| !known.contains(kind)).map(|kind| ("model_type", kind));
        let others =
            keys.into_iter().filter_map(|(key, value, known)| Some((key, value.as_deref().filter(|it| *it != known)?)));
        if let Some((key, other)) = kind.into_iter().chain(others).next() {
            return Err(ModelError::Feature { feature: format!("{key} {other:?}") });
        }
        let (width, heads) = (self.hidden_size, self.num_attention_heads);
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(ModelError::Inconsistent(format!("{heads} heads can't share {width} elements equally")));
        }
        Ok(())
    }

    /// The row of a sentence's first position in the table of positions.
    fn first_position(&self) -> usize {
        match self.model_type.as_deref() {
            // The rows up to that of padding are not used.
            Some("roberta" | "xlm-roberta") => self.pad_token_id.unwrap_or(1) + 1,
            _ => 0,
        }
    }

    /// The most tokens of a sentence.
    pub fn longest(&self) -> usize {
        self.max_position_embeddings.saturating_sub(self.first_position())
    }
}

/// One rank's part of a model.
pub struct Bert {
    words: VocabParallelEmbedding,
    /// From a sentence's first position on.
    positions: Tensor,
    kind: Tensor,
    norm: LayerNorm,
    layers: Vec<Layer>,
    head_width: usize,
}

struct Layer {
    query: ColumnParallelLinear,
    key: ColumnParallelLinear,
    value: ColumnParallelLinear,
    attention: RowParallelLinear,
    attention_norm: LayerNorm,
    intermediate: ColumnParallelLinear,
    output: RowParallelLinear,
    output_norm: LayerNorm,
}

/// Which part of each tensor a rank reads.
///
/// # Errors
/// There are more ranks than heads; the configuration has another activation, other positions, or heads that do not divide
/// the width.
pub fn plan(config: &Config, ranks: usize) -> Result<Plan, ModelError> {
    config.check()?;
    check_split(config.num_attention_heads, "query heads", ranks)?;
    let heads = HeadPlan::new(config.num_attention_heads, config.num_attention_heads, ranks)?;
    let width = config.hidden_size / config.num_attention_heads;
    let own = |rank| heads.query(rank).start * width..heads.query(rank).end * width;
    Ok(Plan::new()
        // Weights and biases of the projections have one row for each element of a head.
        .with("*.attention.self.*", Split::ranges(0, (0..ranks).map(own)))
        .with("*.attention.output.dense.weight", Split::ranges(1, (0..ranks).map(own)))
        .with("*.intermediate.dense.*", Split::even(0, 1))
        .with("*.output.dense.weight", Split::even(1, 1))
        .with("*embeddings.word_embeddings.weight", Split::even(0, 1))
        .with("*", Split::Whole))
}

impl Bert {
    /// Reads this rank's part.
    ///
    /// # Errors
    /// As [`plan`]; the weights lack a tensor or can't be read.
    pub fn load(config: &Config, shards: &Shards, comm: &Comm) -> Result<Self, ModelError> {
        config.check()?;
        const WORDS: &str = "embeddings.word_embeddings.weight";
        let module = ["", "bert.", "roberta."].into_iter().find(|module| shards.contains(&format!("{module}{WORDS}")));
        let module = module.unwrap_or("");
        let tensor = |name: &str| shards.tensor(&format!("{module}{name}"));
        let norm = |name: &str| {
            let [weight, bias] = ["weight", "bias"].map(|part| tensor(&format!("{name}.{part}")));
            Ok::<_, ModelError>(LayerNorm::new(weight?, bias?, config.layer_norm_eps))
        };
        let parts = |name: &str| {
            let [weight, bias] = ["weight", "bias"].map(|part| tensor(&format!("{name}.{part}")));
            Ok::<_, ModelError>((Matrix::inference(weight?)?, Some(bias?)))
        };
        let column =
            |name: &str| parts(name).map(|(matrix, bias)| ColumnParallelLinear::new(matrix, bias, comm.clone()));
        let row = |name: &str| parts(name).map(|(matrix, bias)| RowParallelLinear::new(matrix, bias, comm.clone()));
        let layer = |number| {
            let name = |part| format!("encoder.layer.{number}.{part}");
            Ok::<_, ModelError>(Layer {
                query: column(&name("attention.self.query"))?,
                key: column(&name("attention.self.key"))?,
                value: column(&name("attention.self.value"))?,
                attention: row(&name("attention.output.dense"))?,
                attention_norm: norm(&name("attention.output.LayerNorm"))?,
                intermediate: column(&name("intermediate.dense"))?,
                output: row(&name("output.dense"))?,
                output_norm: norm(&name("output.LayerNorm"))?,
            })
        };
        let words = tensor(WORDS)?;
        let positions = tensor("embeddings.position_embeddings.weight")?;
        let (first, count) = (config.first_position(), config.longest());
        let rows = even_ranges(config.vocab_size, comm.size()).nth(comm.rank()).unwrap_or(0..0);
        Ok(Self {
            words: VocabParallelEmbedding::new(Matrix::inference(words)?, rows, comm.clone())?,
            positions: positions.narrow(0, first, count)?.force_contiguous()?,
            kind: tensor("embeddings.token_type_embeddings.weight")?.i(0)?,
            norm: norm("embeddings.LayerNorm")?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_, ModelError>>()?,
            head_width: config.hidden_size / config.num_attention_heads,
        })
    }

    /// The embeddings of sentences, vectors of length 1: `[sentences, hidden_size]`. Every rank gets all of them.
    ///
    /// # Errors
    /// A sentence has no tokens, or more than the model has positions; a collective fails.
    pub fn embed(&self, sentences: &[Vec<u32>]) -> Result<Tensor, ModelError> {
        let means = self.pool(sentences, true)?;
        Ok(means.broadcast_div(&means.sqr()?.sum_keepdim(1)?.sqrt()?)?)
    }

    /// One vector for each sentence, `[sentences, hidden_size]`: the mean over its tokens, or the hidden state of the first one.
    ///
    /// # Errors
    /// Those of [`embed`](Self::embed).
    pub(crate) fn pool(&self, sentences: &[Vec<u32>], is_mean: bool) -> Result<Tensor, ModelError> {
        if sentences.iter().any(Vec::is_empty) {
            return Err(ModelError::Call("a sentence has no tokens".into()));
        }
        let longest = sentences.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |padding: u32, of: fn(u32) -> u32| {
            let row = move |tokens: &Vec<u32>| {
                let padding = std::iter::repeat_n(padding, longest - tokens.len());
                tokens.iter().copied().map(of).chain(padding).collect::<Vec<_>>()
            };
            let all: Vec<u32> = sentences.iter().flat_map(row).collect();
            Tensor::from_vec(all, (sentences.len(), longest), self.positions.device())
        };
        let tokens = padded(0, |token| token)?;
        // 1 for tokens, 0 for padding.
        let is_token = padded(0, |_| 1)?.to_dtype(DType::F32)?;
        // Attention to padding has a weight of e^-10000, which is 0.
        let mask = ((&is_token - 1.0)? * 1e4)?.unsqueeze(1)?.unsqueeze(1)?;
        let positions = self.positions.narrow(0, 0, longest)?;
        let x = self.words.forward(&tokens)?.broadcast_add(&positions)?.broadcast_add(&self.kind)?;
        let mut x = self.norm.forward(&x)?;
        for layer in &self.layers {
            x = layer.forward(&x, &mask, self.head_width)?;
        }
        if !is_mean {
            return Ok(x.i((.., 0))?.contiguous()?);
        }
        let sums = x.broadcast_mul(&is_token.unsqueeze(2)?)?.sum(1)?;
        Ok(sums.broadcast_div(&is_token.sum_keepdim(1)?)?)
    }
}

impl Layer {
    fn forward(&self, x: &Tensor, mask: &Tensor, width: usize) -> Result<Tensor, ModelError> {
        let (sentences, tokens, _) = x.dims3()?;
        let heads = |y: Tensor| y.reshape((sentences, tokens, (), width))?.transpose(1, 2)?.contiguous();
        let query = heads(self.query.forward(x)?)?;
        let key = heads(self.key.forward(x)?)?;
        let value = heads(self.value.forward(x)?)?;
        let attended = attended(&[query, key, value], mask, ROWS)?;
        let attended = self.attention.forward(&attended.transpose(1, 2)?.flatten_from(2)?)?;
        let x = self.attention_norm.forward(&(attended + x)?)?;
        let y = self.output.forward(&self.intermediate.forward(&x)?.gelu_erf()?)?;
        Ok(self.output_norm.forward(&(y + x)?)?)
    }
}

/// Attention of heads, `[sentences, heads, tokens, width]` each, so many rows of the query at a time.
fn attended([query, key, value]: &[Tensor; 3], mask: &Tensor, rows: usize) -> candle_core::Result<Tensor> {
    let (_, _, tokens, width) = query.dims4()?;
    let key = key.t()?;
    let some = |first: usize| {
        let query = query.narrow(2, first, rows.min(tokens - first))?.contiguous()?;
        let scores = (query.matmul(&key)? * (width as f64).powf(-0.5))?.broadcast_add(mask)?;
        candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(value)
    };
    Tensor::cat(&(0..tokens).step_by(rows).map(some).collect::<candle_core::Result<Vec<_>>>()?, 2)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn attention_does_not_depend_on_the_rows_at_a_time() {
        let heads = || Tensor::randn(0f32, 1.0, (2, 3, 10, 4), &Device::Cpu).unwrap();
        let all = [heads(), heads(), heads()];
        let mask = Tensor::randn(0f32, 1.0, (2, 1, 1, 10), &Device::Cpu).unwrap();
        let of = |rows| attended(&all, &mask, rows).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let whole = of(10);
        for rows in [1, 3, 5, 9, 512] {
            assert!(of(rows).iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-5), "{rows}");
        }
    }
}
