//! Values of every kind and a failure, for seeds.

use disco_core::error::{ErrorKind, Failure, UserError};
use disco_core::{DType, Device, DeviceKind, RegisterId, Shape, Tensor, Value, WorkerId};

/// A value of each kind that has an encoding, with short and long strings and bytes.
pub fn values() -> Vec<Value> {
    let tensor = Tensor::from_slice(&[1.5f32, -2.0, 0.25], [3, 1]).expect("a tensor of three elements");
    vec![
        Value::None,
        Value::Int(-7),
        Value::Bool(true),
        Value::Float(0.5),
        "short".into(),
        "long enough \"for\" an object".into(),
        Value::Bytes([0, 255, 16].into()),
        Value::Bytes([7; 20].into()),
        Value::DType(DType::BF16),
        Value::Device(Device::new(DeviceKind::Cuda, 1)),
        Value::Shape(Shape::from([2, -1, 3])),
        Value::Register(RegisterId::new(3)),
        Value::Tensor(tensor.clone()),
        Value::from(vec![Value::Int(1), Value::from(vec![Value::Tensor(tensor.clone()), Value::None])]),
        Value::Tagged(-3, [Value::Tensor(tensor), Value::Int(1)].into()),
        Value::from(vec![("key".into(), Value::Bool(false)), (Value::Int(2), Value::from(Vec::<Value>::new()))]),
    ]
}

/// A failure of a worker with all optional fields.
pub fn failure() -> Failure {
    Failure {
        worker: WorkerId::new(3),
        command: 12,
        operation: "demo.function".into(),
        register: Some(RegisterId::new(4)),
        message: "it did not work".into(),
        causes: vec!["because of this".into(), "that".into()],
        aborted: true,
        kind: ErrorKind::Library { backend: "nccl".into(), function: "ncclSend".into(), code: 3 },
        user: UserError::new("demo::Error", *b"content"),
    }
}
