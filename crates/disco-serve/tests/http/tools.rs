//! Calls of tools over HTTP.

use std::sync::Arc;

use disco_serve::engine::{End, Event};
use serde_json::{Value, json};

use super::double::text;
use super::model::{bytes, with_specials, with_template};
use super::server::Server;

const CHAT: &str = "/v1/chat/completions";
/// Shows the form of Hermes.
const TEMPLATE: &str = "{{ messages[0].content }}{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}";

fn chat(more: Value) -> Value {
    let weather = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let mut body = json!({
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": weather}}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn calls_are_parted_from_the_text() {
    const SAID: &str = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"</tool_call>\"}}\n\
        </tool_call>\n<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>";
    let server = Server::with_template(TEMPLATE, text(SAID)).await;
    let choice = server.post(CHAT, chat(json!({}))).await.json()["choices"][0].clone();
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let functions: Vec<_> = calls.iter().map(|call| call["function"].clone()).collect();
    let expected = ["{\"city\":\"</tool_call>\"}", "{}"].map(|it| json!({"name": "weather", "arguments": it}));
    assert_eq!(functions, expected);
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!("Let me see."), &json!("tool_calls"))
    );
    assert!(calls[0]["id"] != calls[1]["id"] && calls[0]["type"] == "function");

    let chunks = server.stream(CHAT, chat(json!({"stream": true}))).await.objects().await;
    let deltas: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let content: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(content, "Let me see.");
    let (calls, pieces) = merged(&chunks);
    assert_eq!(calls.iter().map(|call| call["function"].clone()).collect::<Vec<_>>(), expected);
    assert!(pieces > 20, "arguments come with their tokens, not in {pieces} pieces");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// The calls of a stream, put together as clients do it: all strings are concatenated. And the number of pieces of arguments.
fn merged(chunks: &[Value]) -> (Vec<Value>, usize) {
    let (mut calls, mut pieces) = (Vec::<Value>::new(), 0);
    for delta in chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array()).flatten() {
        let index = delta["index"].as_u64().unwrap() as usize;
        let arguments = delta["function"]["arguments"].as_str().unwrap();
        pieces += usize::from(!arguments.is_empty());
        if index == calls.len() {
            assert!(delta["id"].is_string() && delta["function"]["name"].is_string(), "{delta}");
            calls.push(delta.clone());
            continue;
        }
        assert_eq!((index, &delta["id"], &delta["function"]["name"]), (calls.len() - 1, &Value::Null, &Value::Null));
        let all = calls[index]["function"]["arguments"].as_str().unwrap().to_owned() + arguments;
        calls[index]["function"]["arguments"] = all.into();
    }
    (calls, pieces)
}

/// The arguments of the calls that a server's other interfaces send, whole and in pieces.
async fn arguments_of(server: &Server) -> [Vec<String>; 4] {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let function = json!({"type": "function", "name": "weather", "parameters": schema});
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();

    let body = json!({"input": "hi", "tools": [function]});
    let response = server.post("/v1/responses", body.clone()).await.json();
    let items = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "function_call");
    let whole = items.map(|item| text(&item["arguments"])).collect();
    let (mut pieces, mut done) = (Vec::new(), Vec::new());
    let mut streamed = body;
    streamed["stream"] = true.into();
    for event in server.events("/v1/responses", streamed).await {
        match event["type"].as_str().unwrap() {
            "response.output_item.added" if event["item"]["type"] == "function_call" => pieces.push(String::new()),
            "response.function_call_arguments.delta" => *pieces.last_mut().unwrap() += event["delta"].as_str().unwrap(),
            "response.function_call_arguments.done" => done.push(text(&event["arguments"])),
            _ => {}
        }
    }
    assert_eq!(pieces, done);

    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100,
        "tools": [{"name": "weather", "input_schema": schema}]});
    let message = server.post("/v1/messages", body.clone()).await.json();
    let blocks = message["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
    let inputs = blocks.map(|block| block["input"].to_string()).collect();
    let mut streamed = body;
    streamed["stream"] = true.into();
    let mut partial = Vec::new();
    for event in server.events("/v1/messages", streamed).await {
        match &event["type"] {
            kind if kind == "content_block_start" && event["content_block"]["type"] == "tool_use" => {
                partial.push(String::new());
            }
            _ if event["delta"]["type"] == "input_json_delta" => {
                *partial.last_mut().unwrap() += event["delta"]["partial_json"].as_str().unwrap();
            }
            _ => {}
        }
    }
    [whole, pieces, inputs, partial]
}

#[tokio::test]
async fn pieces_of_arguments_are_the_whole_in_all_interfaces_and_forms() {
    for (template, said, expected) in [
        (
            TEMPLATE,
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\":\"a é\"}}</tool_call>",
            "{\"city\":\"a é\"}",
        ),
        (
            "{{ tools }}<tool_call><function=",
            "<tool_call>\n<function=weather>\n<parameter=city>\n</tool_call>\n</parameter>\n</function>\n</tool_call>",
            "{\"city\":\"</tool_call>\"}",
        ),
        (
            "{{ tools }}<|tool_call>",
            "<|tool_call>call:weather{city:<|\"|>a}\"<|\"|>}<tool_call|>",
            "{\"city\":\"a}\\\"\"}",
        ),
        (
            "{{ tools }}<|channel|>",
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\":\"<|end|>\"}",
            "{\"city\":\"<|end|>\"}",
        ),
        ("{{ tools }}<tool_call>", "<tool_call>{\"name\": \"weather\"}</tool_call>", "{}"),
    ] {
        let server = Server::with_template(template, text(said)).await;
        let chunks = server.stream(CHAT, chat(json!({"stream": true}))).await.objects().await;
        assert_eq!(merged(&chunks).0[0]["function"]["arguments"], expected, "{said}");
        for arguments in arguments_of(&server).await {
            assert_eq!(arguments, [expected], "{said}");
        }
    }
}

#[tokio::test]
async fn a_call_that_is_cut_has_the_arguments_so_far() {
    const SAID: &str = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Os";
    let cut = || bytes(SAID).into_iter().map(Event::Token).chain([Event::End(End::Length)]).collect();
    let server = Server::with_template(TEMPLATE, cut()).await;
    let choice = server.post(CHAT, chat(json!({}))).await.json()["choices"][0].clone();
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\":\"Os");
    assert_eq!(choice["finish_reason"], "length");
    let [whole, pieces, inputs, partial] = arguments_of(&server).await;
    assert_eq!([whole, pieces, partial], [(); 3].map(|()| vec!["{\"city\":\"Os".to_owned()]));
    // An input is an object.
    assert_eq!(inputs, ["{}"]);
    let body = json!({"input": "hi", "tools": [{"type": "function", "name": "weather", "parameters": {}}]});
    let response = server.post("/v1/responses", body).await.json();
    assert_eq!((&response["status"], &response["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));

    // A stop string is no part of arguments, and what it cuts is no call that a client could make.
    let server = Server::with_template(TEMPLATE, text(&format!("{SAID}lo\"}}}}</tool_call>"))).await;
    let body = chat(json!({"stop": ["slo"], "stream": true}));
    let chunks = server.stream(CHAT, body).await.objects().await;
    assert_eq!(merged(&chunks).0[0]["function"]["arguments"], "{\"city\":\"O");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn earlier_messages_have_the_keys_that_templates_ask_for() {
    const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.thinking }}{{ m.content }}{% if 'tool_calls' in m %}\
        {{ m.tool_calls[0].function.name }}{% endif %};{% endfor %}";
    let call = json!({"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}});
    for (message, expected) in [
        (json!({"reasoning": "Hm.", "tool_calls": [call]}), "assistant:Hm.weather;"),
        (json!({"reasoning_content": "Hm.", "content": "I look.", "tool_calls": [call]}), "assistant:I look.weather;"),
        (json!({"reasoning": "Hm.", "content": "It rains.", "tool_calls": []}), "assistant:It rains.;"),
        (json!({"content": "It rains.", "tool_calls": null}), "assistant:It rains.;"),
    ] {
        let text = with_template(TEMPLATE);
        let (server, mut double) = Server::start_with(move |app| app.model.text = text).await;
        let mut message = message;
        message["role"] = "assistant".into();
        let (address, body) = (server.address, json!({"messages": [message]}).to_string());
        tokio::spawn(async move { super::client::post(address, CHAT, &body).await });
        let prompt: Vec<u32> = double.take().await.request().prompt.to_vec();
        assert_eq!(super::model::TEXT.decode(&prompt).unwrap(), expected);
    }
}

#[tokio::test]
async fn channels_are_reasoning_and_text() {
    const SAID: &str = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
        <|start|>assistant<|channel|>final<|message|>It rains.";
    let server = Server::with_template("{{ messages[0].content }}{# <|channel|> #}", text(SAID)).await;
    let plain = json!({"messages": [{"role": "user", "content": "hi"}]});
    let message = server.post(CHAT, plain.clone()).await.json()["choices"][0]["message"].clone();
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("Hm."), &json!("I look.\nIt rains.")));
    let mut joined = plain;
    joined["separate_reasoning"] = false.into();
    let message = server.post(CHAT, joined).await.json()["choices"][0]["message"].clone();
    assert_eq!(message["content"], "Hm.\nI look.\nIt rains.");
}

#[tokio::test]
async fn a_text_without_calls_is_as_without_tools() {
    let server = Server::with_template(TEMPLATE, text("It rains {\"a\": 1} <tool")).await;
    let choice = server.post(CHAT, chat(json!({}))).await.json()["choices"][0].clone();
    assert_eq!(choice["message"]["content"], "It rains {\"a\": 1} <tool");
    assert_eq!((&choice["message"]["tool_calls"], &choice["finish_reason"]), (&Value::Null, &json!("stop")));
}

/// Whether the grammar of a request allows texts, and refuses others, with marks that are texts and with two that are special tokens.
async fn check_grammar(template: &str, marks: [&str; 2], more: &Value, allowed: &[&str], refused: &[&str]) {
    for specials in [["<|begin|>", "<|pad|>"], marks] {
        let text = with_specials(template, specials);
        let tokenizer = Arc::clone(&text);
        let (server, mut double) = Server::start_with(move |app| app.model.text = text).await;
        let (server, body) = (server.address, chat(more.clone()));
        let client = tokio::spawn(async move { super::client::post(server, CHAT, &body.to_string()).await });
        let taken = double.take().await;
        let grammar = taken.request().grammar.clone().unwrap();
        let consume = |text: &str| {
            let mut grammar = grammar.clone();
            tokenizer.encode(text, false).unwrap().into_iter().try_for_each(|token| {
                let mask = grammar.mask()?;
                if mask.has(token) { grammar.consume(token) } else { Err(format!("{text}: {token}")) }
            })
        };
        for text in allowed {
            consume(text).unwrap_or_else(|why| panic!("{template}, {specials:?}: {more}: {why}"));
        }
        for text in refused {
            assert!(consume(text).is_err(), "{template}, {specials:?}: {more}: {text}");
        }
        drop(taken);
        drop(client);
    }
}

#[tokio::test]
async fn the_tool_whose_schema_has_an_unknown_keyword_is_named() {
    let server = Server::with_template(TEMPLATE, text("x")).await;
    let function = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "strict": true, "parameters": parameters}});
    // What zod writes for a record.
    let record = json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}});
    for (last, expected) in [
        (json!({"propertyNames": {"type": "string"}}), None),
        (
            json!({"uniqueItems": true}),
            Some("`tools` of \"last\": the schema can't be compiled: Unimplemented keys: [\"uniqueItems\"]"),
        ),
    ] {
        let tools = json!([function("first", record.clone()), function("last", last)]);
        for more in [json!({"tools": tools}), json!({"tools": tools, "response_format": {"type": "json_object"}})] {
            let reply = server.post(CHAT, chat(more)).await;
            let why = (reply.status != 200).then(|| reply.error()["message"].as_str().unwrap().to_owned());
            assert_eq!(why.as_deref(), expected, "{reply:?}");
        }
    }
}

#[tokio::test]
async fn demanded_calls_have_a_grammar_of_the_models_form() {
    const MARKS: [&str; 2] = ["<tool_call>", "</tool_call>"];
    let strict = json!({"tools": [{"type": "function", "function": {
        "name": "weather", "strict": true, "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}},
            "required": ["city"], "additionalProperties": false},
    }}]});
    let due = json!({"tool_choice": "required"});
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    check_grammar(TEMPLATE, MARKS, &due, &[call], &["Let"]).await;
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "weather"}}});
    check_grammar(TEMPLATE, MARKS, &named, &[call], &["<tool_call>\n{\"name\": \"n"]).await;
    let other =
        ["<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"B", "a <tool_call>\n{\"name\": \"w\""];
    check_grammar(TEMPLATE, MARKS, &strict, &[call, "It rains, and I need no tool."], &other).await;
    check_grammar(TEMPLATE, MARKS, &json!({"parallel_tool_calls": false}), &[call], &[]).await;
    // What the client asks for is the text of an answer without calls.
    let regex = json!({"guided_regex": "It [a-z]+."});
    check_grammar(TEMPLATE, MARKS, &regex, &["It rains.", call], &["It rains. <tool_call>"]).await;
    let mut both = strict.clone();
    both["guided_regex"] = regex["guided_regex"].clone();
    check_grammar(TEMPLATE, MARKS, &both, &[call, "It rains."], &other[..1]).await;
    let object = json!({"response_format": {"type": "json_object"}});
    check_grammar(TEMPLATE, MARKS, &object, &[call, "{}"], &["Let"]).await;
    let due = json!({"response_format": {"type": "json_object"}, "tool_choice": "required"});
    check_grammar(TEMPLATE, MARKS, &due, &[call], &["{"]).await;
}

#[tokio::test]
async fn grammars_of_gemma_have_its_notation() {
    const TEMPLATE: &str = "{{ tools }}<|tool_call>";
    const MARKS: [&str; 2] = ["<|tool_call>", "<|\"|>"];
    let schema = json!({"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 8},
        "at": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
        "days": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        "unit": {"enum": ["C", "F"]},
    }, "required": ["city", "unit"], "additionalProperties": false, "$defs": {
        "point": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x"]},
    }});
    let more = json!({
        "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": schema}}],
    });
    let call = |arguments: &str| format!("<|tool_call>call:weather{{{arguments}}}<tool_call|>");
    let allowed = [
        "city:<|\"|>Oslo<|\"|>,unit:<|\"|>C<|\"|>",
        "city:<|\"|><|\"|>,at:{x:1.5},days:[1,2],unit:<|\"|>F<|\"|>",
        "city:<|\"|>a{\"<|\"|>,at:{x:1,y:-2},unit:<|\"|>F<|\"|>",
        "city:<|\"|>a<|\"|>,at:null,days:[7],unit:<|\"|>F<|\"|>",
    ]
    .map(call);
    let allowed = [allowed.to_vec(), vec![allowed.concat()]].concat();
    let refused = [
        "unit:<|\"|>C<|\"|>",
        "city:<|\"|>Oslo and more<|\"|>,unit:<|\"|>C<|\"|>",
        "city:<|\"|>Oslo<|\"|>,unit:<|\"|>K<|\"|>",
        "city:<|\"|>Oslo<|\"|>,at:{y:1},unit:<|\"|>C<|\"|>",
        "city:<|\"|>Oslo<|\"|>,days:[],unit:<|\"|>C<|\"|>",
        "city:<|\"|>Oslo<|\"|>,days:[1,2,3],unit:<|\"|>C<|\"|>",
        "city:\"Oslo\",unit:<|\"|>C<|\"|>",
    ]
    .map(call);
    let allowed: Vec<_> = allowed.iter().map(String::as_str).collect();
    let refused: Vec<_> = refused.iter().map(String::as_str).collect();
    check_grammar(TEMPLATE, MARKS, &more, &allowed, &refused).await;

    // Without a schema to hold to, any object.
    let call = call("a:{b:[<|\"|>x<|\"|>,1,{}]},c:true");
    let single = json!({"parallel_tool_calls": false});
    check_grammar(TEMPLATE, MARKS, &single, &[&call, "It rains."], &[&call.repeat(2)]).await;
    let pattern = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "b"}}});
    let server = Server::with_template(TEMPLATE, text("x")).await;
    let more = json!({
        "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": pattern}}],
    });
    assert_eq!(
        server.post(CHAT, chat(more)).await.error()["message"],
        "`tools` of \"weather\": the schema has `pattern`, to which calls of this model can't be held"
    );
}

#[tokio::test]
async fn grammars_of_channels_come_behind_the_reasoning() {
    const TEMPLATE: &str = "{{ messages[0].content }}{{ tools }}<|start|>assistant{# <|channel|> #}";
    const MARKS: [&str; 2] = ["<|end|>", "<|message|>"];
    const THOUGHT: &str = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}";
    let thought = format!("{THOUGHT}{call}");
    let said = "<|channel|>final<|message|>It rains.";
    let due = json!({"tool_choice": "required"});
    check_grammar(TEMPLATE, MARKS, &due, &[call, &thought], &[said, "It", &format!("{THOUGHT}{said}")]).await;
    let more = json!({"parallel_tool_calls": false});
    let preamble = format!("{THOUGHT}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{call}");
    check_grammar(TEMPLATE, MARKS, &more, &[call, &preamble, said, &format!("{THOUGHT}{said}")], &["It"]).await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let format = json!({"tools": [], "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    let json = "<|channel|>final<|message|>{\"a\": 1}";
    check_grammar(TEMPLATE, MARKS, &format, &[json, &format!("{THOUGHT}{json}")], &["{\"a\"", said]).await;
    // Beside tools, an answer is of the schema, or else a call.
    let beside = json!({"response_format": format["response_format"]});
    check_grammar(TEMPLATE, MARKS, &beside, &[json, &thought], &["{\"a\"", said]).await;
}

#[tokio::test]
async fn what_is_no_tool_is_refused_by_name() {
    let server = Server::with_template(TEMPLATE, text("x")).await;
    let of_type = |kind: &str| json!({"tools": [{"type": kind}]});
    for (more, param) in [
        (of_type("web_search"), "tools[0].type"),
        (of_type("function"), "tools[0].function.name"),
        (json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}), "tools[0].function.name"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]}),
            "tools[0].function.parameters",
        ),
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (json!({"tool_choice": "required", "ignore_eos": true}), "tools"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "other"}}}), "tool_choice"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"guided_regex": "("}), "guided_regex"),
    ] {
        let reply = server.post(CHAT, chat(more.clone())).await;
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{more}: {reply:?}");
    }
    for (template, expected) in [
        (
            "{{ messages[0].content }}",
            "the chat can't be turned into a text: the chat template of the model has no tools",
        ),
        ("{{ tools }}", "`tools` can't be called: the form in which the model writes calls is not known to the server"),
    ] {
        let server = Server::with_template(template, text("x")).await;
        assert_eq!(server.post(CHAT, chat(json!({}))).await.error()["message"], expected);
        assert_eq!(server.post(CHAT, chat(json!({"tool_choice": "none"}))).await.status, 200);
    }
}
