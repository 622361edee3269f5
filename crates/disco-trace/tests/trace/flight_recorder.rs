//! Dumps for PyTorch's analyser.

use std::fs;
use std::path::Path;

use disco_trace::flight_recorder;

use crate::sample;

#[test]
fn each_worker_has_a_dump_with_its_collectives() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("dumps");
    flight_recorder::write(&sample::trace(), &folder).unwrap();
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["rank_0", "rank_1", "rank_2", "rank_3"]);
    let count = |rank: u32, text: &str| {
        let dump = fs::read(folder.join(format!("rank_{rank}"))).unwrap();
        dump.windows(text.len()).filter(|window| *window == text.as_bytes()).count()
    };
    assert_eq!([0, 1, 2, 3].map(|rank| count(rank, "profiling_name")), [10, 10, 9, 10], "worker 2 is late");
    assert_eq!([0, 1, 2, 3].map(|rank| count(rank, "nccl:all_reduce")), [4, 4, 3, 4]);
    assert_eq!([count(0, "[0, 1, 2, 3]"), count(0, "[0, 1]"), count(3, "[2, 3]")], [1, 1, 1]);
}

#[test]
fn collectives_that_later_records_have_replaced_on_one_worker_are_in_no_dump() {
    let mut trace = sample::trace();
    let recording = trace.workers[1].recording.as_mut().unwrap();
    recording.records.drain(..8);
    recording.replaced = 8;
    let folder = tempfile::tempdir().unwrap();
    flight_recorder::write(&trace, folder.path()).unwrap();
    let dump = fs::read(folder.path().join("rank_0")).unwrap();
    // Operations 3 to 7 of the world are left, and 2 and 3 of the group.
    let entries = dump.windows(14).filter(|window| window == b"profiling_name").count();
    assert_eq!(entries, 5 + 2);
}

#[test]
fn an_unwritable_folder_is_an_error_that_names_it() {
    let error = flight_recorder::write(&sample::trace(), Path::new("/proc/nowhere")).unwrap_err();
    assert_eq!(error.to_string(), "can't write /proc/nowhere");
}

#[test]
fn pythons_pickle_reads_a_dump() {
    let folder = tempfile::tempdir().unwrap();
    flight_recorder::write(&sample::trace(), folder.path()).unwrap();
    let script = "import pickle, sys; d = pickle.load(open(sys.argv[1], 'rb')); e = d['entries'][0]; \
        print(d['version'], len(d['entries']), e['process_group'][1], e['profiling_name'], e['input_sizes'], \
        e['time_discovered_completed_ns'] - e['time_created_ns'], e['duration_ms'], e['retired'])";
    let python = std::process::Command::new("python3").args(["-c", script]).arg(folder.path().join("rank_0")).output();
    let Ok(output) = python else {
        // `DISCO_REQUIRE` lists what a machine of the gate has; its libraries come by Python.
        assert!(std::env::var_os("DISCO_REQUIRE").is_none(), "DISCO_REQUIRE: no python3 on this machine");
        println!("skipped: no python3 on this machine");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "2.4 10 world nccl:all_reduce [[65536]] 360000 0.36 True\n", "{:?}", output.stderr);
}
