//! Sessions of nodes: start, handshake, and the errors after the loss of a node, a link or the controller.

mod ahead;
mod attack;
mod death;
mod functions;
mod handshake;
mod life;
mod link;
pub(crate) mod programs;
mod replace;
mod resize;
mod spares;
mod start;
mod status;
mod tree;

use crate::modules::Module;
pub(crate) use crate::trials::tests;

pub(crate) fn module() -> Module {
    let tests = [
        life::tests(),
        start::tests(),
        status::tests(),
        handshake::tests(),
        attack::tests(),
        link::tests(),
        ahead::tests(),
        death::tests(),
        tree::tests(),
        replace::tests(),
        resize::tests(),
        spares::tests(),
    ];
    // Few at a time: tests mostly wait, but under more load nodes would miss their deadlines.
    Module::new("nodes", Some(3)).tests(tests.into_iter().flatten())
}

/// The text of an error without the table of the workers' operations, which may follow.
fn first_line(error: &disco::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
