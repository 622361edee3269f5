//! Both ends of a handshake: nothing but what the token's owner said is taken.

#![no_main]

use disco_channel::handshake::{ANSWER, GREETING, Guest, Host, Request, VERDICT};
use disco_channel::nodes::Token;
use disco_core::{Error, World};

disco_fuzz::target!(check, seeds);

fn token() -> Token {
    Token::new("a secret of many words").expect("a token")
}

fn world() -> World {
    World::new(8, 2).and_then(|world| world.on_nodes(2)).expect("a world")
}

/// A handshake that goes well: its three records.
fn handshake() -> (Guest, [u8; GREETING], [u8; ANSWER], [u8; VERDICT]) {
    let host = Host::new([1; 32]);
    let request = Request { node: Some(1), per_node: None };
    let (guest, answer) = Guest::answer(&token(), host.greeting(), [2; 32], request).expect("a greeting");
    let verdict = host.judge(&token(), &world(), &answer).verdict.expect("a verdict");
    (guest, *host.greeting(), answer, verdict)
}

fn check(bytes: &[u8]) -> Result<(), Error> {
    let short = || Error::invalid("too short");
    let (guest, _, right_answer, right_verdict) = handshake();
    let (which, record) = bytes.split_first().ok_or_else(short)?;
    match which % 3 {
        0 => {
            let greeting = record.first_chunk::<GREETING>().ok_or_else(short)?;
            Guest::answer(&token(), greeting, [2; 32], Request::default()).map(drop)
        }
        1 => {
            let answer = record.first_chunk::<ANSWER>().ok_or_else(short)?;
            let taken = Host::new([1; 32]).judge(&token(), &world(), answer).request;
            assert_eq!(taken.is_ok(), *answer == right_answer, "{answer:?}");
            taken.map(drop)
        }
        _ => {
            let verdict = record.first_chunk::<VERDICT>().ok_or_else(short)?;
            let taken = guest.judge(&token(), verdict);
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
