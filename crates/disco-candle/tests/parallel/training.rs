//! A training step on several ranks gives the gradients of one process.

use std::collections::HashMap;

use candle_core::{Module, Result, Tensor, Var};
use disco_candle::{ColumnParallelLinear, Comm, Matrix, RowParallelLinear};
use disco_core::Reduction;

use super::{assert_close, on_ranks, random};

const INPUT: usize = 6;
const HIDDEN: usize = 12;
const OUTPUT: usize = 5;
const BATCH: usize = 12;

/// Two layers with a bias each.
fn weights() -> HashMap<&'static str, Tensor> {
    HashMap::from([
        ("a", random(1, &[HIDDEN, INPUT])),
        ("bias_a", random(2, &[HIDDEN])),
        ("b", random(3, &[OUTPUT, HIDDEN])),
        ("bias_b", random(4, &[OUTPUT])),
    ])
}

fn batch() -> (Tensor, Tensor) {
    (random(5, &[BATCH, INPUT]), random(6, &[BATCH, OUTPUT]))
}

fn loss(comm: &Comm, vars: &HashMap<&str, Var>, x: &Tensor, target: &Tensor) -> Result<Tensor> {
    let tensor = |name| vars[name].as_tensor().clone();
    let first = ColumnParallelLinear::new(Matrix::dense(tensor("a")), Some(tensor("bias_a")), comm.clone());
    let second = RowParallelLinear::new(Matrix::dense(tensor("b")), Some(tensor("bias_b")), comm.clone());
    let y = second.forward(&first.forward(x)?.tanh()?)?;
    (y - target)?.sqr()?.mean_all()
}

/// The gradients of all weights, and of the input under the name `x`.
fn gradients(
    comm: &Comm,
    weights: &HashMap<&'static str, Tensor>,
    x: &Tensor,
    target: &Tensor,
) -> Result<HashMap<&'static str, Tensor>> {
    let vars = weights
        .iter()
        .map(|(name, weight)| Ok((*name, Var::from_tensor(weight)?)))
        .collect::<Result<HashMap<_, _>>>()?;
    let x = Var::from_tensor(x)?;
    let found = loss(comm, &vars, &x, target)?.backward()?;
    let all = vars.iter().map(|(name, var)| (*name, var)).chain([("x", &x)]);
    Ok(all.map(|(name, var)| (name, found.get(var).unwrap().clone())).collect())
}

fn in_one_process() -> HashMap<&'static str, Tensor> {
    let (x, target) = batch();
    gradients(&Comm::alone(), &weights(), &x, &target).unwrap()
}

#[test]
fn a_tensor_parallel_step_has_the_gradients_of_one_process() {
    let (x, target) = batch();
    let expected = in_one_process();
    for size in [1, 2, 3, 4] {
        let units = HIDDEN / size;
        for (rank, found) in on_ranks(size, |comm| {
            let own = |tensor: &Tensor, dim| tensor.narrow(dim, comm.rank() * units, units)?.contiguous();
            let mut weights = weights();
            for (name, dim) in [("a", 0), ("bias_a", 0), ("b", 1)] {
                weights.insert(name, own(&weights[name], dim)?);
            }
            gradients(comm, &weights, &x, &target)
        })
        .iter()
        .enumerate()
        {
            let own = |name: &str, dim| expected[name].narrow(dim, rank * units, units).unwrap();
            assert_close(&found["a"], &own("a", 0), 1e-5);
            assert_close(&found["bias_a"], &own("bias_a", 0), 1e-5);
            assert_close(&found["b"], &own("b", 1), 1e-5);
            assert_close(&found["bias_b"], &expected["bias_b"], 1e-5);
            assert_close(&found["x"], &expected["x"], 1e-5);
        }
    }
}

#[test]
fn a_data_parallel_step_has_the_gradients_of_one_process() {
    let (x, target) = batch();
    let expected = in_one_process();
    for size in [1, 2, 3, 4] {
        let rows = BATCH / size;
        for found in on_ranks(size, |comm| {
            let own = |tensor: &Tensor| tensor.narrow(0, comm.rank() * rows, rows);
            // Each rank has the whole layers, so no collective runs in them.
            let mut found = gradients(&Comm::alone(), &weights(), &own(&x)?, &own(&target)?)?;
            found.remove("x");
            let mut names: Vec<_> = found.keys().copied().collect();
            names.sort_unstable();
            for name in names {
                comm.all_reduce_in_place(&found[name], Reduction::Avg)?;
            }
            Ok(found)
        }) {
            for (name, gradient) in &found {
                assert_close(gradient, &expected[name], 1e-5);
            }
        }
    }
}
