//! The key exchange X25519 (RFC 7748) of `curve25519-dalek` as the crate `snow` wants it. `ring` never gives out a private key,
//! as `snow`'s trait demands.

use curve25519_dalek::montgomery::MontgomeryPoint;
use snow::Error;
use snow::types::{Dh, Random};

/// Bytes of a key of X25519.
const KEY_BYTES: usize = 32;

/// A key pair of X25519.
#[derive(Default)]
pub(super) struct KeyPair {
    private: [u8; KEY_BYTES],
    public: [u8; KEY_BYTES],
}

impl KeyPair {
    fn of(private: [u8; KEY_BYTES]) -> Self {
        Self { private, public: MontgomeryPoint::mul_base_clamped(private).to_bytes() }
    }
}

impl Dh for KeyPair {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, private: &[u8]) {
        let mut bytes = [0; KEY_BYTES];
        bytes.copy_from_slice(private);
        *self = Self::of(bytes);
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut bytes = [0; KEY_BYTES];
        random.try_fill_bytes(&mut bytes)?;
        *self = Self::of(bytes);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public = public.first_chunk::<KEY_BYTES>().ok_or(Error::Dh)?;
        let shared = MontgomeryPoint(*public).mul_clamped(self.private).to_bytes();
        out.first_chunk_mut::<KEY_BYTES>().ok_or(Error::Dh).map(|out| *out = shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> [u8; KEY_BYTES] {
        std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
    }

    /// The test vector of RFC 7748, 6.1.
    #[test]
    fn both_ends_compute_the_shared_secret_of_rfc_7748() {
        let private = [
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        ];
        let public = [
            "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
            "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
        ];
        let ends = private.map(|private| {
            let mut end = KeyPair::default();
            end.set(&bytes(private));
            end
        });
        for (end, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let mut shared = [0; KEY_BYTES];
            end.dh(other.pubkey(), &mut shared).unwrap();
            assert_eq!(shared, bytes("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"));
        }
        assert_eq!(ends.map(|end| end.public), public.map(bytes));
        assert!(KeyPair::default().dh(&[0; 31], &mut [0; KEY_BYTES]).is_err());
    }
}
