//! Sessions with TVM's Disco: the real one from PyPI in both directions, and without it, both of our ends.

mod controller;
mod functions;
mod pipes;
mod python;
mod sockets;
mod worker;

pub(crate) use pipes::serve;

use crate::modules::Module;
pub(crate) use crate::trials::tests;

pub(crate) fn module() -> Module {
    let tests = [controller::tests(), pipes::tests(), sockets::tests(), worker::tests()];
    // A process of TVM takes a processor for two seconds to start.
    Module::new("tvm", Some(2)).tests(tests.into_iter().flatten())
}
