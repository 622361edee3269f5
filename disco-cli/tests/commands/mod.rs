//! End-to-end tests of the `disco` command.

mod apart;
mod bench;
mod options;
mod output;
mod restart;
mod trace;

use std::process::{Command, Output};

use disco_testing::terminal;

crate::trials::tests!("commands":
    backends_lists_local_as_available,
    a_required_backend_that_is_absent_is_an_error_with_the_reason,
    a_program_that_never_reads_its_settings_is_told_of,
    sessions_work_within_limits_of_files_and_of_the_address_space,
    the_soft_limit_of_open_files_is_raised_and_the_hard_one_is_named,
    ping_reports_latencies_of_syncs_and_rates_of_calls,
    run_sets_the_environment_of_the_program_and_returns_its_status,
    run_rejects_unequal_groups_and_unknown_backends_before_the_program_starts,
    completions_and_version_are_printed,
    check_prints_the_outcome_of_each_check_and_the_totals,
    check_with_one_worker_skips_checks_that_need_two_and_prints_the_reason,
    check_prints_one_json_object,
    check_of_an_unknown_backend_or_filter_is_an_error,
);

/// The tests of all files of this module.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, fn())> {
    [tests(), apart::tests(), bench::tests(), options::tests(), output::tests(), restart::tests(), trace::tests()]
        .into_iter()
        .flatten()
}

fn disco(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_disco")).args(args).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn backends_lists_local_as_available() {
    let listed = disco(&["backends"]);
    assert!(listed.status.success());
    let local = format!("local    available    {} (built in)\n", env!("CARGO_PKG_VERSION"));
    assert!(out(&listed).contains(&local), "{}", out(&listed));
    let json: serde_json::Value = serde_json::from_slice(&disco(&["backends", "--json"]).stdout).unwrap();
    let local = json.as_array().unwrap().iter().find(|backend| backend["name"] == "local").unwrap();
    assert_eq!(local["available"], true);
}

fn a_required_backend_that_is_absent_is_an_error_with_the_reason() {
    assert!(disco(&["backends", "--require", "local"]).status.success());
    let absent = disco(&["backends", "--require", "ucc"]);
    assert_eq!(absent.status.code(), Some(1));
    assert_eq!(
        err(&absent),
        "disco: backend `ucc` is required: backend `ucc` is not available; \
         tried the backends compiled into this program: it has cuda_p2p, local, mpi, nccl, rccl, rocm_p2p, tcp; \
         a backend of another crate is linked once the program mentions that crate: write `use the_crate as _;`\n"
    );
}

/// Runs `disco` with these arguments in a shell with these limits.
fn within(limits: &str, args: &str) -> Output {
    let script = format!("{limits}; exec {} {args}", env!("CARGO_BIN_EXE_disco"));
    Command::new("sh").args(["-c", &script]).output().unwrap()
}

fn a_program_that_never_reads_its_settings_is_told_of() {
    let run = disco(&["run", "--workers", "2", "--", "echo", "hello"]);
    assert!(run.status.success());
    assert_eq!(out(&run), "hello\n");
    assert_eq!(
        err(&run),
        "disco: `echo` has ended without reading the settings of `disco run`; a program reads them with `disco::from_env()` \
         or `Settings::from_env()`\n"
    );
    assert_eq!(err(&disco(&["run", "--", "echo", "hello"])), "", "there are no settings");
}

/// Sessions of processes reserve address space, and need little of it.
fn sessions_work_within_limits_of_files_and_of_the_address_space() {
    // In blocks of 512 bytes (dash) or 1 KiB: at most 1 GiB. In KiB: 4 GB and 100 GB.
    for limits in ["ulimit -f 1048576", "ulimit -v 4000000", "ulimit -v 100000000"] {
        let check = within(limits, "check --session processes --workers 3 --filter all_reduce::f32");
        assert!(check.status.success(), "{limits}: {}{}", out(&check), err(&check));
    }
    let ping = within("ulimit -f 8", "ping --session processes --workers 3 --rounds 1");
    assert!(!ping.status.success() && err(&ping).contains(" bytes (`ulimit -f`)"), "{}", err(&ping));
}

/// Each worker has some files in the controller.
fn the_soft_limit_of_open_files_is_raised_and_the_hard_one_is_named() {
    let ping = |limits: &str| within(limits, "ping --workers 30 --session processes --rounds 1");
    let raised = ping("ulimit -Sn 64");
    assert!(raised.status.success(), "{}", err(&raised));
    let said = err(&ping("ulimit -n 64"));
    assert!(
        said.contains("29 workers need about 148 open files here, and the hard limit is 64 (`ulimit -Hn`)"),
        "{said}"
    );
}

fn ping_reports_latencies_of_syncs_and_rates_of_calls() {
    for session in ["threads", "processes", "nodes"] {
        let json = disco(&["ping", "--workers", "4", "--session", session, "--rounds", "20", "--json"]);
        assert!(json.status.success(), "{}", err(&json));
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!((&json["workers"], &json["session"]), (&4.into(), &session.into()));
        for (measure, figure) in [
            ("sync_one", "median_us"),
            ("sync_one", "p99_us"),
            ("sync_all", "median_us"),
            ("calls_0_args", "per_call_us"),
            ("calls_4_args", "per_second"),
        ] {
            assert!(json[measure][figure].as_f64().unwrap() > 0.0, "{measure} {figure}");
        }
    }
    let text = out(&disco(&["ping", "--workers", "2", "--rounds", "20"]));
    assert!(text.starts_with("2 workers (threads), ") && text.contains("calls, 4 arguments"), "{text}");
}

fn run_sets_the_environment_of_the_program_and_returns_its_status() {
    let script = "echo $DISCO_SESSION $DISCO_BACKEND $DISCO_WORKERS $DISCO_GROUPS $0; exit 7";
    let options = ["--backend", "local", "--workers", "4", "--groups", "2"];
    let run = disco(&[&["run"], &options[..], &["--", "sh", "-c", script, "arg"]].concat());
    assert_eq!(out(&run), "threads local 4 2 arg\n");
    assert_eq!(run.status.code(), Some(7));
    let run = disco(&["run", "--session", "processes", "--", "sh", "-c", script, "arg"]);
    assert_eq!(out(&run), "processes 1 1 arg\n", "the program chooses the backend");
    let unknown = err(&disco(&["run", "--session", "clouds", "--", "true"]));
    assert!(unknown.contains("`clouds`: the kinds of session are: threads, processes"), "{unknown}");
}

fn run_rejects_unequal_groups_and_unknown_backends_before_the_program_starts() {
    let text = |args: &[&str]| err(&disco(&[&["run"], args, &["--", "sh", "-c", "echo started"]].concat()));
    assert_eq!(
        text(&["--workers", "4", "--groups", "3"]),
        "disco: 4 workers in 3 groups: groups must be of equal size\n"
    );
    assert!(text(&["--backend", "ucc"]).starts_with("disco: backend `ucc` is not available"));
    // `output` waits until the process that watches the program has closed standard error.
    for settings in [&[][..], &["--workers", "2"]] {
        let missing = disco(&[&["run"], settings, &["--", "no-such-program"]].concat());
        assert_eq!(err(&missing), "disco: can't run `no-such-program`: No such file or directory (os error 2)\n");
        assert!(!missing.status.success());
    }
}

fn completions_and_version_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(out(&disco(&["completions", shell])).contains("backends"), "{shell}");
    }
    assert_eq!(out(&disco(&["--version"])), format!("disco {}\n", env!("CARGO_PKG_VERSION")));
}

fn check_prints_the_outcome_of_each_check_and_the_totals() {
    let checked = disco(&["check", "--workers", "2", "--filter", "all_reduce::i8"]);
    assert!(checked.status.success(), "{}{}", out(&checked), err(&checked));
    let lines: Vec<String> =
        ["sum", "prod", "min", "max", "avg"].map(|name| format!("all_reduce::i8::{name} ok")).to_vec();
    assert_eq!(out(&checked), format!("{}\n5 passed, 0 failed, 0 skipped\n", lines.join("\n")));
}

fn check_with_one_worker_skips_checks_that_need_two_and_prints_the_reason() {
    let checked = disco(&["check", "--workers", "1", "--filter", "abort::barrier"]);
    assert_eq!(
        out(&checked),
        "abort::barrier::a_worker_fails_and_the_others_return skipped: it takes two workers\n\
         0 passed, 0 failed, 1 skipped\n"
    );
    assert!(checked.status.success());
}

fn check_prints_one_json_object() {
    let json = disco(&["check", "--workers", "4", "--groups", "2", "--filter", "::a_worker_panics", "--json"]);
    assert!(json.status.success(), "{}", err(&json));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let counts = [&json["passed"], &json["failed"], &json["skipped"]];
    assert_eq!(counts, [&serde_json::json!(1), &serde_json::json!(0), &serde_json::json!(0)]);
    assert_eq!(json["checks"][0]["name"], "abort::all_reduce::a_worker_panics_and_the_others_return");
    assert_eq!((&json["checks"][0]["outcome"], &json["checks"][0]["executed"]), (&"ok".into(), &2.into()));
}

fn check_of_an_unknown_backend_or_filter_is_an_error() {
    let absent = disco(&["check", "--backend", "ucc"]);
    assert_eq!((absent.status.code(), out(&absent)), (Some(1), String::new()));
    assert_eq!(
        err(&absent),
        "disco: backend `ucc` is not available; tried the backends compiled into this program: it has cuda_p2p, local, mpi, nccl, rccl, rocm_p2p, tcp; \
         a backend of another crate is linked once the program mentions that crate: write `use the_crate as _;`\n"
    );
    let unknown = disco(&["check", "--filter", "all_produce"]);
    assert_eq!(
        (unknown.status.code(), err(&unknown)),
        (Some(1), "disco: --filter matches no check: no name contains `all_produce`\n".into())
    );
}
