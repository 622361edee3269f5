//! A test's other process: the same program, of which it runs one test. That test does something only there.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child as Process, ChildStdout, Command, Stdio};
use std::{env, io};

/// Which test is that of a child.
const CHILD_VARIABLE: &str = "GPU_DOUBLE_TEST_CHILD";
/// What comes before an answer, after what the harness says.
const REPLY_PREFIX: &str = "> ";

/// The other process, killed if it is not gone.
pub(crate) struct Child {
    process: Process,
    replies: BufReader<ChildStdout>,
}

/// Whether this process was started for this test.
pub(crate) fn is(test: &str) -> bool {
    env::var(CHILD_VARIABLE).is_ok_and(|child| child == test)
}

/// What the parent wants next, until it wants no more.
pub(crate) fn requests() -> impl Iterator<Item = String> {
    io::stdin().lines().map_while(Result::ok)
}

/// Answers the parent.
pub(crate) fn reply(text: &str) {
    println!("{REPLY_PREFIX}{text}");
}

/// Bytes as a text.
pub(crate) fn to_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of a text.
pub(crate) fn to_bytes(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

impl Child {
    /// Starts it.
    pub(crate) fn start(test: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD_VARIABLE, test);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let replies = BufReader::new(process.stdout.take().unwrap());
        Self { process, replies }
    }

    /// Its next answer.
    pub(crate) fn reply(&mut self) -> String {
        for line in self.replies.by_ref().lines() {
            if let Some((_, reply)) = line.unwrap().split_once(REPLY_PREFIX) {
                return reply.to_owned();
            }
        }
        panic!("the child has ended")
    }

    /// Wants something of it, and an answer.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.send(request);
        self.reply()
    }

    /// Wants something of it.
    pub(crate) fn send(&mut self, request: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{request}").unwrap();
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
