//! Both ends of a handshake: only records that the token's owner made for this handshake are accepted. An input is a
//! change of a record, by exclusive or, since each handshake has other ephemeral keys.

#![no_main]

use disco_channel::nodes::Token;
use disco_core::{Error, World};
use disco_engine::handshake::{
    ANSWER_BYTES, ControllerHandshake, GREETING_BYTES, NodeHandshake, Request, Secret, VERDICT_BYTES,
};

disco_fuzz::target!(check, seeds);

fn secret() -> Secret {
    Secret { token: Token::new("a secret of many words").expect("a token"), encrypts: true }
}

fn world() -> World {
    World::new(8, 2).and_then(|world| world.on_nodes(2)).expect("a world")
}

/// `record` with the bits of `change` inverted, and whether there are none.
fn changed<const N: usize>(record: &[u8; N], change: &[u8]) -> Result<([u8; N], bool), Error> {
    let change = change.first_chunk::<N>().ok_or_else(|| Error::invalid("too short"))?;
    Ok((std::array::from_fn(|at| record[at] ^ change[at]), *change == [0; N]))
}

fn check(bytes: &[u8]) -> Result<(), Error> {
    let (which, change) = bytes.split_first().ok_or_else(|| Error::invalid("too short"))?;
    let (secret, host) = (secret(), ControllerHandshake::new([1; 32]));
    let request = Request { node: Some(1), per_node: None };
    if which % 3 == 0 {
        let (greeting, _) = changed(host.greeting(), change)?;
        return NodeHandshake::answer(&secret, &greeting, request).map(drop);
    }
    let (node_handshake, answer) = NodeHandshake::answer(&secret, host.greeting(), request)?;
    if which % 3 == 1 {
        let (answer, is_right) = changed(&answer, change)?;
        let admitted = host.judge(&secret, &world(), &answer).admitted;
        assert_eq!(admitted.is_ok(), is_right, "{change:?}");
        return admitted.map(drop);
    }
    let verdict = host.judge(&secret, &world(), &answer).verdict.ok_or_else(|| Error::invalid("no verdict"))?;
    let (verdict, is_right) = changed(&verdict, change)?;
    let judged = node_handshake.judge(&verdict);
    assert_eq!(judged.is_ok(), is_right, "{change:?}");
    judged.map(drop)
}

fn seeds() -> Vec<Vec<u8>> {
    [GREETING_BYTES, ANSWER_BYTES, VERDICT_BYTES]
        .into_iter()
        .enumerate()
        .map(|(which, bytes)| [&[which as u8][..], &vec![0; bytes]].concat())
        .collect()
}
