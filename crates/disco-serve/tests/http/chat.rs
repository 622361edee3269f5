use disco_models::text::Chat;
use disco_serve::engine::{End, Event};
use serde_json::{Value, json};

use super::double::text;
use super::model::{END, TEXT, with_template};
use super::server::Server;

const CHAT: &str = "/v1/chat/completions";

fn hello(more: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hello"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_chat_is_answered_by_one_object() {
    let (server, engine) = Server::answering(|_| text("Hi, you!")).await;
    let reply = server.post(CHAT, hello(json!({}))).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    let reply = reply.json();
    assert_eq!(reply["object"], "chat.completion");
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-") && reply["created"].is_u64());
    assert_eq!(reply["model"], "tiny");
    let prompt = TEXT.chat(&Chat::with_prompt("hello", None)).unwrap();
    let usage = json!({
        "prompt_tokens": prompt.len(), "completion_tokens": 9, "total_tokens": prompt.len() + 9,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0},
    });
    assert_eq!(reply["usage"], usage);
    let message = json!({"role": "assistant", "content": "Hi, you!", "refusal": null});
    let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(reply["choices"], json!([choice]));
    let request = &server.requests(engine).await[0];
    assert_eq!(*request.prompt, *prompt);
    assert_eq!(request.params.ends, [END]);
    assert_eq!(request.max_tokens, 1000 - prompt.len());
}

#[tokio::test]
async fn a_stream_has_a_role_deltas_a_reason_the_usage_and_an_end() {
    let (server, _engine) = Server::answering(|_| text("Hi")).await;
    let body = hello(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let chunks = server.stream(CHAT, body).await.objects().await;
    let (usage, chunks) = chunks.split_last().unwrap();
    let choice =
        |delta: Value, finish: Value| json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    let expected = [
        choice(json!({"role": "assistant", "content": ""}), Value::Null),
        choice(json!({"content": "H"}), Value::Null),
        choice(json!({"content": "i"}), Value::Null),
        choice(json!({}), json!("stop")),
    ];
    assert_eq!(chunks.len(), expected.len(), "{chunks:?}");
    for (chunk, expected) in chunks.iter().zip(expected) {
        assert_eq!(chunk["choices"], expected);
        assert_eq!((&chunk["object"], &chunk["id"]), (&json!("chat.completion.chunk"), &chunks[0]["id"]));
        assert!(chunk.as_object().unwrap().contains_key("usage") && chunk["usage"].is_null());
    }
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn a_stream_without_the_option_has_no_usage() {
    let (server, _engine) = Server::answering(|_| text("Hi")).await;
    let chunks = server.stream(CHAT, hello(json!({"stream": true}))).await.objects().await;
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn several_texts_have_the_same_seed_and_their_own_numbers() {
    let (server, engine) = Server::answering(|request| text(&request.params.choice.to_string())).await;
    let reply = server.post(CHAT, hello(json!({"n": 3, "seed": -1}))).await.json();
    for index in 0..3 {
        assert_eq!(reply["choices"][index]["index"], index);
        assert_eq!(reply["choices"][index]["message"]["content"], index.to_string());
    }
    assert_eq!(reply["usage"]["completion_tokens"], 6);
    let chunks = server.stream(CHAT, hello(json!({"n": 2, "stream": true}))).await.objects().await;
    for index in 0..2 {
        let of_choice = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
        let of_choice: Vec<_> = of_choice.filter(|choice| choice["index"] == index).collect();
        assert_eq!(of_choice[0]["delta"]["role"], "assistant");
        assert_eq!(of_choice[1]["delta"]["content"], index.to_string());
        assert_eq!(of_choice[2]["finish_reason"], "stop");
    }
    let requests = server.requests(engine).await;
    assert!(requests[..3].iter().all(|request| request.params.sampler.seed == u64::MAX));
    assert_eq!(requests[3].params.sampler.seed, requests[4].params.sampler.seed);
}

#[tokio::test]
async fn a_seed_that_the_client_does_not_give_is_random() {
    let (server, engine) = Server::answering(|_| text("x")).await;
    for _ in 0..2 {
        server.post(CHAT, hello(json!({}))).await;
    }
    let requests = server.requests(engine).await;
    assert_ne!(requests[0].params.sampler.seed, requests[1].params.sampler.seed);
}

#[tokio::test]
async fn parts_of_a_message_are_one_text() {
    let (server, engine) = Server::answering(|_| text("x")).await;
    let parts = json!([{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]);
    let reply = server.post(CHAT, json!({"messages": [{"role": "user", "content": parts}]})).await;
    assert_eq!(reply.status, 200);
    let expected = TEXT.chat(&Chat::with_prompt("hel\nlo", None)).unwrap();
    assert_eq!(*server.requests(engine).await[0].prompt, *expected);
}

#[tokio::test]
async fn variables_reach_the_template_and_those_that_it_lacks_are_refused() {
    let (server, engine) = Server::answering(|_| text("x")).await;
    let reply = server.post(CHAT, hello(json!({"chat_template_kwargs": {"loud": true}}))).await;
    assert_eq!(reply.status, 200);
    let error = server.post(CHAT, hello(json!({"chat_template_kwargs": {"quiet": true}}))).await;
    assert_eq!(error.status, 400);
    assert!(error.error()["message"].as_str().unwrap().contains("quiet"));
    let prompt = TEXT.decode(&server.requests(engine).await[0].prompt).unwrap();
    assert!(prompt.contains("LOUD"), "{prompt}");
}

#[tokio::test]
async fn a_chat_that_the_template_refuses_is_the_clients_error() {
    let (server, _engine) = Server::answering(|_| text("x")).await;
    let reply = server.post(CHAT, json!({"messages": [{"role": "rude", "content": "x"}]})).await;
    assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("invalid_prompt")));
    assert!(reply.error()["message"].as_str().unwrap().contains("be kind"));
}

#[tokio::test]
async fn the_fields_of_sampling_reach_the_engine() {
    let (server, engine) = Server::answering(|_| vec![Event::End(End::Length)]).await;
    let body = json!({
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": 42, "presence_penalty": 1.5,
        "frequency_penalty": -1.5, "repetition_penalty": 1.25, "logit_bias": {"7": -100, "5": 1.5}, "min_tokens": 3,
        "stop_token_ids": [9, 3], "ignore_eos": true, "max_tokens": 5, "max_completion_tokens": 4, "an_unknown": {"field": 1},
        "user": "me", "top_logprobs": null, "cache_salt": "mine",
    });
    let reply = server.post(CHAT, hello(body)).await;
    assert_eq!((reply.status, &reply.json()["choices"][0]["finish_reason"]), (200, &json!("length")));
    let request = server.requests(engine).await.remove(0);
    let (params, sampler) = (&request.params, request.params.sampler);
    assert_eq!((sampler.temperature, sampler.top_p, sampler.min_p), (0.5, 0.25, 0.125));
    assert_eq!((sampler.top_k, sampler.seed, params.min_tokens), (7, 42, 3));
    assert_eq!((params.presence_penalty, params.frequency_penalty), (1.5, -1.5));
    assert_eq!(params.repetition_penalty, 1.25);
    assert_eq!(params.bias, [(5, 1.5), (7, -100.0)]);
    assert_eq!(params.ends, [3, 9]);
    assert_eq!((params.logprobs, params.prompt_logprobs), (None, None));
    assert_eq!(request.max_tokens, 4);
    assert_ne!(request.salt, 0);
}

/// The prompts that chats with these messages and fields have, or the parameter that is refused.
async fn prompts(template: &str, chats: &[Value]) -> Vec<Result<String, String>> {
    let (server, engine) = Server::start_with(|app| app.model.text = with_template(template)).await;
    let engine = tokio::spawn(engine.answer_all(|_| text("x")));
    let mut refused = Vec::new();
    for chat in chats {
        let reply = server.post(CHAT, chat.clone()).await;
        refused.push((reply.status != 200).then(|| {
            assert_eq!(reply.status, 400);
            let error = reply.error();
            error["param"].as_str().map_or(error["message"].to_string(), str::to_owned)
        }));
    }
    let mut taken = server.requests(engine).await.into_iter();
    let mut prompt = || TEXT.decode(&taken.next().unwrap().prompt).unwrap();
    refused.into_iter().map(|refused| refused.map_or_else(|| Ok(prompt()), Err)).collect()
}

fn ok(prompt: &str) -> Result<String, String> {
    Ok(prompt.to_owned())
}

#[tokio::test]
async fn a_message_whose_role_the_template_lacks_is_refused_and_a_developers_is_the_systems() {
    let template = "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}";
    let chat = |role: &str| json!({"messages": [{"role": "user", "content": "hi"}, {"role": role, "content": "x"}]});
    let found = prompts(template, &[chat("developer"), chat("banana"), chat("tool")]).await;
    let refused = || Err("messages[1].role".to_owned());
    assert_eq!(found, [ok("user:hi;system:x;"), refused(), refused()]);
}

#[tokio::test]
async fn the_arguments_of_earlier_calls_are_objects_for_the_template() {
    let template = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}\
                    {% for k, v in c.function.arguments|items %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}";
    let chat = |arguments: Value| {
        let mut function = json!({"name": "get"});
        if arguments != "none" {
            function["arguments"] = arguments;
        }
        let call = json!({"id": "c1", "type": "function", "function": function});
        json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": [call]}]})
    };
    let arguments = [json!("{\"city\": \"Oslo\"}"), json!({"city": "Oslo"}), json!(""), json!(null), json!("none")];
    let found = prompts(template, &arguments.map(chat)).await;
    assert_eq!(found, [ok("hicity=Oslo;"), ok("hicity=Oslo;"), ok("hi"), ok("hi"), ok("hi")]);
    // Those of a call that was cut.
    let found = prompts(template, &[chat(json!("{\"city\""))]).await;
    assert_eq!(found, [ok("hiarguments={\"city\";")]);
}

#[tokio::test]
async fn a_chat_goes_without_tools_that_may_not_be_called() {
    let tool = json!([{"type": "function", "function": {"name": "get", "parameters": {}}}]);
    let template = "{{ messages[0].content }}{% if tools %}{{ tools | tojson }}{% endif %}";
    let chats = [
        json!({"tools": tool, "tool_choice": "none"}),
        json!({"functions": tool, "function_call": "none"}),
        json!({"tools": tool, "tool_choice": "auto"}),
        json!({"tools": tool}),
        json!({"functions": tool}),
        json!({"tools": tool, "tool_choice": "required"}),
    ];
    let refused = |name: &str| Err(name.to_owned());
    let expected =
        [ok("hello"), ok("hello"), refused("tools"), refused("tools"), refused("functions"), refused("tools")];
    assert_eq!(prompts(template, &chats.map(hello)).await, expected);
}

#[tokio::test]
async fn the_last_message_can_be_continued() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let chat = |last: Value, more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}, last], "continue_final_message": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let said = json!({"role": "assistant", "content": "I am"});
    let found = prompts(
        template,
        &[chat(said.clone(), json!({})), chat(said.clone(), json!({"add_generation_prompt": false}))],
    )
    .await;
    assert_eq!(found, [ok("<user>hi<end><assistant>I am"), ok("<user>hi<end><assistant>I am")]);
    let [both, of_user] =
        [chat(said, json!({"add_generation_prompt": true})), chat(json!({"role": "user", "content": "a"}), json!({}))];
    let found = prompts(template, &[both, of_user]).await;
    assert_eq!(found[0], Err("continue_final_message".to_owned()));
    assert!(found[1].as_ref().unwrap_err().contains("has no text of the assistant"), "{found:?}");
}

#[tokio::test]
async fn the_effort_of_reasoning_is_for_templates_that_have_it() {
    let chat = || hello(json!({"reasoning_effort": "low"}));
    let template = "{{ messages[0].content }}{{ reasoning_effort }}";
    assert_eq!(prompts(template, &[chat()]).await, [ok("hellolow")]);
    let found = prompts("{{ messages[0].content }}", &[chat()]).await;
    let message = found[0].as_ref().unwrap_err();
    assert!(message.contains("the chat template of the model has no reasoning_effort"), "{message}");
}

#[tokio::test]
async fn fields_that_a_client_leaves_out_have_the_models_defaults() {
    let (server, engine) = Server::start_with(|app| {
        let sampling = &mut app.model.sampling;
        (sampling.temperature, sampling.top_p, sampling.top_k) = (0.5, 0.75, 20);
        (sampling.min_p, sampling.repetition_penalty) = (0.25, 1.5);
    })
    .await;
    let engine = tokio::spawn(engine.answer_all(|_| text("x")));
    server.post(CHAT, hello(json!({}))).await;
    let all = json!({"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1});
    server.post(CHAT, hello(all)).await;
    let requests = server.requests(engine).await;
    let said = requests.iter().map(|request| {
        let (params, sampler) = (&request.params, request.params.sampler);
        (sampler.temperature, sampler.top_p, sampler.top_k, sampler.min_p, params.repetition_penalty)
    });
    assert_eq!(said.collect::<Vec<_>>(), [(0.5, 0.75, 20, 0.25, 1.5), (0.0, 1.0, 0, 0.0, 1.0)]);
}

#[tokio::test]
async fn a_limit_of_minus_one_is_none() {
    let (server, engine) = Server::answering(|_| text("x")).await;
    for more in [
        json!({"max_tokens": -1}),
        json!({"max_completion_tokens": -1}),
        json!({"max_tokens": 5, "max_completion_tokens": -1}),
    ] {
        assert_eq!(server.post(CHAT, hello(more)).await.status, 200);
    }
    let requests = server.requests(engine).await;
    let limits: Vec<_> = requests.iter().map(|request| request.max_tokens + request.prompt.len()).collect();
    assert_eq!(limits, [1000, 1000, 5 + requests[2].prompt.len()]);
}
