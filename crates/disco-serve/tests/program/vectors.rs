//! Models that make vectors of texts or scores of pairs, beside what transformers computes (`reference.json`).

use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value as Json, json};

use super::client::Answer;
use super::server::{Server, model};

/// The largest difference of a number.
const FAR: f64 = 1e-4;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embeddings").join(name)
}

fn reference(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(folder(name).join("reference.json")).unwrap()).unwrap()
}

fn numbers(vector: &Json) -> Vec<f64> {
    vector.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let far = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(far <= FAR, "{what} differs by {far}");
}

fn embed(server: &Server, input: &Json, more: Json) -> Answer {
    let mut body = json!({"input": input});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/embeddings", &body)
}

#[test]
fn vectors_are_those_of_transformers_alone_and_in_batches_on_any_number_of_workers() {
    for name in ["bert-cls", "bert-mean", "qwen3-embedding", "gemma3-embedding"] {
        let reference = reference(name);
        let texts = reference["texts"].as_array().unwrap();
        for workers in ["1", "2", "3"] {
            let server = Server::start(&folder(name), &["--workers", workers]);
            let check = |answer: Answer, texts: &[&Json]| {
                let answer = answer.json();
                let data = answer["data"].as_array().unwrap_or_else(|| panic!("{answer}"));
                for ((index, found), text) in data.iter().enumerate().zip(texts) {
                    assert_eq!(found["index"], index);
                    assert_near(
                        &numbers(&found["embedding"]),
                        &numbers(&text["embedding"]),
                        &format!("{name}: {text}"),
                    );
                }
                let tokens: usize = texts.iter().map(|text| text["ids"].as_array().unwrap().len()).sum();
                assert_eq!((data.len(), &answer["usage"]["prompt_tokens"]), (texts.len(), &json!(tokens)));
            };
            for text in texts {
                check(embed(&server, &text["text"], json!({})), &[text]);
                check(embed(&server, &text["ids"], json!({})), &[text]);
            }
            let reversed: Vec<_> = texts.iter().rev().collect();
            let input: Json = reversed.iter().map(|text| text["text"].clone()).collect();
            check(embed(&server, &input, json!({})), &reversed);
            // A lost worker is replaced, and the batch is computed again.
            kill(*server.workers().last().unwrap(), Signal::SIGKILL).unwrap();
            let ask = || embed(&server, &input, json!({}));
            check(std::iter::repeat_with(ask).find(|answer| answer.status != 503).unwrap(), &reversed);
        }
    }
}

#[test]
fn a_vector_can_be_shorter_or_in_base64_and_a_text_cut() {
    let server = Server::start(&folder("bert-mean"), &[]);
    let whole = embed(&server, &json!("river"), json!({})).json();
    let whole = numbers(&whole["data"][0]["embedding"]);
    let coded = embed(&server, &json!("river"), json!({"encoding_format": "base64"})).json();
    assert_eq!(coded["data"][0]["embedding"].as_str().unwrap().len(), (4 * whole.len()).div_ceil(3) * 4);
    let short = embed(&server, &json!("river"), json!({"dimensions": 4})).json();
    let length = whole[..4].iter().map(|number| number * number).sum::<f64>().sqrt();
    let expected: Vec<_> = whole[..4].iter().map(|number| number / length).collect();
    assert_near(&numbers(&short["data"][0]["embedding"]), &expected, "four dimensions");
    let long = json!("river ".repeat(500));
    for (input, more, status) in [
        (long.clone(), json!({}), 400),
        (long.clone(), json!({"truncate": true}), 200),
        (long, json!({"truncate_prompt_tokens": 8}), 200),
        (json!("river"), json!({"dimensions": 1000}), 400),
        (json!("river"), json!({"truncate_prompt_tokens": 0}), 400),
        // Nothing of the text would be left.
        (json!("river"), json!({"truncate_prompt_tokens": 2}), 400),
        (json!("river"), json!({"normalize": false}), 400),
        (json!([]), json!({}), 400),
        (json!([[9999]]), json!({}), 400),
        (json!("river"), json!({"encoding_format": "int8"}), 400),
        (json!("river"), json!({"model": "other"}), 404),
    ] {
        let answer = embed(&server, &input, more.clone());
        assert_eq!(answer.status, status, "{more}: {answer:?}");
        if status == 200 {
            let tokens = more.get("truncate_prompt_tokens").map_or(128, |most| most.as_u64().unwrap());
            assert_eq!(answer.json()["usage"]["prompt_tokens"], tokens);
        }
    }
    // Several passes of the model.
    let many: Vec<_> = (0..100).map(|text| "river bank ".repeat(1 + text % 60)).collect();
    let answer = embed(&server, &json!(many), json!({"truncate": true})).json();
    for at in [0, 37, 59, 99] {
        let alone = embed(&server, &json!(many[at]), json!({"truncate": true})).json();
        let [found, alone] = [&answer["data"][at], &alone["data"][0]].map(|entry| numbers(&entry["embedding"]));
        assert_near(&found, &alone, &many[at]);
    }
}

#[test]
fn scores_and_their_order_are_those_of_transformers() {
    let reference = reference("xlm-roberta-reranker");
    for workers in ["1", "3"] {
        let server = Server::start(&folder("xlm-roberta-reranker"), &["--workers", workers]);
        for entry in reference["queries"].as_array().unwrap() {
            let (query, documents, scores) = (&entry["query"], &entry["documents"], numbers(&entry["scores"]));
            let order: Vec<_> =
                entry["order"].as_array().unwrap().iter().map(|at| at.as_u64().unwrap() as usize).collect();
            for (path, top) in [("/rerank", order.len()), ("/v1/rerank", 2), ("/v2/rerank", 1)] {
                let answer = server.post(path, &json!({"query": query, "documents": documents, "top_n": top})).json();
                let results = answer["results"].as_array().unwrap();
                let found: Vec<_> = results.iter().map(|result| result["index"].as_u64().unwrap() as usize).collect();
                assert_eq!(found, order[..top], "{answer}");
                let found: Vec<_> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
                assert_near(&found, &order[..top].iter().map(|at| scores[*at]).collect::<Vec<_>>(), path);
                assert_eq!(results[0]["document"]["text"], documents[order[0]]);
            }
            let answer = server.post("/score", &json!({"text_1": query, "text_2": documents})).json();
            let found = answer["data"].as_array().unwrap().iter().map(|entry| entry["score"].as_f64().unwrap());
            assert_near(&found.collect::<Vec<_>>(), &scores, "/score");
            let pairs = json!({"text_1": query, "text_2": documents, "raw_scores": true});
            let raw = server.post("/score", &pairs).json();
            let raw = raw["data"].as_array().unwrap().iter().map(|entry| entry["score"].as_f64().unwrap());
            assert_near(&raw.map(|raw| (1.0 + (-raw).exp()).recip()).collect::<Vec<_>>(), &scores, "raw scores");
        }
        // Only the second text is cut.
        let long = "river ".repeat(500);
        for (query, document, cuts, status) in
            [("a", &*long, true, 200), ("a", &*long, false, 400), (&*long, "a", true, 400), ("a", "", true, 200)]
        {
            let answer = server.post("/rerank", &json!({"query": query, "documents": [document], "truncate": cuts}));
            assert_eq!(answer.status, status, "{cuts}: {answer:?}");
        }
    }
}

#[test]
fn a_server_says_what_its_model_makes() {
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let (vectors, scores) = (json!({"input": "a"}), json!({"query": "a", "documents": ["b"]}));
    let of_vectors = Server::start(&folder("bert-cls"), &[]);
    let of_scores = Server::start(&folder("xlm-roberta-reranker"), &[]);
    let of_texts = Server::start(&model("llama-3"), &[]);
    for (server, path, body, expected) in [
        (&of_vectors, "/v1/chat/completions", &chat, "the model makes vectors of texts: use /v1/embeddings"),
        (&of_vectors, "/rerank", &scores, "the model makes vectors of texts: use /v1/embeddings"),
        (&of_scores, "/v1/embeddings", &vectors, "the model makes scores of pairs of texts: use /rerank or /score"),
        (
            &of_texts,
            "/v1/embeddings",
            &vectors,
            "the model makes texts, and neither vectors of them nor scores: use /v1/chat/completions",
        ),
    ] {
        let answer = server.post(path, body);
        assert_eq!((answer.status, &answer.json()["error"]["message"]), (400, &json!(expected)), "{path}");
    }
}
