//! Processes of tests. Each runs this program again with one test.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child as Process, ChildStdout, Command, Stdio};
use std::{any, env, io};

/// The variable of processes with one test.
const ALONE_VARIABLE: &str = "GPU_DOUBLE_TEST_ALONE";
/// The variable with the name of the child's test.
const CHILD_VARIABLE: &str = "GPU_DOUBLE_TEST_CHILD";
/// The prefix of replies, which separates them from the output of the test harness.
const REPLY_PREFIX: &str = "> ";

/// Runs `body`, the whole body of a test, in a new process.
///
/// # Panics
/// The test fails in that process.
pub(crate) fn alone<F: FnOnce()>(body: F) {
    if env::var_os(ALONE_VARIABLE).is_some() {
        return body();
    }
    // The type's name is the path of the test with the crate before it and the closure after it. With another name, no
    // test would run there.
    let test = any::type_name::<F>().split_once("::").unwrap().1.trim_end_matches("::{{closure}}");
    let ended = again(test).output().unwrap();
    let [out, errors] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(ended.status.success() && out.contains("1 passed"), "{}\n{out}\n{errors}", ended.status);
}

/// A command that runs this program again with one test.
fn again(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE_VARIABLE, "1");
    // A free by one rank would wait for another rank, which may wait for the first one.
    command.env("GPU_DOUBLE_PEER_FREES", "0");
    // With a hardware queue for each stream, a wait of one stream does not block another stream.
    command.envs(["CUDA_DEVICE_MAX_CONNECTIONS", "GPU_MAX_HW_QUEUES"].map(|name| (name, "1000")));
    command
}

/// A child process. The drop kills it.
pub(crate) struct Child {
    process: Process,
    replies: BufReader<ChildStdout>,
}

/// Whether this process was started as the child for this test.
pub(crate) fn is(test: &str) -> bool {
    env::var(CHILD_VARIABLE).is_ok_and(|child| child == test)
}

/// The requests of the parent, until the parent closes the pipe.
pub(crate) fn requests() -> impl Iterator<Item = String> {
    io::stdin().lines().map_while(Result::ok)
}

/// Sends a reply to the parent.
pub(crate) fn reply(text: &str) {
    println!("{REPLY_PREFIX}{text}");
}

/// Bytes as hexadecimal text.
pub(crate) fn to_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a hexadecimal text.
pub(crate) fn to_bytes(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

impl Child {
    /// Starts a child that runs one test.
    pub(crate) fn start(test: &str) -> Self {
        let mut command = again(test);
        let mut process =
            command.env(CHILD_VARIABLE, test).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let replies = BufReader::new(process.stdout.take().unwrap());
        Self { process, replies }
    }

    /// Waits for the next reply.
    pub(crate) fn reply(&mut self) -> String {
        for line in self.replies.by_ref().lines() {
            if let Some((_, reply)) = line.unwrap().split_once(REPLY_PREFIX) {
                return reply.to_owned();
            }
        }
        panic!("the child has ended")
    }

    /// Sends a request and waits for the reply.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.send(request);
        self.reply()
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, request: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{request}").unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
