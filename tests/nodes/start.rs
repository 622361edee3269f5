//! Starting, and everything that can be wrong with it but the secret.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use disco::{Builder, Session, SessionKind, Token, block_on};
use disco_channel::handshake::{ANSWER, Host, VERDICT};

use crate::programs::{TOKEN, ask, builder, command, complaint, end, node, with};

crate::tests!(
    an_address_in_use_is_named,
    a_listener_without_a_token_refuses_to_start,
    nodes_join_an_address_of_all_interfaces_with_the_token,
    a_node_without_a_token_does_not_connect,
    nodes_that_do_not_come_are_named_at_the_deadline,
    a_node_that_waits_for_others_says_so,
    nodes_of_a_session_that_does_not_start_end_soon,
    a_node_waits_for_its_controller_and_says_so,
    a_controller_that_does_not_come_is_an_error,
    a_name_that_does_not_resolve_is_an_error,
    what_is_no_controller_is_an_error,
    a_controller_of_another_version_is_named,
    a_controller_that_says_nothing_is_given_up_at_the_limit,
    a_refusal_without_proof_does_not_send_a_node_away,
    nodes_are_who_they_say_whoever_comes_first,
    a_node_too_many_finds_nobody,
    nodes_too_many_at_once_keep_nobody_out,
    heartbeats_that_are_too_rare_are_refused,
    a_node_of_another_size_is_refused_on_both_ends,
    all_nodes_that_were_refused_are_listed,
    a_node_whose_workers_can_t_start_is_named,
    a_node_s_environment_is_checked,
);

fn an_address_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = builder(2, 1).listen(address.to_string()).start().unwrap_err().to_string();
    assert_eq!(error, format!("can't listen on {address}: Address already in use (os error 98)"));
}

const NO_TOKEN: &str = "a session whose nodes are started elsewhere needs a token, which each node proves to have, and none was given: make \
                        one by `disco token FILE`, copy the file to the other machines, and set DISCO_TOKEN_FILE=FILE, or pass \
                        `--token-file FILE` to `disco run` and `disco worker`";

fn a_listener_without_a_token_refuses_to_start() {
    let builders =
        [Builder::nodes(2, 1), Builder::nodes(2, 1).listen("127.0.0.1:0"), Builder::nodes(2, 1).listen("0.0.0.0:0")];
    for builder in builders {
        let listens = Arc::new(AtomicBool::new(false));
        let told = listens.clone();
        let builder = builder.start_deadline(Duration::from_millis(100)).announce(move |_| {
            told.store(true, Ordering::SeqCst);
            Ok(())
        });
        let error = builder.start().unwrap_err().to_string();
        assert!(error == NO_TOKEN && !listens.load(Ordering::SeqCst), "{error}");
    }
}

fn nodes_join_an_address_of_all_interfaces_with_the_token() {
    let session = Builder::nodes(2, 1).token(Token::new(TOKEN).unwrap()).listen("0.0.0.0:0");
    let (session, node) = with(session, |address| node(format!("127.0.0.1:{}", address.port())).spawn().unwrap());
    block_on(session.unwrap().shutdown()).unwrap();
    assert!(end(node).status.success());
}

fn a_node_without_a_token_does_not_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let told = complaint(node(listener.local_addr().unwrap()).env_remove("DISCO_TOKEN").spawn().unwrap());
    assert_eq!(told, format!("disco: {NO_TOKEN}\n"));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

fn nodes_that_do_not_come_are_named_at_the_deadline() {
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

fn a_node_that_waits_for_others_says_so() {
    let session = builder(3, 1);
    let (session, nodes) = with(session, |address| {
        let first = node(address).spawn().unwrap();
        thread::sleep(Duration::from_millis(1500));
        [first, node(address).spawn().unwrap()]
    });
    block_on(session.unwrap().shutdown()).unwrap();
    let [first, second] = nodes.map(|node| String::from_utf8(end(node).stderr).unwrap());
    assert!(first.starts_with("disco: joined the controller at 127.0.0.1:"), "{first}");
    assert!(first.ends_with(", waiting for other nodes\n") && second.is_empty(), "{first}{second}");
}

fn nodes_of_a_session_that_does_not_start_end_soon() {
    let start = Instant::now();
    let late = command("late").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // With all that has its standard error.
    let output = end(late);
    let [said, told] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(said, "start: no end after 1s: node 1 did not join\n");
    assert!(told.contains("disco: joining the controller at ") && told.contains(": no end after 1s: "), "{told}");
    assert!(start.elapsed() < Duration::from_secs(15), "after {:?}", start.elapsed());
}

fn a_node_waits_for_its_controller_and_says_so() {
    let address = free();
    let waits = node(address).spawn().unwrap();
    thread::sleep(Duration::from_millis(700));
    let session = builder(2, 1).listen(address.to_string()).start().unwrap();
    ask(&session, "tests.pid", 1);
    block_on(session.shutdown()).unwrap();
    let output = end(waits);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with(&format!("disco: waiting for the controller at {address}, ")), "{told}");
    assert!(told.ends_with("s more: Connection refused (os error 111)\n"), "{told}");
    assert!(output.status.success());
}

fn a_controller_that_does_not_come_is_an_error() {
    let address = free();
    let told = complaint(node(address).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap());
    let last =
        format!("disco: joining the controller at {address}: no end after 1s: Connection refused (os error 111)\n");
    assert!(told.ends_with(&last), "{told}");
}

fn a_name_that_does_not_resolve_is_an_error() {
    let told = complaint(node("no-such-host.invalid:4000").env("DISCO_JOIN_SECONDS", "1").spawn().unwrap());
    assert!(
        told.contains(
            "disco: joining the controller at no-such-host.invalid:4000: no end after 1s: its name does not resolve"
        ),
        "{told}"
    );
    let told = complaint(node("no port").env("DISCO_JOIN_SECONDS", "1").spawn().unwrap());
    assert!(told.contains("its name does not resolve: invalid socket address"), "{told}");
}

/// What a node says to somebody who listens and does `answer`.
fn meets(answer: impl FnOnce(std::net::TcpStream) + Send) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    thread::scope(|scope| {
        let node = node(listener.local_addr().unwrap()).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap();
        scope.spawn(move || answer(listener.accept().unwrap().0));
        complaint(node)
    })
}

fn what_is_no_controller_is_an_error() {
    let told = meets(|mut stream| {
        stream.write_all(&[b'H'; 100]).unwrap();
        _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(told.contains(": no end after 1s: ") && told.ends_with("it is no controller of Disco\n"), "{told}");
    // Less than a greeting, and open until the node leaves.
    let told = meets(|mut stream| {
        stream.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
        _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(told.ends_with("it is no controller of Disco\n"), "{told}");
}

fn a_controller_of_another_version_is_named() {
    let told = meets(|mut stream| {
        stream.write_all(b"discnode\x63\0\0\0").unwrap();
        stream.write_all(&[0; 32]).unwrap();
        _ = stream.read_to_end(&mut Vec::new());
    });
    let text = "the other end speaks version 99, this one 5: both must run the same program\n";
    assert!(told.contains(": no end after 1s: ") && told.ends_with(text), "{told}");
}

fn a_controller_that_says_nothing_is_given_up_at_the_limit() {
    let start = Instant::now();
    let told = meets(|mut stream| {
        _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(told.contains(": no end after 1s: it sent no complete answer within "), "{told}");
    assert!(start.elapsed() < Duration::from_secs(4), "after {:?}", start.elapsed());
}

fn a_refusal_without_proof_does_not_send_a_node_away() {
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = impostor.local_addr().unwrap();
    let node = node(address).spawn().unwrap();
    let (mut stream, _) = impostor.accept().unwrap();
    drop(impostor);
    stream.write_all(Host::new([1; 32]).greeting()).unwrap();
    stream.read_exact(&mut [0; ANSWER]).unwrap();
    // The status of a wrong token.
    let mut verdict = [0; VERDICT];
    verdict[0] = 1;
    stream.write_all(&verdict).unwrap();
    drop(stream);
    let session = builder(2, 1).listen(address.to_string()).start().unwrap();
    assert_eq!(ask(&session, "tests.pid", 1), i64::from(node.id()));
    block_on(session.shutdown()).unwrap();
    let output = end(node);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.contains("s more: it has another token"), "{told}");
}

fn nodes_are_who_they_say_whoever_comes_first() {
    let session = builder(4, 1);
    let (session, nodes) = with(session, |address| {
        [Some(3), None, Some(1)].map(|id| {
            let mut node = node(address);
            id.map(|id: u32| node.env("DISCO_NODE_ID", id.to_string()));
            let node = node.spawn().unwrap();
            thread::sleep(Duration::from_millis(100));
            node
        })
    });
    let session = session.unwrap();
    let pids = [1, 2, 3].map(|worker| ask(&session, "tests.pid", worker));
    let [third, other, first] = [0, 1, 2].map(|index| i64::from(nodes[index].id()));
    assert_eq!(pids, [first, other, third]);
    block_on(session.shutdown()).unwrap();
    nodes.into_iter().for_each(|node| assert!(end(node).status.success()));
}

fn a_node_too_many_finds_nobody() {
    let (session, (node, late)) = with(builder(2, 1), |address| {
        let first = node(address).spawn().unwrap();
        thread::sleep(Duration::from_millis(500));
        (first, node(address).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap())
    });
    let session = session.unwrap();
    let told = complaint(late);
    assert!(told.ends_with(": no end after 1s: Connection refused (os error 111)\n"), "{told}");
    assert_eq!(ask(&session, "tests.pid", 1), i64::from(node.id()));
    block_on(session.shutdown()).unwrap();
    assert!(end(node).status.success());
}

fn nodes_too_many_at_once_keep_nobody_out() {
    let address = free();
    let waiting = || node(address).env("DISCO_JOIN_SECONDS", "3").spawn().unwrap();
    let nodes: Vec<_> = (0..4).map(|_| waiting()).collect();
    thread::sleep(Duration::from_millis(300));
    let session = builder(3, 1).listen(address.to_string()).start().unwrap();
    let pids = [1, 2].map(|worker| ask(&session, "tests.pid", worker));
    for node in nodes {
        // Those that are left are told so, or find nobody later.
        let is_in = pids.contains(&i64::from(node.id()));
        if is_in {
            continue;
        }
        let told = complaint(node);
        assert!(told.contains("all nodes are here") || told.contains("joining the controller at "), "{told}");
    }
    block_on(session.shutdown()).unwrap();
}

fn heartbeats_that_are_too_rare_are_refused() {
    let start = |heartbeat| builder(2, 1).heartbeat(heartbeat).start().unwrap_err().to_string();
    let text = "a heartbeat every 3s where 5s of silence are allowed: it is to come at least twice";
    assert_eq!(start(Duration::from_secs(3)), text);
    assert!(start(Duration::ZERO).starts_with("a heartbeat every 0ns "));
    assert!(start(Duration::MAX).starts_with("a heartbeat every 18446744073709551615.999999999s "));
    // Threads have none.
    let session = Builder::threads(2).heartbeat(Duration::MAX).start().unwrap();
    block_on(session.shutdown()).unwrap();
}

fn a_node_of_another_size_is_refused_on_both_ends() {
    let larger = |address| node(address).env("DISCO_WORKERS_PER_NODE", "3").spawn().unwrap();
    let why = "it was told to have 3 workers, and nodes here have 2";
    let refusal = format!("disco: the controller lost: it refuses this node: {why}\n");
    let (session, told) =
        with(builder(2, 2).start_deadline(Duration::from_millis(1500)), |address| complaint(larger(address)));
    let error = session.unwrap_err().to_string();
    let start = "start: no end after 1.5s: node 1 did not join; sent away: ";
    assert!(error.starts_with(start) && error.contains(" at 127.0.0.1:"), "{error}");
    assert!(error.ends_with(&format!(": {why}")) && told == refusal, "{error}; {told}");
    // The session takes the next node.
    let (session, (told, good)) =
        with(builder(2, 2), |address| (complaint(larger(address)), node(address).spawn().unwrap()));
    let session = session.unwrap();
    assert_eq!((told, ask(&session, "tests.pid", 2)), (refusal, i64::from(good.id())));
    block_on(session.shutdown()).unwrap();
    assert!(end(good).status.success());
}

fn all_nodes_that_were_refused_are_listed() {
    let larger = |address, workers: usize| {
        let mut node = node(address);
        node.env("DISCO_WORKERS_PER_NODE", workers.to_string()).spawn().unwrap()
    };
    let (session, ()) = with(builder(2, 2).start_deadline(Duration::from_secs(3)), |address| {
        let nodes: Vec<_> = (3..8).map(|workers| larger(address, workers)).collect();
        nodes.into_iter().for_each(|node| _ = complaint(node));
    });
    let error = session.unwrap_err().to_string();
    for workers in 3..8 {
        assert!(error.contains(&format!(": it was told to have {workers} workers, and nodes here have 2")), "{error}");
    }
}

fn a_node_whose_workers_can_t_start_is_named() {
    // Its workers are processes, for which there are no descriptors.
    let session = builder(2, 4).node_workers(SessionKind::Processes);
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

fn a_node_s_environment_is_checked() {
    let told = complaint(node("127.0.0.1:1").env("DISCO_NODE_ID", "first").spawn().unwrap());
    assert_eq!(told, "disco: DISCO_NODE_ID=`first` is no number\n");
    let told = complaint(node("127.0.0.1:1").env("DISCO_TOKEN", "short").spawn().unwrap());
    assert_eq!(told, "disco: DISCO_TOKEN: a token has 16 to 4096 bytes, and this one 5\n");
    let told =
        complaint(node("127.0.0.1:1").env_remove("DISCO_TOKEN").env("DISCO_TOKEN_FILE", "/nowhere").spawn().unwrap());
    assert_eq!(told, "disco: token file /nowhere: No such file or directory (os error 2)\n");
}

/// An address where nobody listens, for now.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
