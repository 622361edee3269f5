//! The answers of programs.

use std::fs;
use std::thread;

use rustix::process::Signal;

use super::{Program, err, hangs, json, json_when, out, status};

crate::trials::tests!("status::ask":
    a_program_whose_main_thread_and_workers_are_stuck_answers,
    all_sessions_of_a_program_are_listed,
    a_node_answers_for_its_part_of_the_session,
    a_stopped_program_is_listed_as_stopped,
    a_program_that_is_killed_is_no_longer_listed,
    a_program_with_disco_status_0_does_not_answer,
);

fn a_program_whose_main_thread_and_workers_are_stuck_answers() {
    for kind in ["threads", "processes"] {
        let program = Program::start(kind, |_| {});
        let id = program.id();
        let shown = json_when(&program, &[], hangs);
        assert_eq!(shown["process"], id);
        let [session] = &shown["sessions"].as_array().unwrap()[..] else { panic!("{shown:#}") };
        assert_eq!((&session["groups"], &session["commands"], &session["failure"]), (&2.into(), &7.into(), &().into()));
        let workers = session["workers"].as_array().unwrap();
        for worker in workers {
            let is_thread = kind == "threads" || worker["worker"] == 0;
            let (process, thread) = (worker["process"].as_u64().unwrap(), worker["thread"].as_u64().unwrap());
            assert_eq!(process == u64::from(id), is_thread, "{worker:#}");
            assert!(fs::exists(format!("/proc/{process}/task/{thread}")).unwrap(), "{worker:#}");
        }
        let text = out(&status(&[&id.to_string()]));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with(&format!("process {id} (`cli-")) && lines[0].ends_with(", 1 session"), "{text}");
        // The program's notes are before its sessions.
        assert_eq!((shown["notes"]["requests"].as_str(), lines[1]), (Some("3 running"), "requests: 3 running"));
        let lines = &lines[1..];
        assert!(lines[2].starts_with(&format!("session of {kind}, controller process {id}, up ")), "{text}");
        assert!(lines[4].starts_with("worker  where"), "{text}");
        assert!(lines[5].contains("tests.step, in barrier (operation "), "{text}");
        assert!(!lines[6].contains("barrier") && lines[6].contains("tests.step"), "{text}");
    }
}

fn all_sessions_of_a_program_are_listed() {
    let program = Program::start("threads,processes", |_| {});
    let id = program.id();
    let listed = json(&["--json"]);
    let own = listed.as_array().unwrap().iter().find(|listed| listed["process"] == id).unwrap();
    let kind = |session: usize, worker: usize| own["sessions"][session]["workers"][worker]["kind"].as_str().unwrap();
    assert_eq!([kind(0, 0), kind(0, 3), kind(1, 0), kind(1, 3)], ["threads", "threads", "threads", "processes"]);
    let text = out(&status(&[]));
    assert!(text.starts_with("process  program "), "{text}");
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|row| row[0] == id.to_string())
        .collect();
    let cells: Vec<&[&str]> = rows.iter().map(|row| &row[2..5]).collect();
    assert_eq!(cells, [["threads", "4", "2"], ["processes", "4", "2"]], "{text}");
}

fn a_node_answers_for_its_part_of_the_session() {
    let program = Program::start("nodes", |_| {});
    let listed = json(&["--json"]);
    let is_node = |listed: &&serde_json::Value| {
        let parent = fs::read_to_string(format!("/proc/{}/stat", listed["process"])).unwrap_or_default();
        let parent = parent.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        listed["sessions"][0]["node"] == 1 && parent == Some(program.id())
    };
    let node = listed.as_array().unwrap().iter().find(is_node).unwrap_or_else(|| panic!("{listed:#}"));
    let workers = node["sessions"][0]["workers"].as_array().unwrap();
    let seen: Vec<_> = workers.iter().map(|worker| (worker["worker"].as_u64(), worker["kind"].as_str())).collect();
    assert_eq!(seen, [2, 3].map(|worker| (Some(worker), Some("processes"))));
    assert!(workers.iter().all(|worker| worker["process"].is_u64()), "{node:#}");
    let text = out(&status(&[&node["process"].to_string()]));
    assert!(text.contains("node 1 of a session of nodes, process "), "{text}");
}

fn a_stopped_program_is_listed_as_stopped() {
    let program = Program::start("threads", |_| {});
    program.stop();
    // At the same time, because each waits for the program.
    let (listed, asked) = thread::scope(|scope| {
        let asked = scope.spawn(|| status(&[&program.id().to_string()]));
        (status(&[]), asked.join().unwrap())
    });
    assert_eq!(asked.status.code(), Some(1));
    let why = "does not answer within 5s; it is stopped, by a signal or a debugger";
    assert!(err(&asked).contains(why), "{}", err(&asked));
    let listed = out(&listed);
    let row = listed.lines().find(|row| row.starts_with(&format!("{} ", program.id()))).unwrap();
    assert!(row.contains(why), "{row}");
    program.signal(Signal::CONT);
    json_when(&program, &[], hangs);
}

fn a_program_that_is_killed_is_no_longer_listed() {
    let program = Program::start("threads", |_| {});
    let id = program.id();
    drop(program);
    let listed = json(&["--json"]);
    assert!(listed.as_array().unwrap().iter().all(|listed| listed["process"] != id), "{listed:#}");
    let asked = err(&status(&[&id.to_string()]));
    assert!(asked.contains(&format!("there is no process {id}")), "{asked}");
}

fn a_program_with_disco_status_0_does_not_answer() {
    let program = Program::start("threads", |command| _ = command.env("DISCO_STATUS", "0"));
    let asked = err(&status(&[&program.id().to_string()]));
    assert!(asked.contains(") has no session of this user") && asked.contains("DISCO_STATUS=0"), "{asked}");
    let threads = fs::read_dir(format!("/proc/{}/task", program.id())).unwrap();
    let names = threads.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    assert!(names.into_iter().all(|name| name.trim() != "disco-status"));
}
