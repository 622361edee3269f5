//! Tiny models of each family give the tokens and logits of transformers.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use disco::SessionKind;
use disco_candle::weights::{Shards, Weights};

use disco_models::text::Text;
use disco_models::worker::Load;
use disco_models::{Config, ExpertSplit, Precision, Sums, memory_bytes, plan};
use serde::Deserialize;

use super::logits::{logits_of, weights_of};
use super::tokens::{batch, tokens, tokens_of};

/// `reference.json`, which transformers has computed.
#[derive(Deserialize)]
struct Reference {
    pub(crate) prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
pub(crate) struct Prompt {
    prompt: String,
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) greedy_ids: Vec<u32>,
    after_prompt: Largest,
    after_last_step: Largest,
}

/// The largest logits and their tokens.
#[derive(Deserialize)]
struct Largest {
    ids: Vec<usize>,
    logits: Vec<f32>,
}

/// A model and its prompts; the continuations end before a token that ends a text.
pub(crate) struct Case {
    pub(crate) folder: PathBuf,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) vocabulary: usize,
}

pub(crate) fn cases() -> Vec<Case> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let folders = fs::read_dir(models).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let mut cases: Vec<_> = folders.map(case).collect();
    cases.sort_by(|a, b| a.folder.cmp(&b.folder));
    assert!(cases.len() > 10, "the models are missing");
    cases
}

pub(crate) fn case(folder: PathBuf) -> Case {
    let config = Config::open(&Weights::open(&folder).unwrap()).unwrap();
    let prompts = prompts(&folder, &config);
    Case { folder, prompts, vocabulary: config.vocabulary }
}

/// The prompts of a folder, and their texts by a model of `config`.
pub(crate) fn prompts(folder: &Path, config: &Config) -> Vec<Prompt> {
    let text = fs::read_to_string(folder.join("reference.json")).unwrap();
    let Reference { mut prompts } = serde_json::from_str(&text).unwrap();
    for prompt in &mut prompts {
        let end = prompt.greedy_ids.iter().position(|token| config.eos.contains(token));
        prompt.greedy_ids.truncate(end.unwrap_or(usize::MAX));
    }
    prompts
}

#[test]
fn texts_of_1_to_4_workers_are_those_of_transformers() {
    for Case { folder, prompts, .. } in cases() {
        let name = folder.display();
        let text = Text::open(&Weights::open(&folder).unwrap()).unwrap();
        for workers in 1..=4 {
            for Prompt { prompt, prompt_ids, greedy_ids, .. } in &prompts {
                assert_eq!(text.tokens(prompt, None, true).unwrap(), *prompt_ids, "{name}: {prompt}");
                let batch = batch(std::slice::from_ref(prompt_ids));
                let found = tokens(SessionKind::Threads, workers, &folder, &batch, greedy_ids.len());
                assert_eq!(found, std::slice::from_ref(greedy_ids), "{name}, {workers} workers: {prompt}");
            }
        }
        let all: Vec<_> = prompts.iter().map(|prompt| prompt.prompt_ids.clone()).collect();
        let count = prompts.iter().map(|prompt| prompt.greedy_ids.len()).min().unwrap();
        let found = tokens(SessionKind::Threads, 2, &folder, &batch(&all), count);
        for (found, prompt) in found.iter().zip(&prompts) {
            assert_eq!(found[..], prompt.greedy_ids[..count], "{name}, a batch: {}", prompt.prompt);
        }
    }
}

#[test]
fn texts_are_the_same_if_workers_have_whole_experts() {
    let mut mixtures = 0;
    for Case { folder, prompts, .. } in cases() {
        let config = Config::open(&Weights::open(&folder).unwrap()).unwrap();
        let Some(experts) = config.experts().copied() else { continue };
        mixtures += 1;
        let mut load = Load::new(folder.clone(), Precision::F32);
        load.expert_split = ExpertSplit::Over;
        for workers in 1..=4 {
            for Prompt { prompt_ids, greedy_ids, .. } in &prompts {
                let batch = batch(std::slice::from_ref(prompt_ids));
                let kind = SessionKind::Threads;
                let found = tokens_of(load.clone(), "local", kind, workers, &batch, greedy_ids.len());
                assert_eq!(found, std::slice::from_ref(greedy_ids), "{}, {workers} workers", folder.display());
            }
        }
        // Parts of sums need an expert for each rank.
        let mut config = config;
        config.expert_split = ExpertSplit::Over;
        let (weights, ranks) = (Weights::open(&folder).unwrap(), experts.count + 1);
        plan(&config, &weights, ranks).unwrap();
        config.sums = Sums::Parts;
        let error = plan(&config, &weights, ranks).unwrap_err().to_string();
        let heads = "6 query heads can't be split over";
        let many = format!("{} experts can't be split over {} ranks", experts.count, ranks);
        assert!(error.contains(&many) || error.contains(heads), "{error}");
    }
    assert!(mixtures > 1, "the models are missing");
}

/// The experts of each layer stacked, gate above up, as some files have them.
#[test]
fn stacked_experts_give_the_texts_of_experts_apart() {
    let Case { folder, prompts, .. } =
        case(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/qwen3_5-moe-image"));
    let stacked = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(folder.join(name), stacked.path().join(name)).unwrap();
    }
    let mut tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
    for layer in 0..2 {
        let module = format!("model.language_model.layers.{layer}.mlp.experts");
        let mut of = |expert: usize, name: &str| tensors.remove(&format!("{module}.{expert}.{name}.weight")).unwrap();
        let both = |expert| Tensor::cat(&[of(expert, "gate_proj"), of(expert, "up_proj")], 0).unwrap();
        let both: Vec<_> = (0..4).map(both).collect();
        let down: Vec<_> = (0..4).map(|expert| of(expert, "down_proj")).collect();
        tensors.insert(format!("{module}.gate_up_proj"), Tensor::stack(&both, 0).unwrap());
        tensors.insert(format!("{module}.down_proj"), Tensor::stack(&down, 0).unwrap());
    }
    candle_core::safetensors::save(&tensors, stacked.path().join("model.safetensors")).unwrap();
    for workers in [1, 3] {
        for Prompt { prompt_ids, greedy_ids, .. } in &prompts {
            let batch = batch(std::slice::from_ref(prompt_ids));
            let found = tokens(SessionKind::Threads, workers, stacked.path(), &batch, greedy_ids.len());
            assert_eq!(found, std::slice::from_ref(greedy_ids), "{workers} workers");
        }
    }
}

/// The same matrices as outputs × inputs, as transformers 5 writes them.
#[test]
fn experts_stacked_as_inputs_by_outputs_give_the_texts_of_outputs_by_inputs() {
    let Case { folder, prompts, .. } =
        case(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/qwen3-vl-moe-image"));
    let turned = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json"] {
        fs::copy(folder.join(name), turned.path().join(name)).unwrap();
    }
    let mut tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
    for (_, stack) in tensors.iter_mut().filter(|(name, _)| name.contains(".mlp.experts.")) {
        *stack = stack.transpose(1, 2).unwrap().contiguous().unwrap();
    }
    candle_core::safetensors::save(&tensors, turned.path().join("model.safetensors")).unwrap();
    for workers in [1, 3] {
        for Prompt { prompt_ids, greedy_ids, .. } in &prompts {
            let batch = batch(std::slice::from_ref(prompt_ids));
            let found = tokens(SessionKind::Threads, workers, turned.path(), &batch, greedy_ids.len());
            assert_eq!(found, std::slice::from_ref(greedy_ids), "{workers} workers");
        }
    }
}

#[test]
fn the_text_part_of_a_model_with_images_gives_the_texts_of_the_model_alone() {
    let Case { folder, prompts, .. } = case(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/qwen3"));
    let whole = tempfile::tempdir().unwrap();
    let mut text: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    text["model_type"] = "qwen3_vl_text".into();
    text["rope_parameters"]["mrope_section"] = serde_json::json!([3, 3, 2]);
    let write = |config: &serde_json::Value| fs::write(whole.path().join("config.json"), config.to_string()).unwrap();
    let mut config = serde_json::json!({
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": text,
        "tie_word_embeddings": true, "vision_config": {"depth": 1}, "image_token_id": 3, "video_token_id": 4,
    });
    write(&config);
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &candle_core::Device::Cpu).unwrap();
    let mut renamed: HashMap<String, _> = tensors
        .into_iter()
        .map(|(name, tensor)| (name.replacen("model.", "model.language_model.", 1), tensor))
        .collect();
    let tower = renamed.values().next().unwrap().clone();
    renamed.insert("model.visual.patch_embed.proj.weight".into(), tower.clone());
    let save = |tensors: &HashMap<String, _>| {
        candle_core::safetensors::save(tensors, whole.path().join("model.safetensors")).unwrap();
    };
    save(&renamed);
    for Prompt { prompt_ids, greedy_ids, .. } in &prompts {
        let batch = batch(std::slice::from_ref(prompt_ids));
        let found = tokens(SessionKind::Threads, 3, whole.path(), &batch, greedy_ids.len());
        assert_eq!(found, std::slice::from_ref(greedy_ids));
    }
    // What is neither of the text model nor of the tower is refused, and so is an unknown key of the whole.
    renamed.insert("model.language_model.layers.0.self_attn.sinks".into(), tower);
    save(&renamed);
    let open = || {
        let weights = Weights::open(whole.path()).unwrap();
        Config::open(&weights).and_then(|config| plan(&config, &weights, 1)).unwrap_err().to_string()
    };
    assert!(
        open().contains("the tensor \"model.language_model.layers.0.self_attn.sinks\" is not supported"),
        "{}",
        open()
    );
    config["logit_scale"] = 0.5.into();
    write(&config);
    assert!(open().contains("the key \"logit_scale\" (0.5)"), "{}", open());
}

#[test]
fn weights_take_no_more_memory_than_is_said_before_they_are_read() {
    for Case { folder, .. } in cases() {
        let weights = Arc::new(Weights::open(&folder).unwrap());
        let config = Config::open(&weights).unwrap();
        for size in [1, 3] {
            for (rank, taken) in weights_of(size, &folder, Precision::F32).into_iter().enumerate() {
                let plan = plan(&config, &weights, size).unwrap();
                let shards = Shards::new(weights.clone(), plan, rank, size, DType::F32, Device::Cpu);
                let taken = taken as u64;
                let said = memory_bytes(&config, &shards, Precision::F32);
                // Files may have towers, which are counted and not read.
                let few =
                    if folder.ends_with("gemma3-image") || folder.ends_with("mistral3") { u64::MAX } else { 2 * taken };
                assert!((taken..=few).contains(&said), "{}, rank {rank} of {size}: {taken}, {said}", folder.display());
            }
        }
    }
}

/// Published files of Gemma 4 have towers, and matrices of keys and values also for layers that take those of others.
#[test]
fn matrices_of_shared_keys_and_values_and_towers_are_skipped() {
    let Case { folder, prompts, .. } = case(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/gemma4"));
    let whole = tempfile::tempdir().unwrap();
    let text: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let config = serde_json::json!({
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text,
        "vision_config": {"depth": 1}, "audio_config": null, "boi_token_id": 3, "audio_token_id": 4,
    });
    fs::write(whole.path().join("config.json"), config.to_string()).unwrap();
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &candle_core::Device::Cpu).unwrap();
    let mut renamed: HashMap<String, _> = tensors
        .into_iter()
        .map(|(name, tensor)| (name.replacen("model.", "model.language_model.", 1), tensor))
        .collect();
    let other = renamed["model.language_model.norm.weight"].clone();
    for name in ["k_proj", "v_proj", "k_norm"] {
        renamed.insert(format!("model.language_model.layers.2.self_attn.{name}.weight"), other.clone());
    }
    for name in ["vision_tower.encoder", "embed_vision.projection", "audio_tower.layers.0"] {
        renamed.insert(format!("model.{name}.weight"), other.clone());
    }
    candle_core::safetensors::save(&renamed, whole.path().join("model.safetensors")).unwrap();
    let Prompt { prompt_ids, greedy_ids, .. } = &prompts[1];
    let batch = batch(std::slice::from_ref(prompt_ids));
    let found = tokens(SessionKind::Threads, 3, whole.path(), &batch, greedy_ids.len());
    assert_eq!(found, std::slice::from_ref(greedy_ids));
}

#[test]
fn logits_are_those_of_transformers() {
    for Case { folder, prompts, vocabulary, .. } in cases() {
        for Prompt { prompt, prompt_ids, greedy_ids, after_prompt, after_last_step } in prompts {
            for workers in [1, 3] {
                let logits = logits_of(workers, &folder, Precision::F32, &prompt_ids, &greedy_ids);
                let last = logits.len() - vocabulary;
                let states = [(&after_prompt, 0), (&after_last_step, last)];
                // The reference's last logits are those after the last token but one, as ours.
                for (Largest { ids, logits: expected }, start) in states {
                    for (id, expected) in ids.iter().zip(expected) {
                        let found = logits[start + id];
                        let name = folder.display();
                        assert!((found - expected).abs() < 2e-3, "{name}, {prompt}: {id} {found} {expected}");
                    }
                }
            }
        }
    }
}
