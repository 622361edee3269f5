//! Tests of the table: the order of replies, failures and ends.

use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use super::{Expected, LaneInbox, Replies, ReplyTable};
use crate::channel::{Inbox as _, Notice};
use crate::error::{Error, ErrorKind, Failure, LossCause, LostPeer};
use crate::id::WorkerId;
use crate::stream::fleet::Lost;
use crate::value::Value;
use crate::worker_range::WorkerRange;

fn text(expected: &Expected<'_>) -> Option<String> {
    let each = |replies: Replies| format!("{:?}", replies.of_each().collect::<Vec<_>>());
    expected.pending.take().map(|taken| taken.map_or_else(|error| error.to_string(), each))
}

fn failure(worker: u32, message: &str) -> Arc<Failure> {
    Arc::new(Failure {
        worker: WorkerId::new(worker),
        command: 1,
        operation: "f".into(),
        register: None,
        message: message.into(),
        causes: Vec::new(),
        aborted: false,
        kind: ErrorKind::Broken,
        user: None,
    })
}

#[test]
fn only_the_failure_of_the_session_is_replaced_by_its_explanation() {
    let reply_table = ReplyTable::default();
    let [root, other, explained] = [failure(0, "root"), failure(1, "other"), failure(0, "root, with a table")];
    reply_table.notice(WorkerId::new(0), Notice::Failed { epoch: 0, failure: root.clone() });
    reply_table.explain(&Error::Worker(other.clone()), &Error::Worker(other));
    assert_eq!(reply_table.root_cause(), Some(root.clone()));
    reply_table.explain(&Error::Worker(root), &Error::Worker(explained.clone()));
    assert_eq!(reply_table.root_cause(), Some(explained));
}

#[test]
fn a_wait_ends_when_a_worker_that_has_not_replied_leaves() {
    let reply_table = ReplyTable::default();
    let (one, both) = (
        reply_table.expect("sync_worker", 1, WorkerRange::new(1..2)),
        reply_table.expect("sync_all", 2, WorkerRange::new(0..2)),
    );
    reply_table.reply(WorkerId::new(0), 2, Ok(Value::None));
    reply_table.left(WorkerRange::new(0..1));
    assert_eq!((text(&one), text(&both)), (None, None), "worker 0 has replied to all that it was asked");
    reply_table.reply(WorkerId::new(1), 2, Ok(Value::None));
    reply_table.left(WorkerRange::new(1..2));
    assert_eq!(text(&one).unwrap(), "sync_worker: the session is shut down");
    assert_eq!(text(&both).unwrap(), "[Ok(None), Ok(None)]", "replies that came before are delivered");
}

#[test]
fn the_end_of_a_dismissed_worker_is_no_loss_and_ends_no_wait() {
    for is_lost in [false, true] {
        let reply_table = Arc::new(ReplyTable::default());
        let inbox = LaneInbox::new(&reply_table);
        let dismissed = WorkerId::new(2);
        reply_table.dismiss(dismissed.into());
        assert!(!reply_table.have_ended(&[dismissed]));
        let later = reply_table.expect("get", 1, WorkerRange::new(1..2));
        if is_lost {
            inbox.lost(dismissed.into(), Error::state("the connection is closed"))
        } else {
            inbox.left(dismissed.into())
        }
        assert!(reply_table.have_ended(&[dismissed]) && reply_table.check_lost().is_ok());
        assert_eq!(text(&later), None);
    }
}

#[test]
fn each_worker_replies_once_whether_its_replies_come_alone_or_with_those_of_others() {
    let reply_table = ReplyTable::default();
    let expected = reply_table.expect("sync_all", 1, WorkerRange::new(0..6));
    reply_table.reply(WorkerId::new(2), 1, Ok(Value::from(2)));
    reply_table.replies(WorkerRange::new(1..4), 1);
    reply_table.replies(WorkerRange::new(5..9), 1);
    assert_eq!((text(&expected), expected.pending.missing()), (None, [0, 4].map(WorkerId::new).into()));
    reply_table.replies(WorkerRange::new(0..5), 1);
    let none = "Ok(None), ";
    assert_eq!(text(&expected).unwrap(), format!("[{none}{none}Ok(Int(2)), {none}{none}Ok(None)]"));
}

#[test]
fn waits_end_with_the_first_known_loss() {
    let reply_table = ReplyTable::default();
    let before = reply_table.expect("get", 1, WorkerRange::new(0..1));
    let peer = LostPeer::Workers { workers: WorkerRange::new(1..2), node: None };
    reply_table.lose(Lost::Session, &Error::peer_lost(peer, LossCause::Other("it is gone".into())));
    let after = reply_table.expect("get", 2, WorkerRange::new(0..1));
    reply_table.close();
    for expected in [before, after] {
        assert_eq!(text(&expected).unwrap(), "worker 1 lost: it is gone");
    }
}

/// An executor that polls a woken task at once, on the thread that wakes it.
struct Inline(Arc<ReplyTable>, Mutex<mpsc::Sender<()>>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        _ = self.0.check();
        _ = self.1.lock().unwrap().send(());
    }
}

#[test]
fn a_waker_may_use_the_session() {
    let ends: [fn(&ReplyTable); 4] = [
        |reply_table| reply_table.lose(Lost::Session, &Error::NoCommunicator),
        |reply_table| reply_table.close(),
        |reply_table| reply_table.left(WorkerRange::new(0..1)),
        |reply_table| reply_table.reply(WorkerId::new(0), 1, Ok(Value::None)),
    ];
    for end in ends {
        let reply_table = Arc::new(ReplyTable::default());
        let (tell, told) = mpsc::channel();
        let waker = Waker::from(Arc::new(Inline(reply_table.clone(), Mutex::new(tell))));
        let other = reply_table.clone();
        thread::spawn(move || {
            let expected = reply_table.expect("get", 1, WorkerRange::new(0..1));
            assert!(expected.pending.poll_take(&mut Context::from_waker(&waker)).is_pending());
            end(&other);
        });
        told.recv_timeout(Duration::from_secs(10)).expect("the waker waits for a lock that its caller holds");
    }
}

#[test]
fn the_epoch_after_a_replacement_has_no_failures_of_the_one_before() {
    let reply_table = ReplyTable::default();
    for epoch in 0..3 {
        reply_table.notice(WorkerId::new(0), Notice::Failed { epoch, failure: failure(0, "root") });
        assert_eq!(reply_table.failures().len(), 1);
        reply_table.begin_next_epoch();
        assert_eq!((reply_table.failures(), reply_table.root_cause()), (Vec::new(), None));
    }
}
