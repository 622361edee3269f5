//! A node that may get a place.

use std::net::SocketAddr;

use disco_core::wire::Join;

use crate::Liveness;
use crate::controller::event::Conn;
use crate::handshake::Request;

/// A node that has joined, and waits for its place.
#[derive(Debug)]
pub(crate) struct Applicant {
    pub(in crate::controller) conn: Conn,
    pub(in crate::controller) join: Join,
    pub(super) address: SocketAddr,
    /// The node was asked to listen for its children.
    pub(super) is_asked: bool,
    /// Where it listens for its children.
    pub(super) listens: Option<Vec<String>>,
    pub(super) request: Request,
    pub(super) liveness: Liveness,
}
