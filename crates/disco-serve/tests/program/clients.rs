//! Python clients, with `DISCO_LONG_TESTS`: `cargo xtask fetch-clients` fetches them. Their checks are in `tests/clients`.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use disco_conformance::Fetched;
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use tempfile::TempDir;

use super::server::{Server, model};

/// An interpreter with the packages of `tests/clients/requirements.txt`.
const PYTHON: Fetched = Fetched::long("serving-clients/bin/python").required_by("clients");
const TEMPLATE: &str = "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content }}\n{% endfor %}<|begin|>assistant:";

/// A script of `tests/clients`, with a folder for its files.
fn script(name: &str, folder: &TempDir) -> Option<Command> {
    if env::var_os("DISCO_LONG_TESTS").is_none() {
        eprintln!("skipped: clients of the server run with DISCO_LONG_TESTS=1 only");
        return None;
    }
    let mut command = Command::new(PYTHON.find()?);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name));
    // Nothing is looked up on Hugging Face's hub.
    command.envs(["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "PYTHONDONTWRITEBYTECODE"].map(|name| (name, "1")));
    command.env("HF_HOME", folder.path()).env("TMPDIR", folder.path()).current_dir(folder.path());
    // Proxies of the environment are for other hosts.
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    Some(command)
}

fn succeed(mut command: Command) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_client_openai_gets_texts_errors_and_streams_that_outlive_a_worker() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = script("openai_client.py", &folder) else { return };
    let (of_model, token) = (folder.path().join("tiny"), folder.path().join("token"));
    fs::create_dir(&of_model).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(model("llama-old").join(file), of_model.join(file)).unwrap();
    }
    fs::write(of_model.join("chat_template.jinja"), TEMPLATE).unwrap();
    fs::write(&token, "secret").unwrap();
    let server = Server::start(&of_model, &["--token-file", token.to_str().unwrap()]);
    command.arg(server.address.to_string()).arg("secret").arg(server.process().to_string());
    command.args(server.workers().iter().map(ToString::to_string));
    succeed(command);
    let (status, said) = server.ended();
    assert!(status.success(), "{status}: {said}");
}

/// A server of a tiny model whose template knows tools in the form of Hermes, and its folder.
fn with_tools(options: &[&str]) -> (TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    super::tools::with_form(folder.path(), "<tool_call>");
    let server = Server::start(folder.path(), options);
    (folder, server)
}

#[test]
fn the_client_anthropic_gets_messages_and_calls_through_a_lost_worker() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = script("anthropic_client.py", &folder) else { return };
    let token = folder.path().join("token");
    fs::write(&token, "secret").unwrap();
    let (_model, server) = with_tools(&["--token-file", token.to_str().unwrap(), "--served-model-name", "tiny"]);
    command.arg(server.address.to_string()).arg("secret").args(server.workers().iter().map(ToString::to_string));
    succeed(command);
}

/// Runs a framework of agents, which calls three tools, against a model that writes the calls.
fn loops_over_tools(client: &str) {
    // Long enough to lose a worker in it.
    let plan: String = (0..200).map(|number| format!("Step {number} of my plan is done. ")).collect();
    loops(client, plan.trim_end(), "All is booked: two nights in Oslo.", true);
    // Answers of a schema have nothing beside them.
    loops(client, "", &json!({"city": "Oslo", "nights": 2}).to_string(), false);
}

/// The same with what the model says before the first call, and behind the last one.
fn loops(client: &str, first: &str, last: &str, loses_workers: bool) {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = script("prescribed.py", &folder) else { return };
    let calls = [
        ("weather", json!({"city": "Oslo", "days": 2})),
        ("book", json!({"stops": [{"city": "Oslo", "nights": 2}, {"city": "Tromsø", "nights": 1}], "note": null})),
        ("weather", json!({"city": "Tromsø \"north\"\n", "days": 1})),
    ];
    let [one, two, three] = calls.each_ref().map(|(name, arguments)| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    });
    let one = if first.is_empty() { one } else { format!("<think>A journey.</think>{first}\n{one}") };
    command.arg(folder.path().join("prescribed")).arg(model("llama-3"));
    command.arg(json!({"turns": [one, two, three, last.to_owned()], "plain": "No tools."}).to_string());
    succeed(command);
    let server = Server::start(&folder.path().join("prescribed"), &["--kv-cache-bytes", "64M"]);
    let Some(mut command) = script(client, &folder) else { return };
    let calls = calls.map(|(_, arguments)| arguments);
    let said = json!({"thought": "A journey.", "first": first, "last": last, "calls": calls});
    command.arg(server.address.to_string()).arg(said.to_string());
    command.args(server.workers().iter().filter(|_| loses_workers).map(ToString::to_string));
    succeed(command);
}

#[test]
fn the_framework_openai_agents_loops_over_tools_through_a_lost_worker() {
    loops_over_tools("agents_client.py");
}

#[test]
fn the_framework_pydantic_ai_loops_over_tools_through_a_lost_worker() {
    loops_over_tools("pydantic_client.py");
}

#[test]
fn the_client_openai_puts_calls_of_streams_together() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = script("calls_client.py", &folder) else { return };
    let token = folder.path().join("token");
    fs::write(&token, "secret").unwrap();
    let (_model, server) = with_tools(&["--token-file", token.to_str().unwrap(), "--served-model-name", "tiny"]);
    command.arg(server.address.to_string()).arg("secret");
    succeed(command);
}

#[test]
fn texts_of_random_schemas_are_valid_for_the_package_jsonschema() {
    const SCHEMAS: usize = 700;
    let folder = tempfile::tempdir().unwrap();
    for (name, workers) in [("llama-3", "1"), ("qwen3", "2"), ("gemma3", "3")] {
        let Some(mut command) = script("schemas_client.py", &folder) else { return };
        let server = Server::start(&model(name), &["--workers", workers]);
        command.arg(server.address.to_string()).arg(SCHEMAS.to_string()).stdout(Stdio::piped());
        let client = command.spawn().unwrap();
        // Some schemas are asked for while a worker is replaced.
        let killed = server.workers();
        server.wait_until("requests run", || server.get("/health").json()["load"]["running"] != 0);
        kill(killed[0], Signal::SIGKILL).unwrap();
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success());
        let ended: usize = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert!(ended * 5 >= SCHEMAS * 4, "{name}: {ended} of {SCHEMAS} texts have ended by themselves");
    }
}

#[test]
fn the_package_openapi_spec_validator_finds_no_fault_in_the_description() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = script("openapi_client.py", &folder) else { return };
    let token = folder.path().join("token");
    fs::write(&token, "secret").unwrap();
    let server = Server::start(&model("llama-3"), &["--token-file", token.to_str().unwrap()]);
    command.arg(server.address.to_string()).arg("secret");
    succeed(command);
}

#[cfg(feature = "otlp")]
#[test]
fn spans_are_messages_of_opentelemetrys_protocol() {
    use std::io::Write as _;

    use crate::http::collector::Collector;

    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = script("otlp_client.py", &folder) else { return };
    let collector = Collector::start(&[]);
    let server = Server::start(&model("llama-3"), &["--otlp", &collector.url]);
    server.complete("The river was", 5, json!({"stop": ["zz"]}));
    let mut client = command.stdin(Stdio::piped()).spawn().unwrap();
    client.stdin.take().unwrap().write_all(collector.received().body.to_string().as_bytes()).unwrap();
    assert!(client.wait().unwrap().success());
}

#[test]
fn the_client_lm_eval_measures_what_numpy_and_transformers_compute() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = script("lm_eval_client.py", &folder) else { return };
    // Many texts end after one token.
    let ends: Vec<u32> = (0..512).step_by(2).collect();
    let with_ends = folder.path().join("ends");
    fs::create_dir(&with_ends).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(model("llama-old").join(file), with_ends.join(file)).unwrap();
    }
    fs::write(with_ends.join("generation_config.json"), json!({"eos_token_id": ends}).to_string()).unwrap();
    let named = ["--served-model-name", "model"];
    let (server, with_ends) = (Server::start(&model("llama-old"), &named), Server::start(&with_ends, &named));
    command.arg(server.address.to_string()).arg(model("llama-old"));
    command.arg(with_ends.address.to_string()).arg(json!(ends).to_string());
    succeed(command);
}
