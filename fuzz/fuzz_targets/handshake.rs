//! Both ends of a handshake: only records that the token's owner made are accepted.

#![no_main]

use disco_channel::handshake::{
    ANSWER_BYTES, ControllerHandshake, GREETING_BYTES, NodeHandshake, Request, VERDICT_BYTES,
};
use disco_channel::nodes::Token;
use disco_core::{Error, World};

disco_fuzz::target!(check, seeds);

fn token() -> Token {
    Token::new("a secret of many words").expect("a token")
}

fn world() -> World {
    World::new(8, 2).and_then(|world| world.on_nodes(2)).expect("a world")
}

/// The three records of a successful handshake.
fn handshake() -> (NodeHandshake, [u8; GREETING_BYTES], [u8; ANSWER_BYTES], [u8; VERDICT_BYTES]) {
    let host = ControllerHandshake::new([1; 32]);
    let request = Request { node: Some(1), per_node: None };
    let (node_handshake, answer) =
        NodeHandshake::answer(&token(), host.greeting(), [2; 32], request).expect("a greeting");
    let verdict = host.judge(&token(), &world(), &answer).verdict.expect("a verdict");
    (node_handshake, *host.greeting(), answer, verdict)
}

fn check(bytes: &[u8]) -> Result<(), Error> {
    let short = || Error::invalid("too short");
    let (node_handshake, _, right_answer, right_verdict) = handshake();
    let (which, record) = bytes.split_first().ok_or_else(short)?;
    match which % 3 {
        0 => {
            let greeting = record.first_chunk::<GREETING_BYTES>().ok_or_else(short)?;
            NodeHandshake::answer(&token(), greeting, [2; 32], Request::default()).map(drop)
        }
        1 => {
            let answer = record.first_chunk::<ANSWER_BYTES>().ok_or_else(short)?;
            let taken = ControllerHandshake::new([1; 32]).judge(&token(), &world(), answer).request;
            assert_eq!(taken.is_ok(), *answer == right_answer, "{answer:?}");
            taken.map(drop)
        }
        _ => {
            let verdict = record.first_chunk::<VERDICT_BYTES>().ok_or_else(short)?;
            let taken = node_handshake.judge(&token(), verdict);
            assert_eq!(taken.is_ok(), *verdict == right_verdict, "{verdict:?}");
            taken.map(drop)
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let (_, greeting, answer, verdict) = handshake();
    [(0, &greeting[..]), (1, &answer[..]), (2, &verdict[..])]
        .map(|(which, record)| [&[which], record].concat())
        .to_vec()
}
