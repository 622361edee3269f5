//! The backend `tcp` between machines that are network namespaces.

use std::path::Path;
use std::process::{Command, ExitCode};

use disco::prelude::*;
use disco::{DType, Error, Op, Rank, Reduction, Tensor};

use super::{DISCO, PROGRAM, hello, network};

crate::trials::tests!("nodes::tcp": workers_of_two_machines_add_tensors_over_tcp);

/// Numbers of elements: one round, and two rounds with shares that are not equal.
const COUNTS: [usize; 3] = [1, 1000, 100_003];

/// Element `index` of the tensor of a rank, whose sum over the ranks depends on their order.
fn element(rank: usize, index: usize) -> f32 {
    [1e8, 1.0, -1e8, 0.125][(rank + index) % 4] * (1.0 + index as f32)
}

/// Worker function: adds tensors of all ranks, and sends one around the ring.
fn add(ctx: &mut WorkerContext) -> disco::Result<()> {
    let comm = ctx.comm()?;
    let (rank, size) = (comm.rank().index(), comm.size());
    for count in COUNTS {
        let mine: Vec<f32> = (0..count).map(|index| element(rank, index)).collect();
        let (mine, sum) = (Tensor::from_slice(&mine, [count])?, Tensor::zeros(DType::F32, [count])?);
        comm.all_reduce(&mine, &sum, Reduction::Sum)?;
        let in_order = |index| (1..size).fold(element(0, index), |sum, rank| sum + element(rank, index));
        if let Some(index) = (0..count).find(|index| sum.view::<f32>().unwrap()[*index] != in_order(*index)) {
            return Err(Error::state(format!("element {index} of {count} is wrong")));
        }
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let [to, from] = [next, previous].map(|rank| Rank::new(rank as u32));
        comm.enqueue(&[Op::Send { src: mine, to }, Op::Recv { dst: sum.clone(), from }])?;
        if sum.view::<f32>()?[count - 1] != element(previous, count - 1) {
            return Err(Error::state(format!("rank {previous} sent something else")));
        }
    }
    Ok(())
}

disco::register_function!("tcp.add", add);

/// `main` of a program that adds over `tcp`.
pub(crate) fn main() -> ExitCode {
    disco::init();
    let session = disco::from_env().unwrap();
    disco::block_on(async {
        session.init_ccl("tcp", &[]).await?;
        session.call("tcp.add", ()).await?;
        session.sync_all().await?;
        println!("{} workers on {} machines agree", session.world().size(), session.world().nodes());
        session.shutdown().await
    })
    .map_or_else(
        |error: Error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Encrypted, and in clear.
fn workers_of_two_machines_add_tensors_over_tcp() {
    if !network::may_make_namespaces() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/two_machines.sh");
    for encrypts in ["1", "0"] {
        let mut run = Command::new("sh");
        run.env(PROGRAM, "add").env("DISCO_ENCRYPT", encrypts).arg(&script).arg(DISCO).arg(hello());
        let ran = run.output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "4 workers on 2 machines agree\n");
    }
}
