//! Configurations from the files beside safetensors and from the metadata of GGUF files.

use std::fs;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use disco_candle::weights::Weights;
use disco_models::{Config, FeedForward, Rotary, SamplingDefaults, Scaling};

use super::random::{Model, THREE_HEADS};

/// The rotary embeddings of the first layer.
fn rotary(config: &Config) -> Rotary {
    config.attentions().next().unwrap().rotary.clone().unwrap()
}

fn model() -> Model {
    Model::safetensors(THREE_HEADS, 1, serde_json::Value::Null)
}

/// The configuration after `config.json` of a model got a key more.
fn config_with(key: &str, value: serde_json::Value) -> Result<Config, String> {
    let model = model();
    let file = model.path().with_file_name("config.json");
    let mut json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    json[key] = value;
    fs::write(&file, json.to_string()).unwrap();
    open(&model)
}

fn open(model: &Model) -> Result<Config, String> {
    Config::open(&Weights::open(model.path()).unwrap()).map_err(|error| error.to_string())
}

#[test]
fn texts_end_with_the_tokens_of_both_files() {
    let model = model();
    let generation = model.path().with_file_name("generation_config.json");
    fs::write(&generation, r#"{"eos_token_id": [7, 2]}"#).unwrap();
    assert_eq!(open(&model).unwrap().eos, [2, 7]);
    fs::write(&generation, r#"{"eos_token_id": "</s>"}"#).unwrap();
    let error = open(&model).unwrap_err();
    assert!(error.ends_with("eos_token_id: expected a token or a list of tokens, got \"</s>\""), "{error}");
}

#[test]
fn the_choice_of_tokens_is_that_of_generation_config() {
    let model = model();
    let generation = model.path().with_file_name("generation_config.json");
    let said = |json: &str| {
        fs::write(&generation, json).unwrap();
        open(&model).map(|config| config.sampling)
    };
    assert_eq!(open(&model).unwrap().sampling, SamplingDefaults::default());
    assert_eq!(said(r#"{"do_sample": true, "top_k": -1, "min_p": null}"#).unwrap(), SamplingDefaults::default());
    let all = r#"{"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05}"#;
    assert_eq!(
        said(all).unwrap().to_string(),
        "temperature 0.6, top_p 0.9, top_k 20, min_p 0.1, repetition_penalty 1.05"
    );
    let error = said(r#"{"temperature": "warm"}"#).unwrap_err();
    assert!(error.ends_with("temperature: expected a number, got \"warm\""), "{error}");
    let error = said(r#"{"repetition_penalty": 0}"#).unwrap_err();
    assert!(error.ends_with("repetition_penalty: expected a number above 0, got 0"), "{error}");
}

#[test]
fn a_key_of_another_type_is_an_error_and_not_its_default() {
    let cases = [
        ("head_dim", "a whole number"),
        ("num_key_value_heads", "a whole number"),
        ("rope_theta", "a number"),
        ("tie_word_embeddings", "true or false"),
        ("attention_bias", "true or false"),
    ];
    for (key, expected) in cases {
        let error = config_with(key, "8".into()).unwrap_err();
        assert!(error.ends_with(&format!("{key}: expected {expected}, got \"8\"")), "{error}");
    }
    config_with("head_dim", serde_json::Value::Null).unwrap();
}

#[test]
fn values_that_no_model_has_are_refused_before_memory_is_taken() {
    let error = config_with("num_hidden_layers", 1_000_000_000_000_000u64.into()).unwrap_err();
    assert!(error.ends_with("1000000000000000 layers, and at most 4096 can be right"), "{error}");
    let error = config_with("head_dim", (1u64 << 40).into()).unwrap_err();
    assert!(error.ends_with("the width of a head is 1099511627776, and at most 16777216 can be right"), "{error}");
    let model = model();
    let file = model.path().with_file_name("config.json");
    let text = fs::read_to_string(&file).unwrap().replacen("\"llama\"", r#""mistral", "sliding_window": 0"#, 1);
    fs::write(&file, text).unwrap();
    assert!(open(&model).unwrap_err().ends_with("a window of 0 tokens (sliding_window)"));
}

#[test]
fn matrices_are_tied_as_transformers_ties_them() {
    let model = model();
    let mut tensors = candle_core::safetensors::load(model.path(), &candle_core::Device::Cpu).unwrap();
    // Both matrices are there: each is used.
    assert!(!config_with("tie_word_embeddings", true.into()).unwrap().tied);
    tensors.remove("lm_head.weight");
    candle_core::safetensors::save(&tensors, model.path()).unwrap();
    assert!(!open(&model).unwrap().tied, "the configuration says that there is another matrix");
    let classifier = config_with("architectures", serde_json::json!(["LlamaForSequenceClassification"]));
    assert!(classifier.unwrap_err().contains("the architecture \"LlamaForSequenceClassification\""));
}

#[test]
fn a_configuration_that_python_wrote_or_that_is_something_else_is_what_it_is() {
    let model = model();
    let file = model.path().with_file_name("config.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen('{', r#"{"time_step_limit": [0.0, Infinity], "#, 1)).unwrap();
    open(&model).unwrap();
    fs::write(&file, text.replacen("1000.0", "Infinity", 1)).unwrap();
    let error = open(&model).unwrap_err();
    assert!(error.ends_with("rope_theta: expected a number, got \"Infinity\""), "{error}");
    fs::write(&file, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    let error = open(&model).unwrap_err();
    assert!(
        error.contains("config.json: the configuration of the model can't be read: it is a pointer of Git LFS"),
        "{error}"
    );
}

#[test]
fn ends_of_a_gguf_file_are_its_keys_and_tokens_that_are_ends_by_their_names() {
    let number = |number: u32| Value::U32(number);
    let tokens = ["a", "<|im_end|>", "b", "</s>", "<|eot_id|>"].map(|token| Value::String(token.into()));
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.embedding_length", number(8)),
        ("llama.block_count", number(1)),
        ("llama.attention.head_count", number(2)),
        ("llama.feed_forward_length", number(8)),
        ("llama.context_length", number(8)),
        ("llama.vocab_size", number(5)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("tokenizer.ggml.tokens", Value::Array(tokens.into())),
        ("tokenizer.ggml.eos_token_id", number(3)),
        ("tokenizer.ggml.eot_token_id", number(4)),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let metadata = metadata.each_ref().map(|(key, value)| (*key, value));
    gguf_file::write(&mut fs::File::create(&path).unwrap(), &metadata, &[]).unwrap();
    let weights = Weights::open(&path).unwrap();
    assert_eq!(Config::open(&weights).unwrap().eos, [1, 3, 4]);
}

#[test]
fn what_the_parameters_of_rope_leave_out_is_at_the_top() {
    let base = |keys: &[(&str, serde_json::Value)]| {
        let model = model();
        let file = model.path().with_file_name("config.json");
        let mut json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        json["rope_theta"] = serde_json::Value::Null;
        json["rope_scaling"] = serde_json::Value::Null;
        keys.iter().for_each(|(key, value)| json[*key] = value.clone());
        fs::write(&file, json.to_string()).unwrap();
        open(&model).map(|config| rotary(&config).base)
    };
    let linear = serde_json::json!({"rope_type": "linear", "factor": 2.0});
    let with_base = serde_json::json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0});
    for parent in ["rope_parameters", "rope_scaling"] {
        assert_eq!(base(&[(parent, linear.clone())]).unwrap(), 10_000.0);
        assert_eq!(base(&[(parent, linear.clone()), ("rope_theta", 700.0.into())]).unwrap(), 700.0);
        assert_eq!(base(&[(parent, with_base.clone())]).unwrap(), 500.0);
        let error = base(&[(parent, with_base.clone()), ("rope_theta", 700.0.into())]).unwrap_err();
        let expected = format!("both rope_theta (700) and {parent}.rope_theta (500) are set, and differ");
        assert!(error.ends_with(&expected), "{error}");
    }
}

#[test]
fn the_factor_of_longrope_comes_before_the_ratio_of_the_contexts() {
    let attention = |factor: serde_json::Value| {
        let scaling = serde_json::json!({
            "rope_type": "longrope", "short_factor": [1.0, 1.0, 1.0, 1.0], "long_factor": [2.0, 2.0, 2.0, 2.0],
            "original_max_position_embeddings": 16, "factor": factor,
        });
        match &rotary(&config_with("rope_scaling", scaling).unwrap()).scaling {
            Scaling::Long { attention, .. } => f64::from(*attention),
            other => panic!("{other:?}"),
        }
    };
    // The context of the model is 64.
    let expected = |factor: f64| (1.0 + factor.ln() / 16f64.ln()).sqrt();
    assert!((attention(serde_json::Value::Null) - expected(4.0)).abs() < 1e-6);
    assert!((attention(8.0.into()) - expected(8.0)).abs() < 1e-6);
}

/// The `config.json` of a tiny model.
fn json_of(model: &str) -> serde_json::Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(model).join("config.json");
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn keys_of_published_models_are_refused_only_with_a_value_that_has_an_effect() {
    // Phi-4-mini and Qwen3-Coder.
    let phi = [("full_attn_mod", 1, 2), ("interpolate_factor", 1, 4)];
    let qwen = [("shared_expert_intermediate_size", 0, 64)];
    for (model, keys) in [("phi3-longrope", &phi[..]), ("qwen3-moe", &qwen)] {
        let mut json = json_of(model);
        json["use_qk_norm"] = (model == "qwen3-moe").into();
        json["qkv_bias"] = false.into();
        keys.iter().for_each(|(key, neutral, _)| json[*key] = (*neutral).into());
        assert_eq!(Config::from_json(&json, &[]).unwrap(), Config::from_json(&json_of(model), &[]).unwrap());
        for (key, _, other) in keys {
            let mut json = json.clone();
            json[*key] = (*other).into();
            let error = Config::from_json(&json, &[]).unwrap_err().to_string();
            assert!(error.contains(&format!("the key \"{key}\" ({other})")), "{error}");
        }
    }
}

#[test]
fn layers_without_experts_are_those_of_both_keys() {
    let dense = |keys: serde_json::Value| {
        let mut json = json_of("qwen3-moe");
        json["num_hidden_layers"] = 4.into();
        keys.as_object().unwrap().iter().for_each(|(key, value)| json[key] = value.clone());
        let config = Config::from_json(&json, &[]).map_err(|error| error.to_string())?;
        let dense = config.layers.iter().enumerate().filter_map(|(number, layer)| match &layer.feed_forward {
            FeedForward::Dense(dense) => Some((number, dense.ffn)),
            _ => None,
        });
        Ok::<_, String>((dense.collect::<Vec<_>>(), config.experts().unwrap().ffn))
    };
    assert_eq!(dense(serde_json::json!({"intermediate_size": null})).unwrap(), (vec![], 44));
    let step = serde_json::json!({"decoder_sparse_step": 2, "mlp_only_layers": [3], "intermediate_size": 96});
    assert_eq!(dense(step).unwrap(), (vec![(0, 96), (2, 96), (3, 96)], 44));
    let error = dense(serde_json::json!({"mlp_only_layers": ["0"]})).unwrap_err();
    assert!(error.ends_with("mlp_only_layers: expected a list of whole numbers, got [\"0\"]"), "{error}");
}

#[test]
fn windows_are_those_of_the_one_mask_of_a_family() {
    let mut json = json_of("qwen3-moe");
    json["use_sliding_window"] = true.into();
    json["sliding_window"] = 8.into();
    json["max_window_layers"] = 28.into();
    let config = Config::from_json(&json, &[]).unwrap();
    assert!(config.attentions().all(|attention| attention.window == Some(8)));
    json["layer_types"] = serde_json::json!(["sliding_attention", "full_attention"]);
    let error = Config::from_json(&json, &[]).unwrap_err().to_string();
    assert!(error.contains("a layer of the type \"full_attention\" (layer_types) in this model"), "{error}");
}

/// The configuration of a tiny model after a change of its keys.
fn changed(model: &str, change: impl Fn(&mut serde_json::Value)) -> Result<Config, String> {
    let mut json = json_of(model);
    change(&mut json);
    Config::from_json(&json, &[]).map_err(|error| error.to_string())
}

#[test]
fn keys_of_some_families_are_obeyed_or_refused() {
    let error = changed("gemma2", |json| json["use_bidirectional_attention"] = true.into()).unwrap_err();
    assert!(error.contains("the key \"use_bidirectional_attention\" (true)"), "{error}");
    // The rotated share of a head is a half in GLM-4 also without its key.
    let glm = changed("glm4", |json| _ = json.as_object_mut().unwrap().remove("partial_rotary_factor")).unwrap();
    assert_eq!(glm, changed("glm4", |_| ()).unwrap());
    // Two names of one key.
    let gpt = changed("gpt2", |json| {
        let heads = json.as_object_mut().unwrap().remove("n_head").unwrap();
        json["num_attention_heads"] = heads;
    });
    assert_eq!(gpt.unwrap(), changed("gpt2", |_| ()).unwrap());
    // Growth of queries is of one family, wherever it is said.
    let moved = changed("ministral3", |json| {
        let text = &mut json["text_config"];
        text["rope_scaling"] = text["rope_parameters"].take();
    });
    assert_eq!(moved.unwrap(), changed("ministral3", |_| ()).unwrap());
    let error = changed("llama-3", |json| json["rope_parameters"]["llama_4_scaling_beta"] = 0.1.into()).unwrap_err();
    assert!(error.contains("the key \"rope_parameters.llama_4_scaling_beta\" (0.1)"), "{error}");
    for (key, other) in [("use_parallel_block", false.into()), ("order_of_interleaved_layers", "global_first".into())] {
        let error = changed("cohere2", |json| json[key] = serde_json::Value::clone(&other)).unwrap_err();
        assert!(error.contains(&format!("the key {key:?} ({other})")), "{error}");
    }
}
