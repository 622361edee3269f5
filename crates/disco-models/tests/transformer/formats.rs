//! Models of 4 bits, and adapters, give the texts of the weights that they stand for.

use std::fs;
use std::path::{Path, PathBuf};

use disco::SessionKind;
use disco_candle::Comm;
use disco_candle::weights::Weights;
use disco_models::worker::Load;
use disco_models::{Adapter, Config, ExpertSplit, Precision, Sums, plan};

use super::families::{Prompt, prompts};
use super::logits::{logits_of, weights_of};
use super::ours;
use super::tokens::{batch, tokens_of};

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name)
}

/// The texts of a folder with 1 to 4 workers, and of weights of this precision, are those of `reference.json`.
fn expect_reference(name: &str, precision: Precision) {
    let (model, adapter) = Adapter::resolve(folder(name), None).unwrap();
    let prompts = prompts(&folder(name), &Config::open(&Weights::open(&model).unwrap()).unwrap());
    for workers in 1..=4 {
        for Prompt { prompt_ids, greedy_ids, .. } in &prompts {
            let mut load = Load::new(model.clone(), precision);
            load.adapter.clone_from(&adapter);
            let batch = batch(std::slice::from_ref(prompt_ids));
            let found = tokens_of(load, "local", SessionKind::Threads, workers, &batch, greedy_ids.len());
            assert_eq!(found, std::slice::from_ref(greedy_ids), "{name}, {workers} workers");
        }
    }
}

#[test]
fn packed_matrices_are_what_their_codes_and_scales_say() {
    for name in [
        "base",
        "awq-32",
        "awq-128",
        "gptq-64",
        "gptq-asym-act-order",
        "gptq-v2-channel",
        "compressed-int4",
        "compressed-int4-asym",
        "nf4",
        "nf4-double",
        "mxfp4",
        "nvfp4",
        "nvfp4-modelopt",
    ] {
        expect_reference(name, Precision::F32);
    }
    expect_reference("gptq-asym-act-order", Precision::File);
}

#[test]
fn products_of_packed_blocks_are_close_to_those_of_the_expanded_matrix() {
    for name in ["gptq-64", "compressed-int4", "gguf-iq4_nl", "gguf-iq4_xs", "gguf-mxfp4"] {
        let folder = folder(name);
        let prompts = prompts(&folder, &Config::open(&Weights::open(&folder).unwrap()).unwrap());
        let Prompt { prompt_ids, .. } = &prompts[1];
        let logits = |workers, precision| logits_of(workers, &folder, precision, prompt_ids, &[0]);
        let expected: Vec<f64> = logits(1, Precision::F32).into_iter().map(f64::from).collect();
        for workers in 1..=3 {
            // The product rounds its argument to 8 bits.
            let difference = ours::difference(&logits(workers, Precision::File), &expected);
            assert!((1e-6..0.05).contains(&difference), "{name}, {workers} workers: {difference}");
        }
        let bytes = |precision| weights_of(1, &folder, precision)[0];
        assert!(bytes(Precision::File) < bytes(Precision::F32), "{name}");
    }
}

#[test]
fn blocks_of_gguf_that_candle_lacks_are_expanded() {
    for name in ["gguf-iq4_nl", "gguf-iq4_xs", "gguf-mxfp4"] {
        expect_reference(name, Precision::F32);
    }
}

#[test]
fn adapters_are_merged_into_their_base() {
    for name in ["lora", "lora-rslora"] {
        expect_reference(name, Precision::F32);
    }
}

/// The error of a copy of the folder `name` whose file `file` was changed.
fn error_after(name: &str, file: &str, change: impl Fn(&mut serde_json::Value)) -> String {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let file = copy.path().join(file);
    let mut json = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    change(&mut json);
    fs::write(&file, json.to_string()).unwrap();
    if name.starts_with("lora") {
        return Adapter::resolve(folder("base"), Some(copy.path().into())).unwrap_err().to_string();
    }
    let weights = Weights::open(copy.path()).unwrap();
    Config::open(&weights).and_then(|config| plan(&config, &weights, 1)).unwrap_err().to_string()
}

#[test]
fn other_codes_and_adapters_are_refused_by_name() {
    let of_quantization = |name: &str, key: &str, value: serde_json::Value| {
        error_after(name, "config.json", |json| json["quantization_config"][key] = value.clone())
    };
    let cases = [
        ("awq-32", "bits", 3.into(), "(quantization_config, \"awq\", bits 3) is not supported"),
        ("awq-32", "version", "gemv".into(), "(quantization_config, \"awq\", version \"gemv\") is not supported"),
        ("gptq-64", "checkpoint_format", "marlin".into(), "\"gptq\", checkpoint_format \"marlin\") is not supported"),
        ("gptq-64", "group_size", 32.into(), "qzeros\" has the shape [1, 8], and a matrix of 64 × 64 needs [2, 8]"),
        ("nf4", "bnb_4bit_quant_type", "fp4".into(), "bnb_4bit_quant_type \"fp4\") is not supported"),
        ("mxfp4", "format", "mxfp8".into(), "format \"mxfp8\") is not supported"),
        ("nvfp4-modelopt", "quant_algo", "W4A8".into(), "quant_algo \"W4A8\") is not supported"),
        ("compressed-int4", "kv_cache_scheme", true.into(), "kv_cache_scheme) is not supported"),
    ];
    for (name, key, value, expected) in cases {
        let error = of_quantization(name, key, value);
        assert!(error.contains(expected), "{name}: {error}");
    }
    let unlike = [
        ("use_dora", true.into()),
        ("bias", "all".into()),
        ("peft_type", "IA3".into()),
        // peft changes the base, too.
        ("init_lora_weights", "pissa".into()),
        // A regular expression.
        ("alpha_pattern", serde_json::json!({"layers\\.[0-3]": 8})),
        ("a_key_of_next_year", 1.into()),
    ];
    for (key, value) in unlike {
        let error = error_after("lora", "adapter_config.json", |json| json[key] = serde_json::Value::clone(&value));
        assert!(error.contains(&format!("an adapter with {key} {value} is not supported")), "{error}");
    }
    // The base is found beside the adapter only.
    let copy = tempfile::tempdir().unwrap();
    let alone = copy.path().join("alone");
    fs::create_dir(&alone).unwrap();
    fs::copy(folder("lora").join("adapter_config.json"), alone.join("adapter_config.json")).unwrap();
    let error = Adapter::resolve(alone, None).unwrap_err().to_string();
    assert!(error.contains("base_model_name_or_path: \"../base\" is no path from"), "{error}");
}

/// A number below `end`, which looks random.
fn below(state: &mut u64, end: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % end.max(1)
}

#[test]
fn damaged_files_are_errors_or_other_weights_and_never_a_panic() {
    let (mut state, mut refused) = (1, 0);
    let files = [("config.json", "model.safetensors"), ("adapter_config.json", "adapter_model.safetensors")];
    for name in ["awq-32", "gptq-asym-act-order", "compressed-int4-asym", "nf4-double", "mxfp4", "nvfp4", "lora"] {
        let (config, weights) = files[usize::from(name == "lora")];
        let [text, bytes] = [config, weights].map(|file| fs::read(folder(name).join(file)).unwrap());
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let copy = tempfile::tempdir().unwrap();
        for round in 0..24 {
            let (mut text, mut bytes) = (text.clone(), bytes.clone());
            // Digits become other digits, so that most files can be parsed.
            for _ in 0..=below(&mut state, 2) {
                let bytes = if round % 2 == 0 { &mut bytes[8..header] } else { &mut text[..] };
                let digits: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()).collect();
                bytes[digits[below(&mut state, digits.len())]] = b'0' + below(&mut state, 10) as u8;
            }
            let place = header + below(&mut state, bytes.len() - header);
            bytes[place] ^= 1 << below(&mut state, 8);
            fs::write(copy.path().join(config), text).unwrap();
            fs::write(copy.path().join(weights), bytes).unwrap();
            let result = if name == "lora" {
                Adapter::resolve(folder("base"), Some(copy.path().into())).map(drop)
            } else {
                ours::logits(copy.path(), (ExpertSplit::Within, Sums::Whole), &[1, 2, 3], 2, Comm::alone()).map(drop)
            };
            refused += usize::from(result.is_err());
        }
    }
    assert!((10..160).contains(&refused), "{refused} of 168 were refused");
}
