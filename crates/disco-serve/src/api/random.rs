//! Random requests.

use disco_models::SamplingDefaults;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{ApiError, Kind, Known, Message, Object, Order, Wanted};

/// The fields that requests know, and one that they do not.
const NAMES: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "stop",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "echo",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop_token_ids",
    "ignore_eos",
    "chat_template_kwargs",
    "response_format",
    "tools",
    "tool_choice",
    "suffix",
    "best_of",
    "cache_salt",
    "logits_digest",
    "guided_json",
    "structured_outputs",
    "parallel_tool_calls",
    "system",
    "input",
    "instructions",
    "max_output_tokens",
    "text",
    "something_else",
];

fn value() -> impl Strategy<Value = Value> {
    let numbers = vec![0.0, -0.0, 1.0, 1.5, -1.0, 3.0, 511.0, 512.0, 1e300, -1e300, 9e18];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        prop::sample::select(numbers).prop_map(Value::from).boxed(),
        prop::sample::select(vec!["", "text", "user", "role", "content", "type", "7", "\u{0}", "€"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let keys = prop::sample::select(vec!["role", "content", "type", "text", "1", "include_usage"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys, inner), 0..4).prop_map(|entries| {
                Value::Object(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            }),
        ]
    })
}

fn body() -> impl Strategy<Value = Value> {
    let entries = prop::collection::vec((prop::sample::select(NAMES), value()), 0..6);
    let begin = prop::sample::select(vec![
        json!({}),
        json!({"prompt": "x"}),
        json!({"messages": [{"role": "user", "content": "x"}]}),
    ]);
    (begin, entries).prop_map(|(mut body, entries)| {
        let fields: Map<String, Value> = entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        if let Some(body) = body.as_object_mut() {
            body.extend(fields);
        }
        body
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn any_body_is_an_order_within_its_bounds_or_a_clients_error(body in body(), is_chat in any::<bool>()) {
        let kind = if is_chat { Kind::Chat } else { Kind::Completion };
        let model = Known { name: "tiny", vocabulary: 512, ends: &[2], sampling: SamplingDefaults::default(), is_on_the_host: true };
        let object = || Object::parse(body.to_string().as_bytes()).unwrap();
        let others = [Message::parse(object(), false, model).err(), Wanted::parse(object(), model).err()];
        for error in others.into_iter().flatten() {
            prop_assert!(matches!(error.status(), 400 | 404), "{error}");
        }
        match Order::parse(kind, object(), model) {
            Ok(order) => {
                prop_assert!((1..=16).contains(&order.choices) && !order.prompts.is_empty());
                let params = &order.params;
                prop_assert!((0.0..=2.0).contains(&params.sampler.temperature) && (0.0..=1.0).contains(&params.sampler.top_p));
                prop_assert!(params.logprobs.is_none_or(|count| count <= 20));
                prop_assert!(params.ends.iter().all(|end| *end < 512));
                prop_assert!(params.bias.iter().all(|(token, bias)| *token < 512 && bias.is_finite()));
                prop_assert!(order.stops.iter().all(|stop| !stop.is_empty()));
                prop_assert!(order.prompt_bound(1000) >= order.texts());
            }
            Err(error) => {
                prop_assert!(matches!(error.status(), 400 | 404), "{error}");
                let is_named = error.object()["error"]["param"].is_string();
                prop_assert!(is_named || matches!(error, ApiError::Json(_)), "{error}");
            }
        }
    }
}
