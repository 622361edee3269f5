//! Worker functions that TVM's controller calls by TVM's names.

use disco_core::{
    CommunicatorExt as _, DType, Device, Error, Reduction, Result, Shape, Tensor, Value, WorkerContext,
    register_function,
};

register_function!("runtime.disco._configure_structlog", configure_structlog);
register_function!("runtime.disco._import_python_module", import_python_module);
register_function!("runtime.disco.bind_worker_to_cpu_core", bind_to_core);
register_function!("runtime.disco.device", device);
register_function!("runtime.disco.empty", empty);
register_function!("runtime.disco.socket_session_init_workers", socket_session_init_workers);
register_function!("runtime.disco.worker_id", worker_id);
register_function!("runtime.disco.worker_rank", worker_rank);
register_function!("runtime.disco.allgather", all_gather);
register_function!("runtime.disco.allreduce", all_reduce);

/// TVM's controller calls it at the start of a session of processes. Logs of this program are not Python's.
fn configure_structlog(_: &mut WorkerContext, _config: Value, _parent: Value) -> Result<()> {
    Ok(())
}

/// Has no effect: modules of Python are for workers of TVM.
fn import_python_module(ctx: &mut WorkerContext, name: String) -> Result<()> {
    tracing::debug!(worker = %ctx.worker(), name, "a module of Python is not imported");
    Ok(())
}

/// Binds no thread: the system's scheduler places workers.
fn bind_to_core(ctx: &mut WorkerContext, _cores: Shape) -> Result<()> {
    tracing::debug!(worker = %ctx.worker(), "not bound to a processor");
    Ok(())
}

fn device(ctx: &mut WorkerContext) -> Result<Device> {
    Ok(ctx.device())
}

/// A zeroed tensor on the worker's device, whatever device TVM asks for. None if only TVM's worker 0 gets one: it is not
/// of this program.
fn empty(
    ctx: &mut WorkerContext,
    shape: Shape,
    dtype: Value,
    _device: Value,
    worker_0_only: Value,
    _in_group: Value,
) -> Result<Option<Tensor>> {
    if flag("empty", &worker_0_only)? { Ok(None) } else { ctx.empty(element_type(&dtype)?, shape).map(Some) }
}

/// TVM's controller over sockets calls it on the workers of its own node.
fn socket_session_init_workers(
    _: &mut WorkerContext,
    _nodes: i64,
    node: i64,
    _groups: i64,
    _per_node: i64,
) -> Result<()> {
    match node {
        0 => Ok(()),
        _ => Err(Error::invalid(
            "workers of this program on another node need `disco tvm-node`, without TVM's own session",
        )),
    }
}

fn worker_id(ctx: &mut WorkerContext) -> Result<Shape> {
    Ok(Shape::from([ctx.worker().index() as i64]))
}

fn worker_rank(ctx: &mut WorkerContext) -> Result<i64> {
    Ok(ctx.worker().index() as i64)
}

fn all_gather(ctx: &mut WorkerContext, src: Tensor, in_group: Value, dst: Tensor) -> Result<()> {
    let in_group = flag("allgather", &in_group)?;
    ctx.comm_in(&in_group.into())?.all_gather(&src, &dst)
}

fn all_reduce(ctx: &mut WorkerContext, src: Tensor, kind: Shape, in_group: Value, dst: Tensor) -> Result<()> {
    let in_group = flag("allreduce", &in_group)?;
    let reduction = match kind.first() {
        Some(0) => Reduction::Sum,
        Some(1) => Reduction::Prod,
        Some(2) => Reduction::Min,
        Some(3) => Reduction::Max,
        Some(4) => Reduction::Avg,
        _ => return Err(Error::invalid(format!("allreduce: {kind} is not the number of a reduction of TVM"))),
    };
    ctx.comm_in(&in_group.into())?.all_reduce(&src, &dst, reduction)
}

/// An element type, which TVM passes as a value or by name.
fn element_type(value: &Value) -> Result<DType> {
    let name = match value {
        Value::DType(dtype) => return Ok(*dtype),
        Value::Str(name) => name,
        other => return Err(Error::invalid(format!("empty: {} is not an element type", other.kind()))),
    };
    Ok(match &**name {
        "bool" => DType::Bool,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint8" => DType::U8,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        other => return Err(Error::invalid(format!("empty: the element type `{other}` is not supported"))),
    })
}

/// A flag, which TVM passes as a bool or as a number.
fn flag(operation: &str, value: &Value) -> Result<bool> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::Int(number) => Ok(*number != 0),
        other => Err(Error::invalid(format!("{operation}: {} is not a flag", other.kind()))),
    }
}
