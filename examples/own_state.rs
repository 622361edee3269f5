//! State of the program's own on each worker, in a register: a trainer that each worker keeps between calls.
//!
//! Run it with `cargo run --example own_state`, or with `DISCO_SESSION=processes DISCO_WORKERS=3` before it.

use std::cell::RefCell;
use std::rc::Rc;

use disco::{Opaque, Session, SessionExt, WorkerContext};

/// Any Rust type: it needs to be neither `Send` nor known to Disco, since it stays on the thread of its worker.
struct Trainer {
    weight: f64,
    steps: i64,
}

disco::register_function!("own_state.new", new);
disco::register_function!("own_state.step", step);
disco::register_function!("own_state.steps", steps);

/// The handle of the result stands for one `Trainer` on each worker.
fn new(ctx: &mut WorkerContext, weight: f64) -> disco::Result<Opaque> {
    let weight = weight + ctx.worker().index() as f64;
    Ok(Opaque::new(RefCell::new(Trainer { weight, steps: 0 })))
}

/// A worker function gets what is in the register as an `Rc`.
fn step(_: &mut WorkerContext, trainer: Rc<RefCell<Trainer>>, target: f64) -> disco::Result<f64> {
    let mut trainer = trainer.borrow_mut();
    trainer.weight += (target - trainer.weight) / 2.0;
    trainer.steps += 1;
    Ok(trainer.weight)
}

fn steps(_: &mut WorkerContext, trainer: Rc<RefCell<Trainer>>) -> disco::Result<i64> {
    Ok(trainer.borrow().steps)
}

fn main() -> disco::Result<()> {
    disco::init();
    let session = disco::from_env()?;
    disco::block_on(async {
        let trainers = session.call_named("own_state.new", (0.0,)).await?;
        let mut weights = session.call_named("own_state.step", (&trainers, 8.0)).await?;
        for _ in 1..20 {
            weights = session.call_named("own_state.step", (&trainers, 8.0)).await?;
        }
        let steps = session.call_named("own_state.steps", (&trainers,)).await?;
        let (weights, steps): (Vec<f64>, Vec<i64>) =
            (session.get_all_as(&weights).await?, session.get_all_as(&steps).await?);
        // Dropped with its last handle, on each worker.
        drop(trainers);
        for (worker, (weight, steps)) in session.world().workers().zip(weights.iter().zip(&steps)) {
            println!("{worker}: weight {weight:.4} after {steps} steps");
            assert!((weight - 8.0).abs() < 1e-4 && *steps == 20);
        }
        session.shutdown().await
    })
}
