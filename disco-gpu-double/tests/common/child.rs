//! A test's other process: the same program, of which it runs one test. That test does something only there.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child as Process, ChildStdout, Command, Stdio};
use std::{env, io};

/// Which test is that of a child.
const VARIABLE: &str = "GPU_DOUBLE_TEST_CHILD";
/// What comes before an answer, after what the harness says.
const MARK: &str = "> ";

/// The other process, killed if it is not gone.
pub(crate) struct Child {
    process: Process,
    answers: BufReader<ChildStdout>,
}

/// Whether this process was started for this test.
pub(crate) fn is(test: &str) -> bool {
    env::var(VARIABLE).is_ok_and(|child| child == test)
}

/// What the parent wants next, until it wants no more.
pub(crate) fn wishes() -> impl Iterator<Item = String> {
    io::stdin().lines().map_while(Result::ok)
}

/// Answers the parent.
pub(crate) fn answer(text: &str) {
    println!("{MARK}{text}");
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
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(VARIABLE, test);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, answers }
    }

    /// Its next answer.
    pub(crate) fn answer(&mut self) -> String {
        for line in self.answers.by_ref().lines() {
            if let Some((_, answer)) = line.unwrap().split_once(MARK) {
                return answer.to_owned();
            }
        }
        panic!("the child has ended")
    }

    /// Wants something of it, and an answer.
    pub(crate) fn ask(&mut self, wish: &str) -> String {
        self.tell(wish);
        self.answer()
    }

    /// Wants something of it.
    pub(crate) fn tell(&mut self, wish: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{wish}").unwrap();
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
