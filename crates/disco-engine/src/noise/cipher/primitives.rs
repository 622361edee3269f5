//! The cryptography of `ring` behind the traits of the crate `snow`. snow's own adapter, its feature `ring-resolver`, brings
//! nine more crates, and has no key exchange.

use std::sync::{Mutex, PoisonError};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{Context, SHA256};
use ring::rand::{SecureRandom as _, SystemRandom};
use snow::Error;
use snow::types::{Cipher, Dh, Hash, Random};

/// Bytes of a key of X25519.
const KEY_BYTES: usize = 32;
/// Bytes of the tag of AES-GCM.
const TAG_BYTES: usize = 16;

/// Random numbers of the system.
pub(super) struct SystemRng(pub(super) SystemRandom);

impl Random for SystemRng {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.fill(bytes).map_err(|_| Error::Rng)
    }
}

/// An ephemeral key pair of X25519 (RFC 7748), for one key exchange. `ring` never gives out its private key, and the pattern
/// `NN` has no static keys, so the methods of [`Dh`] for private keys have no effect.
#[derive(Default)]
pub(super) struct KeyPair {
    private: Mutex<Option<EphemeralPrivateKey>>,
    public: [u8; KEY_BYTES],
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

    fn set(&mut self, _private: &[u8]) {}

    fn generate(&mut self, _random: &mut dyn Random) -> Result<(), Error> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(|_| Error::Rng)?;
        let public = private.compute_public_key().map_err(|_| Error::Dh)?;
        self.public.copy_from_slice(public.as_ref());
        self.private = Mutex::new(Some(private));
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &[]
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let private = self.private.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(Error::Dh)?;
        let public = UnparsedPublicKey::new(&X25519, public.get(..KEY_BYTES).ok_or(Error::Dh)?);
        let out = out.first_chunk_mut::<KEY_BYTES>().ok_or(Error::Dh)?;
        agree_ephemeral(private, &public, |shared| out.copy_from_slice(shared)).map_err(|_| Error::Dh)
    }
}

/// SHA-256.
pub(super) struct Sha256(Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        SHA256.block_len()
    }

    fn hash_len(&self) -> usize {
        SHA256.output_len()
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        let digest = self.0.clone().finish();
        out[..SHA256.output_len()].copy_from_slice(digest.as_ref());
    }
}

/// AES-256 in Galois/Counter mode, with the nonces of the Noise protocol.
#[derive(Default)]
pub(super) struct AesGcm(Option<LessSafeKey>);

/// The Noise protocol, section 12.4: 32 bits of zeros and the number in big endian.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0 = UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new);
    }

    /// Without a key, writes zeros, which no peer can open.
    fn encrypt(&self, number: u64, associated: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let (text, tag) = out[..plain.len() + TAG_BYTES].split_at_mut(plain.len());
        text.copy_from_slice(plain);
        let key = self.0.as_ref();
        match key.and_then(|key| key.seal_in_place_separate_tag(nonce(number), Aad::from(associated), text).ok()) {
            Some(sealed) => tag.copy_from_slice(sealed.as_ref()),
            None => out[..plain.len() + TAG_BYTES].fill(0),
        }
        plain.len() + TAG_BYTES
    }

    fn decrypt(&self, number: u64, associated: &[u8], sealed: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let (text, tag) = sealed.split_last_chunk::<TAG_BYTES>().ok_or(Error::Decrypt)?;
        let out = out.get_mut(..text.len()).ok_or(Error::Decrypt)?;
        out.copy_from_slice(text);
        let key = self.0.as_ref().ok_or(Error::Decrypt)?;
        key.open_in_place_separate_tag(nonce(number), Aad::from(associated), Tag::from(*tag), out, 0..)
            .map(|text| text.len())
            .map_err(|_| Error::Decrypt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn both_ends_of_a_key_exchange_compute_one_secret_and_once_only() {
        let mut ends = [KeyPair::default(), KeyPair::default()];
        for end in &mut ends {
            end.generate(&mut SystemRng(SystemRandom::new())).unwrap();
        }
        let mut secrets = [[0; KEY_BYTES]; 2];
        ends[0].dh(ends[1].pubkey(), &mut secrets[0]).unwrap();
        ends[1].dh(ends[0].pubkey(), &mut secrets[1]).unwrap();
        assert_eq!(secrets[0], secrets[1]);
        assert_ne!(secrets[0], [0; KEY_BYTES]);
        assert!(ends[0].dh(ends[1].pubkey(), &mut secrets[0]).is_err());
    }

    #[test]
    fn a_public_key_that_is_short_or_of_low_order_is_refused() {
        for public in [&[7; KEY_BYTES - 1][..], &[0; KEY_BYTES]] {
            let mut end = KeyPair::default();
            end.generate(&mut SystemRng(SystemRandom::new())).unwrap();
            assert!(end.dh(public, &mut [0; KEY_BYTES]).is_err());
        }
    }

    /// The record is that of OpenSSL: Python's `cryptography`, `AESGCM(key).encrypt(bytes(4) + (258).to_bytes(8, "big"), …)`.
    #[test]
    fn a_record_is_what_other_implementations_of_aes_gcm_make() {
        let key = bytes("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
        let mut cipher = AesGcm::default();
        cipher.set(key.first_chunk().unwrap());
        let mut sealed = [0; 5 + TAG_BYTES];
        assert_eq!(cipher.encrypt(258, b"prologue", b"hello", &mut sealed), sealed.len());
        assert_eq!(sealed.to_vec(), bytes("37bee61b2b564668ac3739245b0269a489187613c0"));
        let mut plain = [0; 5];
        assert_eq!(cipher.decrypt(258, b"prologue", &sealed, &mut plain), Ok(5));
        assert_eq!(&plain, b"hello");
        for (number, associated) in [(259, &b"prologue"[..]), (258, b"another")] {
            assert_eq!(cipher.decrypt(number, associated, &sealed, &mut plain), Err(Error::Decrypt));
        }
    }

    #[test]
    fn a_cipher_without_a_key_writes_zeros_and_opens_nothing() {
        let mut sealed = [1; 3 + TAG_BYTES];
        AesGcm::default().encrypt(0, &[], b"abc", &mut sealed);
        assert_eq!(sealed, [0; 3 + TAG_BYTES]);
        assert!(AesGcm::default().decrypt(0, &[], &sealed, &mut [0; 3]).is_err());
    }

    #[test]
    fn a_hash_is_sha_256_and_keeps_its_input_until_a_reset() {
        let (mut hash, mut out) = (Sha256::default(), [0; 32]);
        hash.input(b"a");
        hash.result(&mut out);
        hash.input(b"bc");
        hash.result(&mut out);
        assert_eq!(out.to_vec(), bytes("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
        hash.reset();
        hash.result(&mut out);
        assert_eq!(out.to_vec(), bytes("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    }
}
