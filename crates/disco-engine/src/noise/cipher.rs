//! The Noise protocol of the crate `snow`, with the cryptography of `ring`.

mod primitives;

use disco_core::{Error, Result};
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::SystemRandom;
use snow::Builder;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
pub(crate) use snow::{HandshakeState, StatelessTransportState};

use self::primitives::{AesGcm, KeyPair, Sha256, SystemRng};

const PROTOCOL: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Salt of the derivation of the pre-shared key.
const SALT: &[u8] = b"disco node connection, pre-shared key";

/// Whether this program can encrypt connections between nodes, and so have sessions of nodes. `operation` is that which
/// needs them.
///
/// # Errors
/// The program is built without the feature `nodes`.
pub fn check(_operation: &str) -> Result<()> {
    Ok(())
}

/// Begins a handshake as a node (`is_initiator`) or as the controller.
///
/// # Errors
/// The system gives no random numbers.
pub(super) fn begin(token: &[u8], prologue: &[u8], is_initiator: bool) -> Result<HandshakeState> {
    let key = pre_shared_key(token);
    let begin = || {
        let builder = Builder::with_resolver(PROTOCOL.parse()?, Box::new(Resolver)).prologue(prologue)?.psk(0, &key)?;
        if is_initiator { builder.build_initiator() } else { builder.build_responder() }
    };
    begin().map_err(|error| Error::protocol(format!("the handshake can't begin: {error}")))
}

/// HKDF-Extract of the token (RFC 5869): HMAC-SHA256 keyed with the salt.
fn pre_shared_key(token: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    key.copy_from_slice(hmac::sign(&hmac::Key::new(HMAC_SHA256, SALT), token).as_ref());
    key
}

/// Resolves the parts of [`PROTOCOL`].
struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SystemRng(SystemRandom::new())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(KeyPair::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(Sha256::default()) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(AesGcm::default()) as Box<dyn Cipher>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key is that of Python's `hmac.new(SALT, token, hashlib.sha256)`.
    #[test]
    fn the_pre_shared_key_is_hmac_sha256_of_the_token() {
        let key = pre_shared_key(b"a secret of many words");
        assert_eq!(crate::random::hex(&key), "f7860aa2059aeaf380a40d63a1581adf142fce7b170d9cf56f5ec0a1b2f12318");
    }
}
