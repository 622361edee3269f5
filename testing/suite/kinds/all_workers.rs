//! `get_all`, `set_each` and calls by name.

use disco::error::ErrorKind;
use disco::{Error, Value, WorkerId, block_on};

use super::{Kind, builder, call};
use crate::with_session::with_session;

super::tests![
    get_all_returns_the_values_of_all_workers_in_order,
    get_all_returns_the_root_cause_after_a_failure,
    get_all_of_another_type_names_the_worker,
    set_each_stops_at_the_first_failing_worker,
    a_call_by_name_looks_the_function_up_once,
];

fn get_all_returns_the_values_of_all_workers_in_order(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let workers = call(&session, "tests.whoami", ()).unwrap();
    for _ in 0..20 {
        assert_eq!(block_on(session.get_all::<i64>(&workers)).unwrap(), [0, 1, 2, 3]);
    }
    block_on(session.shutdown()).unwrap();
    let closed = block_on(session.values(&workers)).unwrap_err();
    assert_eq!(closed.to_string(), "get_all: the session is shut down");
}

fn get_all_returns_the_root_cause_after_a_failure(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let before = call(&session, "tests.whoami", ()).unwrap();
    let after = call(&session, "tests.diverge", (2, 5.0, false)).unwrap();
    let error = block_on(session.values(&after)).unwrap_err();
    let Error::Worker(failure) = &error else { panic!("{error:?}") };
    assert_eq!((failure.worker, failure.kind.clone()), (WorkerId::new(2), ErrorKind::User));
    let values = block_on(session.get_all::<i64>(&before)).unwrap();
    assert_eq!(values, [0, 1, 2, 3], "a value that was made before the failure is still there");
    block_on(session.shutdown()).unwrap();
}

fn get_all_of_another_type_names_the_worker(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let numbers = call(&session, "tests.whoami", ()).unwrap();
    block_on(session.set(&numbers, WorkerId::new(3), Value::from("three"))).unwrap();
    let error = block_on(session.get_all::<i64>(&numbers)).unwrap_err();
    assert_eq!(error.to_string(), "get_all: expected an int, worker 3 has a string");
    block_on(session.shutdown()).unwrap();
}

fn set_each_stops_at_the_first_failing_worker(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let numbers = call(&session, "tests.whoami", ()).unwrap();
    let register = Value::Register(numbers.register());
    let value = |worker: WorkerId| if worker.index() == 2 { register.clone() } else { Value::Int(9) };
    let error = block_on(session.set_each(&numbers, value)).unwrap_err();
    assert_eq!(error.to_string(), "set: a register can't hold a register");
    assert_eq!(block_on(session.get_all::<i64>(&numbers)).unwrap(), [9, 9, 2, 3]);
    block_on(session.shutdown()).unwrap();
}

fn a_call_by_name_looks_the_function_up_once(kind: Kind) {
    with_session(builder(kind), async |session| {
        let two = session.call("tests.count", (1,)).await.unwrap();
        let looked_up = session.function("tests.count").await.unwrap();
        let three = session.call("tests.count", (&two,)).await.unwrap();
        let again = session.function("tests.count").await.unwrap();
        // Register ids are allocated in order: the second call has allocated one for its result, and none for the
        // function.
        assert_eq!(three.register().index(), looked_up.register().index().max(two.register().index()) + 1);
        assert_eq!(looked_up.register(), again.register());
        assert_eq!(session.get_all::<i64>(&three).await.unwrap(), [3; 4]);
        let error = session.call("tests.cuont", (1,)).await.unwrap_err().to_string();
        assert_eq!(error, "no worker function `tests.cuont` is registered; did you mean `tests.count`?");
    });
}
