//! The tiny models as GGUF files, converted as llama.cpp's `convert_hf_to_gguf.py` does, give the same texts.
//!
//! llama.cpp itself gave these texts for the files that the same conversion wrote (xllamacpp 2026.10, 27 and 30 November
//! 2026), but for windows of Phi-3, which it does not use, and models whose widths it refuses: Command-R7B, whose heads have
//! to be as wide as hidden states together, and gated delta nets, whose values have to be as wide as keys. Of such models
//! with these widths and other weights it gave our texts.

use std::path::Path;

use candle_core::Tensor;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use disco::SessionKind;
use disco_candle::weights::Weights;
use disco_models::worker::Load;
use disco_models::{Config, ExpertSplit, Precision, Scaling};

use super::conversion::Conversion;
use super::families::{Case, Prompt, case};
use super::logits::logits_of;
use super::ours;
use super::tokens::{batch, tokens_of};

/// The models whose features GGUF files can say, and the architectures of the files.
const MODELS: [(&str, &str); 36] = [
    ("cohere", "command-r"),
    ("cohere2", "cohere2"),
    ("deepseek-v2", "deepseek2"),
    ("deepseek-v2-lite", "deepseek2"),
    ("deepseek-v3", "deepseek2"),
    ("gemma2-plain", "gemma2"),
    ("gemma3-plain", "gemma3"),
    ("gemma4", "gemma4"),
    ("gemma4-moe", "gemma4"),
    ("glm4", "glm4"),
    ("gpt-oss", "gpt-oss"),
    ("gpt2", "gpt2"),
    ("granite", "granite"),
    ("llama-3", "llama"),
    ("llama-bias", "llama"),
    ("llama-linear", "llama"),
    ("llama-old", "llama"),
    ("llama-yarn", "llama"),
    ("ministral3", "mistral3"),
    ("mistral3", "mistral3"),
    ("mixtral", "llama"),
    ("olmo2", "olmo2"),
    ("olmo3", "olmo2"),
    ("phi3", "phi3"),
    ("phi3-cross", "phi3"),
    ("phi3-longrope", "phi3"),
    ("phi3-partial", "phi3"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3", "qwen3vl"),
    ("qwen3-moe", "qwen3moe"),
    ("qwen3-next", "qwen3next"),
    ("qwen3-vl-moe-image", "qwen3vlmoe"),
    ("qwen3_5", "qwen35"),
    ("qwen3_5-moe-image", "qwen35moe"),
    ("smollm3-four", "smollm3"),
];

/// The folder of a tiny model.
fn model(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)
}

/// The texts of a file are those of the tiny model `name`.
fn expect_texts(path: &Path, name: &str) {
    let Case { prompts, .. } = case(model(name));
    for (workers, split) in [(1, ExpertSplit::Within), (3, ExpertSplit::Within), (2, ExpertSplit::Over)] {
        for Prompt { prompt_ids, greedy_ids, .. } in &prompts {
            let mut load = Load::new(path.into(), Precision::F32);
            load.expert_split = split;
            let batch = batch(std::slice::from_ref(prompt_ids));
            let found = tokens_of(load, "local", SessionKind::Threads, workers, &batch, greedy_ids.len());
            assert_eq!(found, std::slice::from_ref(greedy_ids), "{name}, {workers} workers");
        }
    }
}

#[test]
fn texts_of_gguf_files_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    for (name, architecture) in MODELS {
        let path = folder.path().join(format!("{name}.gguf"));
        Conversion::new(&model(name), architecture).write(&path, GgmlDType::F32);
        expect_texts(&path, name);
    }
}

#[test]
fn texts_of_gguf_files_with_earlier_matrices_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    for (name, architecture) in [("deepseek-v3", "deepseek2"), ("qwen3-next", "qwen3next")] {
        let path = folder.path().join(format!("{name}.gguf"));
        Conversion::old(&model(name), architecture).write(&path, GgmlDType::F32);
        expect_texts(&path, name);
    }
}

/// Blocks of all kinds of matrices are those of their dequantised elements, but for the rounding of the arguments of products.
#[test]
fn logits_of_quantised_gguf_files_are_close_to_those_of_the_dequantised_ones() {
    let folder = tempfile::tempdir().unwrap();
    for (name, architecture) in MODELS {
        let Case { prompts, .. } = case(model(name));
        let path = folder.path().join(format!("{name}.gguf"));
        Conversion::new(&model(name), architecture).write(&path, GgmlDType::Q8_0);
        let Prompt { prompt_ids, .. } = &prompts[0];
        let logits = |workers, precision| logits_of(workers, &path, precision, prompt_ids, &[0]);
        let expected: Vec<f64> = logits(1, Precision::F32).into_iter().map(f64::from).collect();
        for workers in [1, 3] {
            let difference = ours::difference(&logits(workers, Precision::File), &expected);
            assert!(difference < 0.15, "{name} as {architecture}, {workers} workers: {difference}");
        }
    }
}

#[test]
fn quantised_experts_are_those_of_their_dequantised_stack() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experts.gguf");
    // Four workers cut the three blocks of an expert's hidden units.
    for (dim, ffn, blocks, most) in [(64, 64, GgmlDType::Q8_0, 1), (256, 768, GgmlDType::Q6K, 4)] {
        let mut conversion = Conversion::new(&model("mixtral"), "llama");
        // Rows of whole blocks.
        let wide = |tensor: &Tensor, shape: &[usize]| {
            let elements = tensor.flatten_all().unwrap();
            let copies = shape.iter().product::<usize>().div_ceil(elements.elem_count());
            let many = Tensor::cat(&vec![elements; copies], 0).unwrap();
            // A copy, since candle quantises all of the memory of a view.
            many.narrow(0, 0, shape.iter().product()).unwrap().force_contiguous().unwrap().reshape(shape).unwrap()
        };
        let width = |old: &usize| match *old {
            40 => dim,
            44 => ffn,
            other => other,
        };
        for (name, tensor) in &mut conversion.tensors {
            *tensor = wide(tensor, &tensor.dims().iter().map(width).collect::<Vec<_>>());
            if name.contains("norm") {
                *tensor = tensor.ones_like().unwrap();
            }
        }
        conversion.set("embedding_length", Value::U32(dim as u32));
        conversion.set("feed_forward_length", Value::U32(ffn as u32));
        conversion.write(&path, blocks);
        let batch = batch(&[vec![17, 300, 5, 44, 91]]);
        let tokens = |precision, workers, split| {
            let mut load = Load::new(path.clone(), precision);
            load.expert_split = split;
            tokens_of(load, "local", SessionKind::Threads, workers, &batch, 8)
        };
        let expected = tokens(Precision::File, 1, ExpertSplit::Within);
        for (workers, split) in [(2, ExpertSplit::Within), (most, ExpertSplit::Within), (3, ExpertSplit::Over)] {
            assert_eq!(tokens(Precision::File, workers, split), expected, "{blocks:?}, {workers} workers");
        }
        // The product rounds its argument to 8 bits, which the texts of the small experts have room for.
        if blocks == GgmlDType::Q8_0 {
            assert_eq!(tokens(Precision::F32, 1, ExpertSplit::Within), expected);
        }
    }
}

#[test]
fn a_key_of_a_gguf_file_that_is_not_understood_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let error_with = |architecture, name: &str, value: Value| {
        let mut conversion = Conversion::new(&model("llama-old"), architecture);
        conversion.set(name, value);
        conversion.write(&path, GgmlDType::F32);
        let weights = Weights::open(&path).unwrap();
        Config::open(&weights).map_err(|error| error.to_string()).err()
    };
    let error = error_with("llama", "attention.clamp_kqv", Value::F32(8.0)).unwrap();
    assert!(
        error.contains("the key \"llama.attention.clamp_kqv\" (F32(8.0)), which may change the results"),
        "{error}"
    );
    assert_eq!(error_with("llama", "use_parallel_residual", Value::Bool(false)), None);
    assert_eq!(error_with("llama", "attention.clamp_kqv", Value::F32(0.0)), None);
    // The converter writes the widths of Qwen3-Coder's shared experts, which it does not have.
    assert_eq!(error_with("qwen2", "expert_shared_feed_forward_length", Value::U32(0)), None);
    let error = error_with("qwen2", "expert_shared_feed_forward_length", Value::U32(8)).unwrap();
    assert!(error.contains("qwen2.expert_shared_feed_forward_length"), "{error}");
    let error = error_with("llama", "logit_scale", Value::F32(0.5)).unwrap();
    assert!(error.contains("the key \"llama.logit_scale\" (F32(0.5))"), "{error}");
    let error = error_with("qwen2", "expert_count", Value::U32(4)).unwrap();
    assert!(error.contains("the key \"qwen2.expert_count\" (U32(4))"), "{error}");
    let error = error_with("mamba", "block_count", Value::U32(4)).unwrap();
    assert!(error.contains("the architecture \"mamba\", which is not supported"), "{error}");
    assert!(error.contains("phi3, gemma2, gemma3, gemma4, olmo2, smollm3, granite, glm4, gpt-oss"), "{error}");
}

#[test]
fn keys_of_a_gguf_file_that_turn_something_off_are_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let open = |conversion: &Conversion| {
        conversion.write(&path, GgmlDType::F32);
        Config::open(&Weights::open(&path).unwrap()).map_err(|error| error.to_string())
    };
    let mut granite = Conversion::new(&model("granite"), "granite");
    assert!(open(&granite).unwrap().attentions().all(|attention| attention.rotary.is_some()));
    granite.set("rope.scaling.finetuned", Value::Bool(false));
    assert!(open(&granite).unwrap().attentions().all(|attention| attention.rotary.is_none()));

    let mut gemma = Conversion::new(&model("gemma3-plain"), "gemma3");
    assert!(open(&gemma).unwrap().attentions().any(|attention| attention.window.is_some()));
    gemma.metadata.remove("gemma3.attention.sliding_window");
    let config = open(&gemma).unwrap();
    let first = config.attentions().next().unwrap();
    assert!(config.attentions().all(|attention| attention.window.is_none() && attention.rotary == first.rotary));

    let mut llama = Conversion::new(&model("llama-3"), "llama");
    assert_eq!(open(&llama).unwrap().attentions().next().unwrap().rotary.as_ref().unwrap().scaling, Scaling::InFile);
    llama.set("rope.scaling.factor", Value::F32(2.0));
    let error = open(&llama).unwrap_err();
    assert!(error.contains("the rope scaling Linear { factor: 2.0 } beside rope_freqs.weight is not"), "{error}");
}

#[test]
fn damaged_keys_of_gguf_files_are_errors_or_other_models_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let (mut all, mut refused) = (0, 0);
    for (name, architecture) in MODELS {
        let mut conversion = Conversion::new(&model(name), architecture);
        let keys: Vec<_> = conversion.metadata.keys().filter(|key| key.starts_with(architecture)).cloned().collect();
        for key in keys {
            let old = conversion.metadata[&key].clone();
            for value in [
                Value::U32(0),
                Value::U32(3),
                Value::U64(1 << 40),
                Value::U64(u64::MAX),
                Value::F32(-1.0),
                Value::F32(f32::INFINITY),
                Value::Bool(false),
                Value::Array(vec![Value::U32(5); 3]),
            ] {
                conversion.metadata.insert(key.clone(), value);
                conversion.write(&path, GgmlDType::F32);
                all += 1;
                refused += usize::from(Config::open(&Weights::open(&path).unwrap()).is_err());
            }
            conversion.metadata.insert(key, old);
        }
    }
    assert!(refused > all / 2 && refused < all, "{refused} of {all} were refused");
}

#[test]
fn a_message_ends_no_text_of_a_model_with_ends_of_answers_and_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let ends = |tokens: [&str; 4]| {
        let mut conversion = Conversion::new(&model("gpt-oss"), "gpt-oss");
        let tokens = tokens.map(|token| Value::String(token.into()));
        conversion.metadata.insert("tokenizer.ggml.tokens".into(), Value::Array(tokens.into()));
        conversion.write(&path, GgmlDType::F32);
        Config::open(&Weights::open(&path).unwrap()).unwrap().eos
    };
    assert_eq!(ends(["<|end|>", "<|return|>", "a", "<|call|>"]), [1, 3]);
    assert_eq!(ends(["<|end|>", "<turn|>", "a", "<|call|>"]), [0, 1, 3]);
}

#[test]
fn numbers_of_layers_and_experts_that_no_model_has_are_refused_before_memory_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let error_with = |name: &str, architecture, keys: &[(&str, Value)]| {
        let mut conversion = Conversion::new(&model(name), architecture);
        keys.iter().for_each(|(key, value)| conversion.set(key, value.clone()));
        conversion.write(&path, GgmlDType::F32);
        Config::open(&Weights::open(&path).unwrap()).unwrap_err().to_string()
    };
    let error = error_with("smollm3-four", "smollm3", &[("block_count", Value::U64(1 << 60))]);
    assert!(error.ends_with("1152921504606846976 layers, and at most 4096 can be right"), "{error}");
    let error = error_with("mixtral", "llama", &[("expert_count", Value::U64(1 << 40))]);
    assert!(error.ends_with("2 of 1099511627776 experts for each token, and at most 4096 can be right"), "{error}");
}
