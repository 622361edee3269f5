//! The program with real workers and small models: texts, lost workers, and the end.

mod client;
mod clients;
mod drafts;
mod ends;
mod faults;
mod grammars;
mod kills;
mod load;
mod mix;
mod poison;
mod server;
mod slow;
mod soak;
mod tools;
mod traces;
mod vectors;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use client::{completion, post, read};
use disco_candle::weights::Weights;
use disco_models::text::Text;
use disco_testing::random;
use nix::sys::signal::{Signal, kill};
use serde_json::{Value as Json, json};
use server::{Server, children_of, model, program};

/// The prompts of a model's reference, and the greedy texts that transformers has generated.
fn reference(name: &str) -> Vec<(Vec<u32>, String, Vec<u32>)> {
    let text = Text::open(&Weights::open(model(name)).unwrap()).unwrap();
    let file = std::fs::read_to_string(model(name).join("reference.json")).unwrap();
    let reference: Json = serde_json::from_str(&file).unwrap();
    let ids = |value: &Json| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>();
    let prompts = reference["prompts"].as_array().unwrap().iter().map(|prompt| {
        let greedy = ids(&prompt["greedy_ids"]);
        (ids(&prompt["prompt_ids"]), text.decode(&greedy).unwrap(), greedy)
    });
    prompts.collect()
}

#[test]
fn texts_are_those_of_transformers_for_each_family() {
    for name in ["llama-3", "qwen3", "gemma3", "mixtral", "olmo2"] {
        let server = Server::start(&model(name), &[]);
        let ids = reference(name);
        // All at once, each several times.
        thread::scope(|scope| {
            for (prompt, text, greedy) in ids.iter().cycle().take(8) {
                let server = &server;
                scope.spawn(move || {
                    let body = json!({
                        "prompt": prompt, "max_tokens": greedy.len(), "temperature": 0, "ignore_eos": true, "logprobs": 1,
                    });
                    let answer = server.post("/v1/completions", &body).json();
                    let choice = &answer["choices"][0];
                    assert_eq!(choice["text"].as_str().unwrap(), text, "{name}: {answer}");
                    assert_eq!(answer["usage"]["completion_tokens"], greedy.len(), "{name}: {answer}");
                    assert_eq!(choice["logprobs"]["token_logprobs"].as_array().unwrap().len(), greedy.len());
                });
            }
        });
    }
}

#[test]
fn usage_tells_the_tokens_that_the_cache_had() {
    let server = Server::start(&model("llama-3"), &[]);
    let prompt: Vec<u32> = (10..60).collect();
    let ask = |n: u32| {
        let body = json!({"prompt": prompt, "max_tokens": 2, "ignore_eos": true, "n": n});
        server.post("/v1/completions", &body).json()["usage"].clone()
    };
    let usage = |texts: u32, cached: u32| {
        json!({
            "prompt_tokens": 50, "completion_tokens": 2 * texts, "total_tokens": 50 + 2 * texts,
            "prompt_tokens_details": {"cached_tokens": cached}, "completion_tokens_details": {"reasoning_tokens": 0},
        })
    };
    assert_eq!(ask(1), usage(1, 0));
    // Three full blocks.
    assert_eq!(ask(1), usage(1, 48));
    assert_eq!(ask(3), usage(3, 48));
    assert_eq!(server.get("/version").json(), json!({"version": env!("CARGO_PKG_VERSION")}));
}

/// Tells threads to stop when it is dropped.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients that ask for the same texts until `stop`; each answer must be that of an undisturbed server.
fn under_load(server: &Server, disturb: impl FnOnce(&dyn Fn(usize))) {
    let prompts = ["The river was", "In the morning the people of the", "a", "Once upon a time there was"];
    let (more, seeded) = (json!({"ignore_eos": true}), json!({"ignore_eos": true, "temperature": 0.9, "seed": 7}));
    let [(schema, grammar), ..] = load::grammars();
    let constrained = json!({schema: grammar, "temperature": 0.9, "seed": 7});
    let ask = |index: usize| {
        let mut more = [&more, &seeded, &constrained][index % 3].clone();
        more["stream"] = json!(index.is_multiple_of(3));
        // While workers are replaced, new requests are asked to come again.
        let mut answers = std::iter::repeat_with(|| server.complete(prompts[index % prompts.len()], 60, more.clone()));
        answers.find(|answer| answer.status != 503).unwrap().text()
    };
    let expected: Vec<_> = (0..12).map(ask).collect();
    let (stop, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        // The clients end also if this panics.
        let _stopping = Stopping(&stop);
        let clients: Vec<_> = (0..6)
            .map(|client| {
                let (ask, expected, stop, answers) = (&ask, &expected, &stop, &answers);
                scope.spawn(move || {
                    for index in (client..).step_by(5) {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        assert_eq!(ask(index % 12), expected[index % 12]);
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let wait_for = |count: usize| {
            let all = answers.load(Ordering::Relaxed) + count;
            let has_failed = || clients.iter().any(|client| client.is_finished());
            server.wait_until("answers", || answers.load(Ordering::Relaxed) >= all || has_failed());
        };
        disturb(&wait_for);
        wait_for(20);
    });
    // Nothing is left in the cache's tables.
    server.wait_until("all blocks are free", || {
        let load = &server.get("/health").json()["load"];
        load["free_blocks"] == load["blocks"] && load["running"] == 0
    });
}

#[test]
fn requests_outlive_killed_workers() {
    let server = Server::start(&model("llama-3"), &["--max-num-seqs", "4"]);
    under_load(&server, |wait_for| {
        for round in 0..6 {
            let workers = server.workers();
            assert_eq!(workers.len(), 2);
            kill(workers[round % 2], Signal::SIGKILL).unwrap();
            wait_for(10);
        }
    });
    assert!(server.metric("disco_serve_repairs_total").unwrap() > 0.0);
    assert_eq!(server.metric("vllm:num_requests_running"), Some(0.0));
    // Keys and values have outlived their workers.
    assert_eq!(server.metric("disco_serve_tokens_computed_again_total"), Some(0.0));
}

/// Workers are killed, end by a signal of their own, or hang, at any moment. `DISCO_SOAK_FAULTS` is the number with `DISCO_LONG_TESTS`.
#[test]
fn requests_outlive_faults_of_workers_of_all_kinds() {
    const FAULTS: [Signal; 3] = [Signal::SIGKILL, Signal::SIGABRT, Signal::SIGSTOP];
    let asked = std::env::var("DISCO_SOAK_FAULTS").ok().and_then(|count| count.parse().ok());
    let is_long = std::env::var_os("DISCO_LONG_TESTS").is_some();
    let count = if is_long { asked.unwrap_or(200) } else { FAULTS.len() + 1 };
    let mut random = random::Random::new(mix::Seed::first());
    // Also states of linear attention, latent attention, and experts.
    for name in ["llama-3", "qwen3-next", "deepseek-v3", "gpt-oss"] {
        let server = Server::start(&model(name), &["--step-deadline", "1"]);
        let mut before = None;
        under_load(&server, |wait_for| {
            for number in 0..count {
                random.pause(Duration::from_millis(20));
                // The first two faults replace both workers, after which each has connections of its own.
                let victim = if number < 2 { 0 } else { random.below(2) };
                let workers = server.workers();
                match FAULTS.get(number % (FAULTS.len() + 1)) {
                    Some(fault) => kill(workers[victim], *fault).unwrap(),
                    None => {
                        // Both, at once.
                        kill(workers[0], Signal::SIGKILL).unwrap();
                        kill(workers[1], Signal::SIGSEGV).unwrap();
                    }
                }
                wait_for(5);
                if number == 1 {
                    before = Some(server.kept());
                }
            }
        });
        assert!(server.metric("disco_serve_repairs_total").unwrap() >= count as f64);
        server.wait_until("nothing is left of the lost workers", || before == Some(server.kept()));
    }
}

#[test]
fn requests_outlive_a_stopped_worker() {
    let server = Server::start(&model("llama-3"), &["--step-deadline", "2"]);
    under_load(&server, |wait_for| {
        // The new worker waits for the stopped one.
        let workers = server.workers();
        kill(workers[0], Signal::SIGSTOP).unwrap();
        kill(workers[1], Signal::SIGKILL).unwrap();
        wait_for(10);
    });
}

#[test]
fn requests_outlive_killed_nodes() {
    let server = Server::start(&model("llama-3"), &["--session", "nodes", "--nodes", "2"]);
    under_load(&server, |wait_for| {
        for round in 0..4 {
            let children = server.workers();
            assert_eq!(children.len(), 2);
            kill(children[round % 2], Signal::SIGKILL).unwrap();
            wait_for(10);
        }
    });
}

#[test]
fn requests_outlive_killed_processes_of_a_node() {
    let server = Server::start(&model("llama-3"), &["--session", "nodes", "--nodes", "2", "--workers", "4"]);
    let node = || server.workers().into_iter().find(|process| !children_of(*process).is_empty()).unwrap();
    under_load(&server, |wait_for| {
        let program = node();
        for round in 0..4 {
            kill(children_of(program)[round % 2], Signal::SIGKILL).unwrap();
            wait_for(10);
        }
        assert_eq!(node(), program);
        // The program of the node has kept keys and values, until it ends, too.
        assert_eq!(server.metric("disco_serve_tokens_computed_again_total"), Some(0.0));
        kill(program, Signal::SIGKILL).unwrap();
        wait_for(10);
    });
    assert!(server.metric("disco_serve_tokens_computed_again_total").unwrap() > 0.0);
}

#[test]
fn requests_outlive_a_node_of_another_machine() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let with_token = || {
        let mut command = program();
        command.env("DISCO_TOKEN", "0123456789abcdef0123456789abcdef");
        command
    };
    // As `disco worker` starts it.
    let join = || with_token().env("DISCO_CONNECT", &address).stderr(Stdio::null()).spawn().unwrap();
    let mut nodes = vec![join()];
    let mut controller = with_token();
    controller.env("DISCO_NODES", "2").env("DISCO_LISTEN", &address);
    let server = Server::start_as(controller, &model("llama-3"), &[]);
    under_load(&server, |wait_for| {
        for _ in 0..2 {
            nodes.push(join());
            let mut node = nodes.remove(0);
            node.kill().unwrap();
            node.wait().unwrap();
            wait_for(10);
        }
    });
    drop(server);
    for mut node in nodes {
        node.wait().unwrap();
    }
}

#[test]
fn a_small_cache_preempts_and_texts_stay_the_same() {
    // 13 blocks are 208 tokens, for 6 texts of up to 90.
    let server = Server::start(&model("llama-3"), &["--kv-cache-bytes", "26K", "--max-num-batched-tokens", "8"]);
    assert_eq!(server.get("/health").json()["load"]["blocks"], 13);
    under_load(&server, |wait_for| wait_for(60));
    assert!(server.metric("vllm:num_preemptions_total").unwrap() > 0.0);
    assert!(
        server.get("/metrics").body.contains("vllm:iteration_tokens_total_bucket{model_name=\"llama-3\",le=\"8\"}")
    );
    // What can never fit is refused with its numbers.
    let answer = server.complete("a", 220, json!({}));
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.body.contains("220") && answer.body.contains("208"), "{answer:?}");
}

#[test]
fn disco_status_shows_requests_and_blocks() {
    let server = Server::start(&model("llama-3"), &["--kv-cache-bytes", "26K"]);
    let body = completion("The river was", 200, json!({"ignore_eos": true, "stream": true}));
    let mut stream = BufReader::new(server.begin(&post("/v1/completions", &body)));
    stream.read_line(&mut String::new()).unwrap();
    let notes = || disco::programs::ask(server.process().as_raw() as u32).unwrap().notes;
    assert_eq!(notes()["address"], format!("http://{}/v1", server.address));
    assert!(notes()["blocks"].ends_with(" of 13 used"), "{:?}", notes());
    drop(stream);
    server.wait_until("no request", || {
        let notes = notes();
        notes["requests"] == "0 running, 0 waiting" && notes["blocks"] == "0 of 13 used" && notes["engine"] == "ready"
    });
}

#[test]
fn weights_that_are_no_numbers_fail_requests_and_not_the_server() {
    let damaged = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(model("llama-3").join(file), damaged.path().join(file)).unwrap();
    }
    let mut weights = std::fs::read(model("llama-3").join("model.safetensors")).unwrap();
    let (length, rest) = weights.split_first_chunk().unwrap();
    let length = u64::from_le_bytes(*length) as usize;
    let header: Json = serde_json::from_slice(&rest[..length]).unwrap();
    let start = 8 + length + header["model.norm.weight"]["data_offsets"][0].as_u64().unwrap() as usize;
    weights[start..start + 4].fill(0xff);
    std::fs::write(damaged.path().join("model.safetensors"), weights).unwrap();
    let server = Server::start(damaged.path(), &[]);
    for more in
        [json!({}), json!({"temperature": 1, "logprobs": 1}), json!({"echo": true, "logprobs": 1, "max_tokens": 0})]
    {
        let answer = server.complete("The river was", 5, more.clone());
        assert!(answer.status == 500 && answer.body.contains("NaN or infinite"), "{more}: {answer:?}");
    }
    server.wait_until("all blocks are free", || {
        let load = &server.get("/health").json()["load"];
        load["free_blocks"] == load["blocks"] && load["running"] == 0
    });
}

#[test]
fn clients_that_leave_free_their_blocks() {
    let server = Server::start(&model("llama-3"), &[]);
    let body = completion("The river was", 240, json!({"ignore_eos": true, "stream": true}));
    for index in 0..40u32 {
        let mut stream = BufReader::new(server.begin(&post("/v1/completions", &body)));
        // Some leave before the answer, others in the middle.
        if index.is_multiple_of(2) {
            stream.read_line(&mut String::new()).unwrap();
        }
    }
    server.wait_until("all blocks are free", || {
        let load = &server.get("/health").json()["load"];
        load["free_blocks"] == load["blocks"] && load["running"] == 0 && load["waiting"] == 0
    });
}

#[test]
fn sampling_is_that_of_generation_config_unless_an_option_says_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(model("llama-old").join(file), folder.path().join(file)).unwrap();
    }
    std::fs::write(folder.path().join("generation_config.json"), r#"{"temperature": 0.6, "top_k": 1}"#).unwrap();
    for (options, count) in [(&[][..], 1), (&["--sampling-defaults", "openai"], 4)] {
        let server = Server::start(folder.path(), options);
        let texts = (0..4).map(|seed| {
            let body = json!({"prompt": "The river was", "max_tokens": 8, "ignore_eos": true, "seed": seed});
            server.post("/v1/completions", &body).text()
        });
        let texts: std::collections::BTreeSet<_> = texts.collect();
        assert_eq!(texts.len(), count, "{options:?}: {texts:?}");
        server.signal(Signal::SIGTERM);
        let (status, said) = server.ended();
        assert!(status.success(), "{said}");
        assert_eq!(
            said.contains("get temperature 0.6, top_k 1, as the model recommends"),
            options.is_empty(),
            "{said}"
        );
    }
}

#[test]
fn a_prompt_of_one_token_is_echoed() {
    let server = Server::start(&model("llama-3"), &[]);
    let body =
        json!({"prompt": [5], "echo": true, "logprobs": 1, "max_tokens": 3, "temperature": 0, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body).json();
    let logprobs = &answer["choices"][0]["logprobs"]["token_logprobs"];
    assert!(logprobs[0].is_null() && logprobs.as_array().unwrap().len() == 4, "{answer}");
}

#[test]
fn a_worker_that_dies_without_a_step_is_replaced_before_the_next_request() {
    let server = Server::start(&model("llama-3"), &[]);
    let lost = server.workers()[1];
    kill(lost, Signal::SIGKILL).unwrap();
    server.wait_until("another worker", || server.metric("disco_serve_repairs_total") == Some(1.0));
    let workers = server.workers();
    assert!(workers.len() == 2 && !workers.contains(&lost), "{workers:?}");
    assert_eq!(server.metric("disco_serve_resumed_total"), Some(0.0));
}

#[test]
fn an_idle_worker_that_is_stopped_is_replaced() {
    let server = Server::start(&model("llama-3"), &["--step-deadline", "2"]);
    let expected = server.complete("The river was", 20, json!({})).text();
    kill(server.workers()[1], Signal::SIGSTOP).unwrap();
    assert_eq!(server.complete("The river was", 20, json!({})).text(), expected);
}

#[test]
fn other_addresses_need_a_token_and_the_token_is_asked_for() {
    let open = || {
        let mut command = program();
        command.args(["--host", "0.0.0.0", "--model"]).arg(model("llama-3")).env_remove("DISCO_SERVE_TOKEN");
        command
    };
    let output = open().output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("clients need a token"), "{said}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret\n").unwrap();
    let server = Server::start(&model("llama-3"), &["--token-file", file.path().to_str().unwrap()]);
    assert_eq!(server.complete("a", 3, json!({})).status, 401);
    let request = post("/v1/completions", &completion("a", 3, json!({})));
    let request = request.replacen("host:", "authorization: Bearer secret\r\nhost:", 1);
    assert_eq!(read(server.begin(&request)).status, 200);
}

#[test]
fn wrong_models_and_options_are_errors_of_the_program() {
    for (options, why) in [
        (&["--model", "/nonexistent/model"][..], "/nonexistent/model: there is no such file or folder"),
        (&["--model", model("llama-3").to_str().unwrap(), "--max-model-len", "999"], "at most 256 tokens"),
        (&["--model", model("llama-3").to_str().unwrap(), "--kv-cache-bytes", "1K"], "no room for keys and values"),
        (&["--model", model("llama-3").to_str().unwrap(), "--backend", "unknown"], "unknown"),
        (&["--model", model("llama-3").to_str().unwrap(), "--kv-cache-bytes", "99999G"], "have no room for"),
        (&["--model", model("llama-3").to_str().unwrap(), "--session", "nodes", "--nodes", "1"], "two nodes or more"),
        (
            &["--model", model("qwen3-next").to_str().unwrap(), "--ngram-drafts", "4"],
            "--ngram-drafts 4: guessed tokens",
        ),
        (&["--drain", "18446744073709551615"], "18446744073709551615 is not in"),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_disco-serve")).args(["--port", "0"]).args(options).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why), "{options:?}: {said}");
    }
}
