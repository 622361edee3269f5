//! Types of the program with serde implementations, as arguments, results and errors.

use std::collections::BTreeMap;

use disco::error::ErrorKind;
use disco::{Error, Json, WorkerId, block_on};

use super::functions::{Diverged, Layer};
use super::{Kind, builder, call};

super::tests![
    a_serde_value_makes_a_round_trip_to_all_workers,
    a_json_argument_of_the_wrong_type_names_worker_function_argument_and_reason,
    get_rejects_json_of_the_wrong_type,
    a_value_without_a_json_form_is_an_error_as_argument_and_result,
    a_registered_error_type_reaches_the_controller_as_a_value,
    a_registered_error_too_large_to_send_reaches_the_controller_as_text,
];

fn dense() -> Layer {
    Layer { name: "dense \"1\"".into(), units: 64, rate: Some(0.25) }
}

fn a_serde_value_makes_a_round_trip_to_all_workers(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let layers = call(&session, "tests.widen", (3, Json(dense()))).unwrap();
    // The result is an argument, too.
    let layers = call(&session, "tests.widen", (2, &layers)).unwrap();
    let layers = block_on(session.get_all::<Json<Layer>>(&layers)).unwrap();
    let expected = (0..4).map(|worker| {
        let name = format!("dense \"1\" of worker {worker} of worker {worker}");
        Json(Layer { name, units: 384, rate: Some(0.25) })
    });
    assert_eq!(layers, expected.collect::<Vec<_>>());
    block_on(session.shutdown()).unwrap();
}

fn a_json_argument_of_the_wrong_type_names_worker_function_argument_and_reason(kind: Kind) {
    let session = builder(kind).start().unwrap();
    call(&session, "tests.widen", (3, Json(BTreeMap::from([("name", "dense")])))).unwrap();
    let error = block_on(session.sync_worker(WorkerId::new(3))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    let expected = "tests.widen (command 2, register 1): argument 1: expected \
                    sessions::kinds::functions::Layer, got JSON that does not fit: missing field \
                    `units` at line 1 column 16";
    let error = error.to_string();
    assert!(error.starts_with("worker ") && error.ends_with(expected), "{error}");
    block_on(session.shutdown()).unwrap();
}

fn get_rejects_json_of_the_wrong_type(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let layers = call(&session, "tests.widen", (3, Json(dense()))).unwrap();
    let error = block_on(session.get::<Json<Vec<f64>>>(&layers, WorkerId::new(2))).unwrap_err().to_string();
    let expected = "get: expected alloc::vec::Vec<f64>, worker 2 has JSON that does not fit: \
                    invalid type: map, expected a sequence at line 1 column 0";
    assert_eq!(error, expected);
    let number = call(&session, "tests.whoami", ()).unwrap();
    let error = block_on(session.get::<Json<i64>>(&number, WorkerId::new(2))).unwrap_err().to_string();
    assert_eq!(error, "get: expected i64, worker 2 has an int");
    block_on(session.shutdown()).unwrap();
}

fn a_value_without_a_json_form_is_an_error_as_argument_and_result(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let why = "does not become JSON: key must be a string";
    let error = call(&session, "tests.echo", (Json(BTreeMap::from([((1, 2), 3)])),)).unwrap_err();
    assert!(matches!(&error, Error::Invalid(text) if text.ends_with(why)), "{error}");
    block_on(session.sync_all()).unwrap();
    call(&session, "tests.keyed", ()).unwrap();
    let error = block_on(session.sync_all()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("tests.keyed") && error.to_string().ends_with(why), "{error}");
    block_on(session.shutdown()).unwrap();
}

fn a_registered_error_type_reaches_the_controller_as_a_value(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let losses = [1e30, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for ((worker, is_cause), loss) in [(0, false), (1, true), (3, false), (2, true)].into_iter().zip(losses) {
        call(&session, "tests.diverge", (worker, loss, is_cause)).unwrap();
        let error = block_on(session.sync_all()).unwrap_err();
        let diverged = Diverged { step: 17, loss: loss as f32, layers: vec!["dense".into()] };
        // As texts, in which NaN equals NaN.
        assert_eq!(format!("{:?}", error.downcast_ref::<Diverged>()), format!("{:?}", Some(&diverged)), "{error}");
        assert_eq!((error.kind(), error.downcast_ref::<String>()), (ErrorKind::User, None));
        let Error::Worker(failure) = &error else { panic!("{error:?}") };
        assert_eq!(failure.worker, WorkerId::new(worker));
        block_on(session.recover()).unwrap();
    }
    let error = Error::invalid("no worker has failed");
    assert_eq!(error.downcast_ref::<Diverged>(), None);
    block_on(session.shutdown()).unwrap();
}

fn a_registered_error_too_large_to_send_reaches_the_controller_as_text(kind: Kind) {
    let session = builder(kind).start().unwrap();
    call(&session, "tests.diverge_at_length", (3, 70_000)).unwrap();
    let error = block_on(session.sync_all()).unwrap_err();
    assert_eq!(error.downcast_ref::<Diverged>(), None);
    assert!(error.to_string().ends_with(": the loss is 0 in step 0"), "{error}");
    block_on(session.shutdown()).unwrap();
}
