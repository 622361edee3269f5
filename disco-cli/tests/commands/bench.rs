//! `disco bench` and `disco plot`.

use std::collections::HashSet;
use std::path::PathBuf;

use super::{disco, err, out};

crate::trials::tests!("commands::bench":
    bench_prints_the_columns_of_nccl_tests,
    bench_finds_no_wrong_element_in_any_operation_or_dtype,
    plot_draws_several_results_with_a_color_per_series,
    bench_rejects_contradictory_sizes_and_unknown_names,
    bench_takes_the_short_options_of_nccl_tests,
    bench_without_checks_reports_wrong_elements_as_not_checked,
    bench_prints_the_average_bus_bandwidth_of_all_rows,
    bench_runs_the_iterations_of_n_and_the_warm_up_iterations_of_w,
    bench_warms_up_before_the_first_size_unless_warm_up_is_off,
    ten_series_differ_in_color_or_marker_and_each_point_has_a_marker,
    a_picture_that_is_not_svg_or_not_writable_is_rejected_before_the_measurement,
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

fn plot_draws_several_results_with_a_color_per_series() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
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
    // Per series: a line in each of two panels, and one in the legend below them.
    let lines = |picture: &str, color: &str| picture.matches(&format!("stroke=\"{color}\"")).count();
    for (color, of_one) in [("#0072B2", 3), ("#D55E00", 3), ("#009E73", 0), ("#CC79A7", 0)] {
        assert_eq!((lines(&one, color), lines(&both, color)), (of_one, 3), "{color}");
    }
    let pages = [path("one.html"), path("both.html")];
    bench(&["all_reduce", "--max-bytes", "64", "--plot", &pages[0]]);
    let drawn = disco(&["plot", &results[0], &results[1], "--out", &pages[1]]);
    assert!(drawn.status.success(), "{}", err(&drawn));
    let [one, both] = pages.map(|path| std::fs::read_to_string(path).unwrap());
    assert!(one.contains("<h1>all_reduce on local, 3 workers (threads)</h1>"), "{one}");
    for (page, series) in [(&one, 2), (&both, 4)] {
        // Two pictures, with a line for each series and a point for each of four sizes.
        assert_eq!(page.matches("<polyline").count(), 2 * series);
        assert_eq!(page.matches("<circle").count(), 2 * series * 4);
        assert_eq!(page.matches("<tr><td>").count(), 2 * series, "{page}");
        assert!(!page.contains("http") && !page.contains("src="), "{page}");
    }
    let missing = disco(&["plot", &path("none.json"), "--out", &path("none.svg")]);
    assert!(!missing.status.success() && err(&missing).contains("none.json"), "{}", err(&missing));
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

fn ten_series_differ_in_color_or_marker_and_each_point_has_a_marker() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let mut args = vec!["plot".to_owned()];
    for operation in ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"] {
        let json = bench(&[operation, "-e", "16", "-n", "5"]);
        args.push(path(&format!("marks-{operation}.json")));
        std::fs::write(args.last().unwrap(), json.to_string()).unwrap();
    }
    args.extend(["--out".to_owned(), path("marks.svg")]);
    let drawn = disco(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(drawn.status.success(), "{}", err(&drawn));
    let picture = std::fs::read_to_string(path("marks.svg")).unwrap();
    let colors: HashSet<&str> = picture
        .lines()
        .filter(|line| line.starts_with("<polyline"))
        .filter_map(|line| line.split_once("stroke=\"")?.1.split('"').next())
        .filter(|color| *color != "#000000")
        .collect();
    assert!(colors.len() >= 9, "ten series, one of them black: {colors:?}");
    // Two panels, each with two sizes, and a legend, for each of ten series.
    let marks = picture.lines().filter(|line| line.starts_with("<polygon")).count();
    assert_eq!(marks, 10 * (2 * 2 + 1), "{picture}");
}

fn a_picture_that_is_not_svg_or_not_writable_is_rejected_before_the_measurement() {
    let refused = |args: &[&str]| {
        let output = disco(args);
        assert!(!output.status.success() && output.stdout.is_empty(), "{}", out(&output));
        err(&output)
    };
    for args in [&["bench", "all_reduce", "--plot", "x.png"][..], &["plot", "x.json", "--out", "x.png"]] {
        let text = refused(args);
        assert!(text.contains("invalid value 'x.png'"), "{text}");
        assert!(text.contains("pictures are written as SVG: name the file x.svg"), "{text}");
    }
    let text = refused(&["bench", "all_reduce", "--plot", "/nowhere/x.svg"]);
    assert_eq!(text, "disco: can't write /nowhere/x.svg: No such file or directory (os error 2)\n");
    // A failed run keeps the picture of an earlier run.
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("earlier.svg");
    std::fs::write(&path, "earlier").unwrap();
    let none = path.with_file_name("none.json");
    refused(&["plot", none.to_str().unwrap(), "--out", path.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "earlier");
}
