//! Saved shards: the same tensors with the same ranks and plan, and errors otherwise.

use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use disco_candle::weights::{Plan, Shards, Split, Weights};
use tempfile::TempDir;

use super::files::*;

fn plan() -> Plan {
    Plan::new().with("rows", Split::even(0, 1)).with("columns", Split::even(1, 32))
}

fn open(path: &Path, rank: usize, size: usize) -> Shards {
    Shards::new(Arc::new(Weights::open(path).unwrap()), plan(), rank, size, DType::F16, Device::Cpu)
}

fn load(prefix: &Path, plan: Plan, rank: usize, size: usize) -> Result<Shards, String> {
    Shards::load(prefix, plan, rank, size, DType::F16, Device::Cpu).map_err(|error| error.to_string())
}

/// Shards of two ranks in a folder, and the model they come from.
fn saved() -> TempDir {
    let folder = folder();
    let model = folder.path().join("model.gguf");
    let tensors = [
        ("rows", quantized(&[5, 64], GgmlDType::Q4_1)),
        ("columns", quantized(&[3, 96], GgmlDType::Q8_0)),
        ("norm", quantized(&[5], GgmlDType::F32)),
    ];
    write_gguf(&model, &[], &tensors);
    for rank in 0..2 {
        let path = open(&model, rank, 2).save(folder.path().join("split")).unwrap();
        assert_eq!(path, folder.path().join(format!("split-rank-{rank}-of-2.safetensors")));
    }
    folder
}

#[test]
fn loaded_shards_are_the_saved_shards() {
    let folder = saved();
    let prefix = folder.path().join("split");
    for rank in 0..2 {
        let original = open(&folder.path().join("model.gguf"), rank, 2);
        let loaded = load(&prefix, plan(), rank, 2).unwrap();
        for (name, shape) in [("rows", vec![5, 64]), ("columns", vec![3, 96]), ("norm", vec![5])] {
            let tensor = loaded.tensor_of(name, &shape).unwrap();
            assert_eq!(contents(&tensor), contents(&original.tensor(name).unwrap()), "{name}");
        }
        assert_eq!(loaded.fingerprint(), original.fingerprint());
        let error = loaded.tensor_of("rows", &[3, 64]).unwrap_err().to_string();
        assert!(error.ends_with("tensor `rows` has the shape [5, 64], and the model expects [3, 64]"), "{error}");
    }
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 3, "no temporary file is left");
}

#[test]
fn integers_keep_their_type_and_floats_get_the_type_of_the_shards() {
    let folder = folder();
    let model = folder.path().join("model.safetensors");
    write_safetensors(&model, &[("ids", numbers(&[3], DType::I64)), ("w", numbers(&[3], DType::F64))]);
    open(&model, 0, 1).save(folder.path().join("split")).unwrap();
    let loaded = load(&folder.path().join("split"), plan(), 0, 1).unwrap();
    for shards in [open(&model, 0, 1), loaded] {
        assert_eq!(shards.tensor("ids").unwrap().dtype(), DType::I64);
        assert_eq!(shards.tensor("w").unwrap().dtype(), DType::F16);
    }
}

#[test]
fn shards_of_another_number_of_ranks_are_refused_with_the_names_of_the_files() {
    let folder = saved();
    let prefix = folder.path().join("split");
    let error = load(&prefix, plan(), 1, 3).unwrap_err();
    let expected = format!(
        "there is no file `{}-rank-1-of-3.safetensors` of rank 1 of 3; the folder has split-rank-0-of-2.safetensors, \
         split-rank-1-of-2.safetensors: save the shards again for this number of ranks",
        prefix.display()
    );
    assert_eq!(error, expected);

    // The metadata of a renamed file still has its rank.
    let renamed = folder.path().join("split-rank-1-of-3.safetensors");
    std::fs::copy(folder.path().join("split-rank-1-of-2.safetensors"), &renamed).unwrap();
    let error = load(&prefix, plan(), 1, 3).unwrap_err();
    let expected = format!(
        "the shard `{}` was saved with another rank or number of ranks: rank 1 of 2, and this session has rank 1 of 3; \
         save the shards again",
        renamed.display()
    );
    assert_eq!(error, expected);
}

#[test]
fn a_missing_shard_is_an_error_that_names_the_file() {
    let folder = saved();
    std::fs::remove_file(folder.path().join("split-rank-1-of-2.safetensors")).unwrap();
    let error = load(&folder.path().join("split"), plan(), 1, 2).unwrap_err();
    assert!(
        error.contains("split-rank-1-of-2.safetensors` of rank 1 of 2; the folder has split-rank-0-of-2"),
        "{error}"
    );
    let error = load(&folder.path().join("other"), plan(), 1, 2).unwrap_err();
    assert!(error.ends_with("of rank 1 of 2; the folder has no shards of this name"), "{error}");
}

#[test]
fn shards_of_another_plan_are_refused_with_the_rule_that_differs() {
    let folder = saved();
    let other = Plan::new().with("rows", Split::even(0, 1)).with("columns", Split::Whole);
    let error = load(&folder.path().join("split"), other, 0, 2).unwrap_err();
    let expected = format!(
        "the shard `{}` was saved with another plan, whose first other rule is `columns = even(dim 1, unit 32)`, and \
         this session has `columns = whole`; save the shards again",
        folder.path().join("split-rank-0-of-2.safetensors").display()
    );
    assert_eq!(error, expected);
}
