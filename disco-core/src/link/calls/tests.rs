//! A worker's answers to cancellations, and the waits that they end.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, mpsc};
use std::thread;

use super::super::cancel::COUNTED_CALLS;
use super::*;
use crate::abort::{Abort, Heard};
use crate::activity::Activity;

const ONE: CallOps = CallOps::Collectives(1);
const LIMIT: Duration = Duration::from_secs(60);

/// The command, whether the worker has left the call, and its operations.
type Answer = (u64, bool, CallOps);

/// A link, a listener of its aborts, and the answers to cancellations.
fn link() -> (Arc<Link>, Arc<Heard>, mpsc::Receiver<Answer>) {
    let (answers, received) = mpsc::channel();
    let link = Arc::new(Link::of_thread(Arc::default(), Activity::default(), move |notice| {
        let Notice::Cancelled { command, has_left, ops } = notice else { panic!("{notice}") };
        _ = answers.send((command, has_left, ops));
    }));
    let listener = Arc::new(Heard::default());
    link.on_abort(&(listener.clone() as Arc<dyn Abort>));
    (link, listener, received)
}

fn end(link: &Link, command: u64) {
    link.activity().finish(command, true);
    link.end_call(command);
}

fn cancelled(command: u64, why: &str) -> AbortCause {
    AbortCause::Cancelled { command, why: why.into() }
}

#[test]
fn a_cancellation_aborts_the_operations_of_its_call_only() {
    let (link, listener, answers) = link();
    let heard = || listener.0.lock().unwrap().clone();
    link.activity().receive(4);
    link.cancel(4, &"no longer needed".into());
    assert_eq!(heard(), [], "the call has used no communicator");
    assert_eq!(link.begin_operation(ONE, LIMIT).unwrap_err().to_string(), "cancelled: no longer needed");
    end(&link, 4);
    link.settle(4, None);
    link.activity().receive(5);
    let operation = link.begin_operation(ONE, LIMIT).unwrap();
    link.cancel(4, &"late".into());
    link.cancel(6, &"early".into());
    assert_eq!((heard(), link.cancelled_now()), (vec![], None));
    link.cancel(5, &"in time".into());
    assert_eq!((heard(), link.cancelled_now().as_deref()), (vec![cancelled(5, "in time")], Some("in time")));
    drop(operation);
    end(&link, 5);
    assert_eq!(link.cancelled(6).as_deref(), Some("early"));
    let none = CallOps::Collectives(0);
    let expected = [(4, true, none), (4, false, none), (6, true, none), (5, true, CallOps::Other)];
    assert_eq!(answers.try_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn an_answer_counts_the_collectives_of_the_call() {
    let (link, _listener, answers) = link();
    let begin = |command, ops| {
        link.activity().receive(command);
        drop(link.begin_operation(ops, LIMIT).unwrap());
        end(&link, command);
    };
    let answer = |command| {
        link.cancel(command, &"late".into());
        let (_, has_left, ops) = answers.recv().unwrap();
        assert!(!has_left);
        ops
    };
    begin(7, CallOps::Collectives(3));
    begin(7, ONE);
    begin(8, CallOps::Other);
    begin(8, ONE);
    begin(9, ONE);
    end(&link, 12);
    assert_eq!([7, 8, 9, 10].map(answer), [CallOps::Collectives(4), CallOps::Other, ONE, CallOps::Collectives(0)]);
    // The place of call 7 has another one now.
    begin(7 + COUNTED_CALLS as u64, ONE);
    assert_eq!([7, 9].map(answer), [CallOps::Other, ONE]);
    // A refused operation has not begun.
    link.activity().receive(90);
    link.begin_operation(ONE, LIMIT).unwrap().withdraw();
    end(&link, 90);
    assert_eq!(answer(90), CallOps::Collectives(0));
}

#[test]
fn a_worker_that_has_left_a_call_begins_no_operation_until_the_cancellation_is_settled() {
    type End = fn(&Link);
    let ends: [(End, usize); 4] = [
        (|link| link.settle(3, None), 0),
        (|link| link.settle(3, Some(&"enough".into())), 1),
        (|link| link.abort(0, &"worker 1 failed".into()), 1),
        (|link| link.cancel(4, &"too".into()), 0),
    ];
    for (number, (end_of_wait, aborts)) in ends.into_iter().enumerate() {
        let (link, listener, answers) = link();
        link.cancel(3, &"enough".into());
        assert_eq!(answers.recv().unwrap(), (3, true, CallOps::Collectives(0)));
        end(&link, 3);
        link.activity().receive(4);
        let waiting = {
            let link = link.clone();
            thread::spawn(move || link.begin_operation(ONE, LIMIT).map(drop))
        };
        thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        end_of_wait(&link);
        assert_eq!(waiting.join().unwrap().is_err(), number == 3);
        assert_eq!(listener.0.lock().unwrap().len(), aborts);
    }
    let (link, ..) = link();
    link.cancel(3, &"enough".into());
    end(&link, 3);
    link.activity().receive(4);
    let late = link.begin_operation(ONE, Duration::ZERO).unwrap_err().to_string();
    assert!(late.ends_with("not all workers have answered the cancellation of command 3"), "{late}");
    link.reset(1);
    link.begin_operation(ONE, Duration::ZERO).unwrap();
}

#[test]
fn a_cancellation_of_which_a_peer_has_learned_first_holds_up_later_calls_too() {
    let (link, _listener, answers) = link();
    link.activity().receive(3);
    let operation = link.begin_operation(ONE, LIMIT).unwrap();
    let error = link.error_of_operation(Error::Aborted { cause: cancelled(3, "enough") });
    assert_eq!(error.to_string(), "cancelled: enough");
    drop(operation);
    end(&link, 3);
    link.activity().receive(4);
    assert!(matches!(link.begin_operation(ONE, Duration::ZERO), Err(Error::Deadline { .. })));
    link.cancel(3, &"enough".into());
    assert_eq!(answers.recv().unwrap(), (3, true, CallOps::Other));
    link.settle(3, None);
    drop(link.begin_operation(ONE, Duration::ZERO).unwrap());
    // A recovery forgets the cancellations before it, and no later ones.
    link.cancel(6, &"later".into());
    link.reset(1);
    end(&link, 6);
    link.activity().receive(7);
    assert!(matches!(link.begin_operation(ONE, Duration::ZERO), Err(Error::Deadline { .. })));
}

#[test]
fn a_settled_cancellation_breaks_no_communicators_that_were_made_later() {
    let (link, listener, _answers) = link();
    link.activity().receive(5);
    link.begin_data_plane();
    link.settle(4, Some(&"of the old ones".into()));
    assert_eq!(*listener.0.lock().unwrap(), []);
    link.settle(5, Some(&"while they are made".into()));
    assert_eq!(*listener.0.lock().unwrap(), [cancelled(5, "while they are made")]);
}

#[test]
fn nothing_begins_while_a_cancellation_aborts_an_operation_that_has_ended() {
    /// Takes its time to abort.
    struct Slow {
        has_begun: mpsc::Sender<()>,
        has_ended: AtomicBool,
    }
    impl Abort for Slow {
        fn abort(&self, _: &AbortCause) {
            self.has_begun.send(()).unwrap();
            thread::sleep(Duration::from_millis(50));
            self.has_ended.store(true, Ordering::SeqCst);
        }
    }
    for begin in [|link: &Link| drop(link.begin_wait()), Link::begin_data_plane] {
        let (link, ..) = link();
        let (has_begun, aborts) = mpsc::channel();
        let slow = Arc::new(Slow { has_begun, has_ended: AtomicBool::new(false) });
        link.on_abort(&(slow.clone() as Arc<dyn Abort>));
        link.activity().receive(1);
        let operation = link.begin_wait();
        thread::scope(|scope| {
            scope.spawn(|| link.cancel(1, &"late".into()));
            aborts.recv().unwrap();
            drop(operation);
            begin(&link);
            assert!(slow.has_ended.load(Ordering::SeqCst));
        });
    }
}

#[test]
fn an_operation_beside_the_worker_is_aborted_with_the_call_that_has_started_it() {
    let (link, listener, answers) = link();
    link.activity().receive(1);
    let started = link.go_to_background();
    end(&link, 1);
    link.activity().receive(2);
    link.cancel(2, &"another call".into());
    assert_eq!(*listener.0.lock().unwrap(), []);
    let aborted = |cause| Error::Aborted { cause };
    assert!(matches!(started.error(aborted("why".into())), Error::Aborted { .. }));
    assert!(matches!(started.error(aborted(cancelled(2, "another call"))), Error::Aborted { .. }));
    // A peer has learned of the cancellation first. The call has ended here.
    assert!(matches!(started.error(aborted(cancelled(1, "its call"))), Error::Cancelled { .. }));
    assert_eq!(link.cancelled(1), None);
    let own = link.go_to_background();
    link.cancel(2, &"its call".into());
    assert_eq!(listener.0.lock().unwrap().len(), 1);
    assert!(matches!(own.error(aborted("why".into())), Error::Cancelled { .. }));
    link.activity().receive(3);
    let later = link.go_to_background();
    assert!(matches!(later.error(aborted(cancelled(3, "its call"))), Error::Cancelled { .. }));
    assert_eq!(link.cancelled(3).as_deref(), Some("its call"), "the call runs");
    link.activity().receive(2);
    drop((started, own, later));
    link.cancel(2, &"nothing runs".into());
    assert_eq!(listener.0.lock().unwrap().len(), 1);
    let ops = answers.try_iter().map(|(.., ops)| ops).collect::<Vec<_>>();
    assert_eq!(ops, [CallOps::Collectives(0), CallOps::Other, CallOps::Collectives(0)]);
}

/// A store whose key is set while the third wait for it runs.
#[derive(Debug, Default)]
struct Late(Mutex<Vec<Duration>>);

impl Store for Late {
    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        let mut waits = sync::lock(&self.0);
        waits.push(deadline);
        if waits.len() == 3 {
            return Ok(key.into());
        }
        Err(Error::Deadline { operation: "wait".into(), after: deadline, state: String::new() })
    }

    fn set(&self, _: &str, _: &[u8]) -> Result<()> {
        unreachable!("only waits are tested")
    }

    fn get(&self, _: &str) -> Result<Option<Vec<u8>>> {
        unreachable!("only waits are tested")
    }

    fn add(&self, _: &str, _: i64) -> Result<i64> {
        unreachable!("only waits are tested")
    }

    fn compare_and_set(&self, _: &str, _: Option<&[u8]>, _: &[u8]) -> Result<Vec<u8>> {
        unreachable!("only waits are tested")
    }

    fn delete(&self, _: &str) -> Result<bool> {
        unreachable!("only waits are tested")
    }
}

#[test]
fn a_wait_for_a_key_looks_for_cancellations_and_goes_on_until_its_deadline() {
    let (link, _, _) = link();
    let store = Late::default();
    assert_eq!(link.await_key(&store, "key", LIMIT, || Ok(())).unwrap(), b"key");
    assert_eq!(*store.0.lock().unwrap(), [CANCELLED_INTERVAL; 3]);
    // A deadline within the interval is that of the store's wait.
    let short = CANCELLED_INTERVAL / 2;
    let error = link.await_key(&Late::default(), "key", short, || Ok(())).unwrap_err();
    assert!(matches!(error, Error::Deadline { after, .. } if after == short), "{error}");
    link.activity().receive(1);
    link.cancel(1, &"why".into());
    let error = link.await_key(&Late::default(), "key", LIMIT, || Ok(())).unwrap_err();
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
}
