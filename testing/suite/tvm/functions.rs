//! Worker functions of this program, with the names of the functions that TVM registers for its own tests.

use disco::{Error, Result, Shape, Tensor, WorkerContext, register_function};

register_function!("tests.disco.add_one", add_one);
register_function!("tests.disco.add_one_float", add_one_float);
register_function!("tests.disco.add_one_tensor", add_one_tensor);
register_function!("tests.disco.str", suffix);
register_function!("tests.disco.str_obj", suffix);
register_function!("tests.disco.shape_tuple", longer);
register_function!("tests.tvm.bytes", reversed);
register_function!("tests.tvm.fail", fail);
register_function!("tests.tvm.panic", panic);
register_function!("tests.tvm.pid", pid);
register_function!("tests.tvm.sleep", sleep);
register_function!("tests.tvm.fail_on", fail_on);
register_function!("tests.tvm.large", large);
register_function!("tests.tvm.ranks", ranks);

fn add_one(_: &mut WorkerContext, x: i64) -> Result<i64> {
    Ok(x + 1)
}

fn add_one_float(_: &mut WorkerContext, x: f64) -> Result<f64> {
    Ok(x + 0.5)
}

fn add_one_tensor(_: &mut WorkerContext, x: Tensor) -> Result<Tensor> {
    let sums: Vec<f32> = x.to_vec::<f32>()?.into_iter().map(|element| element + 1.0).collect();
    Tensor::from_slice(&sums, x.shape().clone())
}

fn suffix(_: &mut WorkerContext, text: String) -> Result<String> {
    Ok(text + "_suffix")
}

fn longer(_: &mut WorkerContext, shape: Shape) -> Result<Shape> {
    Ok(shape.iter().copied().chain([4, 5]).collect::<Vec<i64>>().into())
}

fn reversed(_: &mut WorkerContext, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
    bytes.reverse();
    Ok(bytes)
}

fn fail(_: &mut WorkerContext) -> Result<()> {
    Err(Error::invalid("no luck"))
}

/// Fails on one worker.
fn fail_on(ctx: &mut WorkerContext, worker: i64) -> Result<()> {
    if ctx.worker().index() as i64 == worker { Err(Error::invalid("no luck")) } else { Ok(()) }
}

fn panic(_: &mut WorkerContext) -> Result<()> {
    panic!("out of luck")
}

fn pid(_: &mut WorkerContext) -> Result<i64> {
    Ok(std::process::id().into())
}

fn sleep(_: &mut WorkerContext) -> Result<()> {
    disco_conformance::waiting::hang()
}

/// 1 MiB, more than a pipe takes.
fn large(_: &mut WorkerContext) -> Result<Tensor> {
    Tensor::from_slice(&(0..1 << 18).map(|index| index as f32).collect::<Vec<f32>>(), [512, 512])
}

/// A tensor with the worker's id plus 1.
fn ranks(ctx: &mut WorkerContext) -> Result<Tensor> {
    Tensor::from_slice(&[ctx.worker().index() as f32 + 1.0; 3], [3])
}
