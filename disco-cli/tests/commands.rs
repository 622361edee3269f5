//! The `disco` command, as users run it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Command, Output};

fn disco(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_disco")).args(args).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn backends_lists_what_there_is() {
    let listed = disco(&["backends"]);
    assert!(listed.status.success());
    let local = format!("local    available    {} (built in)\n", env!("CARGO_PKG_VERSION"));
    assert!(out(&listed).contains(&local), "{}", out(&listed));
    let json: serde_json::Value = serde_json::from_slice(&disco(&["backends", "--json"]).stdout).unwrap();
    let local = json.as_array().unwrap().iter().find(|backend| backend["name"] == "local").unwrap();
    assert_eq!(local["available"], true);
}

#[test]
fn a_required_backend_that_is_absent_is_an_error_with_the_reason() {
    assert!(disco(&["backends", "--require", "local"]).status.success());
    let absent = disco(&["backends", "--require", "ucc"]);
    assert_eq!(absent.status.code(), Some(1));
    assert_eq!(
        err(&absent),
        "disco: backend `ucc` is required: backend `ucc` is not available; \
         tried the backends compiled into this program: it has cuda_p2p, local, mpi, nccl, rccl, rocm_p2p; \
         a backend of another crate is linked once the program mentions that crate: write `use the_crate as _;`\n"
    );
}

#[test]
fn ping_measures_syncs_and_calls() {
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

#[test]
fn ping_with_no_workers_says_why_not() {
    let none = disco(&["ping", "--workers", "0"]);
    assert_eq!(err(&none), "disco: 0 workers in 1 groups: a session needs at least 1 worker\n");
    assert_eq!(none.status.code(), Some(1));
}

#[test]
fn run_passes_the_session_on_and_the_status_back() {
    let script = "echo $DISCO_SESSION $DISCO_BACKEND $DISCO_WORKERS $DISCO_GROUPS $0; exit 7";
    let run = disco(&["run", "--workers", "4", "--groups", "2", "--", "sh", "-c", script, "arg"]);
    assert_eq!(out(&run), "threads local 4 2 arg\n");
    assert_eq!(run.status.code(), Some(7));
    let run = disco(&["run", "--session", "processes", "--", "sh", "-c", script, "arg"]);
    assert_eq!(out(&run), "processes local 1 1 arg\n");
    let unknown = err(&disco(&["run", "--session", "clouds", "--", "true"]));
    assert!(unknown.contains("`clouds`: the kinds of session are: threads, processes"), "{unknown}");
}

#[test]
fn run_refuses_what_can_not_work_before_it_starts_anything() {
    let text = |args: &[&str]| err(&disco(&[&["run"], args, &["--", "sh", "-c", "echo started"]].concat()));
    assert_eq!(
        text(&["--workers", "4", "--groups", "3"]),
        "disco: 4 workers in 3 groups: groups must be of equal size\n"
    );
    assert!(text(&["--backend", "ucc"]).starts_with("disco: backend `ucc` is not available"));
    let missing = disco(&["run", "--", "no-such-program"]);
    assert_eq!(err(&missing), "disco: can't run `no-such-program`: No such file or directory (os error 2)\n");
    assert!(!missing.status.success());
}

#[test]
fn completions_and_version_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(out(&disco(&["completions", shell])).contains("backends"), "{shell}");
    }
    assert_eq!(out(&disco(&["--version"])), format!("disco {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let script = format!("{} completions bash | head -n 1; exit 0", env!("CARGO_BIN_EXE_disco"));
    let piped = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(err(&piped), "");
}

#[test]
fn check_says_what_came_of_each_check_and_counts() {
    let checked = disco(&["check", "--workers", "2", "--filter", "all_reduce::i8"]);
    assert!(checked.status.success(), "{}{}", out(&checked), err(&checked));
    let lines: Vec<String> =
        ["sum", "prod", "min", "max", "avg"].map(|name| format!("all_reduce::i8::{name} ok")).to_vec();
    assert_eq!(out(&checked), format!("{}\n5 passed, 0 failed, 0 skipped\n", lines.join("\n")));
}

#[test]
fn check_skips_what_one_worker_can_not_show_and_says_so() {
    let checked = disco(&["check", "--workers", "1", "--filter", "abort::barrier"]);
    assert_eq!(
        out(&checked),
        "abort::barrier::a_worker_fails_and_the_others_return skipped: it takes two workers\n\
         0 passed, 0 failed, 1 skipped\n"
    );
    assert!(checked.status.success());
}

#[test]
fn check_prints_one_json_object() {
    let json = disco(&["check", "--workers", "4", "--groups", "2", "--filter", "::a_worker_panics", "--json"]);
    assert!(json.status.success(), "{}", err(&json));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let counts = [&json["passed"], &json["failed"], &json["skipped"]];
    assert_eq!(counts, [&serde_json::json!(1), &serde_json::json!(0), &serde_json::json!(0)]);
    assert_eq!(json["checks"][0]["name"], "abort::all_reduce::a_worker_panics_and_the_others_return");
    assert_eq!((&json["checks"][0]["outcome"], &json["checks"][0]["executed"]), (&"ok".into(), &2.into()));
}

#[test]
fn check_never_falls_back_to_another_backend() {
    let absent = disco(&["check", "--backend", "ucc"]);
    assert_eq!((absent.status.code(), out(&absent)), (Some(1), String::new()));
    assert_eq!(
        err(&absent),
        "disco: backend `ucc` is not available; tried the backends compiled into this program: it has cuda_p2p, local, mpi, nccl, rccl, rocm_p2p; \
         a backend of another crate is linked once the program mentions that crate: write `use the_crate as _;`\n"
    );
    let unknown = disco(&["check", "--filter", "all_produce"]);
    assert_eq!(
        (unknown.status.code(), err(&unknown)),
        (Some(1), "disco: no check has `all_produce` in its name\n".into())
    );
}

/// Every operation, as JSON.
fn bench(args: &[&str]) -> serde_json::Value {
    let output = disco(&[&["bench"], args, &["--workers", "3", "--min-bytes", "8", "--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", err(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn bench_prints_the_columns_of_nccl_tests() {
    let output = disco(&["bench", "reduce", "--workers", "2", "--min-bytes", "1K", "--max-bytes", "4K", "--root", "1"]);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("# disco ") && lines[0].contains("reduce, backend local (built in"), "{text}");
    let columns: Vec<&str> = lines[3].split_whitespace().collect();
    let [shared, each] = [["size", "count", "type", "redop", "root"].as_slice(), &["time", "algbw", "busbw", "wrong"]];
    assert_eq!(columns[1..], [shared, each, each].concat(), "{text}");
    let rows: Vec<Vec<&str>> =
        lines.iter().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows.iter().map(|row| row[..5].join(" ")).collect::<Vec<_>>(),
        ["1024 256 f32 sum 1", "2048 512 f32 sum 1", "4096 1024 f32 sum 1"]
    );
    assert!(rows.iter().all(|row| row.len() == 13), "{text}");
    assert!(text.ends_with("# wrong elements: 0\n"), "{text}");
}

#[test]
fn bench_finds_every_operation_right_on_every_dtype() {
    for operation in [
        "all_reduce",
        "reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "gather",
        "scatter",
        "all_to_all",
        "send_recv",
    ] {
        let json = bench(&[operation, "--max-bytes", "8K", "--factor", "1024", "--root", "2"]);
        let factor = match operation {
            "all_reduce" => 4.0 / 3.0,
            "reduce" | "broadcast" | "send_recv" => 1.0,
            _ => 2.0 / 3.0,
        };
        for row in json["rows"].as_array().unwrap() {
            for figures in [&row["out_of_place"], &row["in_place"]] {
                if operation == "send_recv" && figures.is_null() {
                    continue;
                }
                assert_eq!(figures["wrong"], 0, "{operation}: {row}");
                let [algbw, busbw] = ["algbw", "busbw"].map(|name| figures[name].as_f64().unwrap());
                assert!((busbw - algbw * factor).abs() <= 1e-9 * busbw, "{operation}: {row}");
            }
        }
    }
    for dtype in ["bool", "i8", "u16", "i64", "f16", "bf16", "f64", "f8e4m3", "f8e5m2"] {
        let json = bench(&["all_reduce", "--max-bytes", "8", "--dtype", dtype, "--op", "max"]);
        assert_eq!(json["rows"][0]["out_of_place"]["wrong"], 0, "{dtype}");
        assert_eq!(json["rows"][0]["type"], dtype);
    }
}

#[test]
fn results_of_bench_are_drawn_over_each_other() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let one = path("one.svg");
    let mut results = Vec::new();
    for operation in ["all_reduce", "broadcast"] {
        let json = bench(&[operation, "--max-bytes", "64", "--plot", &one]);
        results.push(path(&format!("{operation}.json")));
        std::fs::write(results.last().unwrap(), json.to_string()).unwrap();
    }
    let both = path("both.svg");
    let drawn = disco(&["plot", &results[0], &results[1], "--out", &both]);
    assert!(drawn.status.success(), "{}", err(&drawn));
    let [one, both] = [one, both].map(|path| std::fs::read_to_string(path).unwrap());
    for picture in [&one, &both] {
        assert!(picture.trim_end().ends_with("</svg>"));
        for label in ["size (bytes)", "time (µs)", "busbw (GB/s)", "broadcast f32, local, 3 threads, in place"] {
            assert!(picture.contains(label), "{label}");
        }
    }
    // Each series has a color of its own: a line in each panel, and one in its legend.
    let lines = |picture: &str, color: &str| picture.matches(&format!("stroke=\"{color}\"")).count();
    for (color, of_one) in [("#0072B2", 4), ("#D55E00", 4), ("#009E73", 0), ("#CC79A7", 0)] {
        assert_eq!((lines(&one, color), lines(&both, color)), (of_one, 4), "{color}");
    }
    let missing = disco(&["plot", &path("none.json"), "--out", &path("none.svg")]);
    assert!(!missing.status.success() && err(&missing).contains("none.json"), "{}", err(&missing));
}

#[test]
fn bench_refuses_what_makes_no_sense() {
    let refused = |args: &[&str]| {
        let output = disco(&[&["bench", "all_reduce"], args].concat());
        assert!(!output.status.success());
        err(&output)
    };
    assert!(refused(&["--min-bytes", "1M", "--max-bytes", "1K"]).contains("--min-bytes is larger than --max-bytes"));
    assert!(refused(&["--max-bytes", "12X"]).contains("unknown unit `X`"));
    assert!(refused(&["--factor", "1"]).contains("1 is not in 2.."));
    assert!(refused(&["--dtype", "float"]).contains("unknown dtype `float`"));
    assert!(refused(&["--op", "xor"]).contains("unknown reduction `xor`"));
    assert!(refused(&["--root", "2"]).contains("--root 2 is none of 2 workers"));
    assert!(refused(&["--backend", "ucc"]).contains("backend `ucc` is not available"));
}
