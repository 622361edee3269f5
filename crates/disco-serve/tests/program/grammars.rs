//! Texts that a grammar constrains.

use std::thread;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value as Json, json};

use super::load::grammars;
use super::server::{Server, model};

fn is_entry(text: &str) -> bool {
    let Ok(Json::Object(entry)) = serde_json::from_str(text) else { return false };
    let tags = entry["tags"].as_array().unwrap();
    entry.len() == 3
        && entry["name"].as_str().is_some_and(|name| name.chars().count() <= 12)
        && entry["age"].as_u64().is_some_and(|age| age <= 130)
        && (1..=3).contains(&tags.len())
        && tags.iter().all(|tag| ["a", "b", "c"].map(Json::from).contains(tag))
}

fn is_number(text: &str) -> bool {
    let (number, rest) = text.split_once('-').unwrap_or((text, "a"));
    (2..=4).contains(&number.len())
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && !rest.is_empty()
        && rest.bytes().all(|byte| (b'a'..=b'f').contains(&byte))
}

#[test]
fn texts_follow_their_grammars_beside_others_and_through_lost_workers() {
    let server = Server::start(&model("llama-3"), &["--max-num-seqs", "4"]);
    let checks: [fn(&str) -> bool; 3] = [is_entry, is_number, |text| ["north", "nowhere"].contains(&text)];
    let ask = |index: usize| {
        let (name, grammar) = grammars()[index % 3].clone();
        let temperature = [0.0, 1.0, 2.0][index / 3 % 3];
        let mut more = json!({name: grammar, "temperature": temperature, "seed": index});
        more["stream"] = json!(index.is_multiple_of(2));
        let ask = || server.complete("The river was", 200, more.clone());
        let answer = std::iter::repeat_with(ask).find(|answer| answer.status != 503).unwrap();
        let text = answer.text();
        let is_complete = answer.body.contains("\"finish_reason\":\"stop\"");
        assert!(!is_complete || checks[index % 3](&text), "{name}: {text:?}");
        (is_complete, text)
    };
    let plain = || server.complete("Once upon a time there was", 60, json!({"ignore_eos": true}));
    let (alone, undisturbed) = (plain().text(), (0..18).map(ask).collect::<Vec<_>>());
    let complete = undisturbed.iter().filter(|(is_complete, _)| *is_complete).count();
    assert!(complete >= 15, "{complete} of 18 texts are complete: {undisturbed:?}");
    thread::scope(|scope| {
        for index in 0..18 {
            let (ask, undisturbed) = (&ask, &undisturbed);
            scope.spawn(move || assert_eq!(ask(index), undisturbed[index]));
        }
        let others = scope.spawn(|| (0..6).map(|_| plain()).filter(|answer| answer.status == 200).collect::<Vec<_>>());
        kill(server.workers()[1], Signal::SIGKILL).unwrap();
        assert!(others.join().unwrap().iter().all(|answer| answer.text() == alone));
    });
}

#[test]
fn a_grammar_that_cannot_hold_is_refused_with_the_reason() {
    let server = Server::start(&model("llama-3"), &[]);
    let deep = (0..10).fold(json!({"type": "string"}), |inner, _| json!({"anyOf": [inner.clone(), {"items": inner}]}));
    let chain = |count: usize| {
        let mut all = serde_json::Map::new();
        for number in 0..count {
            all.insert(format!("a{number}"), json!({"$ref": format!("#/$defs/a{}", number + 1)}));
        }
        all.insert(format!("a{count}"), json!({"type": "string"}));
        json!({"$ref": "#/$defs/a0", "$defs": all})
    };
    let rules = |count: usize| {
        let all = (0..count).map(|number| format!("a{number}: a{}\n", number + 1));
        format!("start: a0\n{}a{count}: \"x\"\n", all.collect::<String>())
    };
    let many =
        |count: usize| (0..count).map(|number| (format!("a{number}"), json!({}))).collect::<serde_json::Map<_, _>>();
    let product = json!({"type": "object", "oneOf": vec![true; 5000], "properties": many(5000)});
    // As much as may be.
    for more in [json!({"guided_json": chain(500)}), json!({"guided_grammar": rules(1900)})] {
        let answer = server.complete("a", 3, more);
        assert!([200, 400].contains(&answer.status), "{answer:?}");
    }
    for (more, expected) in [
        (json!({"guided_json": chain(5000)}), "`guided_json` has more than 512 references"),
        (json!({"guided_grammar": rules(5000)}), "`guided_grammar` can't be compiled: has more than 2000 rules"),
        (
            json!({"guided_json": product}),
            "`guided_json` has 10004 values and 5000 alternatives, which are too many together",
        ),
        (
            json!({"guided_regex": "a", "ignore_eos": true, "stop_token_ids": [5]}),
            "`guided_regex` needs an end of the text",
        ),
        (json!({"guided_json": {"if": {}}}), "`guided_json` can't be compiled: Unimplemented keys: [\"if\"]"),
        (
            json!({"guided_json": {"format": "colour", "type": "string"}}),
            "`guided_json` can't be compiled: Unknown format",
        ),
        (json!({"guided_json": {"$ref": "https://example.org/schema"}}), "`guided_json` can't be compiled"),
        (
            json!({"guided_json": {"type": "object", "properties": {"a": false}, "required": ["a"]}}),
            "`guided_json` can't be",
        ),
        (json!({"guided_json": {"$ref": "#"}}), "`guided_json` can't be compiled"),
        (json!({"guided_regex": "(a"}), "`guided_regex` can't be compiled"),
        (json!({"guided_grammar": "start: other"}), "`guided_grammar` can't be compiled"),
        (json!({"guided_grammar": "a".repeat(300 << 10)}), "`guided_grammar` can't be compiled: has more than"),
        (json!({"guided_choice": ["a"], "ignore_eos": true}), "`guided_choice` needs an end of the text"),
    ] {
        let answer = server.complete("a", 20, more);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && message.starts_with(expected), "{expected}: {answer:?}");
    }
    // Whatever it says, others go on.
    let answer = server.complete("a", 20, json!({"guided_json": deep}));
    assert!([200, 400].contains(&answer.status), "{answer:?}");
    assert!(is_number(&server.complete("a", 20, json!({"guided_regex": "[0-9]{3}"})).text()));
}

#[test]
fn an_end_that_is_all_that_can_follow_does_not_come_too_early() {
    let server = Server::start(&model("llama-3"), &[]);
    for more in [json!({"min_tokens": 50}), json!({"logprobs": 2, "echo": true}), json!({"n": 3, "temperature": 1})] {
        let mut more = more.clone();
        more["guided_choice"] = json!(["north"]);
        let answer = server.complete("b", 60, more.clone());
        for choice in answer.json()["choices"].as_array().unwrap() {
            let text = choice["text"].as_str().unwrap();
            assert_eq!(text.trim_start_matches('b'), "north", "{more}: {answer:?}");
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
}
