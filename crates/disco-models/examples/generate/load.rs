//! Loading of the model on a worker, with a progress.

use std::sync::OnceLock;

use disco::{Json, Object, WorkerContext};
use disco_models::ModelError;
use disco_models::worker::{self, Load};
use indicatif::ProgressBar;

/// The progress of worker 0, which is a thread of the controller's process.
pub(crate) static PROGRESS: OnceLock<ProgressBar> = OnceLock::new();

/// Worker function: [`worker::load`].
fn load(ctx: &mut WorkerContext, Json(load): Json<Load>, kept: Object) -> Result<Object, ModelError> {
    let bar = PROGRESS.get().filter(|_| ctx.worker().index() == 0);
    let progress = bar.map(|bar| {
        |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        }
    });
    worker::load(ctx, load, kept, progress)
}

disco::register_function!("generate.load", load);
