//! Workers that are slow, and not stuck.

use std::env;
use std::fs;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use disco_core::function::{self, Args, BoxError};
use disco_core::{Object, Value, WorkerContext};
use disco_models::serving::{Plan, Tokens};
use disco_serve::engine::STEP;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::poison::Server;

/// The time of a token. A step of the most tokens takes more than the deadline.
const TOKEN_TIME: Duration = Duration::from_millis(8);
/// Steps are to take a quarter of it. The rest is for a busy machine.
const STEP_DEADLINE: Duration = Duration::from_secs(4);
const MAX_TOKENS: usize = 512;
const REQUESTS: usize = 4;

disco::register_function!("tests.slow_step", slow_step);

/// Computes a step as the product does, after a time for each of its tokens.
fn slow_step(ctx: &mut WorkerContext, state: Object, bytes: Arc<[u8]>) -> Result<Object, BoxError> {
    let rows = Plan::from_bytes(&bytes)?.rows;
    if ctx.worker().index() == 1 && rows.len() == REQUESTS && fs::remove_file(order_to_die(parent_id())).is_ok() {
        kill(Pid::this(), Signal::SIGKILL)?;
    }
    let tokens = rows.iter().map(|row| if let Tokens::Given(tokens) = &row.tokens { tokens.len() as u32 } else { 1 });
    thread::sleep(TOKEN_TIME * tokens.sum());
    function::find(STEP)?.call(ctx, &Args::of_objects(&[state, Object::Value(Value::Bytes(bytes))]))
}

/// While this file is there, worker 1 of this controller removes it and dies at the first step of all requests.
fn order_to_die(controller: u32) -> PathBuf {
    env::temp_dir().join(format!("disco-serve-slow-{controller}"))
}

#[test]
fn the_steps_of_slow_workers_end_before_their_deadline_also_after_a_loss() {
    disco::init_test!();
    let server = Server::start_with("tests.slow_step", |options| {
        options.placement.step_deadline = STEP_DEADLINE;
        options.limits.max_batched_tokens = MAX_TOKENS;
        options.name = "slow".into();
    });
    let prompt = |index: u32| json!((0..200).map(|token| 5 + (index * 31 + token * 7) % 400).collect::<Vec<_>>());
    let ask = |index: u32| server.ask(&prompt(index), &json!({"max_tokens": 20, "ignore_eos": true})).text();
    let expected: Vec<_> = (0..REQUESTS as u32).map(ask).collect();
    fs::write(order_to_die(process::id()), "").unwrap();
    thread::scope(|scope| {
        let ask = &ask;
        let texts: Vec<_> = (0..REQUESTS as u32).map(|index| scope.spawn(move || ask(index))).collect();
        let texts: Vec<_> = texts.into_iter().map(|text| text.join().unwrap()).collect();
        assert_eq!(texts, expected);
    });
    let metrics = server.client.get("/metrics").body;
    assert!(metrics.contains("disco_serve_repairs_total{model_name=\"slow\"} 1\n"), "{metrics}");
    server.end();
}
