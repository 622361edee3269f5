//! Guessed tokens leave all texts as they are.

use std::thread;

use serde_json::{Value as Json, json};

use super::load::random_body;
use super::mix::Seed;
use super::random::Random;
use super::server::{Server, model};

const REQUESTS: usize = 40;

/// Choices of a reply, without its name and time.
fn choices(server: &Server, body: &Json) -> Json {
    let answer = server.post("/v1/completions", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["choices"].take()
}

#[test]
fn random_texts_with_and_without_guesses_are_equal() {
    let seed = Seed::first();
    let _seed = Seed(seed);
    let mut random = Random::new(seed);
    let mut body = || {
        let mut body = random_body(&mut random);
        body["logits_digest"] = true.into();
        body["min_tokens"] = json!(random.below(body["max_tokens"].as_u64().unwrap() as usize));
        if body.get("guided_json").or(body.get("guided_regex")).or(body.get("guided_choice")).is_some() {
            body["min_tokens"] = 0.into();
        }
        // Each has a seed of its own otherwise.
        body["seed"] = json!(7);
        // Texts of few tokens repeat themselves.
        if random.chance(60) {
            let tokens = 10..12 + random.below(3);
            body["logit_bias"] = tokens.map(|token| (token.to_string(), json!(50))).collect();
        }
        body
    };
    let bodies: Vec<_> = (0..REQUESTS).map(|_| body()).collect();
    let [without, with] = ["0", "16"].map(|drafts| {
        let server = Server::start(&model("llama-3"), &["--ngram-drafts", drafts]);
        let alone: Vec<_> = bodies.iter().map(|body| choices(&server, body)).collect();
        // Two or three at the same time, and many.
        for together in [2, 3, 8] {
            for (bodies, alone) in bodies.chunks(together).zip(alone.chunks(together)) {
                let ask = |body| {
                    let server = &server;
                    move || choices(server, body)
                };
                let texts: Vec<_> = thread::scope(|scope| {
                    let asked: Vec<_> = bodies.iter().map(|body| scope.spawn(ask(body))).collect();
                    asked.into_iter().map(|asked| asked.join().unwrap()).collect()
                });
                assert_eq!(texts, alone, "--ngram-drafts {drafts}, {together} at a time");
            }
        }
        let [drafted, accepted] = ["draft", "accepted"]
            .map(|what| server.metric(&format!("vllm:spec_decode_num_{what}_tokens_total")).unwrap_or(0.0));
        eprintln!("--ngram-drafts {drafts}: {drafted} guesses, {accepted} right");
        assert_eq!(drafts == "0", drafted == 0.0);
        assert!(drafts == "0" || (accepted > 50.0 && drafted - accepted > 10.0), "{drafted} guesses, {accepted} right");
        alone
    });
    for ((without, with), body) in without.iter().zip(&with).zip(&bodies) {
        assert_eq!(without, with, "{body}");
    }
}
