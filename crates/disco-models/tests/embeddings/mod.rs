//! The embeddings of [`disco_models::bert`] on several ranks are those of candle-transformers' own model.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert::{BertModel, Config};
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_models::bert::{Bert, plan};
use disco_models::encoding::Encoding;

/// Three heads of ten elements. Neither the heads nor the hidden units nor the vocabulary divide by two.
fn config() -> serde_json::Value {
    serde_json::json!({
        "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 23,
        "max_position_embeddings": 16, "layer_norm_eps": 1e-12, "intermediate_size": 15, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "type_vocab_size": 2, "initializer_range": 0.02, "pad_token_id": 0,
        "classifier_dropout": null, "model_type": null,
    })
}

/// The mean of a sentence's hidden states, with length 1.
fn reference(model: &BertModel, sentence: &[u32]) -> Tensor {
    let tokens = Tensor::new(sentence, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let hidden = model.forward(&tokens, &tokens.zeros_like().unwrap(), None).unwrap();
    let mean = hidden.mean(1).unwrap();
    mean.broadcast_div(&mean.sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap()).unwrap()
}

#[test]
fn embeddings_of_a_batch_are_those_of_each_sentence_in_one_process() {
    let weights = VarMap::new();
    let model_config: Config = serde_json::from_value(config()).unwrap();
    let model = BertModel::load(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), &model_config).unwrap();
    // Random weights, also where the model begins with zeros and ones.
    for (_, var) in weights.data().lock().unwrap().iter() {
        var.set(&Tensor::randn(0f32, 0.3, var.shape(), &Device::Cpu).unwrap()).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    weights.save(&path).unwrap();

    let sentences: [Vec<u32>; 3] = [vec![1, 7, 22, 3], vec![5], vec![9, 9, 2, 14, 0, 20, 11]];
    let expected: Vec<_> = sentences.iter().map(|sentence| reference(&model, sentence)).collect();
    let expected = Tensor::cat(&expected, 0).unwrap();
    let config = serde_json::from_value(config()).unwrap();
    for size in 1..=3 {
        let plan = plan(&config, size).unwrap();
        let embed = |comm: &Comm| {
            let weights = Arc::new(Weights::open(&path).unwrap());
            let shards = Shards::new(weights, plan.clone(), comm.rank(), size, DType::F32, Device::Cpu);
            Bert::load(&config, &shards, comm).unwrap().embed(&sentences).unwrap()
        };
        let comms = disco_local::connect_threads(size, Duration::from_secs(60)).unwrap();
        thread::scope(|scope| {
            let run = |comm| scope.spawn(move || embed(&Comm::of_communicator(Box::new(comm))));
            let ranks: Vec<_> = comms.into_iter().map(run).collect();
            for rank in ranks {
                let differences = (rank.join().unwrap() - &expected).unwrap().abs().unwrap();
                assert!(differences.max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-5);
            }
        });
    }
}

#[test]
fn files_and_models_of_texts_make_no_vectors() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/llama-3");
    for path in [folder.join("model.safetensors"), folder] {
        assert_eq!(Encoding::of_folder(&path).unwrap(), None, "{}", path.display());
    }
}

#[test]
fn what_is_no_such_bert_is_refused_by_its_key() {
    let error_with = |key: &str, value: serde_json::Value| {
        let mut json = config();
        json[key] = value;
        plan(&serde_json::from_value(json).unwrap(), 1).unwrap_err().to_string()
    };
    for (key, value) in [("hidden_act", "relu"), ("position_embedding_type", "relative_key"), ("model_type", "electra")]
    {
        let error = error_with(key, value.into());
        assert!(error.contains(&format!("{key} {value:?} is not supported")), "{error}");
    }
    let error = error_with("num_attention_heads", 4.into());
    assert!(error.ends_with("4 heads can't share 30 elements equally"), "{error}");
    assert!(error_with("num_attention_heads", 0.into()).contains("0 heads can't share"));
}
