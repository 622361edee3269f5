//! Tests of both halves of a connection over a socket pair.

use std::env;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use disco_core::wire::{Message, Pieces, Transfer, WireError};
use disco_core::{DType, Tensor, Value, World};
use disco_engine::handshake::{ControllerHandshake, NodeHandshake, Request, Secret};
use disco_engine::limits::{CHUNK_BYTES, MAX_PACKET_BYTES};
use disco_engine::noise::MAX_PLAIN_BYTES;
use disco_engine::token::Token;
use rustix::event::PollFlags;
use rustix::net::{self, SendFlags};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::{Connection, Incoming, PART_BYTES};
use crate::remote::reactor::{Waker, poll_one};

mod transfers;

fn pair() -> (Connection, Connection) {
    let (a, b) = UnixStream::pair().unwrap();
    let connection = |stream| Connection::new(stream, Arc::new(Waker::new().unwrap())).unwrap();
    (connection(a), connection(b))
}

/// A pair whose first connection sends to the `Incoming` of the second one, encrypted.
fn encrypted() -> (Connection, Connection, Incoming) {
    let (a, b) = pair();
    let secret = Secret { token: Token::new("a secret of many words").unwrap(), encrypts: true };
    let host = ControllerHandshake::new([1; 32]);
    let (node, answer) = NodeHandshake::answer(&secret, host.greeting(), Request::default()).unwrap();
    let judgement = host.judge(&secret, &World::new(1, 1).unwrap(), &answer);
    let (_, ours) = node.judge(&judgement.verdict.unwrap()).unwrap();
    let mut incoming = Incoming::new(MAX_PACKET_BYTES);
    a.encrypt(ours.unwrap()).unwrap();
    incoming.decrypt(judgement.admitted.unwrap().1.unwrap());
    (a, b, incoming)
}

#[test]
fn encrypted_packets_of_all_sizes_come_whole_and_in_order() {
    let (a, b, mut incoming) = encrypted();
    let sizes = [0, 1, 100, MAX_PLAIN_BYTES - 20, MAX_PLAIN_BYTES, CHUNK_BYTES, 3 * CHUNK_BYTES, 5, 2 << 20];
    let texts = sizes.map(|size| "x".repeat(size));
    for (round, text) in texts.iter().enumerate() {
        // Urgent packets go between the parts of large ones.
        a.send_last(bye(text)).unwrap();
        a.send(bye(&format!("urgent {round}")), None).unwrap();
    }
    let (mut last, mut urgent) = (Vec::new(), 0);
    while last.len() + urgent < 2 * texts.len() {
        a.flush().unwrap();
        incoming.fill(&b).unwrap();
        while let Some(message) = incoming.next().unwrap() {
            let Message::Bye(text) = message else { panic!("{message}") };
            if text.starts_with("urgent ") { urgent += 1 } else { last.push(text.len()) }
        }
    }
    assert_eq!((last, a.backlog()), (sizes.to_vec(), 0));
}

#[test]
fn bytes_that_are_not_records_are_an_error_of_an_encrypted_connection() {
    let (a, b, mut incoming) = encrypted();
    net::send(&a, &bye("in clear, and so of the length of a record"), SendFlags::empty()).unwrap();
    let error = incoming.fill(&b).and_then(|_| incoming.fill(&b)).unwrap_err().to_string();
    assert!(error.contains("of the encrypted connection was changed on its way"), "{error}");
}

fn bye(text: &str) -> Vec<u8> {
    Message::Bye(text.into()).encode().unwrap()
}

#[test]
fn packets_come_whole_and_in_order_however_they_are_cut() {
    let (a, b) = pair();
    let long = "x".repeat(3 * CHUNK_BYTES);
    let texts = ["", "short", &long, "last"];
    for text in texts {
        a.send_last(bye(text)).unwrap();
    }
    let (mut incoming, mut come) = (Incoming::new(1 << 20), Vec::new());
    while come.len() < texts.len() {
        a.flush().unwrap();
        incoming.fill(&b).unwrap();
        while let Some(message) = incoming.next().unwrap() {
            let Message::Bye(text) = message else { panic!() };
            come.push(text);
        }
    }
    assert_eq!(come, texts);
    drop(a);
    // A process that another test starts at this moment has the other end, too, until it executes its program.
    assert!(poll_one(&b, PollFlags::IN, Duration::from_secs(10)), "the end of the connection has not come");
    incoming.fill(&b).unwrap();
    assert!(incoming.is_closed() && incoming.next().unwrap().is_none());
}

#[test]
fn bytes_that_the_socket_does_not_take_are_queued() {
    let (a, b) = pair();
    let big: Arc<[u8]> = bye(&"x".repeat(1 << 20)).into();
    a.send(big.clone(), None).unwrap();
    assert!(a.is_behind());
    let (mut incoming, mut come) = (Incoming::new(2 << 20), 0);
    while come == 0 {
        incoming.fill(&b).unwrap();
        a.flush().unwrap();
        come += usize::from(incoming.next().unwrap().is_some());
    }
    assert!(!a.is_behind());
    drop(b);
    assert!(a.send(big, None).unwrap_err().to_string().starts_with("the connection is cut: "));
}

#[test]
fn a_descriptor_comes_with_its_packet() {
    let (a, b) = pair();
    let (fd, other) = UnixStream::pair().unwrap();
    a.send(bye("none"), None).unwrap();
    a.send(bye("one"), Some(Arc::new(fd))).unwrap();
    let mut incoming = Incoming::new(1 << 20);
    while incoming.fill(&b).unwrap() {}
    incoming.next().unwrap().unwrap();
    incoming.next().unwrap().unwrap();
    let received = UnixStream::from(incoming.take_fd().unwrap());
    assert!(incoming.take_fd().is_err());
    drop(received);
    assert_eq!(std::io::Read::read(&mut &other, &mut [0]).unwrap(), 0, "the last copy is closed");
}

#[test]
fn no_packet_comes_between_a_packet_with_a_descriptor_and_its_successor() {
    let (a, b) = pair();
    let fd = Arc::new(UnixStream::pair().unwrap().0);
    // The socket is full, so that 64 packets are chosen to go next before the urgent packet is sent.
    let (mut filled, mut read) = (0, 0);
    while let Ok(sent) = net::send(a.as_fd(), &[0; CHUNK_BYTES], SendFlags::DONTWAIT) {
        filled += sent;
    }
    (1..64).for_each(|_| a.hold_last(bye("small")).unwrap());
    a.send_last_behind(bye("first"), fd, bye("second")).unwrap();
    a.send(bye("urgent"), None).unwrap();
    let mut rest = vec![0; filled];
    while read < filled {
        read += b.receive(&mut rest[read..]).unwrap();
    }
    let (mut incoming, mut come) = (Incoming::new(1 << 20), Vec::new());
    while a.is_behind() || incoming.fill(&b).unwrap() {
        a.flush().unwrap();
        while let Some(Message::Bye(text)) = incoming.next().unwrap() {
            come.push(text);
        }
    }
    let first = come.iter().position(|text| text == "first").unwrap();
    assert_eq!(come[first + 1], "second");
    assert!(come.contains(&"urgent".to_owned()));
}

#[test]
fn a_packet_above_the_limit_is_refused_before_its_content_comes() {
    let (a, b) = pair();
    a.send(u64::MAX.to_le_bytes().to_vec(), None).unwrap();
    let mut incoming = Incoming::new(100);
    incoming.fill(&b).unwrap();
    assert!(matches!(incoming.next(), Err(WireError::TooLarge { bytes: u64::MAX, .. })));
    let mut incoming = Incoming::new(100);
    a.send(101u64.to_le_bytes().to_vec(), None).unwrap();
    incoming.fill(&b).unwrap();
    assert!(matches!(incoming.next(), Err(WireError::TooLarge { bytes: 101, limit: 100 })));
}

#[test]
fn a_large_reply_in_shared_memory_stays_unread_until_it_is_accepted() {
    let (a, b) = pair();
    let tensor = Tensor::from_vec(vec![7u8; CHUNK_BYTES + 1], [CHUNK_BYTES + 1]).unwrap();
    let beside = Message::encode_beside(1, &Ok(tensor.into())).unwrap();
    a.send(bye("small"), None).unwrap();
    a.send_last_behind(beside.first, beside.snapshot, beside.packet).unwrap();
    a.send_last(bye("behind it")).unwrap();
    drop(a);
    let mut incoming = Incoming::new(1 << 20);
    while incoming.fill(&b).unwrap() {}
    assert!(matches!(incoming.next_if(|| false), Ok(Some(Message::Bye(text))) if text == "small"));
    for _ in 0..2 {
        assert!(matches!(incoming.next_if(|| false), Ok(None)) && incoming.is_held());
    }
    assert!(matches!(incoming.next_if(|| true), Ok(Some(Message::Reply { seq: 1, reply: Ok(Value::Tensor(_)) }))));
    assert!(matches!(incoming.next_if(|| false), Ok(Some(Message::Bye(text))) if text == "behind it"));
    assert!(matches!(incoming.next(), Ok(None)) && !incoming.is_held());
}

#[test]
fn only_bytes_of_large_packets_count_as_moved() {
    let (a, b) = pair();
    let mut incoming = Incoming::new(1 << 20);
    let mut come = |count: usize| {
        let mut come = 0;
        while come < count {
            a.flush().unwrap();
            incoming.fill(&b).unwrap();
            while incoming.next().unwrap().is_some() {
                come += 1;
            }
            b.note_received(incoming.moved());
        }
    };
    a.send(bye("small"), None).unwrap();
    come(1);
    assert_eq!([a.moved(), b.moved()], [0, 0]);
    let large = bye(&"x".repeat(3 * CHUNK_BYTES));
    a.send_last(large.clone()).unwrap();
    a.send(bye("small"), None).unwrap();
    come(2);
    assert_eq!(b.moved(), large.len() as u64);
    let envelopes = large.len().div_ceil(PART_BYTES) * (bye("").len() + 64);
    assert!((large.len()..large.len() + envelopes).contains(&(a.moved() as usize)), "{}", a.moved());
}

#[test]
fn small_packets_overtake_large_ones() {
    let (a, b) = pair();
    let big = "x".repeat(8 << 20);
    a.send_last(bye(&big)).unwrap();
    a.send_last(bye("after it")).unwrap();
    a.send(bye("urgent"), None).unwrap();
    let (mut incoming, mut come) = (Incoming::new(16 << 20), Vec::new());
    while come.len() < 3 {
        incoming.fill(&b).unwrap();
        a.flush().unwrap();
        while let Some(Message::Bye(text)) = incoming.next().unwrap() {
            come.push(text);
        }
    }
    assert!(come == ["urgent".to_owned(), big, "after it".to_owned()]);
}

#[test]
fn a_part_out_of_order_is_refused() {
    let (a, b) = pair();
    let mut incoming = Incoming::new(1 << 20);
    let mut refused = |left: u64, size: usize| {
        a.send(Message::Part { left, bytes: vec![0; size].into() }.encode().unwrap(), None).unwrap();
        incoming.fill(&b).unwrap();
        incoming.next()
    };
    assert!(matches!(refused(1 << 60, 1), Err(WireError::TooLarge { .. })));
    assert!(matches!(refused(100, 10), Ok(None)));
    assert!(matches!(refused(80, 10), Err(WireError::Expected(_))));
    assert!(matches!(refused(100, 0), Err(WireError::Expected(_))));
}

#[test]
fn a_held_packet_is_sent_with_the_next_packet() {
    let (a, b) = pair();
    let mut incoming = Incoming::new(1 << 20);
    let mut came = || {
        let mut came = Vec::new();
        while incoming.fill(&b).unwrap() {
            while let Some(Message::Bye(text)) = incoming.next().unwrap() {
                came.push(text);
            }
        }
        came
    };
    a.hold_last(bye("first")).unwrap();
    a.hold_last(bye("second")).unwrap();
    assert!(came().is_empty() && !a.is_behind());
    a.send_last(bye("third")).unwrap();
    assert_eq!(came(), ["first", "second", "third"]);
    a.hold_last(bye("fourth")).unwrap();
    a.send(bye("urgent"), None).unwrap();
    assert_eq!(came(), ["urgent", "fourth"]);
    a.hold_last(bye("fifth")).unwrap();
    a.flush().unwrap();
    assert_eq!(came(), ["fifth"]);
}

#[test]
fn the_backlog_holds_the_largest_packet_of_each_worker() {
    // The other end does not read; the packets share their memory.
    let packet: Arc<[u8]> = vec![0; MAX_PACKET_BYTES / 4].into();
    let waiting = |workers| {
        let (a, _b) = pair();
        a.serve(workers, MAX_PACKET_BYTES);
        (0..100).take_while(|_| a.send_last(packet.clone()).is_ok()).count()
    };
    assert_eq!([0, 1, 8].map(waiting), [16, 16, 33]);
}

#[test]
fn a_connection_refuses_packets_above_the_limit_that_was_set() {
    let (a, _b) = pair();
    a.serve(1, MAX_PACKET_BYTES);
    a.limit_unsent(10 << 20);
    let packet: Arc<[u8]> = vec![0; 4 << 20].into();
    assert_eq!((0..100).take_while(|_| a.send_last(packet.clone()).is_ok()).count(), 2);
    assert!(a.is_full());
}

#[test]
fn refused_descriptors_are_sent_after_others_have_arrived() {
    const CHILD: &str = "TEST_FEW_FILES";
    const NAME: &str = "reactor::connection::tests::descriptors_that_the_system_refuses_go_once_others_have_arrived";
    if env::var_os(CHILD).is_none() {
        // The limit is set for the process.
        let child = Command::new(env::current_exe().unwrap()).args(["--exact", NAME]).env(CHILD, "1").output().unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        return;
    }
    let (files, nothing) = (64, CapabilitySet::empty());
    setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum: Some(files) }).unwrap();
    // Privileged users have no limit of descriptors in flight.
    let none = CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
    set_capabilities(None, none).unwrap();
    let (a, b) = pair();
    let fd = Arc::new(UnixStream::pair().unwrap().0);
    let packets = 3 * files;
    for number in 0..packets {
        a.send(bye(&number.to_string()), Some(fd.clone())).unwrap();
    }
    assert!(a.is_paused() && !a.is_behind(), "the system has refused one");
    let (mut incoming, mut come) = (Incoming::new(1 << 20), 0);
    while come < packets {
        incoming.fill(&b).unwrap();
        while let Some(Message::Bye(text)) = incoming.next().unwrap() {
            drop(incoming.take_fd().unwrap());
            assert_eq!(text, come.to_string());
            come += 1;
        }
        a.flush().unwrap();
    }
    assert!(!a.is_paused() && !a.is_cut());
}

#[test]
fn one_flush_sends_a_part_of_what_an_always_ready_reader_takes() {
    let (a, b) = pair();
    let large = bye(&"x".repeat(64 << 20));
    let reader = thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        loop {
            match b.receive(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    });
    a.send_last(large).unwrap();
    let mut most = 0;
    while let before = a.backlog()
        && !a.flush().unwrap()
    {
        most = most.max(before - a.backlog());
    }
    assert!(most < 8 << 20, "{most} bytes in one call");
    drop(a);
    reader.join().unwrap();
}
