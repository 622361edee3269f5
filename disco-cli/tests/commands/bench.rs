//! `disco bench`.

use super::{disco, err, out};

crate::trials::tests!("commands::bench":
    bench_prints_the_columns_of_nccl_tests,
    bench_finds_no_wrong_element_in_any_operation_or_dtype,
    bench_rejects_contradictory_sizes_and_unknown_names,
    bench_takes_the_short_options_of_nccl_tests,
    bench_without_checks_reports_wrong_elements_as_not_checked,
    bench_prints_the_average_bus_bandwidth_of_all_rows,
    bench_runs_the_iterations_of_n_and_the_warm_up_iterations_of_w,
    bench_warms_up_before_the_first_size_unless_warm_up_is_off,
);

/// The JSON report of `disco bench` with 3 workers.
fn bench(args: &[&str]) -> serde_json::Value {
    let output = disco(&[&["bench"], args, &["--workers", "3", "--min-bytes", "8", "--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", err(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

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

fn bench_finds_no_wrong_element_in_any_operation_or_dtype() {
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
        let sizes = [operation, "--max-bytes", "8K", "--factor", "1024"];
        let root: &[&str] = match operation {
            "reduce" | "broadcast" | "gather" | "scatter" => &["--root", "2"],
            _ => &[],
        };
        let json = bench(&[&sizes, root].concat());
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

fn bench_rejects_contradictory_sizes_and_unknown_names() {
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
    assert!(refused(&["--root", "2"]).contains("--root 2 is out of range: the session has 2 workers"));
    assert!(refused(&["--backend", "ucc"]).contains("backend `ucc` is not available"));
}

/// The output of `disco bench`, and its rows split into columns.
fn table(args: &[&str]) -> (String, Vec<Vec<String>>) {
    let output = disco(&[&["bench"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", err(&output));
    let text = out(&output);
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let rows = rows.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    (text, rows)
}

fn bench_takes_the_short_options_of_nccl_tests() {
    let (text, rows) =
        table(&["all_reduce", "-b", "1K", "-e", "16K", "-f", "4", "-g", "3", "-n", "7", "-w", "2", "-c", "1"]);
    assert!(text.lines().next().unwrap().contains("3 workers"), "{text}");
    assert_eq!(rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["1024", "4096", "16384"]);
    assert!(rows.iter().all(|row| (row[8].as_str(), row[12].as_str()) == ("0", "0")), "{text}");
}

fn bench_without_checks_reports_wrong_elements_as_not_checked() {
    let (text, rows) = table(&["broadcast", "-b", "8", "-e", "8", "-c", "0"]);
    assert!(rows.iter().all(|row| (row[8].as_str(), row[12].as_str()) == ("N/A", "N/A")), "{text}");
    assert!(text.ends_with("# wrong elements: not checked\n"), "{text}");
    let json = bench(&["broadcast", "-e", "8", "-c", "0"]);
    assert!(json["rows"][0]["out_of_place"]["wrong"].is_null(), "{json}");
}

fn bench_prints_the_average_bus_bandwidth_of_all_rows() {
    let (text, rows) = table(&["all_gather", "-b", "1M", "-e", "2M", "-n", "5"]);
    let busbw: Vec<f64> = rows.iter().flat_map(|row| [&row[7], &row[11]]).map(|cell| cell.parse().unwrap()).collect();
    let line = text.lines().find_map(|line| line.strip_prefix("# Avg bus bandwidth    : ")).unwrap();
    let expected = busbw.iter().sum::<f64>() / busbw.len() as f64;
    assert!((line.parse::<f64>().unwrap() - expected).abs() <= 0.01, "{text}");
    let json = bench(&["all_gather", "-e", "8"]);
    assert!(json["avg_busbw"].as_f64().unwrap() > 0.0, "{json}");
}

fn bench_runs_the_iterations_of_n_and_the_warm_up_iterations_of_w() {
    let iterations = |args: &[&str]| {
        let json = bench(&[&["all_reduce", "-e", "8"], args].concat());
        let row = &json["rows"][0];
        [&row["out_of_place"], &row["in_place"]]
            .map(|figures| [&figures["iters"], &figures["warmup_iters"]].map(|count| count.as_u64().unwrap()))
    };
    assert_eq!(iterations(&["-n", "7", "-w", "0"]), [[7, 0]; 2]);
    assert_eq!(iterations(&["-n", "1", "-w", "9"]), [[1, 9]; 2]);
    for [iters, warmup_iters] in iterations(&[]) {
        assert!(iters >= 5 && warmup_iters == 3, "defaults: {iters} iterations after {warmup_iters}");
    }
}

fn bench_warms_up_before_the_first_size_unless_warm_up_is_off() {
    let initial = |args: &[&str]| {
        let json = bench(&[&["all_reduce", "-e", "8", "-n", "1"], args].concat());
        json["initial_warmup_iters"].as_u64().unwrap()
    };
    assert!(initial(&[]) > 0);
    assert_eq!(initial(&["-w", "0"]), 0);
}
