//! Reads the metrics of the program as Prometheus does.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// A running program, killed on drop.
struct Program(Child);

impl Program {
    /// Starts the program with a session of three workers, and returns once it works.
    fn start(session: &str, port: u16) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_disco-metrics"));
        command.env("DISCO_SESSION", session).env("DISCO_WORKERS", "3").args([&port.to_string(), "60"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("metrics at ")));
        Self(child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// A free port below two others that are free, too; another one for each test.
fn port(test: usize) -> u16 {
    (20000..32000)
        .step_by(7)
        .skip(std::process::id() as usize % 700 + 700 * test)
        .find(|port| (0..3).all(|next| TcpListener::bind(("127.0.0.1", port + next)).is_ok()))
        .unwrap()
}

/// The metrics that a process serves.
fn scrape(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The value of the metric `name` whose labels include these, in any order.
fn value(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let of_name = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
    let mut found = of_name.filter(|(found, _)| labels.iter().all(|label| found.split(',').any(|it| it == *label)));
    found.next()?.1.parse().ok()
}

/// The metrics of a process once a worker there has finished a step. They are read again after the step was seen:
/// the exporter reads the counters before the histograms, so the first text can lack what the step counted.
fn scrape_after_a_step(port: u16) -> String {
    loop {
        let text = scrape(port);
        assert!(text.starts_with("HTTP/1.0 200"), "{text}");
        if value(&text, "disco_call_seconds_count", &[r#"function="metrics.step""#]) > Some(0.0) {
            return scrape(port);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_session_of_threads_has_all_metrics_in_one_process() {
    let port = port(0);
    let _program = Program::start("threads", port);
    let text = scrape_after_a_step(port);
    for line in [
        "# TYPE disco_commands_total counter",
        "# TYPE disco_wait_seconds histogram",
        "# HELP disco_call_seconds Worker functions, from entry to return, on their worker",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let (sync, sum) = (r#"operation="sync_all""#, r#"operation="all_reduce""#);
    let (ok, controller) = (r#"result="ok""#, r#"process="controller""#);
    for (name, labels) in [
        ("disco_commands_total", &[r#"command="sync_all""#, controller][..]),
        ("disco_wait_seconds_bucket", &[sync, ok, controller, r#"le="300""#]),
        ("disco_operation_seconds_count", &[sum, ok, controller, r#"size="1MiB""#]),
        ("disco_operation_bytes_total", &[sum, controller]),
    ] {
        assert!(value(&text, name, labels) > Some(0.0), "{name} {labels:?}\n{text}");
    }
}

#[test]
fn worker_processes_serve_their_own_metrics() {
    let port = port(1);
    let _program = Program::start("processes", port);
    let text = scrape_after_a_step(port + 2);
    assert!(text.contains(r#"process="worker 2""#), "{text}");
    assert!(!text.contains("disco_wait_seconds"), "only the controller waits for replies: {text}");
    let text = scrape_after_a_step(port);
    assert!(value(&text, "disco_wait_seconds_count", &[r#"process="controller""#]) > Some(0.0), "{text}");
}
