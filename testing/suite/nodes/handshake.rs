//! The handshake of nodes: which connections a controller accepts and rejects.

use std::net::SocketAddr;
use std::time::Duration;

use disco::block_on;

use super::programs::{HAS_JOINED, OTHER_TOKEN, ask, builder, complaint, end, node, read_until, with};

super::tests!(
    a_wrong_token_is_rejected_with_the_reason_on_both_ends,
    a_second_node_with_the_same_id_is_rejected,
    a_node_id_out_of_range_is_rejected,
);

/// Runs `act` against a session that waits for a node. Then a valid node joins, and the session works. Returns the
/// result of `act`.
fn then_a_node_joins<T: Send>(act: impl FnOnce(SocketAddr) -> T + Send) -> T {
    let (session, (node, done)) = with(builder(2, 1), |address| {
        let done = act(address);
        (node(address).spawn().unwrap(), done)
    });
    let session = session.unwrap();
    ask(&session, "tests.pid", 1);
    block_on(session.shutdown()).unwrap();
    assert!(end(node).status.success());
    done
}

/// Runs `act` against a session that waits for a node, and no valid node joins. Returns the start error and the result
/// of `act`.
fn start_error<T: Send>(act: impl FnOnce(SocketAddr) -> T + Send) -> (String, T) {
    let (session, done) = with(builder(2, 1).start_deadline(Duration::from_secs(1)), act);
    (session.unwrap_err().to_string(), done)
}

fn a_wrong_token_is_rejected_with_the_reason_on_both_ends() {
    let wrong = |address| node(address).env("DISCO_TOKEN", OTHER_TOKEN).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap();
    let told = then_a_node_joins(|address| complaint(wrong(address)));
    let last = told.lines().next_back().unwrap();
    assert!(
        last.starts_with("disco: joining the controller at ") && last.ends_with(": the controller has another token"),
        "{told}"
    );
    let (error, node) = start_error(wrong);
    assert!(error.starts_with("start: no end after 1s: node 1 did not join; refused: 127.0.0.1:"), "{error}");
    assert!(error.ends_with(": its token does not match"), "{error}");
    complaint(node);
}

fn a_second_node_with_the_same_id_is_rejected() {
    let session = builder(3, 1);
    let (session, (nodes, told)) = with(session, |address| {
        let spawn = |id: &str| node(address).env("DISCO_NODE_ID", id).spawn().unwrap();
        let mut first = spawn("1");
        read_until(&mut first, HAS_JOINED);
        let told = complaint(spawn("1"));
        ([first, spawn("2")], told)
    });
    let session = session.unwrap();
    assert!(
        told.starts_with("disco: the controller lost: it refuses this node: node 1 has joined already: "),
        "{told}"
    );
    assert_eq!(ask(&session, "tests.pid", 1), i64::from(nodes[0].id()));
    block_on(session.shutdown()).unwrap();
    nodes.into_iter().for_each(|node| assert!(end(node).status.success()));
}

fn a_node_id_out_of_range_is_rejected() {
    let told = then_a_node_joins(|address| complaint(node(address).env("DISCO_NODE_ID", "7").spawn().unwrap()));
    assert_eq!(
        told,
        "disco: the controller lost: it refuses this node: nodes of this session are 1 to 1, and it is 7\n"
    );
}
