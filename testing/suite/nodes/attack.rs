//! Attacks on connections by a party in the middle, which lets the handshake pass.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disco::{LaneSession, block_on};

use super::link::{Attack, Proxy};
use super::programs::{TEST_TIMEOUT, builder, complaint, end, node, with};

super::tests!(
    changed_bytes_to_the_controller_are_the_loss_of_the_node,
    changed_bytes_to_a_node_are_the_loss_of_the_controller,
    a_damaged_length_is_a_loss_after_the_silence_limit_although_bytes_come,
    values_are_encrypted_unless_both_ends_turn_it_off,
    a_node_that_does_not_encrypt_is_rejected_with_the_reason_on_both_ends,
    a_controller_that_does_not_encrypt_is_rejected_with_the_reason_on_both_ends,
);

const ATTACKS: [Attack; 6] =
    [Attack::Flip(0), Attack::Flip(20), Attack::Drop, Attack::Repeat, Attack::Reorder, Attack::Reflect];
const SECRET: &str = "a confidential text";

/// Syncs until the session fails. Returns the error.
fn failure(session: &LaneSession) -> String {
    let start = Instant::now();
    loop {
        if let Err(error) = block_on(session.sync_all()) {
            return error.to_string();
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "the attack was not noticed");
    }
}

/// The error of a session and the last output of its node, after an attack on the bytes to the controller or to the
/// node.
fn attacked(is_up: bool, attack: Attack) -> (String, String) {
    attacked_if_it(true, is_up, attack)
}

/// [`attacked`], for a session that encrypts or not.
fn attacked_if_it(encrypts: bool, is_up: bool, attack: Attack) -> (String, String) {
    let builder = builder(2, 1).silence(Duration::from_secs(1)).node_options(|nodes| nodes.encrypts = Some(encrypts));
    let (session, (proxy, node)) = with(builder, |address| {
        let proxy = Proxy::start(address);
        let node = node(proxy.address()).env("DISCO_ENCRYPT", if encrypts { "1" } else { "0" }).spawn().unwrap();
        (proxy, node)
    });
    let session = session.unwrap();
    block_on(session.sync_all()).unwrap();
    proxy.attack(is_up, attack);
    let error = failure(&session);
    _ = block_on(session.shutdown());
    (error, complaint(node))
}

fn changed_bytes_to_the_controller_are_the_loss_of_the_node() {
    for attack in ATTACKS {
        let (error, told) = attacked(true, attack);
        assert!(error.starts_with("node 1 (") && error.contains(") with worker 1 lost: "), "{attack:?}: {error}");
        let (noticed, other) = if attack == Attack::Reflect { (&told, &error) } else { (&error, &told) };
        assert!(
            noticed.contains(" of the encrypted connection was changed on its way"),
            "{attack:?}: {noticed} {other}"
        );
    }
}

fn changed_bytes_to_a_node_are_the_loss_of_the_controller() {
    for attack in ATTACKS {
        let (error, told) = attacked(false, attack);
        assert!(told.contains("disco: the controller lost: "), "{attack:?}: {told}");
        let (noticed, other) = if attack == Attack::Reflect { (&error, &told) } else { (&told, &error) };
        assert!(
            noticed.contains(" of the encrypted connection was changed on its way"),
            "{attack:?}: {noticed} {other}"
        );
    }
}

fn a_damaged_length_is_a_loss_after_the_silence_limit_although_bytes_come() {
    let silent = "no message came from it for 1s";
    for encrypts in [true, false] {
        let (error, told) = attacked_if_it(encrypts, true, Attack::Lengthen);
        assert!(error.starts_with("node 1 (") && error.ends_with(silent), "{error}\n{told}");
        let (error, told) = attacked_if_it(encrypts, false, Attack::Lengthen);
        assert!(told.contains(&format!("the controller lost: {silent}")), "{error}\n{told}");
    }
}

/// The bytes of a node in a session that gets a text from it.
fn recorded(encrypts: bool) -> Vec<u8> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (session, child) = with(builder(2, 1).node_options(|nodes| nodes.encrypts = Some(encrypts)), |address| {
        let proxy = Proxy::start(address).recording(heard.clone());
        let value = if encrypts { "1" } else { "0" };
        node(proxy.address()).env("DISCO_ENCRYPT", value).spawn().unwrap()
    });
    let session = session.unwrap();
    block_on(async {
        let text = session.call("tests.length", (SECRET,)).await.unwrap();
        session.set(&text, disco::WorkerId::new(1), SECRET.into()).await.unwrap();
        let text: String = session.get(&text, disco::WorkerId::new(1)).await.unwrap();
        assert_eq!(text, SECRET);
        session.shutdown().await.unwrap();
    });
    assert!(end(child).status.success());
    heard.lock().unwrap().clone()
}

fn values_are_encrypted_unless_both_ends_turn_it_off() {
    for encrypts in [true, false] {
        let heard = recorded(encrypts);
        let is_there = |text: &str| heard.windows(text.len()).any(|bytes| bytes == text.as_bytes());
        assert_eq!([SECRET, "tests.length"].map(is_there), [!encrypts; 2]);
    }
}

/// The output of a refused node, and the error of the session's start.
fn refused(controller: bool, its: &str) -> (String, String) {
    let builder =
        builder(2, 1).node_options(|nodes| nodes.encrypts = Some(controller)).start_deadline(Duration::from_secs(1));
    let (session, child) = with(builder, |address| {
        node(address).env("DISCO_ENCRYPT", its).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap()
    });
    (session.unwrap_err().to_string(), complaint(child))
}

fn a_node_that_does_not_encrypt_is_rejected_with_the_reason_on_both_ends() {
    let (error, told) = refused(true, "0");
    let why =
        "the controller encrypts its connections and the node does not: set DISCO_ENCRYPT to the same value for both";
    assert!(error.ends_with(why) && told.trim_end().ends_with(why), "{error}\n{told}");
}

fn a_controller_that_does_not_encrypt_is_rejected_with_the_reason_on_both_ends() {
    let (error, told) = refused(false, "1");
    let why =
        "the node encrypts its connection and the controller does not: set DISCO_ENCRYPT to the same value for both";
    assert!(error.ends_with(why) && told.trim_end().ends_with(why), "{error}\n{told}");
}
