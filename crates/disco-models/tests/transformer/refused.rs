//! Models whose files hold what the model would not use, or other shapes than their configuration says.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use disco_candle::weights::Weights;
use disco_models::{Config, plan};

use crate::random::{Model, THREE_HEADS};

/// The error of a plan for a model whose tensors `change` has changed, or none.
fn error_after(change: impl FnOnce(&mut HashMap<String, Tensor>)) -> Option<String> {
    let model = Model::safetensors(THREE_HEADS, 1, serde_json::Value::Null);
    let mut tensors = candle_core::safetensors::load(model.path(), &Device::Cpu).unwrap();
    change(&mut tensors);
    candle_core::safetensors::save(&tensors, model.path()).unwrap();
    error_of(&model)
}

fn error_of(model: &Model) -> Option<String> {
    let weights = Weights::open(model.path()).unwrap();
    let config = Config::open(&weights).unwrap();
    plan(&config, &weights, 2).err().map(|error| error.to_string())
}

fn error_with(name: &str) -> Option<String> {
    error_after(|tensors| drop(tensors.insert(name.into(), zeros(&[24]))))
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn a_tensor_that_would_change_the_results_and_is_not_used_is_refused_by_its_name() {
    for name in [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.mlp.down_proj.weight_scale",
        "model.layers.1.mlp.down_proj.lora_A.weight",
        "model.layers.0.post_feedforward_layernorm.weight",
        "model.norm.bias",
        "model.embed_tokens.weight_scale",
        "lm_head.bias",
    ] {
        let error = error_with(name).unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(error.contains(&format!("the tensor {name:?} is not supported")), "{error}");
    }
    let model = Model::gguf_with(THREE_HEADS, 1, ("blk.1.attn_k.bias", zeros(&[8])));
    let error = error_of(&model).unwrap();
    assert!(error.contains("the tensor \"blk.1.attn_k.bias\" is not supported"), "{error}");
}

#[test]
fn quantised_matrices_are_named_before_the_ones_that_they_replace_are_missed() {
    let error = error_after(|tensors| {
        let name = "model.layers.0.mlp.up_proj";
        tensors.remove(&format!("{name}.weight"));
        tensors.insert(format!("{name}.qweight"), zeros(&[3, 35]));
    });
    let error = error.unwrap();
    assert!(error.contains("the tensor \"model.layers.0.mlp.up_proj.qweight\" is not supported"), "{error}");
}

#[test]
fn tensors_that_change_no_result_are_accepted() {
    for name in ["model.layers.0.self_attn.rotary_emb.inv_freq", "score.weight"] {
        assert_eq!(error_with(name), None, "{name}");
    }
}

#[test]
fn shapes_and_layers_that_contradict_the_configuration_are_refused() {
    let error = error_after(|tensors| {
        tensors.insert("model.layers.1.self_attn.k_proj.weight".into(), zeros(&[24, 24]));
    });
    let expected = "the tensor \"model.layers.1.self_attn.k_proj.weight\" has the shape [24, 24], but the configuration says [8, 24]";
    let error = error.unwrap();
    assert!(error.contains(expected), "{error}");

    let error = error_with("model.layers.2.input_layernorm.weight").unwrap();
    let expected =
        "the files have the tensor \"model.layers.2.input_layernorm.weight\", but the configuration says 2 layers";
    assert!(error.contains(expected), "{error}");
}
