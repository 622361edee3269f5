//! `disco status`.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::{Folder, disco, err, hello};

crate::trials::tests!("nodes::status": status_shows_the_nodes_and_workers_of_a_running_session,);

fn status_shows_the_nodes_and_workers_of_a_running_session() {
    let folder = Folder::new("status");
    let path = folder.token();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let with_token = |command: &mut Command| _ = command.arg("--token-file").arg(&path);
    let status = |args: &[&str]| {
        let mut status = disco();
        status.args(["status", "--connect", &address]).args(args);
        with_token(&mut status);
        status.output().unwrap()
    };
    let none = status(&[]);
    assert_eq!(none.status.code(), Some(1));
    let start =
        format!("disco: asking the controller at {address} for its status: Connection refused (os error 111); ");
    assert!(err(&none).starts_with(&start), "{}", err(&none));

    let mut run = disco();
    run.env(super::PROGRAM, "stall").args("run --nodes 2 --workers 4 --groups 2 --listen".split(' ')).arg(&address);
    with_token(&mut run);
    let mut run = run.arg("--").arg(hello()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut node = disco();
    node.env(super::PROGRAM, "stall").args(["worker", "--connect", &address]);
    with_token(&mut node);
    let mut node = node.arg("--").arg(hello()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");

    let shown = status(&[]);
    let text = String::from_utf8(shown.stdout.clone()).unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let lines: Vec<&str> = text.lines().collect();
    let head = format!("session of nodes, controller process {}, up ", run.id());
    assert!(lines[0].starts_with(&head) && lines[0].ends_with(": 4 workers, groups: 2, commands: 1"), "{text}");
    assert!(lines[2].starts_with("node ") && lines[2].contains("round trip"), "{text}");
    assert!(lines[3].starts_with("node 1 (") && lines[3].contains("running  127.0.0.1:"), "{text}");
    assert!(lines[6].starts_with("worker  where"), "{text}");
    let places: Vec<Vec<&str>> = lines[7..]
        .iter()
        .map(|line| line.split("  ").map(str::trim).filter(|word| !word.is_empty()).take(2).collect())
        .collect();
    assert_eq!(places, [["0", "threads"], ["1", "processes"], ["2", "node 1"], ["3", "node 1"]], "{text}");

    let json = status(&["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["commands"], &json["nodes"][0]["state"]), (&1.into(), &"running".into()));
    assert_eq!(json["workers"].as_array().unwrap().len(), 4);
    assert_eq!(json["nodes"][0]["connection"]["is_encrypted"], true);
    run.kill().unwrap();
    run.wait().unwrap();
    node.wait().unwrap();
}
