//! Sessions with TVM's Disco, in both directions: workers of TVM in sessions of this program, and workers of this program
//! in sessions of TVM.
//!
//! The guide has a chapter about them, `docs/tvm.md`.

use std::sync::Arc;

use disco_channel::threads::ThreadLane;
pub use disco_channel::tvm::{Authentication, JoinOptions, NodeOptions, Options, Place, nodes, processes};
use disco_channel::{environment, tvm};
pub use disco_core::WorkerConfig;
use disco_core::{Channel, Result, worker};

use super::node;

/// Environment variable with the address of TVM's controller; makes [`init`](crate::init) join as a node of TVM.
pub const CONNECT: &str = "DISCO_TVM_CONNECT";

/// Serves as a worker of TVM's session of processes, until TVM's controller closes the connection. [`init`](crate::init)
/// does the same if `DISCO_WORKER` has the place.
///
/// # Errors
/// The place is not one of a worker of this program; a descriptor is not open; TVM's controller sends garbage.
pub fn serve(place: &Place) -> Result<()> {
    crate::remote::role::set_worker();
    tvm::serve(place, worker::run)
}

/// Serves as a node of TVM's session over sockets, until the session ends. The workers are threads. [`init`](crate::init)
/// does the same if `DISCO_TVM_CONNECT` is set.
///
/// # Errors
/// The address is not permitted; TVM's controller does not listen in time, is lost or sends garbage.
pub fn join(options: &JoinOptions) -> Result<()> {
    crate::remote::role::set_worker();
    tvm::join(options, |workers, config| {
        let run = move |worker, endpoint| worker::run(worker, config, endpoint);
        Ok(Arc::new(ThreadLane::new(workers, Arc::default(), run)) as Arc<dyn Channel>)
    })
}

/// Serves if the environment says so. None if it does not.
pub(crate) fn serve_if_asked() -> Option<Result<()>> {
    if let Some(place) = Place::take() {
        return Some(place.and_then(|place| serve(&place)));
    }
    let address = environment::take(CONNECT)?;
    Some(read(&address.to_string_lossy()).and_then(|options| join(&options)))
}

fn read(address: &str) -> Result<JoinOptions> {
    let mut options = JoinOptions::new(address);
    options.start = node::take_join_limit()?.unwrap_or(options.start);
    Ok(options)
}
