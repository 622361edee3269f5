//! Vocabularies of GGUF files: the tokens of random texts are those of llama.cpp, with `DISCO_LONG_TESTS`.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use candle_core::quantized::gguf_file::Value;
use disco_candle::weights::Weights;
use disco_conformance::Fetched;
use disco_models::text::Text;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

use super::random::{Model, Shape};

/// llama.cpp for Python.
const LLAMA_CPP: Fetched = Fetched::long("xllamacpp-2026.10.11549").required_by("llama.cpp");
const SHAPE: Shape =
    Shape { layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn: 8, vocabulary: 0, context: 64, tied: true };
const TEXTS: usize = 150;

/// Pieces of texts.
const LOWER: [&str; 16] =
    [" the", "ab", " ab", "'s", "'ll", "  ", "    ", "\n", "\n\n", " \n", "\t", "\r\n", "(a)", "a.b", "//", "+"];
const ASCII: [&str; 18] = [
    "Hello",
    "CamelCase",
    "abcDEF",
    "'S",
    "I'M",
    "1",
    "12",
    "123",
    " 56789",
    "1,234,567",
    "3.14",
    "$5",
    "==",
    "`x`",
    "~|^",
    "/\n",
    "snake_case",
    "IMGIMGABCZ",
];
const OTHER: [&str; 24] = [
    "é",
    "naïve",
    "ÀB",
    "ß",
    "日本語",
    "ひらがな",
    "한국어",
    "العربية",
    "हिन्दी",
    "ำ",
    "🎨",
    "e\u{301}",
    "Ａ",
    "½",
    "Ⅷ",
    "٣٤",
    "\u{a0}",
    "\u{3000}",
    "“q”",
    "…",
    "。",
    "ДОМ",
    "\u{b}",
    "ﬁ",
];

/// The names of families whose tokens are compared for all texts.
const FOR_ALL_TEXTS: [&str; 24] = [
    "default",
    "llama-bpe",
    "dbrx",
    "glm5",
    "qwen2",
    "qwen35",
    "gpt-2",
    "roberta-bpe",
    "smollm",
    "deepseek-v3",
    "spark2_5",
    "falcon",
    "seed-coder",
    "jais-2",
    "bloom",
    "viking",
    "chameleon",
    "bailingmoe",
    "ufakzeka",
    "laguna",
    "exaone-moe",
    "minicpm5",
    "gemma4",
    "sarvam-moe",
];
/// Families that llama.cpp simplifies for characters beyond ASCII.
const FOR_ASCII: [&str; 6] =
    ["tekken", "gpt-4o", "granite-embed-multi-97m", "deepseek-llm", "deepseek-coder", "superbpe"];
/// Families that llama.cpp simplifies for digits or upper case.
const FOR_LOWER_CASE: [&str; 4] = ["kimi-k2", "tiny_aya", "youtu", "afmoe"];

/// Random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % limit
    }

    fn texts(&mut self, count: usize, pieces: &[&str]) -> Vec<String> {
        let mut text = || (0..=self.below(9)).map(|_| pieces[self.below(pieces.len())]).collect();
        (0..count).map(|_| text()).collect()
    }
}

/// Pairs that are frequent in `texts`, whatever cuts them: where a pre-tokenizer cuts a text shows in its tokens.
fn trained(texts: &[String], pre: Option<ByteLevel>) -> (Vec<String>, Vec<String>) {
    type Bpe = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;
    let mut tokenizer = Bpe::new(BPE::default());
    let alphabet = pre.map(|_| ByteLevel::alphabet().into_iter().collect()).unwrap_or_default();
    tokenizer.with_pre_tokenizer(pre.map(PreTokenizerWrapper::from));
    let mut trainer = BpeTrainer::builder().vocab_size(3000).initial_alphabet(alphabet).show_progress(false).build();
    tokenizer.train(&mut trainer, texts.iter().map(String::as_str)).unwrap();
    let model = serde_json::to_value(tokenizer.get_model()).unwrap();
    let numbers: HashMap<String, usize> = serde_json::from_value(model["vocab"].clone()).unwrap();
    let mut tokens: Vec<_> = numbers.into_iter().collect();
    tokens.sort_by_key(|(_, number)| *number);
    let merges: Vec<(String, String)> = serde_json::from_value(model["merges"].clone()).unwrap();
    let merges = merges.into_iter().map(|(left, right)| format!("{left} {right}"));
    (tokens.into_iter().map(|(token, _)| token).collect(), merges.collect())
}

fn strings(texts: &[String]) -> Value {
    Value::Array(texts.iter().cloned().map(Value::String).collect())
}

/// A model with a vocabulary: `kind` and `pre` name it, and the last two tokens are special.
fn model(kind: &str, pre: &str, tokens: Vec<(String, i32)>, more: (&str, Value)) -> Model {
    let tokens: Vec<_> = tokens.into_iter().chain([("<|begin|>".into(), 3), ("<|end|>".into(), 3)]).collect();
    let (texts, kinds): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
    let count = texts.len();
    let metadata = [
        ("tokenizer.ggml.model", Value::String(kind.into())),
        ("tokenizer.ggml.pre", Value::String(pre.into())),
        ("tokenizer.ggml.tokens", strings(&texts)),
        ("tokenizer.ggml.token_type", Value::Array(kinds.into_iter().map(Value::I32).collect())),
        ("tokenizer.ggml.bos_token_id", Value::U32(count as u32 - 2)),
        ("tokenizer.ggml.eos_token_id", Value::U32(count as u32 - 1)),
        more,
    ];
    Model::gguf_with_metadata(Shape { vocabulary: count, ..SHAPE }, &metadata)
}

fn byte_tokens() -> impl Iterator<Item = (String, i32)> {
    (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 6))
}

/// The tokens of llama.cpp, for each model and text.
fn llama_cpp(folder: &Path, models: &[Model], texts: &[String]) -> Vec<Vec<Vec<u32>>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, serde_json::to_vec(texts).unwrap()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformer/tokens_of_llama_cpp.py");
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", folder).arg(script).arg(file.path()).args(models.iter().map(Model::path));
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Compares the tokens of all texts for each model.
fn compare(folder: &Path, names: &[&str], models: &[Model], texts: &[String]) {
    let expected = llama_cpp(folder, models, texts);
    assert_eq!(expected.len(), names.len());
    for ((name, model), expected) in names.iter().zip(models).zip(expected) {
        let own = Text::open(&Weights::open(model.path()).unwrap()).unwrap();
        for (text, expected) in texts.iter().zip(expected) {
            assert_eq!(own.tokens(text, None, true).unwrap(), expected, "{name}: {text:?}");
        }
    }
}

fn folder() -> Option<std::path::PathBuf> {
    env::var_os("DISCO_LONG_TESTS")?;
    LLAMA_CPP.find()
}

#[test]
fn byte_pair_vocabularies_give_the_tokens_of_llama_cpp() {
    let Some(folder) = folder() else { return };
    let mut random = Random(7);
    let pieces = [&LOWER[..], &ASCII, &OTHER].concat();
    let texts = random.texts(2000, &pieces);
    let (tokens, merges) = trained(&texts, Some(ByteLevel::new(false, true, false)));
    let bytes = |name: &str| {
        let tokens = tokens.iter().map(|token| (token.clone(), 1)).collect();
        model("gpt2", name, tokens, ("tokenizer.ggml.merges", strings(&merges)))
    };
    let texts: Vec<_> = texts.iter().map(|text| text.replace(' ', "▁")).collect();
    let (tokens, merges) = trained(&texts, None);
    let whole = |name: &str| {
        let tokens = byte_tokens().chain(tokens.iter().map(|token| (token.clone(), 1))).collect();
        model("gpt2", name, tokens, ("tokenizer.ggml.merges", strings(&merges)))
    };
    for (names, pieces) in
        [(&FOR_ALL_TEXTS[..], &pieces[..]), (&FOR_ASCII, &[&LOWER[..], &ASCII].concat()), (&FOR_LOWER_CASE, &LOWER)]
    {
        let models = names.iter().map(|name| match *name {
            "gemma4" | "sarvam-moe" => whole(name),
            _ => bytes(name),
        });
        compare(&folder, names, &models.collect::<Vec<_>>(), &random.texts(TEXTS, pieces));
    }
}

#[test]
fn sentence_piece_vocabularies_give_the_tokens_of_llama_cpp() {
    let Some(folder) = folder() else { return };
    let mut random = Random(11);
    let mut pieces: Vec<String> = "abcd▁é1".chars().map(String::from).collect();
    while pieces.len() < 120 {
        let piece = [0, 1].map(|_| pieces[random.below(pieces.len())].as_str()).concat();
        if piece.chars().count() <= 6 && !pieces.contains(&piece) {
            pieces.push(piece);
        }
    }
    let scores = pieces.iter().enumerate().map(|(number, piece)| match piece.chars().count() {
        1 => -1000.0 - number as f32,
        _ => -1.0 - random.below(60) as f32,
    });
    let scores = [0.0; 256].into_iter().chain(scores.collect::<Vec<_>>()).chain([0.0; 2]).map(Value::F32);
    let tokens = byte_tokens().chain(pieces.into_iter().map(|piece| (piece, 1))).collect();
    let model = model("llama", "default", tokens, ("tokenizer.ggml.scores", Value::Array(scores.collect())));
    let texts = random.texts(TEXTS, &["a", "b", "c", "d", " ", "  ", "é", "1", "Z", "日", "<|end|>", "\n"]);
    compare(&folder, &["llama"], &[model], &texts);
}
