//! Matrices of 8-bit floats with scales give the texts of the matrices that they stand for.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use disco::SessionKind;
use disco_candle::weights::Weights;
use disco_models::{Config, plan};
use serde_json::json;
use tempfile::TempDir;

use super::tokens::{batch, prompt, tokens};

/// How many scales a matrix has.
#[derive(Clone, Copy, Debug)]
enum Scales {
    /// One.
    Matrix,
    /// One for each row.
    Rows,
    /// One for each block of this size.
    Blocks([usize; 2]),
}

/// A folder with a tiny model of 8-bit floats with scales of blocks, and that of the model itself.
pub(crate) fn small_floats() -> (TempDir, PathBuf) {
    let (folder, [small, _]) = folders(Scales::Blocks([16, 16]));
    (folder, small)
}

/// A folder with a tiny model of 8-bit floats, and one with the same weights in 32 bits.
fn folders(scales: Scales) -> (TempDir, [PathBuf; 2]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/llama-3");
    let folder = tempfile::tempdir().unwrap();
    let both = ["small", "dense"].map(|name| folder.path().join(name));
    let mut config: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(source.join("config.json")).unwrap()).unwrap();
    let tensors = candle_core::safetensors::load(source.join("model.safetensors"), &Device::Cpu).unwrap();
    let (mut small, mut dense) = (HashMap::new(), HashMap::new());
    for (name, tensor) in tensors {
        if name.contains("_proj") {
            let (bytes, factors, real) = quantised(&tensor, scales);
            let suffix = if matches!(scales, Scales::Blocks(_)) { "weight_scale_inv" } else { "weight_scale" };
            small.insert(name.replace("weight", suffix), factors);
            small.insert(name.clone(), bytes);
            dense.insert(name, real);
        } else {
            small.insert(name.clone(), tensor.clone());
            dense.insert(name, tensor);
        }
    }
    for (path, tensors) in both.iter().zip([small, dense]) {
        fs::create_dir(path).unwrap();
        fs::write(path.join("config.json"), config.to_string()).unwrap();
        candle_core::safetensors::save(&tensors, path.join("model.safetensors")).unwrap();
    }
    config["quantization_config"] = json!({"quant_method": "fp8", "activation_scheme": "dynamic"});
    if let Scales::Blocks(size) = scales {
        config["quantization_config"]["weight_block_size"] = json!(size);
    }
    fs::write(both[0].join("config.json"), config.to_string()).unwrap();
    (folder, both)
}

/// A matrix as 8-bit floats, its scales, and the matrix that they stand for.
fn quantised(matrix: &Tensor, scales: Scales) -> (Tensor, Tensor, Tensor) {
    let (rows, columns) = matrix.dims2().unwrap();
    let [high, wide] = match scales {
        Scales::Matrix => [rows, columns],
        Scales::Rows => [1, columns],
        Scales::Blocks(size) => size,
    };
    let across = columns.div_ceil(wide);
    // A scale of each block, not the best one.
    let factors: Vec<f32> = (0..rows.div_ceil(high) * across).map(|block| 0.004 + 0.001 * (block % 5) as f32).collect();
    let at = |row: usize, column: usize| factors[row / high * across + column / wide];
    let each: Vec<f32> = (0..rows * columns).map(|index| at(index / columns, index % columns)).collect();
    let each = Tensor::from_vec(each, (rows, columns), &Device::Cpu).unwrap();
    let bytes = (matrix / &each).unwrap().to_dtype(DType::F8E4M3).unwrap();
    let real = (bytes.to_dtype(DType::F32).unwrap() * each).unwrap();
    let shape: Vec<usize> = match scales {
        Scales::Matrix => vec![1],
        Scales::Rows => vec![rows, 1],
        Scales::Blocks(_) => vec![rows.div_ceil(high), across],
    };
    (bytes, Tensor::from_vec(factors, shape, &Device::Cpu).unwrap(), real)
}

#[test]
fn texts_of_scaled_matrices_are_those_of_the_matrices_they_stand_for() {
    for scales in [Scales::Matrix, Scales::Rows, Scales::Blocks([16, 8]), Scales::Blocks([5, 64])] {
        let (_folder, [small, dense]) = folders(scales);
        let batch = batch(&[prompt(9, 1, 500)]);
        let expected = tokens(SessionKind::Threads, 1, &dense, &batch, 16);
        for workers in 1..=3 {
            let found = tokens(SessionKind::Threads, workers, &small, &batch, 16);
            assert_eq!(found, expected, "{scales:?}, {workers} workers");
        }
    }
}

#[test]
fn scales_that_are_missing_or_do_not_fit_are_named() {
    let (_folder, [small, _]) = folders(Scales::Rows);
    let file = small.join("model.safetensors");
    let tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    let name = "model.layers.0.self_attn.q_proj.weight";
    let error_after = |change: &dyn Fn(&mut HashMap<String, Tensor>)| {
        let mut tensors = tensors.clone();
        change(&mut tensors);
        candle_core::safetensors::save(&tensors, &file).unwrap();
        let weights = Weights::open(&small).unwrap();
        plan(&Config::open(&weights).unwrap(), &weights, 2).unwrap_err().to_string()
    };
    let error = error_after(&|tensors| drop(tensors.remove(&format!("{name}_scale"))));
    assert!(error.contains(&format!("{name:?} has 8-bit floats without scales")), "{error}");
    let error = error_after(&|tensors| {
        tensors.insert(format!("{name}_scale"), Tensor::ones((7, 1), DType::F32, &Device::Cpu).unwrap());
    });
    assert!(error.contains("q_proj.weight_scale\" have the shape [7, 1]"), "{error}");
    let error = error_after(&|tensors| {
        let scale = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
        tensors.insert("model.layers.0.self_attn.q_proj.input_scale".into(), scale);
    });
    assert!(error.contains("q_proj.input_scale\" is not supported"), "{error}");
}
