//! Tests of the log of connections that close and of peers that are lost.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};

use disco_core::WorkerId;
use disco_core::channel::Signal;
use disco_core::error::LossCause;
use disco_core::wire::Message;
use tracing::Level;

use super::super::Event;
use super::{Bench, MS, SILENCE, conn};

/// The log of one test.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that `body` logs: level and text.
fn logged(body: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_ansi(false).without_time();
    let subscriber = subscriber.with_target(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, body);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    text.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn a_connection_that_closes_is_logged_with_the_peer_and_the_reason() {
    let mut bench = Bench::running(1);
    let lines = logged(|| bench.on(Event::Hung(conn(0), Some("broken pipe".into()))));
    assert_eq!(
        lines,
        [
            "DEBUG the connection of a peer is closed peer=\"node 1 (host)\" why=\"broken pipe\"",
            "INFO a peer is lost error=node 1 (host) with workers 0 to 1 lost: broken pipe",
        ]
    );
}

#[test]
fn a_silent_peer_is_logged_as_lost() {
    let mut bench = Bench::running(1);
    let lines = logged(|| bench.pass(SILENCE + MS));
    let lost = "INFO a peer is lost error=node 1 (host) with workers 0 to 1 lost: no message came from it for 5s";
    assert!(lines.iter().any(|line| line == lost), "{lines:?}");
}

#[test]
fn a_lost_worker_of_a_node_is_logged() {
    let mut bench = Bench::running(1);
    let why = Box::new(Message::Lost { cause: LossCause::ThreadEnded(None), whole: false });
    let lines = logged(|| bench.send_from(0, Message::From { workers: WorkerId::new(1).into(), message: why }));
    assert_eq!(
        lines,
        ["INFO a worker of a node is lost error=worker 1 lost: on node 1 (host): its thread ended before shutdown"]
    );
}

#[test]
fn a_peer_that_leaves_after_a_shutdown_is_not_logged_as_lost() {
    let mut bench = Bench::working();
    bench.on(Event::Signal(Signal::Shutdown));
    let lines = logged(|| {
        bench.send_from(0, Message::Signal(Signal::Shutdown));
        bench.on(Event::Ended(0, Some(ExitStatus::from_raw(0))));
    });
    assert_eq!(
        lines,
        [
            "DEBUG the connection of a peer is closed peer=\"worker 0\" why=\"its workers have left\"",
            "DEBUG a peer has left peer=\"worker 0\" workers=worker 0",
        ]
    );
}
