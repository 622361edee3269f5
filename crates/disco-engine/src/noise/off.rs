//! Substitutes for the Noise protocol in a build without the feature `nodes`: no handshake begins.

use std::convert::Infallible;

use disco_core::{Error, Result};

/// Refuses `operation`, which needs sessions of nodes.
///
/// # Errors
/// Always.
pub fn check(operation: &str) -> Result<()> {
    Err(is_missing(operation))
}

/// # Errors
/// Always.
pub(super) fn begin(_: &[u8], _: &[u8], _: bool) -> Result<HandshakeState> {
    Err(is_missing("a handshake between nodes"))
}

fn is_missing(operation: &str) -> Error {
    Error::invalid(format!(
        "{operation} needs the feature `nodes` of `disco-runtime`, without which this program was built"
    ))
}

/// A state that never exists.
#[derive(Debug)]
pub(crate) struct HandshakeState(Infallible);

/// A state that never exists.
#[derive(Debug)]
pub(crate) struct StatelessTransportState(Infallible);

impl HandshakeState {
    pub(crate) fn read_message(&mut self, _: &[u8], _: &mut [u8]) -> Result<usize> {
        match self.0 {}
    }

    pub(crate) fn write_message(&mut self, _: &[u8], _: &mut [u8]) -> Result<usize> {
        match self.0 {}
    }

    pub(crate) fn into_stateless_transport_mode(self) -> Result<StatelessTransportState> {
        match self.0 {}
    }
}

impl StatelessTransportState {
    pub(crate) fn rekey_incoming(&mut self) {
        match self.0 {}
    }

    pub(crate) fn rekey_outgoing(&mut self) {
        match self.0 {}
    }

    pub(crate) fn read_message(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<usize> {
        match self.0 {}
    }

    pub(crate) fn write_message(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<usize> {
        match self.0 {}
    }
}
