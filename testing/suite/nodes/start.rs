//! Start of sessions of nodes, and its errors, except those of the handshake.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use disco::{Announce, Builder, SessionKind, block_on};
use disco_channel::nodes::{Announcement, NodeProcess};
use disco_engine::handshake::{ANSWER_BYTES, ControllerHandshake, VERDICT_BYTES};

use super::programs::{self, ask, builder, command, complaint, end, node, read_until, with};

super::tests!(
    a_node_whose_starter_has_ended_waits_for_no_controller,
    listening_on_an_address_in_use_is_an_error_with_the_address_and_the_process,
    listening_on_a_name_or_address_that_is_not_this_machine_s_is_an_error_with_the_reason,
    a_session_that_listens_without_a_token_does_not_start,
    a_node_without_a_token_does_not_connect,
    missing_nodes_are_named_at_the_start_deadline,
    a_node_retries_until_its_controller_listens_and_prints_it,
    a_node_without_a_controller_fails_after_its_join_time,
    a_host_name_that_does_not_resolve_is_an_error,
    a_server_that_is_no_controller_is_an_error,
    a_node_gives_up_a_silent_controller_after_its_join_time,
    a_node_retries_after_a_rejection_without_proof_of_the_token,
    limits_that_no_session_could_work_with_are_errors_that_name_them,
    heartbeat_intervals_of_zero_or_above_half_the_silence_limit_are_rejected,
    a_node_whose_workers_can_not_start_is_lost_with_the_reason,
    a_node_with_too_few_files_to_join_ends_and_fails_the_start,
    a_controller_with_just_enough_files_accepts_its_node,
    a_node_with_an_invalid_environment_fails_with_the_variable,
);

fn listening_on_a_name_or_address_that_is_not_this_machine_s_is_an_error_with_the_reason() {
    let error = |address: &str| {
        builder(2, 1).node_options(|nodes| nodes.listen = Some(address.into())).start().unwrap_err().to_string()
    };
    let unknown = error("no-such-host.invalid:4567");
    let text = "can't listen on no-such-host.invalid:4567, which does not resolve to an address: ";
    assert!(unknown.starts_with(text), "{unknown}");
    // An address of documentation (RFC 5737).
    let foreign = error("192.0.2.1:0");
    let text = "can't listen on 192.0.2.1:0, which is no address of this machine (its addresses: ";
    assert!(
        foreign.starts_with(text) && foreign.ends_with("): Cannot assign requested address (os error 99)"),
        "{foreign}"
    );
}

fn listening_on_an_address_in_use_is_an_error_with_the_address_and_the_process() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error =
        builder(2, 1).node_options(|nodes| nodes.listen = Some(address.to_string())).start().unwrap_err().to_string();
    let this = format!("process {} (", std::process::id());
    assert!(error.starts_with(&format!("can't listen on {address}, where {this}")), "{error}");
    assert!(error.ends_with(") listens: Address already in use (os error 98)"), "{error}");
}

const NO_TOKEN: &str = "a session whose nodes are started elsewhere needs a token, which each node proves to have, and none was given: make \
                        one by `disco token FILE`, copy the file to the other machines, and set DISCO_TOKEN_FILE=FILE, or pass \
                        `--token-file FILE` to `disco run` and `disco worker`";

fn a_session_that_listens_without_a_token_does_not_start() {
    let builders = [
        Builder::nodes(2, 1),
        Builder::nodes(2, 1).node_options(|nodes| nodes.listen = Some("127.0.0.1:0".into())),
        Builder::nodes(2, 1).node_options(|nodes| nodes.listen = Some("0.0.0.0:0".into())),
    ];
    for builder in builders {
        let listens = Arc::new(AtomicBool::new(false));
        let told = listens.clone();
        let builder = builder.start_deadline(Duration::from_millis(100)).node_options(|nodes| {
            nodes.announce = Some(Announce::new(move |_| {
                told.store(true, Ordering::SeqCst);
                Ok(())
            }))
        });
        let error = builder.start().unwrap_err().to_string();
        assert!(error == NO_TOKEN && !listens.load(Ordering::SeqCst), "{error}");
    }
}

fn a_node_without_a_token_does_not_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let told = complaint(node(listener.local_addr().unwrap()).env_remove("DISCO_TOKEN").spawn().unwrap());
    assert_eq!(told, format!("disco: {NO_TOKEN}\n"));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

fn missing_nodes_are_named_at_the_start_deadline() {
    let start = |id: Option<u32>| {
        let session = builder(4, 1).start_deadline(Duration::from_millis(1500));
        let (session, node) = with(session, |address| {
            let mut node = node(address);
            id.map(|id| node.env("DISCO_NODE_ID", id.to_string()));
            node.spawn().unwrap()
        });
        (session.unwrap_err().to_string(), complaint(node))
    };
    let (error, told) = start(Some(2));
    assert_eq!(error, "start: no end after 1.5s: node 1, node 3 did not join");
    let refusal = format!("disco: the controller lost: it refuses this node: {error}\n");
    assert!(told.ends_with(&refusal), "{told}");
    assert_eq!(start(None).0, "start: no end after 1.5s: 2 of node 1, node 2, node 3 did not join");
}

fn a_node_retries_until_its_controller_listens_and_prints_it() {
    let address = free_address();
    let mut waits = node(address).spawn().unwrap();
    let told = read_until(&mut waits, "\n");
    let session = builder(2, 1).node_options(|nodes| nodes.listen = Some(address.to_string())).start().unwrap();
    ask(&session, "tests.pid", 1);
    block_on(session.shutdown()).unwrap();
    let output = end(waits);
    assert!(told.starts_with(&format!("disco: waiting for the controller at {address}, ")), "{told}");
    assert!(told.ends_with("s more: Connection refused (os error 111)\n"), "{told}");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

fn a_node_without_a_controller_fails_after_its_join_time() {
    let address = free_address();
    let told = complaint(node(address).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap());
    let last =
        format!("disco: joining the controller at {address}: no end after 1s: Connection refused (os error 111)\n");
    assert!(told.ends_with(&last), "{told}");
}

fn a_host_name_that_does_not_resolve_is_an_error() {
    let told = complaint(node("no-such-host.invalid:4000").env("DISCO_JOIN_SECONDS", "1").spawn().unwrap());
    assert!(
        told.contains(
            "disco: joining the controller at no-such-host.invalid:4000: no end after 1s: the name does not resolve"
        ),
        "{told}"
    );
    let told = complaint(node("no port").env("DISCO_JOIN_SECONDS", "1").spawn().unwrap());
    assert!(told.contains("the name does not resolve: invalid socket address"), "{told}");
}

/// The standard error of a node whose controller's address is a listener that runs `answer` on the connection.
fn node_error_with(answer: impl FnOnce(std::net::TcpStream) + Send) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    thread::scope(|scope| {
        let node = node(listener.local_addr().unwrap()).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap();
        scope.spawn(move || answer(listener.accept().unwrap().0));
        complaint(node)
    })
}

fn a_server_that_is_no_controller_is_an_error() {
    let told = node_error_with(|mut stream| {
        stream.write_all(&[b'H'; 100]).unwrap();
        _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(
        told.contains(": no end after 1s: ") && told.ends_with("the listener is not a Disco controller\n"),
        "{told}"
    );
    // Sends less than a greeting, and keeps the connection open until the node closes it.
    let told = node_error_with(|mut stream| {
        stream.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
        _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(told.ends_with("the listener is not a Disco controller\n"), "{told}");
}

fn a_node_gives_up_a_silent_controller_after_its_join_time() {
    let told = node_error_with(|mut stream| {
        _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(told.contains(": no end after 1s: it sent no complete answer within "), "{told}");
}

fn a_node_retries_after_a_rejection_without_proof_of_the_token() {
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = impostor.local_addr().unwrap();
    let node = node(address).spawn().unwrap();
    let (mut stream, _) = impostor.accept().unwrap();
    drop(impostor);
    stream.write_all(ControllerHandshake::new([1; 32]).greeting()).unwrap();
    stream.read_exact(&mut [0; ANSWER_BYTES]).unwrap();
    // Status 1: wrong token.
    let mut verdict = [0; VERDICT_BYTES];
    verdict[0] = 1;
    stream.write_all(&verdict).unwrap();
    drop(stream);
    let session = builder(2, 1).node_options(|nodes| nodes.listen = Some(address.to_string())).start().unwrap();
    assert_eq!(ask(&session, "tests.pid", 1), i64::from(node.id()));
    block_on(session.shutdown()).unwrap();
    let output = end(node);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.contains("s more: the controller has another token"), "{told}");
}

fn limits_that_no_session_could_work_with_are_errors_that_name_them() {
    let error = |builder: Builder| builder.start().unwrap_err().to_string();
    let none = error(builder(2, 1).node_options(|nodes| nodes.max_pending = Some(0)));
    assert_eq!(none, "max_pending is 0: with less than 1 pending connection, no node can join");
    let less = |builder: Builder| builder.node_options(|nodes| nodes.max_unsent = Some((65 << 20) - 1));
    let small = error(less(builder(2, 1).value_limit(1 << 20)));
    assert!(
        small
            .starts_with("max_unsent is 68157439 bytes: it must be at least 68157440, the value limit of 1048576 and ")
    );
}

fn heartbeat_intervals_of_zero_or_above_half_the_silence_limit_are_rejected() {
    let start = |heartbeat| builder(2, 1).heartbeat(heartbeat).start().unwrap_err().to_string();
    let text = "the heartbeat interval 3s must be above 0 and at most half of the silence limit 5s";
    assert_eq!(start(Duration::from_secs(3)), text);
    assert!(start(Duration::ZERO).starts_with("the heartbeat interval 0ns must be above 0 "));
    assert!(start(Duration::MAX).starts_with("the heartbeat interval 18446744073709551615.999999999s must be "));
    // Threads have no heartbeat.
    let session = Builder::threads(2).heartbeat(Duration::MAX).start().unwrap();
    block_on(session.shutdown()).unwrap();
}

fn a_node_whose_workers_can_not_start_is_lost_with_the_reason() {
    // The node has too few descriptors for the processes of its workers.
    let session = builder(2, 4).node_options(|nodes| nodes.workers = SessionKind::Processes);
    let (session, node) = with(session, |address| {
        let mut shell = std::process::Command::new("sh");
        let this = node(address);
        shell.args(["-c", "ulimit -n 14; exec \"$0\""]).arg(this.get_program());
        this.get_envs().for_each(|(name, value)| _ = shell.env(name, value.unwrap()));
        shell.stderr(std::process::Stdio::piped()).spawn().unwrap()
    });
    let (error, told) = (session.unwrap_err().to_string(), complaint(node));
    assert!(error.starts_with("node 1 (") && error.contains(") with workers 4 to 7 lost: "), "{error}");
    assert!(error.contains("Too many open files"), "{error}");
    assert!(told.contains("Too many open files"), "{told}");
}

fn a_node_with_too_few_files_to_join_ends_and_fails_the_start() {
    // With more files, the node joins.
    for files in 3..8 {
        let start = move |announcement: &Announcement| {
            let mut shell = std::process::Command::new("sh");
            let this = node(announcement.address);
            shell.args(["-c", &format!("ulimit -n {files}; exec \"$0\"")]).arg(this.get_program());
            this.get_envs().for_each(|(name, value)| _ = shell.env(name, value.unwrap()));
            let shell = shell.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
            Ok(vec![NodeProcess::new(shell.map_err(|error| disco::Error::system("sh", error))?)?])
        };
        let session = builder(2, 1).node_options(|nodes| nodes.announce = Some(Announce::starting(start)));
        let error = session.start().unwrap_err().to_string();
        assert!(error.starts_with("node 1 ") && error.contains("with worker 1 lost: "), "{files}: {error}");
    }
}

fn a_controller_with_just_enough_files_accepts_its_node() {
    let starts = (6..12).map(|files| {
        let output = command("few files").arg(files.to_string()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let starts: Vec<String> = starts.collect();
    assert!(starts.iter().all(|said| said.contains("Too many open files")), "{starts:?}");
    // The start without a file for the connection.
    let unaccepted = starts.iter().filter(|said| said.contains("did not join; refused: the system: "));
    assert_eq!(unaccepted.count(), 1, "{starts:?}");
}

fn a_node_with_an_invalid_environment_fails_with_the_variable() {
    let told = complaint(node("127.0.0.1:1").env("DISCO_NODE_ID", "first").spawn().unwrap());
    assert_eq!(told, "disco: DISCO_NODE_ID=`first` is no number\n");
    let told = complaint(node("127.0.0.1:1").env("DISCO_TOKEN", "short").spawn().unwrap());
    assert_eq!(told, "disco: DISCO_TOKEN: a token must have 16 to 4096 bytes, and this one has 5\n");
    let told =
        complaint(node("127.0.0.1:1").env_remove("DISCO_TOKEN").env("DISCO_TOKEN_FILE", "/nowhere").spawn().unwrap());
    assert_eq!(told, "disco: token file /nowhere: No such file or directory (os error 2)\n");
}

/// A free address, on which nothing listens yet.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn a_node_whose_starter_has_ended_waits_for_no_controller() {
    // No process listens at that address. The parent of the node is this process.
    let orphan = programs::node("127.0.0.1:9").env("DISCO_STARTER", "1").spawn().unwrap();
    let said = "disco: the program that has started this node, process 1, has ended\n";
    assert!(programs::complaint(orphan).ends_with(said));
}
