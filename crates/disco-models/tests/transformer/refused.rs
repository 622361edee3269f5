//! Models whose files hold what the model would not use, or other shapes than their configuration says.

use std::collections::HashMap;
use std::fs;

use candle_core::quantized::gguf_file::Value;
use candle_core::{DType, Device, Tensor};
use disco_candle::weights::Weights;
use disco_models::{Config, plan};

use super::random::{Model, NINE_HEADS, THREE_HEADS};

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
        "model.embed_layernorm.weight",
        "lm_head.bias",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "layers.0.attention.wq.lora_A.weight",
        "prompt_embeddings",
    ] {
        let error = error_with(name).unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(error.contains(&format!("the tensor {name:?} is not supported")), "{error}");
    }
    for name in ["blk.1.attn_k.bias", "token_embd.weight.lora_a", "token_embd_norm.weight"] {
        let model = Model::gguf_with(THREE_HEADS, 1, (name, zeros(&[8])));
        let error = error_of(&model).unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(error.contains(&format!("the tensor {name:?} is not supported")), "{error}");
    }
    // One matrix is for both ends, and the bias is not beside it.
    let model = Model::gguf_with(NINE_HEADS, 1, ("output.bias", zeros(&[103])));
    assert!(error_of(&model).unwrap().contains("the tensor \"output.bias\" is not supported"));
}

#[test]
fn a_folder_with_an_adapter_is_refused_and_the_file_of_its_base_is_not() {
    for file in ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors"] {
        let model = Model::safetensors(THREE_HEADS, 1, serde_json::Value::Null);
        let folder = model.path().parent().unwrap().to_owned();
        fs::write(folder.join(file), "{}").unwrap();
        let error = Weights::open(&folder).unwrap_err().to_string();
        let expected =
            format!("has the file `{file}` of an adapter, and adapters in the folder of a model are not applied");
        assert!(error.contains(&expected), "{error}");
        assert_eq!(error_of(&model), None, "the path of the model's own file");
    }
}

#[test]
fn a_gguf_file_that_is_no_model_is_refused_by_its_type() {
    let adapter = ("general.type", Value::String("adapter".into()));
    let weights = Weights::open(Model::gguf_with_metadata(THREE_HEADS, &[adapter]).path()).unwrap();
    let error = Config::open(&weights).unwrap_err().to_string();
    assert!(error.contains("a file of the type \"adapter\" (general.type) is not supported"), "{error}");
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
