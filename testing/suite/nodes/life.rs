//! Sessions of nodes without loss: values, store, recovery, output, shutdown.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use disco::error::ErrorKind;
use disco::{
    Announce, Builder, DType, LaneSession, Placement, Reduction, Scope, SessionKind, Tensor, Value, WorkerId, block_on,
};

use super::programs::{self, ask, builder, end, pair};
use crate::terminal;
use crate::workers::sorted_lines;

super::tests!(
    nodes_have_workers_that_are_processes_or_threads,
    output_of_workers_is_forwarded_with_node_and_worker,
    control_characters_of_nodes_are_escaped_on_a_terminal,
    commands_in_flight_when_a_session_is_dropped_cause_no_error_on_its_node,
    token_address_and_invitation_are_removed_from_the_environment_of_workers,
    nodes_of_one_machine_share_memory_and_those_of_other_containers_are_told_what_to_use,
    large_gets_at_once_return_all_values_and_the_node_buffers_few_of_them,
);

fn nodes_have_workers_that_are_processes_or_threads() {
    for kind in [SessionKind::Processes, SessionKind::Threads] {
        let session = Builder::nodes(3, 2).node_options(|nodes| nodes.workers = kind).start().unwrap();
        assert_eq!((session.world().nodes(), session.world().per_node()), (3, 2));
        let pids: Vec<i64> = (0..6).map(|worker| ask(&session, "tests.pid", worker)).collect();
        let mut processes = pids.clone();
        processes.sort_unstable();
        processes.dedup();
        match kind {
            SessionKind::Threads => {
                assert_eq!(processes.len(), 3);
                assert!(pids.chunks(2).all(|node| node[0] == node[1]), "{pids:?}");
            }
            _ => {
                assert_eq!(processes.len(), 6);
                let parents: Vec<i64> = (2..6).map(|worker| ask(&session, "tests.parent", worker)).collect();
                assert!(parents[0] == parents[1] && parents[1] != parents[2], "{parents:?}");
            }
        }
        block_on(session.shutdown()).unwrap();
    }
}

fn output_of_workers_is_forwarded_with_node_and_worker() {
    let output = end(programs::command("printer")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap());
    assert!(output.status.success(), "{output:?}");
    let of = |what: &str| {
        let line = |prefix: &str, worker: u32| format!("[{prefix}worker {worker}] {what}{worker}");
        [line("", 1), line("node 1 ", 2), line("node 1 ", 3)]
    };
    let last = ["[node 1 worker 2] last", "[node 1 worker 3] last", "[worker 1] last"].map(str::to_owned);
    let mut out = [of("output of worker "), last].concat();
    out.sort();
    assert_eq!(sorted_lines(output.stdout), out);
    let mut err = of("error of worker ");
    err.sort();
    assert_eq!(sorted_lines(output.stderr), err);
}

fn control_characters_of_nodes_are_escaped_on_a_terminal() {
    let said = terminal::output(programs::command("painter"));
    assert!(!said.contains(['\x1b', '\x07', '\u{9b}']), "{said:?}");
    assert!(said.contains("[node 1 worker 2] \\x1b[31mred\\u{9b}0m \\x1b]0;title\\x07\r\n"), "{said:?}");
}

fn commands_in_flight_when_a_session_is_dropped_cause_no_error_on_its_node() {
    for kind in [SessionKind::Processes, SessionKind::Threads] {
        let (session, node) = pair(builder(2, 2).node_options(|nodes| nodes.workers = kind));
        block_on(async {
            let length = session.function("tests.length").await.unwrap();
            session.call("tests.stay_until_abort", (2,)).await.unwrap();
            for _ in 0..20 {
                session.call(&length, ("four",)).await.unwrap();
            }
        });
        drop(session);
        let output = end(node);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

fn token_address_and_invitation_are_removed_from_the_environment_of_workers() {
    let (session, node) = pair(builder(2, 1).node_options(|nodes| nodes.workers = SessionKind::Processes));
    block_on(async {
        let function = session.function("tests.variable").await.unwrap();
        for name in ["DISCO_TOKEN", "DISCO_CONNECT", "DISCO_NODE_ID", "DISCO_WORKER"] {
            let variable = session.call(&function, (name,)).await.unwrap();
            assert_eq!(session.value(&variable, WorkerId::new(1)).await.unwrap(), Value::None, "{name}");
        }
        session.shutdown().await.unwrap();
    });
    assert!(end(node).status.success());
}

/// A process namespace of its own makes a container.
fn nodes_of_one_machine_share_memory_and_those_of_other_containers_are_told_what_to_use() {
    let sum = |session: &LaneSession| {
        block_on(async {
            session.init_ccl("local", &[]).await?;
            let x = session.empty(DType::I64, [4], Placement::All).await?;
            session.set_each(&x, |worker| Tensor::from_slice(&[worker.wire(); 4], [4]).unwrap()).await?;
            session.all_reduce(&x, &x, Reduction::Sum, Scope::World).await?;
            session.get::<Tensor>(&x, WorkerId::new(3)).await?.to_vec::<i64>()
        })
    };
    for kind in [SessionKind::Processes, SessionKind::Threads] {
        let session = Builder::nodes(2, 2).node_options(|nodes| nodes.workers = kind).start().unwrap();
        assert_eq!(sum(&session).unwrap(), [6; 4]);
        block_on(session.shutdown()).unwrap();
    }
    let unshare = ["--user", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"];
    if !Command::new("unshare").args(unshare).arg("true").stderr(Stdio::null()).status().is_ok_and(|it| it.success()) {
        return;
    }
    let child = Arc::new(Mutex::new(None));
    let started = child.clone();
    let builder = builder(2, 2).node_options(|nodes| {
        nodes.announce = Some(Announce::new(move |announcement| {
            let node = programs::node(announcement.address);
            let mut container = Command::new("unshare");
            container.args(unshare).arg(node.get_program()).stderr(Stdio::piped());
            node.get_envs().for_each(|(name, value)| _ = container.env(name, value.unwrap()));
            *started.lock().unwrap() = Some(container.spawn().unwrap());
            Ok(())
        }))
    });
    let session = builder.start().unwrap();
    let error = sum(&session).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable), "{error}");
    let error = error.to_string();
    let parts = ["shares no memory with rank ", "between machines use the backend tcp"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    block_on(session.shutdown()).unwrap();
    end(child.lock().unwrap().take().unwrap());
}

/// Peak resident memory of a process, in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

fn large_gets_at_once_return_all_values_and_the_node_buffers_few_of_them() {
    let (size, gets) = (40usize << 20, 16);
    for kind in [SessionKind::Processes, SessionKind::Threads] {
        let (session, node) = pair(builder(2, 1).node_options(|nodes| nodes.workers = kind));
        let bytes = block_on(session.function("tests.bytes")).unwrap();
        let value = block_on(session.call(&bytes, (size as i64,))).unwrap();
        let get = || {
            let Value::Bytes(bytes) = block_on(session.value(&value, WorkerId::new(1))).unwrap() else { panic!() };
            assert!(bytes.len() == size && bytes.ends_with(&[7; 1000]));
        };
        thread::scope(|scope| (0..gets).for_each(|_| drop(scope.spawn(get))));
        // The value, its encoding and the reply in flight have this size each; a little more may be queued.
        let peak = peak(node.id());
        assert!(peak < 6 * size as u64, "the node had {peak} bytes");
        block_on(session.shutdown()).unwrap();
        assert!(end(node).status.success());
    }
}
