//! Models by their names on a hub, which is a server on this machine.

mod server;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use disco_candle::weights::Weights;
use disco_models::Config;
use disco_models::hub::{Hub, HubError, HubName};
use disco_models::text::Text;
use disco_testing::features;
use tempfile::TempDir;

use server::{Fault, Server};

/// A tiny model.
fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/qwen3")
}

/// Its files, and others of a repository that are not of the model.
fn files() -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(model()).unwrap().map(|entry| entry.unwrap());
    let mut files: BTreeMap<_, _> =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect();
    files.insert("README.md".to_owned(), b"# A tiny model".to_vec());
    files.insert("onnx/model.onnx".to_owned(), vec![0; 100]);
    files
}

fn name(text: &str) -> HubName {
    text.parse().unwrap()
}

/// A hub at the server with its own cache, and a short limit.
fn hub(server: &Server) -> (Hub, TempDir) {
    let cache = TempDir::new().unwrap();
    (Hub::new(&server.endpoint, cache.path()).with_silence_limit(Duration::from_secs(2)), cache)
}

fn fetch(hub: &Hub, text: &str) -> Result<PathBuf, HubError> {
    hub.fetch(&name(text), |_| ())
}

#[test]
fn a_repository_is_downloaded_once_and_opens_as_its_folder_does() {
    let server = Server::new(files());
    let (hub, _cache) = hub(&server);
    let mut downloaded = BTreeMap::new();
    let path = hub
        .fetch(&name("tiny/model"), |seen| _ = downloaded.insert(seen.file.clone(), (seen.bytes, seen.total)))
        .unwrap();
    let expected =
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let size = |file: &str| fs::metadata(model().join(file)).unwrap().len();
    assert_eq!(downloaded, expected.map(|file| (file.to_owned(), (size(file), size(file)))).into());
    for file in expected {
        assert_eq!(fs::read(path.join(file)).unwrap(), fs::read(model().join(file)).unwrap());
    }
    let weights = Weights::open(&path).unwrap();
    assert_eq!(Config::open(&weights).unwrap().layers, Config::open(&Weights::open(model()).unwrap()).unwrap().layers);
    Text::open(&weights).unwrap();

    server.asked();
    assert_eq!(fetch(&hub, "tiny/model").unwrap(), path);
    assert_eq!(server.asked(), ["/api/models/tiny/model/revision/main"]);
}

#[test]
fn a_new_commit_is_downloaded_and_an_old_one_serves_without_the_hub() {
    let server = Server::new(files());
    let (hub, _cache) = hub(&server);
    let old = fetch(&hub, "tiny/model").unwrap();
    {
        let mut state = server.state.lock().unwrap();
        state.commit = "decaf".to_owned();
        state.files.get_mut("config.json").unwrap().push(b'\n');
    }
    let new = fetch(&hub, "tiny/model").unwrap();
    assert!(old != new && new.ends_with("decaf"), "{}", new.display());
    assert_eq!(fs::read(new.join("config.json")).unwrap(), server.state.lock().unwrap().files["config.json"]);

    for fault in [Fault::Silence, Fault::Status(503), Fault::Garbage] {
        server.fail("revision/main", fault.clone(), 1);
        assert_eq!(fetch(&hub, "tiny/model").unwrap(), new, "{fault:?}");
    }
    // Part of a model is none.
    fs::remove_file(new.join("config.json")).unwrap();
    fs::remove_file(new.join("model.safetensors")).unwrap();
    server.fail("revision/main", Fault::Status(503), 1);
    let error = fetch(&hub, "tiny/model").unwrap_err().to_string();
    assert!(error.contains("listing the files") && error.contains("503"), "{error}");
}

#[test]
fn the_files_of_an_index_are_downloaded() {
    let mut files = files();
    let weights = files.remove("model.safetensors").unwrap();
    let tensors = Weights::open(model()).unwrap();
    let map: BTreeMap<_, _> = tensors.names().map(|name| (name.to_owned(), "model-1.safetensors")).collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": map }).to_string();
    files.insert("model.safetensors.index.json".to_owned(), index.into_bytes());
    files.insert("model-1.safetensors".to_owned(), weights.clone());
    files.insert("consolidated.safetensors".to_owned(), weights);
    let server = Server::new(files);
    let (hub, _cache) = hub(&server);
    let path = fetch(&hub, "tiny/model").unwrap();
    assert_eq!(Weights::open(&path).unwrap().names().count(), map.len());
    assert!(!path.join("consolidated.safetensors").exists());

    // An index of a hostile hub.
    let outside = r#"{ "weight_map": { "a": "../../../outside.safetensors" } }"#.as_bytes().to_vec();
    let mut state = server.state.lock().unwrap();
    state.commit = "decaf".to_owned();
    state.files.insert("model.safetensors.index.json".to_owned(), outside);
    drop(state);
    let error = fetch(&hub, "tiny/model").unwrap_err().to_string();
    assert!(
        error.contains(r#"it names "../../../outside.safetensors", which is outside of the repository"#),
        "{error}"
    );
}

#[test]
fn one_of_several_gguf_files_is_downloaded() {
    let files = ["tiny-F16.gguf", "tiny-Q4_0.gguf"].map(|file| (file.to_owned(), file.as_bytes().to_vec()));
    let server = Server::new(files.into());
    let (hub, _cache) = hub(&server);
    let path = fetch(&hub, "tiny/model:q4_0").unwrap();
    assert_eq!(
        (path.file_name().unwrap().to_str().unwrap(), fs::read(&path).unwrap()),
        ("tiny-Q4_0.gguf", b"tiny-Q4_0.gguf".to_vec())
    );
    let error = fetch(&hub, "tiny/model").unwrap_err().to_string();
    assert_eq!(
        error,
        "tiny/model: the repository has several models: tiny-F16.gguf, tiny-Q4_0.gguf; name one, such as `tiny/model:F16`"
    );
}

#[test]
fn a_hub_that_refuses_is_named_with_what_to_do() {
    let server = Server::new(files());
    let (hub, _cache) = hub(&server);
    for status in [401, 403, 404] {
        server.fail("revision/main", Fault::Status(status), 1);
        let error = fetch(&hub, "tiny/model").unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "tiny/model: {} refuses listing the files (HTTP {status}): there is no such repository, or it is private or \
                 gated; check the name; for a private or gated one ask for access on its page and set HF_TOKEN",
                server.endpoint
            )
        );
    }
    // A gated repository lists its files and refuses to send them.
    server.fail("config.json", Fault::Status(403), 1);
    let error = fetch(&hub, "tiny/model").unwrap_err().to_string();
    assert!(error.contains("refuses downloading config.json (HTTP 403)"), "{error}");
}

#[test]
fn a_cut_download_goes_on() {
    let server = Server::new(files());
    let (hub, _cache) = hub(&server);
    // `hf-hub` tries three times more.
    server.fail("model.safetensors", Fault::Cut, 2);
    let path = fetch(&hub, "tiny/model").unwrap();
    assert_eq!(
        fs::read(path.join("model.safetensors")).unwrap(),
        server.state.lock().unwrap().files["model.safetensors"]
    );

    let (hub, _cache) = self::hub(&server);
    server.fail("model.safetensors", Fault::Cut, usize::MAX);
    let error = fetch(&hub, "tiny/model").unwrap_err().to_string();
    assert!(error.contains("downloading model.safetensors from http://127.0.0.1:"), "{error}");
    assert!(error.contains("a download goes on where it ended if it is started again"), "{error}");
    server.fail("model.safetensors", Fault::Cut, 0);
    let path = fetch(&hub, "tiny/model").unwrap();
    assert_eq!(
        fs::read(path.join("model.safetensors")).unwrap(),
        server.state.lock().unwrap().files["model.safetensors"]
    );
}

#[test]
fn a_silent_or_absent_hub_is_an_error() {
    let server = Server::new(files());
    let (hub, _cache) = hub(&server);
    for (end, doing) in [("revision/main", "listing the files"), ("tokenizer.json", "downloading tokenizer.json")] {
        server.fail(end, Fault::Silence, 1);
        let error = fetch(&hub, "tiny/model").unwrap_err().to_string();
        assert!(error.contains(&format!("has sent nothing for 2 s while {doing}")), "{error}");
    }
    server.fail("revision/main", Fault::Garbage, 1);
    let error = fetch(&hub, "tiny/model").unwrap_err().to_string();
    assert!(error.contains("listing the files from"), "{error}");

    let cache = TempDir::new().unwrap();
    // No program listens on this port of the machine.
    let absent = Hub::new("http://127.0.0.1:9", cache.path());
    let error = fetch(&absent, "tiny/model").unwrap_err().to_string();
    assert!(error.contains("listing the files from http://127.0.0.1:9 has failed"), "{error}");
    assert!(error.contains("Connection refused"), "{error}");
}

#[test]
fn a_repository_without_a_model_lists_what_it_has() {
    let server = Server::new([("pytorch_model.bin".to_owned(), vec![1])].into());
    let (hub, _cache) = hub(&server);
    let error = fetch(&hub, "tiny/model").unwrap_err().to_string();
    assert_eq!(
        error,
        "tiny/model: there is no such model in the repository, neither safetensors nor GGUF; its files are pytorch_model.bin"
    );
}

#[test]
fn a_repository_with_an_adapter_beside_its_base_is_refused() {
    let mut files = files();
    files.insert("adapter_config.json".to_owned(), b"{}".to_vec());
    files.insert("adapter_model.safetensors".to_owned(), vec![0; 100]);
    let server = Server::new(files);
    let (hub, _cache) = hub(&server);
    let error = Weights::open(fetch(&hub, "tiny/model").unwrap()).unwrap_err().to_string();
    assert!(error.contains("has the file `adapter_config.json` of an adapter"), "{error}");
}

/// The example `generate`, with the features of the gate, which has built it before.
fn generate() -> PathBuf {
    let mut cargo = features::cargo(env!("CARGO"));
    let features = features::ALL_FEATURES.split_whitespace();
    let built = cargo.args(["build", "--quiet", "--workspace", "--example", "generate"]).args(features);
    assert!(built.status().unwrap().success());
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples/generate")
}

#[test]
fn the_program_takes_the_hub_the_cache_and_the_token_of_the_environment() {
    let (server, home, program) = (Server::new(files()), TempDir::new().unwrap(), generate());
    let run = |model: &str| {
        let mut command = Command::new(&program);
        command.args(["--model", model, "--raw", "--print-tokens", "--max-tokens", "4", "Hello"]);
        command.env("HF_ENDPOINT", &server.endpoint).env("HF_HOME", home.path()).env("HF_TOKEN", "secret");
        let output = command.output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let [tokens, errors] = run("tiny/model");
    assert!(tokens.starts_with("tokens ["), "{tokens} {errors}");
    assert_eq!(tokens, run(model().to_str().unwrap())[0]);
    assert!(home.path().join("hub/models--tiny--model/refs/main").is_file());
    assert_eq!(server.state.lock().unwrap().authorization.as_deref(), Some("Bearer secret"));
    let [_, errors] = run("tiny/other");
    let expected =
        "generate: there is no file or folder tiny/other, and the hub has not given it: tiny/other: http://127.0.0.1:";
    assert!(errors.starts_with(expected) && errors.contains("(HTTP 404)"), "{errors}");
    let [_, errors] = run("other.gguf");
    let expected =
        "generate: other.gguf: there is no such file or folder: \"other.gguf\" is no name of a model on a hub";
    assert!(errors.starts_with(expected), "{errors}");
}
