//! The end of the program.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use disco_conformance::waiting;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value as Json, json};

use super::client::{completion, post};
use super::server::{Server, model, program};

#[test]
fn a_signal_lets_requests_end_and_refuses_new_ones() {
    let server = Server::start(&model("llama-3"), &[]);
    let expected = server.complete("The river was", 200, json!({"ignore_eos": true})).text();
    let body = completion("The river was", 200, json!({"ignore_eos": true, "stream": true}));
    let mut stream = BufReader::new(server.begin(&post("/v1/completions", &body)));
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        stream.read_line(&mut line).unwrap();
    }
    server.signal(Signal::SIGTERM);
    let mut rest = String::new();
    loop {
        let mut next = String::new();
        if stream.read_line(&mut next).unwrap() == 0 {
            break;
        }
        rest += &next;
    }
    let texts = [line, rest].concat();
    let texts = texts.lines().filter_map(|line| line.strip_prefix("data: {"));
    let text: String = texts
        .map(|data| serde_json::from_str::<Json>(&format!("{{{data}")).unwrap())
        .map(|data| data["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, expected);
    let workers = server.workers();
    let (status, said) = server.ended();
    assert!(status.success() && said.contains("ending once the requests are complete"), "{said}");
    for worker in workers {
        assert!(kill(worker, None).is_err(), "worker {worker} is left");
    }
}

#[test]
fn a_signal_ends_the_program_while_it_loads_its_model() {
    let mut server = Server::listening(program(), &model("llama-3"), &[]);
    // A worker that is stopped never has the model.
    server.wait_until("a worker", || !server.workers().is_empty());
    let worker = server.workers()[0];
    kill(worker, Signal::SIGSTOP).unwrap();
    server.signal(Signal::SIGTERM);
    let status = server.status();
    // It ends when it finds that the controller is gone.
    _ = kill(worker, Signal::SIGCONT);
    let (_, said) = server.ended();
    assert!(status.success(), "{said}");
    let stat = format!("/proc/{worker}/stat");
    let has_ended = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    waiting::wait_until("the end of the worker", has_ended);
}

#[test]
fn signals_end_the_program_while_it_replaces_its_workers() {
    let server = Server::start(&model("llama-3"), &["--step-deadline", "1000"]);
    let body = completion("The river was", 200, json!({"ignore_eos": true, "stream": true}));
    let mut stream = BufReader::new(server.begin(&post("/v1/completions", &body)));
    stream.read_line(&mut String::new()).unwrap();
    let workers = server.workers();
    // The other one waits for the one that is stopped, which does not begin again.
    kill(workers[1], Signal::SIGSTOP).unwrap();
    kill(workers[0], Signal::SIGKILL).unwrap();
    server.wait_until("the repair", || server.get("/ready").body.contains("replacing its workers"));
    server.signal(Signal::SIGINT);
    server.signal(Signal::SIGTERM);
    let (status, said) = server.ended();
    assert!(status.success(), "{said}");
    assert!(kill(workers[1], None).is_err(), "worker {} is left", workers[1]);
}

#[test]
fn a_signal_while_the_model_is_downloaded_ends_the_program_as_usual() {
    let (hub, cache) = (TcpListener::bind("127.0.0.1:0").unwrap(), tempfile::tempdir().unwrap());
    let mut child = Command::new(env!("CARGO_BIN_EXE_disco-serve"))
        .args(["--port", "0", "--model", "owner/repository"])
        .env("HF_ENDPOINT", format!("http://{}", hub.local_addr().unwrap()))
        .env("HF_HOME", cache.path())
        .spawn()
        .unwrap();
    // The hub does not answer.
    let _connection = hub.accept().unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGTERM as i32));
}
