//! The option `--otlp`.

use super::server::{model, program};

#[cfg(not(feature = "otlp"))]
#[test]
fn a_program_without_the_feature_refuses_the_option_and_says_what_to_build() {
    let output =
        program().args(["--otlp", "http://localhost:4318", "--port", "0", "--model"]).arg(model("llama-3")).output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("--otlp") && said.contains("--features otlp"), "{said}");
}

#[cfg(feature = "otlp")]
#[test]
fn an_address_that_is_none_is_refused() {
    let output = program().args(["--otlp", "localhost:4318", "--port", "0", "--model"]).arg(model("llama-3")).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains("--otlp: \"localhost:4318\" is no address of a collector"), "{said}");
}

#[cfg(feature = "otlp")]
#[test]
fn spans_tell_of_a_lost_worker_and_the_last_ones_are_sent_at_the_end() {
    use std::io::{BufRead as _, BufReader};

    use nix::sys::signal::{Signal, kill};
    use serde_json::json;

    use super::client::post;
    use super::server::Server;
    use super::{completion, read};
    use crate::http::collector::{Collector, attributes};

    let mut collector = Collector::start(&[]);
    let server = Server::start(&model("llama-3"), &["--otlp", &collector.url, "--step-deadline", "10"]);
    let body = completion("The river was", 200, json!({"ignore_eos": true, "stream": true}));
    let request = post("/v1/completions", &body);
    const TRACES: [&str; 2] = ["4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000007"];
    let traced = |request: &str, trace: &str| {
        request.replacen("host:", &format!("traceparent: 00-{trace}-00f067aa0ba902b7-01\r\nhost:"), 1)
    };
    let mut stream = BufReader::new(server.begin(&traced(&request, TRACES[0])));
    // Some text is there before the worker is lost.
    while {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        !line.starts_with("data: ")
    } {}
    kill(server.workers()[1], Signal::SIGKILL).unwrap();
    let rest = std::io::read_to_string(stream).unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
    let spans = collector.trace(TRACES[0]);
    let events = spans[0]["events"].as_array().unwrap();
    let names: Vec<_> = events.iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert_eq!((spans.len(), &names[..]), (4, &["workers lost", "workers replaced"][..]));
    assert!(attributes(&events[0])["exception.message"].as_str().unwrap().contains("worker 1"), "{events:?}");
    assert_eq!(attributes(&spans[0])["gen_ai.usage.output_tokens"], 200);
    // The program ends before the spans of its last request would be sent.
    let request = post("/v1/completions", &completion("a", 3, json!({})));
    assert_eq!(read(server.begin(&traced(&request, TRACES[1]))).status, 200);
    server.signal(Signal::SIGTERM);
    let (status, said) = server.ended();
    assert!(status.success() && !said.contains("the last spans"), "{said}");
    assert_eq!(collector.trace(TRACES[1]).len(), 4);
}
