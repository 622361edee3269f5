//! State on workers: each worker keeps a trainer, a Rust value of the program's own type, between calls.
//!
//! `cargo run --example own_state`; with processes: `DISCO_SESSION=processes DISCO_WORKERS=3 cargo run --example
//! own_state`.

use std::cell::RefCell;
use std::rc::Rc;

use disco::{Opaque, WorkerContext};

/// Any Rust type. It stays on the thread of its worker, so it need not be `Send` and needs no registration.
struct Trainer {
    weight: f64,
    steps: i64,
}

disco::register_function!("own_state.new", new);
disco::register_function!("own_state.step", step);
disco::register_function!("own_state.steps", steps);

/// Worker function: makes a trainer. The handle of the result stands for one `Trainer` on each worker.
fn new(ctx: &mut WorkerContext, weight: f64) -> disco::Result<Opaque> {
    let weight = weight + ctx.worker().index() as f64;
    Ok(Opaque::new(RefCell::new(Trainer { weight, steps: 0 })))
}

/// Worker function: one step of the trainer, which it gets as an `Rc`.
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
        let trainers = session.call("own_state.new", (0.0,)).await?;
        let mut weights = session.call("own_state.step", (&trainers, 8.0)).await?;
        for _ in 1..20 {
            weights = session.call("own_state.step", (&trainers, 8.0)).await?;
        }
        let steps = session.call("own_state.steps", (&trainers,)).await?;
        let (weights, steps): (Vec<f64>, Vec<i64>) = (session.get_all(&weights).await?, session.get_all(&steps).await?);
        // Dropping the last handle drops the trainers on the workers.
        drop(trainers);
        for (worker, (weight, steps)) in session.world().workers().zip(weights.iter().zip(&steps)) {
            println!("{worker}: weight {weight:.4} after {steps} steps");
            assert!((weight - 8.0).abs() < 1e-4 && *steps == 20);
        }
        session.shutdown().await
    })
}
