use disco_serve::engine::{End, Event};
use serde_json::{Value, json};

use super::double::text;
use super::model::token;
use super::server::Server;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "x"}], "logits_digest": true})
}

#[tokio::test]
async fn a_reply_has_the_digest_of_each_token_and_what_chose_it() {
    let tokens = [(7, 1), (300, u64::MAX), (8, 0)];
    let (server, engine) = Server::answering(move |_| {
        let tokens = tokens.map(|(id, digest)| {
            let mut token = token(id);
            token.digest = digest;
            Event::Token(token)
        });
        tokens.into_iter().chain([Event::End(End::Length)]).collect()
    })
    .await;
    let prompt = json!({"prompt": [5, 6], "logits_digest": true, "seed": 11, "temperature": 0.25});
    for (path, body) in [(CHAT, chat()), (COMPLETIONS, prompt)] {
        let reply = server.post(path, body).await.json();
        let digests = &reply["choices"][0]["logits_digest"];
        assert_eq!(digests["token_ids"], json!([7, 300, 8]), "{reply}");
        assert_eq!(digests["digests"], json!(["0000000000000001", "ffffffffffffffff", "0000000000000000"]));
        assert_eq!(digests["has_grammar"], false);
        if path == COMPLETIONS {
            assert_eq!(digests["prompt_token_ids"], json!([5, 6]));
            assert_eq!(digests["params"]["sampler"]["seed"], 11);
        }
    }
    let reply = server.post(COMPLETIONS, json!({"prompt": "x"})).await.json();
    assert_eq!(reply["choices"][0].get("logits_digest"), None);
    let requests = server.requests(engine).await;
    assert_eq!(requests.iter().map(|request| request.params.digests_logits).collect::<Vec<_>>(), [true, true, false]);
}

#[tokio::test]
async fn replies_and_chunks_have_the_fingerprint() {
    let (server, _) = Server::answering(|_| text("Hi")).await;
    let body = json!({"prompt": "x"});
    assert_eq!(server.post(COMPLETIONS, body.clone()).await.json()["system_fingerprint"], "fp_0");
    let mut body = body;
    body["stream"] = true.into();
    let chunks = server.stream(COMPLETIONS, body).await.objects().await;
    assert!(chunks.iter().all(|chunk| chunk["system_fingerprint"] == "fp_0"), "{chunks:?}");
}

#[tokio::test]
async fn digests_of_streams_and_devices_are_refused_by_name() {
    let (server, _double) = Server::start().await;
    let mut streamed = chat();
    streamed["stream"] = true.into();
    let reply = server.post(CHAT, streamed).await;
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("logits_digest")));
    let message = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "logits_digest": true});
    assert_eq!(server.post("/v1/messages", message).await.status, 400);
    assert_eq!(server.post("/v1/responses", json!({"input": "x", "logits_digest": true})).await.status, 400);
    let (server, _double) = Server::start_with(|app| app.model.is_on_the_host = false).await;
    let reply = server.post(CHAT, chat()).await;
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("logits_digest")));
}
