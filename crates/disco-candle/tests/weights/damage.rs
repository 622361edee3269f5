//! Files with damaged bytes: opening and reading end with a value or an error, and never with a panic.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use candle_core::{DType, Device};
use disco_candle::weights::{Part, Weights};
use proptest::prelude::*;
use proptest::sample::Index;

use super::files::*;

/// Opens and reads a file with these bytes.
fn read_all(name: &str, bytes: &[u8]) {
    let folder = folder();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let Ok(weights) = Weights::open(&path) else { return };
    for name in weights.names() {
        _ = weights.read(name, &Part::Whole, DType::F32, &Device::Cpu);
        for dim in 0..3 {
            _ = weights.read(name, &Part::Range { dim, range: 0..1 }, DType::F32, &Device::Cpu);
        }
    }
}

/// Replaces bytes: at any place, or among the first, where most of the header is.
fn damage(bytes: &mut [u8], edits: &[(bool, Index, u8)]) {
    for (early, place, value) in edits {
        let len = if *early { bytes.len().min(128) } else { bytes.len() };
        bytes[place.index(len)] = *value;
    }
}

fn edits() -> impl Strategy<Value = Vec<(bool, Index, u8)>> {
    let byte = prop_oneof![any::<u8>(), Just(0), Just(0xff), prop::char::range('0', '9').prop_map(|digit| digit as u8)];
    prop::collection::vec((any::<bool>(), any::<Index>(), byte), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_safetensors_are_read_or_refused(edits in edits()) {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        write_safetensors(&path, &[("a", numbers(&[2, 3], DType::F32)), ("b", numbers(&[0, 2], DType::BF16))]);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes, &edits);
        read_all("model.safetensors", &bytes);
    }

    #[test]
    fn damaged_gguf_is_read_or_refused(edits in edits()) {
        let folder = folder();
        let path = folder.path().join("model.gguf");
        let tokens = Value::Array(vec![Value::String("x".into()), Value::String("yz".into())]);
        let metadata = [("general.alignment", &Value::U32(32)), ("tokens", &tokens)];
        let tensors = [("a", quantized(&[2, 32], GgmlDType::Q4_0)), ("b", quantized(&[3], GgmlDType::F16))];
        write_gguf(&path, &metadata, &tensors);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes, &edits);
        read_all("model.gguf", &bytes);
    }
}
