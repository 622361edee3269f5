//! Transfers, which go ahead of their frames.

use super::*;

/// A transfer of 8 MiB, and its content.
fn transfer(id: u64) -> (Arc<Transfer>, Arc<Pieces>) {
    let tensor = Value::from(Tensor::zeros(DType::U8, [8 << 20]).unwrap());
    let content = Pieces::of_tensors([&tensor]).unwrap().unwrap();
    (Arc::new(Transfer::new(id, content.byte_len(), Arc::default())), Arc::new(content))
}

#[test]
fn frames_overtake_a_transfer() {
    let (a, b) = pair();
    let (transfer, content) = transfer(7);
    a.send_ahead(transfer.clone(), content).unwrap();
    (0..100).for_each(|_| a.send_last(bye("frame")).unwrap());
    let (mut incoming, mut frames, mut left) = (Incoming::new(1 << 20), 0, u64::MAX);
    while left > 0 {
        assert!(!transfer.is_sent() || left <= 1 << 20, "the rest is in the socket");
        incoming.fill(&b).unwrap();
        a.flush().unwrap();
        while let Some(message) = incoming.next().unwrap() {
            match message {
                Message::Ahead { transfer: 7, left: then, .. } => left = then,
                Message::Bye(_) => frames += 1,
                other => panic!("{other}"),
            }
        }
        assert!(frames == 100 || left > 6 << 20, "frames wait for {} bytes of a transfer", (8 << 20) - left);
    }
    assert!(transfer.is_sent() && transfer.moved() == 8 << 20 && !a.is_behind());
}

#[test]
fn a_transfer_makes_progress_under_a_constant_load_of_urgent_packets() {
    let (a, b) = pair();
    let (transfer, content) = transfer(7);
    a.send_ahead(transfer.clone(), content).unwrap();
    let (mut incoming, mut left) = (Incoming::new(1 << 20), u64::MAX);
    let urgent: Arc<[u8]> = bye(&"x".repeat(10 << 10)).into();
    let mut rounds = 0;
    while left > 0 {
        rounds += 1;
        assert!(rounds < 10_000, "{left} bytes are left");
        while a.backlog() < 1 << 20 {
            a.send(urgent.clone(), None).unwrap();
        }
        incoming.fill(&b).unwrap();
        a.flush().unwrap();
        while let Some(message) = incoming.next().unwrap() {
            if let Message::Ahead { left: then, .. } = message {
                left = then;
            }
        }
    }
}

#[test]
fn transfers_take_turns() {
    let (a, b) = pair();
    let transfers = [7, 8, 9].map(transfer);
    for (transfer, content) in &transfers {
        a.send_ahead(transfer.clone(), content.clone()).unwrap();
    }
    let (mut incoming, mut left) = (Incoming::new(1 << 20), [8 << 20; 3]);
    while left.iter().any(|left| *left > 0) {
        incoming.fill(&b).unwrap();
        a.flush().unwrap();
        while let Some(message) = incoming.next().unwrap() {
            let Message::Ahead { transfer, left: then, .. } = message else { panic!("{message}") };
            left[transfer as usize - 7] = then;
        }
        // Parts that were in the socket before the second transfer began come first.
        let (least, most) = (left.iter().min().unwrap(), left.iter().max().unwrap());
        assert!(*most == 8 << 20 || most - least < 4 << 20, "{left:?}");
    }
}

#[test]
fn the_last_owner_of_a_transfer_is_dropped_without_the_lock_of_the_connection() {
    let (a, b) = pair();
    let (transfer, content) = transfer(7);
    a.send_ahead(transfer.clone(), content).unwrap();
    let mut incoming = Incoming::new(1 << 20);
    while !transfer.is_sent() {
        incoming.fill(&b).unwrap();
        while incoming.next().unwrap().is_some() {}
        a.flush().unwrap();
    }
    let alive = Arc::downgrade(&transfer);
    a.send_last_after(bye("frame"), transfer).unwrap();
    while a.is_behind() {
        incoming.fill(&b).unwrap();
        a.flush().unwrap();
    }
    assert!(alive.strong_count() > 0, "it wakes futures when it is dropped");
    a.notify_sent();
    assert_eq!(alive.strong_count(), 0);
}

#[test]
fn a_withdrawn_transfer_sends_no_more_parts() {
    let (a, b) = pair();
    let (begun, waiting) = (transfer(7), transfer(8));
    for (transfer, content) in [&begun, &waiting] {
        a.send_ahead(transfer.clone(), content.clone()).unwrap();
    }
    a.withdraw(&waiting.0).unwrap();
    a.withdraw(&begun.0).unwrap();
    let (mut incoming, mut parts, mut withdrawn) = (Incoming::new(1 << 20), 0, Vec::new());
    while incoming.fill(&b).unwrap() || a.is_behind() {
        a.flush().unwrap();
        while let Some(message) = incoming.next().unwrap() {
            match message {
                Message::Ahead { transfer: 7, .. } => parts += 1,
                Message::Withdraw(transfer) => withdrawn.push(transfer),
                other => panic!("{other}"),
            }
        }
    }
    assert!(parts < 100, "{parts} parts have gone");
    assert_eq!(withdrawn, [7], "nothing of transfer 8 has gone");
    assert_eq!([begun, waiting].map(|(_, content)| Arc::strong_count(&content)), [1, 1]);
}

#[test]
fn no_caller_waits_for_the_transfers_of_a_closed_connection() {
    let (a, _b) = pair();
    let transfers = [transfer(7), transfer(8)];
    for (transfer, content) in &transfers {
        a.send_ahead(transfer.clone(), content.clone()).unwrap();
        assert!(!transfer.is_sent());
    }
    a.close();
    a.close();
    assert!(transfers.iter().all(|(transfer, _)| transfer.is_sent()));
}
