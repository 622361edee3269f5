//! Option values: errors for invalid ones, and the lists in `--help`.

use std::process::Command;

use super::{disco, err, out};

crate::trials::tests!("commands::options":
    arguments_that_are_no_utf_8_reach_the_program,
    errors_quote_the_invalid_value_and_its_option,
    a_node_of_tvm_refuses_addresses_outside_of_the_loopback_and_names_the_flag,
    a_worker_of_tvm_needs_its_place_or_prints_the_entry_module,
    an_address_without_a_port_is_rejected_by_the_parser,
    options_without_effect_are_rejected,
    the_words_of_a_launcher_may_have_quotes,
    help_lists_the_values_of_every_enum,
    commands_without_a_session_leave_the_role_of_a_launcher,
);

/// The error that the command prints when it rejects its command line.
fn refused(args: &[&str]) -> String {
    let output = disco(args);
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}: {}", out(&output));
    err(&output)
}

/// The first line of that error.
fn first_line(args: &[&str]) -> String {
    refused(args).lines().next().unwrap().to_owned()
}

/// Words before `--`, of each command that becomes a program.
fn arguments_that_are_no_utf_8_reach_the_program() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    for words in [
        "run",
        "run --restart 1",
        "worker --connect 127.0.0.1:9",
        "tvm-worker 1 2 1 0 1",
        "tvm-node --connect 127.0.0.1:9",
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_disco"));
        command.args(words.split(' ')).args(["--", "/bin/echo"]).arg(OsStr::from_bytes(b"caf\xe9"));
        let output = command.env("DISCO_TOKEN", "8d15c6f5e0a94c3f8d15c6f5e0a94c3f").output().unwrap();
        assert_eq!(output.stdout, b"caf\xe9\n", "{words}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn errors_quote_the_invalid_value_and_its_option() {
    let invalid =
        |value: &str, option: &str, why: &str| format!("error: invalid value '{value}' for '{option}': {why}");
    let workers = |value| invalid(value, "--workers <WORKERS>", "a session has at least 1 worker");
    for command in [&["ping"][..], &["bench", "all_reduce"], &["check"], &["run"]] {
        let program: &[&str] = if command == ["run"] { &["--", "true"] } else { &[] };
        let line = first_line(&[command, &["--workers", "0"], program].concat());
        assert!(line.ends_with(": a session has at least 1 worker"), "{line}");
        assert!(line.contains("'0'") && line.contains("--workers <WORKERS>"), "{line}");
    }
    assert_eq!(first_line(&["ping", "--workers", "0"]), workers("0"));
    assert_eq!(
        first_line(&["ping", "--workers", "four"]),
        invalid("four", "--workers <WORKERS>", "`four` is not a whole number")
    );
    let nodes = "a session has at least 1 node, which is this machine";
    assert_eq!(first_line(&["run", "--nodes", "0", "--", "true"]), invalid("0", "--nodes <NODES>", nodes));
    assert_eq!(first_line(&["ping", "--session", "nodes", "--nodes", "0"]), invalid("0", "--nodes <NODES>", nodes));
    let groups = "workers are in at least 1 group";
    assert_eq!(first_line(&["check", "--groups", "0"]), invalid("0", "--groups <GROUPS>", groups));
    let min = "--min-bytes <MIN_BYTES>";
    assert_eq!(
        first_line(&["bench", "all_reduce", "--min-bytes", "0"]),
        invalid("0", min, "a size is at least 1 byte")
    );
    let size = "a size is a whole number of bytes, or of K, M or G (powers of 1,024), such as 64K";
    assert_eq!(
        first_line(&["bench", "all_reduce", "--min-bytes", "1e6"]),
        invalid("1e6", min, &format!("`1e6` is not a size: {size}"))
    );
}

fn a_node_of_tvm_refuses_addresses_outside_of_the_loopback_and_names_the_flag() {
    assert_eq!(
        refused(&["tvm-node", "--connect", "192.0.2.1:9000"]),
        "disco: the node: 192.0.2.1:9000 is not an address of the loopback, and TVM's sessions over sockets have no \
         authentication; if only trusted processes can reach it, say so with `--without-authentication` of `disco tvm-node`, or in a \
         program that calls `disco::tvm::join` with `Authentication::Without`\n"
    );
    let late = refused(&["tvm-node", "--connect", "127.0.0.1:1", "--wait", "0", "--without-authentication"]);
    assert!(late.starts_with("disco: TVM's controller does not answer at 127.0.0.1:1 within 0ns: "), "{late}");
    let expected = "error: invalid value 'foo' for '--connect <HOST:PORT>': `foo` is not HOST:PORT: the port is missing, as in foo:4567";
    assert_eq!(first_line(&["tvm-node", "--connect", "foo"]), expected);
}

fn a_worker_of_tvm_needs_its_place_or_prints_the_entry_module() {
    let printed = disco(&["tvm-worker", "--entry-module"]);
    assert!(printed.status.success());
    let module = include_str!("../../python/disco_tvm.py");
    assert_eq!(out(&printed), module);
    let printed = disco(&["tvm-worker", "--entry-module", "--", "/opt/t\"rain", "--fast"]);
    let program = r#"PROGRAM = ["/opt/t\"rain","--fast"]"#;
    assert_eq!(out(&printed), module.replace("PROGRAM = [\"disco\"]", program));
    assert!(refused(&["tvm-worker", "1", "2"]).contains("<GROUPS>"));
    assert_eq!(
        refused(&["tvm-worker", "0", "2", "1", "0", "1"]),
        "disco: worker 0 of 2 of a session of TVM: worker 0 is a thread of TVM's controller, so the id must be 1 to 1\n"
    );
    let closed = refused(&["tvm-worker", "1", "2", "1", "987", "1"]);
    assert!(
        closed.starts_with("disco: descriptor 987, for commands of TVM's session, is not an open pipe: "),
        "{closed}"
    );
}

fn an_address_without_a_port_is_rejected_by_the_parser() {
    let expected = "error: invalid value 'foo' for '--connect <HOST:PORT>': `foo` is not HOST:PORT: the port is missing, as in foo:4567";
    assert_eq!(first_line(&["worker", "--connect", "foo"]), expected);
    let listen = first_line(&["run", "--nodes", "2", "--listen", "0.0.0.0", "--", "true"]);
    assert!(listen.ends_with("`0.0.0.0` is not HOST:PORT: the port is missing, as in 0.0.0.0:4567"), "{listen}");
}

const APART_OF_THREADS: &str = "--apart (or DISCO_APART=1) needs workers that are processes, but those of `--session threads` are threads; use `--session \
     processes`";

fn options_without_effect_are_rejected() {
    for (args, expected) in [
        (&["bench", "all_reduce", "--root", "1"][..], "--root 1 has no effect: all_reduce has no root"),
        (&["bench", "broadcast", "--op", "max"], "--op max has no effect: broadcast does not reduce"),
        (
            &["bench", "all_reduce", "--devices", "1,0"],
            "--devices has no effect: backend `local` keeps tensors in host memory",
        ),
        (
            &["check", "--backend", "local", "--devices", "1,0"],
            "--devices has no effect: backend `local` keeps tensors in host memory",
        ),
        (
            &["run", "--devices", "1,0", "--", "echo", "started"],
            "--devices has no effect: backend `local` keeps tensors in host memory",
        ),
        (&["ping", "--nodes", "3"], "--nodes has no effect without --session nodes"),
        (&["run", "--token-file", "token", "--", "echo", "started"], "--token-file has no effect without --nodes"),
        (&["run", "--listen", "0.0.0.0:1", "--", "echo", "started"], "--listen has no effect without --nodes"),
        (
            &["run", "--log-dir", "logs", "--", "echo", "started"],
            "--log-dir has no effect on workers that are threads, whose output is that of the program; use `--session processes`",
        ),
        (
            &["run", "--nodes", "2", "--session", "threads", "--", "echo", "started"],
            "--session threads runs on one machine, but --nodes asks for 2",
        ),
        (
            &["worker", "--connect", "127.0.0.1:9", "--workers-per-node", "2", "--", "echo", "started"],
            "--workers-per-node has no effect on PROGRAM: the controller chooses the number; a program that calls `disco::join` itself can set \
             `JoinOptions::per_node`",
        ),
        (
            &["tvm-node", "--connect", "127.0.0.1:9", "--without-authentication", "--", "echo", "started"],
            "--without-authentication has no effect on PROGRAM: start it without this command, and let it call `disco::tvm::join` with \
             `Authentication::Without`",
        ),
        (&["run", "--apart", "--session", "threads", "--", "echo", "started"], APART_OF_THREADS),
        (&["ping", "--apart", "--session", "threads"], APART_OF_THREADS),
    ] {
        assert_eq!(refused(args), format!("disco: {expected}\n"));
    }
}

fn the_words_of_a_launcher_may_have_quotes() {
    let launcher = r#"sh -c 'printf "%s\n" "$0" "$@"' a\ b"#;
    let run = disco(&["run", "--workers", "2", "--launcher", launcher, "--", "program", "c  d"]);
    assert_eq!((out(&run), err(&run)), ("a b\nprogram\nc  d\n".into(), String::new()));
    let refused = |launcher| first_line(&["run", "--launcher", launcher, "--", "true"]);
    let open = "a quote is not closed, or nothing follows the last backslash";
    assert_eq!(refused("sh -c 'a"), format!("error: invalid value 'sh -c 'a' for '--launcher <COMMAND>': {open}"));
    assert_eq!(refused(" "), "error: invalid value ' ' for '--launcher <COMMAND>': expected a command");
}

fn help_lists_the_values_of_every_enum() {
    for (command, values) in [
        ("bench", "[possible values: threads, processes, nodes]"),
        ("bench", "[possible values: bool, i8, u8,"),
        ("bench", "[possible values: sum, prod, min, max, avg]"),
        ("bench", "- send_recv:"),
        ("check", "[possible values: threads, processes, nodes]"),
        ("ping", "[possible values: threads, processes, nodes]"),
        ("run", "[possible values: threads, processes, nodes]"),
        ("run", "[possible values: cuda_p2p, local, mpi, nccl, rccl, rocm_p2p, tcp]"),
        ("completions", "[possible values: bash, elvish, fish, powershell, zsh]"),
    ] {
        // Joined into one line, because `--help` wraps at the width of the terminal.
        let help = out(&disco(&[command, "--help"])).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(values), "{command}: {values}: {help}");
    }
}

fn commands_without_a_session_leave_the_role_of_a_launcher() {
    // This task would wait for task 0.
    let task = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")];
    let listed = Command::new(env!("CARGO_BIN_EXE_disco")).arg("backends").envs(task).output().unwrap();
    assert!(listed.status.success() && out(&listed).contains("local"), "{}", err(&listed));
    let command = ["run", "--token-file", "session.token", "--", "true"];
    let run = Command::new(env!("CARGO_BIN_EXE_disco")).args(command).envs(task).output().unwrap();
    assert!(run.status.success(), "{}", err(&run));
}
