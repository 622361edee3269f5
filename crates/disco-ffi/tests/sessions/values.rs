//! Values as arguments and results.

use disco::{
    DType, Device, DeviceKind, Placement, SessionKind, Shape, Tensor, Value, WorkerContext, WorkerId, block_on,
};

use super::{call, failure, loaded, submit};
use crate::library::library;
use crate::without_numbers;

crate::sessions::tests![
    every_value_comes_back_as_it_was,
    a_map_needs_libtvm_ffi in Without,
    maps_come_back_as_they_were in With,
    a_tensor_is_not_copied,
    objects_of_a_library_stay_on_their_worker_and_are_arguments,
    a_rust_value_is_no_argument,
];

disco_core::register_function!("ffi_tests.address", address);
disco_core::register_function!("ffi_tests.state", state);

fn address(_: &mut WorkerContext, tensor: Tensor) -> disco::Result<i64> {
    Ok(tensor.data().addr() as i64)
}

struct State;

fn state(_: &mut WorkerContext) -> disco::Result<disco::Opaque> {
    Ok(disco::Opaque::new(State))
}

fn every_value_comes_back_as_it_was(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let values = [
        (Value::None, 0),
        (Value::Int(-7), 1),
        (Value::Bool(true), 2),
        (Value::Bool(false), 2),
        (Value::Float(-0.5), 3),
        (Value::DType(DType::BF16), 5),
        (Value::DType(DType::F8E4M3), 5),
        (Value::Device(Device::CPU), 6),
        (Value::Device(Device::new(DeviceKind::Cuda, 3)), 6),
        (Value::from(""), 11),
        (Value::from("seven b"), 11),
        (Value::from("eight by"), 65),
        (Value::from("Größe, 大小"), 65),
        (Value::from(vec![0u8, 255]), 12),
        (Value::from(vec![7u8; 1000]), 66),
        (Value::Shape(Shape::from([2, 0, -1])), 69),
        (Value::Shape(Shape::scalar()), 69),
        (Value::from(Vec::<Value>::new()), 71),
        (Value::from(vec![Value::from(vec![Value::from("a longer text"), Value::None]), Value::Float(2.0)]), 71),
    ];
    for (value, type_index) in values {
        assert_eq!(call(&session, &module, "type_of", (value.clone(),)).unwrap(), Value::Int(type_index), "{value}");
        assert_eq!(call(&session, &module, "identity", (value.clone(),)).unwrap(), value);
    }
}

fn a_map_needs_libtvm_ffi(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let map = Value::from(vec![(Value::from("a"), Value::Int(1))]);
    let text = failure(&session, &module, "identity", (map,));
    let start = "worker 1: libplain.so:identity: argument 0: expected a value that libraries take, got a map, which only \
                 libtvm_ffi can make: libtvm_ffi is not available; tried /nonexistent/libtvm_ffi.so: ";
    assert!(without_numbers(&text).starts_with(start), "{text}");
}

fn maps_come_back_as_they_were(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let inner = Value::from(vec![(Value::Int(1), Value::from("one")), (Value::Int(0), Value::None)]);
    for map in [inner.clone(), Value::from(vec![(Value::from("a"), inner)]), Value::from(Vec::<(Value, Value)>::new())]
    {
        assert_eq!(call(&session, &module, "type_of", (map.clone(),)).unwrap(), Value::Int(72));
        assert_eq!(call(&session, &module, "identity", (map.clone(),)).unwrap(), map);
    }
}

fn a_tensor_is_not_copied(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let tensor = block_on(session.empty(DType::F32, [2, 3], Placement::All)).unwrap();
    block_on(session.set_each(&tensor, |worker| {
        Tensor::from_slice(&[1f32, 2., 3., 4., 5., worker.wire() as f32], [2, 3]).unwrap()
    }))
    .unwrap();
    let own = block_on(session.call("ffi_tests.address", (&tensor,))).unwrap();
    let seen = submit(&session, &module, "scale", (&tensor, 2.0)).unwrap();
    let back = submit(&session, &module, "identity", (&tensor,)).unwrap();
    let back_address = block_on(session.call("ffi_tests.address", (&back,))).unwrap();
    let all = |handle| block_on(session.get_all::<i64>(handle)).unwrap();
    assert_eq!(all(&own), all(&seen));
    assert_eq!(all(&own), all(&back_address));
    let elements: Tensor = block_on(session.get(&back, WorkerId::new(1))).unwrap();
    assert_eq!((elements.dims(), elements.to_vec::<f32>().unwrap()), (vec![2, 3], vec![2., 4., 6., 8., 10., 2.]));
    let array = Value::from(vec![Value::from(&elements)]);
    let Value::Array(items) = call(&session, &module, "identity", (array,)).unwrap() else { panic!() };
    let Value::Tensor(item) = &items[0] else { panic!() };
    assert_eq!(item.to_vec::<f32>().unwrap(), elements.to_vec::<f32>().unwrap());
}

fn objects_of_a_library_stay_on_their_worker_and_are_arguments(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let object = submit(&session, &module, "own_object", ()).unwrap();
    assert_eq!(call(&session, &module, "type_of", (&object,)).unwrap(), Value::Int(200));
    let same = submit(&session, &module, "identity", (&object,)).unwrap();
    let text = block_on(session.value(&same, WorkerId::new(1))).unwrap_err().to_string();
    assert!(text.ends_with("disco_ffi::foreign::ForeignObject can't leave its worker"), "{text}");
    block_on(session.recover()).unwrap();
    let deleted = || call(&session, &module, "deleted", ()).unwrap();
    // Thread workers share the library and its counter.
    drop(object);
    assert_eq!(deleted(), Value::Int(0));
    drop(same);
    block_on(session.sync_all()).unwrap();
    block_on(session.sync_all()).unwrap();
    assert_eq!(deleted(), Value::Int(if kind == SessionKind::Threads { 2 } else { 1 }));
}

fn a_rust_value_is_no_argument(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let state = block_on(session.call("ffi_tests.state", ())).unwrap();
    let text = failure(&session, &module, "identity", (&state,));
    assert_eq!(
        without_numbers(&text),
        "worker 1: libplain.so:identity: argument 0: expected a value that libraries take, got the Rust value \
         ffi::sessions::values::State"
    );
}
