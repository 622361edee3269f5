//! End-to-end tests of `disco run --record` and `disco replay`.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

#[path = "../../../tests/nodes/by_store.rs"]
mod by_store;
mod program;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;

/// Environment variable that makes this executable run another `main`: the command, or the program with its actions.
const PROGRAM: &str = "DISCO_TEST_PROGRAM";

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("disco-replay-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn main() -> ExitCode {
    match env::var(PROGRAM).as_deref() {
        // With the backend of this program.
        Ok("disco") => return disco_cli::main("disco"),
        Ok(how) => return program::main(how),
        Err(_) => {}
    }
    let tests: [(&str, fn()); 12] = [
        ("a_replay_makes_the_recorded_commands_calls_and_operations", same),
        ("a_replay_in_another_world_repeats_groups_and_positions", other_worlds),
        ("a_replay_launches_the_operations_of_a_group_together", groups),
        ("a_replay_on_nodes_makes_the_collectives", nodes),
        ("a_replay_is_a_program_of_disco_run", in_run),
        ("a_replay_of_a_failed_program_ends_at_the_failure_and_says_so", failed),
        ("a_replay_leaves_out_what_a_failed_worker_skipped_before_a_recovery", recovered),
        ("a_replay_of_a_program_that_lost_a_worker_prints_the_loss", lost),
        ("a_replay_of_a_program_that_replaced_a_worker_has_the_calls_of_the_new_worker", replaced),
        ("a_replay_of_a_killed_program_makes_its_last_commands", killed),
        ("files_that_are_no_whole_log_have_a_clear_text", refused),
        ("a_file_that_cannot_be_written_is_a_warning_with_its_path", unwritable),
    ];
    let trials = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

/// This executable as the command `disco`.
fn disco(args: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(PROGRAM, "disco").args(args);
    command
}

/// Records the program with 4 workers in 2 groups. `how` selects its actions.
fn record(how: &str, session: &str, file: &Path) -> Output {
    let this = env::current_exe().unwrap();
    let file = file.to_str().unwrap();
    let set = format!("{PROGRAM}={how}");
    let mut run = disco(&["run", "--workers", "4", "--groups", "2", "--session", session, "--record", file, "--"]);
    run.args(["env", &set, this.to_str().unwrap()]).output().unwrap()
}

/// Records a program that succeeds.
fn recording(folder: &Folder, session: &str) -> PathBuf {
    let file = folder.file("commands.jsonl.gz");
    let output = record("all", session, &file);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(err(&output), "");
    file
}

/// The output of a replay without pauses.
fn replay(file: &Path, args: &[&str]) -> Value {
    let output = disco(&[&["replay", file.to_str().unwrap(), "--json", "--as-fast-as-possible"], args].concat());
    let output = { output }.output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", err(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Recorded and replayed numbers of a table, by name.
fn numbers(report: &Value, table: &str, name: &str) -> Vec<(String, u64, u64)> {
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let rows = report[table].as_array().unwrap().iter();
    rows.map(|row| (row[name].as_str().unwrap().to_owned(), number(row, "recorded"), number(row, "replayed"))).collect()
}

/// Recorded and replayed numbers of calls of functions.
fn calls<const N: usize>(report: &Value, functions: [&str; N]) -> [Option<(u64, u64)>; N] {
    let rows = numbers(report, "functions", "name");
    functions.map(|name| rows.iter().find(|(function, ..)| function == name).map(|row| (row.1, row.2)))
}

/// Checks that calls of `replay.step` and the operations inside were replayed, and no other operations.
fn check_steps(report: &Value, steps: u64) {
    assert_eq!(calls(report, ["replay.step"]), [Some((steps, steps))]);
    let number = 4 * steps;
    let expected = ["all_gather", "all_reduce"].map(|kind| (kind.to_owned(), number, number));
    assert_eq!(numbers(report, "operations", "name"), expected);
}

/// The numbers of the program's operations: recorded, and replayed by `times` as many workers.
fn operations(workers: u64, sends: u64) -> Vec<(String, u64, u64)> {
    let each = |kind: &str, of_worker: u64| (kind.to_owned(), 4 * of_worker, workers * of_worker);
    vec![
        each("all_gather", 5),
        each("all_gather_v", 1),
        each("all_reduce", 6),
        each("all_to_all_v", 1),
        each("barrier", 1),
        each("broadcast", 1),
        each("gather", 1),
        ("recv".to_owned(), 3, sends),
        each("reduce_scatter", 1),
        each("scatter", 1),
        ("send".to_owned(), 3, sends),
    ]
}

/// Checks that all commands and calls were replayed, and nothing else.
fn check_commands(report: &Value) {
    let kinds = numbers(report, "kinds", "kind");
    assert!(kinds.iter().all(|(_, recorded, replayed)| recorded == replayed), "{kinds:?}");
    let sum: u64 = kinds.iter().map(|(_, _, replayed)| replayed).sum();
    assert_eq!((&report["commands"]["recorded"], &report["commands"]["replayed"]), (&sum.into(), &sum.into()));
    let of = |name: &str| kinds.iter().find(|(kind, ..)| kind == name).map(|(_, number, _)| *number);
    assert_eq!(
        ["get", "get_all", "set", "sync_worker", "copy_from_worker_0", "copy_to_worker_0"].map(of),
        [21, 1, 8, 2, 1, 2].map(Some)
    );
    // One of `init_ccl`, and 20 of two threads.
    assert_eq!(of("sync_all"), Some(21));
    let functions = numbers(report, "functions", "name");
    assert!(functions.iter().all(|(_, recorded, replayed)| recorded == replayed), "{functions:?}");
    assert_eq!(
        calls(report, ["replay.make", "replay.step", "replay.split", "disco.all_reduce", "disco.empty"]),
        [Some((21, 21)), Some((5, 5)), Some((1, 1)), Some((1, 1)), None]
    );
    let waits = numbers(report, "waits", "name");
    assert!(waits.iter().all(|(_, recorded, replayed)| recorded == replayed), "{waits:?}");
    assert_eq!(waits.iter().map(|(_, number, _)| number).sum::<u64>(), 21 + 1 + 8 + 2 + 21);
    let left_out = ["sampled_calls", "calls_without_duration"].map(|key| report[key].as_u64().unwrap());
    assert_eq!(left_out, [0, 0]);
}

fn same() {
    let folder = Folder::new("same");
    for recorded in ["threads", "processes"] {
        let file = recording(&folder, recorded);
        for replayed in ["threads", "processes"] {
            let report = replay(&file, &["--session", replayed]);
            check_commands(&report);
            assert_eq!(numbers(&report, "operations", "name"), operations(4, 3), "{recorded}, {replayed}");
            assert_eq!((&report["split_operations"], &report["incomplete_operations"]), (&4.into(), &0.into()));
            assert_eq!(
                [&report["recorded"]["session"], &report["replayed"]["session"], &report["replayed"]["backend"]],
                [recorded, replayed, "local"]
            );
        }
    }
    let text =
        disco(&["replay", folder.file("commands.jsonl.gz").to_str().unwrap(), "--speed", "10"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains(": 4 workers (processes, 2 groups, local), as 4 workers (processes, 2 groups, local)\n"),
        "{text}"
    );
    assert!(text.contains("\n4 operations of communicators that the program had split off are left out;"), "{text}");
}

fn other_worlds() {
    let folder = Folder::new("worlds");
    let file = recording(&folder, "threads");
    let report = replay(&file, &["--workers", "6", "--groups", "3"]);
    check_commands(&report);
    // Group 2 stands in for group 0, and has no next group.
    assert_eq!(numbers(&report, "operations", "name"), operations(6, 4));
    assert_eq!(report["incomplete_operations"], 2);
    let report = replay(&file, &["--workers", "2", "--groups", "1", "--session", "processes"]);
    check_commands(&report);
    assert_eq!(numbers(&report, "operations", "name"), operations(2, 1));
    let report = replay(&file, &["--apart"]);
    check_commands(&report);
    assert_eq!(report["replayed"]["session"], "processes");
    let uneven = disco(&["replay", file.to_str().unwrap(), "--workers", "3"]).output().unwrap();
    assert_eq!(err(&uneven), "disco: 3 workers in 2 groups: groups must be of equal size\n");
}

fn groups() {
    let folder = Folder::new("groups");
    let file = folder.file("commands.jsonl.gz");
    let output = record("groups", "threads", &file);
    assert!(output.status.success(), "{}", err(&output));
    let each = |kind: &str, of_worker: u64| (kind.to_owned(), 4 * of_worker, 4 * of_worker);
    let expected =
        [("all_gather", 5), ("all_reduce", 6), ("broadcast", 1), ("recv", 2), ("send", 2)].map(|it| each(it.0, it.1));
    for session in ["threads", "processes"] {
        let report = replay(&file, &["--session", session]);
        assert_eq!(numbers(&report, "operations", "name"), expected);
        assert_eq!(report["incomplete_operations"], 0);
    }
}

fn nodes() {
    let folder = Folder::new("nodes");
    let file = recording(&folder, "threads");
    let report = replay(&file, &["--session", "nodes", "--groups", "1", "--backend", "by-store"]);
    check_commands(&report);
    // All workers are in one group, so none sends to the next; workers 2 and 3 stand in for 0 and 1.
    assert_eq!(numbers(&report, "operations", "name"), operations(4, 2));
    let report =
        replay(&file, &["--session", "nodes", "--nodes", "4", "--node-workers", "threads", "--backend", "none"]);
    check_commands(&report);
    let replayed = |(kind, recorded, _): (String, u64, u64)| (kind, recorded, 0);
    let expected: Vec<_> = operations(4, 3).into_iter().map(replayed).collect();
    assert_eq!(numbers(&report, "operations", "name"), expected);
}

fn in_run() {
    let folder = Folder::new("run");
    let file = recording(&folder, "threads");
    let this = env::current_exe().unwrap();
    let replay = [this.to_str().unwrap(), "replay", file.to_str().unwrap(), "--json", "--as-fast-as-possible"];
    let mut run = disco(&["run", "--session", "processes", "--workers", "2", "--"]);
    let output = run.args(replay).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    check_commands(&report);
    let replayed = &report["replayed"];
    assert_eq!(
        (&replayed["session"], &replayed["workers"], &replayed["groups"]),
        (&"processes".into(), &2.into(), &1.into())
    );
}

fn failed() {
    let folder = Folder::new("failed");
    let file = folder.file("commands.jsonl");
    let output = record("fail", "threads", &file);
    assert!(!output.status.success());
    let report = replay(&file, &[]);
    let failure = &report["failure"];
    assert_eq!(failure["function"], "replay.fail");
    let text = failure["error"].as_str().unwrap();
    assert!(text.contains("worker 1: replay.fail (command ") && text.contains("): on purpose"), "{text}");
    assert_eq!(
        calls(&report, ["replay.fail", "replay.make"]),
        [Some((1, 1)); 2],
        "the call of `replay.make` after the failure is left out"
    );
    check_steps(&report, 5);
    let text = disco(&["replay", file.to_str().unwrap(), "--session", "processes"]).output().unwrap();
    assert!(text.status.success(), "{}", err(&text));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("\nThe recorded program failed in command ")
            && text.contains("`replay.fail`; later ones are left out: "),
        "{text}"
    );
}

fn recovered() {
    let folder = Folder::new("recovered");
    let file = folder.file("commands.jsonl");
    let output = record("recover", "processes", &file);
    assert!(output.status.success(), "{}", err(&output));
    let report = replay(&file, &["--session", "threads"]);
    assert_eq!(report["failure"], Value::Null);
    assert_eq!(
        calls(&report, ["replay.make", "replay.fail"]),
        [Some((1, 1)); 2],
        "the workers skipped a second call of `replay.make`"
    );
    check_steps(&report, 6);
}

fn lost() {
    let folder = Folder::new("lost");
    let file = folder.file("commands.jsonl");
    let output = record("lose", "processes", &file);
    assert!(!output.status.success());
    let report = replay(&file, &["--session", "threads"]);
    let text = report["failure"]["error"].as_str().unwrap();
    assert!(text.contains("worker 1") && text.contains('7'), "{text}");
    assert_eq!(calls(&report, ["replay.leave"]), [Some((1, 1))]);
    // No worker has finished the barrier.
    check_steps(&report, 5);
}

fn replaced() {
    let folder = Folder::new("replaced");
    let file = folder.file("commands.jsonl");
    let output = record("replace", "processes", &file);
    assert!(output.status.success(), "{}", err(&output));
    let report = replay(&file, &["--session", "threads"]);
    assert_eq!(report["failure"], Value::Null);
    assert_eq!(calls(&report, ["replay.make", "replay.leave"]), [Some((2, 2)), Some((1, 1))]);
    check_steps(&report, 15);
    assert_eq!(
        [&report["sampled_calls"], &report["calls_without_duration"]],
        [0, 1],
        "the lost worker had no time to end"
    );
}

fn killed() {
    let folder = Folder::new("killed");
    let file = folder.file("commands.jsonl.gz");
    let output = record("kill", "threads", &file);
    assert!(!output.status.success());
    let report = replay(&file, &["--session", "processes"]);
    // The records of the workers were collected while the program ran.
    assert_eq!((&report["is_cut"], &report["calls_without_duration"]), (&true.into(), &0.into()));
    check_steps(&report, 5);
    let functions = numbers(&report, "functions", "name");
    assert_eq!(functions, [("replay.make".into(), 1, 1), ("replay.step".into(), 5, 5)]);
}

fn refused() {
    let folder = Folder::new("refused");
    let file = recording(&folder, "threads");
    let whole = fs::read(&file).unwrap();
    let path = folder.file("other");
    let text = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        let output = disco(&["replay", path.to_str().unwrap(), "--as-fast-as-possible"]).output().unwrap();
        let (out, err) = (String::from_utf8(output.stdout.clone()).unwrap(), err(&output));
        if output.status.success() { out } else { err }
    };
    let expected = |line: u32, why: &str| format!("disco: {}, line {line}: {why}", path.display());
    let not_a_log = "this is no log of commands that Disco has recorded";
    assert_eq!(text(b""), expected(1, &format!("{not_a_log}: the file is empty\n")));
    for garbage in [&b"garbage\n"[..], b"{}\n", b"\xff\xfe\n", br#"{"traceEvents":[]}"#] {
        let text = text(garbage);
        assert!(text.starts_with(&expected(1, not_a_log)), "{text}");
    }
    let newer = br#"{"session":{"format":"disco commands 2","new":true}}"#;
    let why = "the format is `disco commands 2`; this version reads `disco commands 1`\n";
    assert_eq!(text(newer), expected(1, why));
    let cut = text(&whole[..whole.len() * 2 / 3]);
    assert!(cut.contains("\nThe log ends early: the program was killed, or still runs."), "{cut}");
    let head = r#"{"session":{"format":"disco commands 1","program":"p","disco":"0.1.0","session":"threads","workers":1,"groups":1,"nodes":1}}"#;
    let only_head = text(format!("{head}\n").as_bytes());
    assert!(only_head.contains("\nThe log ends early"), "{only_head}");
    assert!(text(format!("{head}\ngarbage\n").as_bytes()).starts_with(&expected(2, "no line of a log of commands: ")));
    let huge = r#"{"command":{"number":1,"time_ns":0,"kind":"call","callee":0,"register":1,"args":[{"sized":["bytes",9999999999]}]}}"#;
    let text = text(format!("{head}\n{huge}\n").as_bytes());
    assert_eq!(
        text,
        "disco: command 1 of the log, `call`, can't be replayed: bytes of 9999999999 bytes: a replay makes values of up to 1 GiB\n"
    );
    let missing = folder.file("missing");
    let output = disco(&["replay", missing.to_str().unwrap()]).output().unwrap();
    assert!(
        err(&output).starts_with(&format!("disco: can't read {}: No such file", missing.display())),
        "{}",
        err(&output)
    );
}

fn unwritable() {
    let folder = Folder::new("unwritable");
    let path = folder.file("no folder").join("commands.jsonl");
    let output = record("all", "threads", &path);
    assert!(output.status.success(), "{}", err(&output));
    let expected =
        format!("disco: no commands are recorded: can't write {}: No such file or directory", path.display());
    assert!(err(&output).starts_with(&expected), "{}", err(&output));
    // A full disk.
    let output = record("all", "threads", Path::new("/dev/full"));
    assert!(output.status.success(), "{}", err(&output));
    let expected =
        "disco: can't write /dev/full: No space left on device (os error 28); the log of commands ends there\n";
    assert_eq!(err(&output), expected);
}
