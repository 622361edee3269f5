//! Headers of safetensors and GGUF: the tensors of an accepted header, and their rows and columns, are inside of the file.

#![no_main]

use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use disco_candle::weights::{WeightsError, fuzzing};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), WeightsError> {
    fuzzing::header(bytes)
}

fn seeds() -> Vec<Vec<u8>> {
    let header = r#"{"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [0, 7], "data_offsets": [24, 24]},
        "c": {"dtype": "F4", "shape": [4], "data_offsets": [24, 26]}}"#;
    let dense = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 26]].concat();
    vec![dense, gguf()]
}

/// A file that candle writes, with metadata of several types.
fn gguf() -> Vec<u8> {
    let tensor = |dtype| {
        let zeros = Tensor::zeros((2, 256), DType::F32, &Device::Cpu).expect("a tensor");
        QTensor::quantize(&zeros, dtype).expect("whole blocks")
    };
    let tensors = [("a", tensor(GgmlDType::Q4_0)), ("b", tensor(GgmlDType::Q6K)), ("c", tensor(GgmlDType::F16))];
    let tokens = Value::Array(vec![Value::String("x".into()), Value::String("yz".into())]);
    let nested = Value::Array(vec![Value::Array(vec![Value::F32(0.5)])]);
    let alignment = Value::U32(32);
    let metadata = [("general.alignment", &alignment), ("tokens", &tokens), ("nested", &nested)];
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata, &tensors.each_ref().map(|(name, tensor)| (*name, tensor)))
        .expect("memory takes a file");
    file.into_inner()
}
