//! Names for the contents of cache blocks: two blocks with the same digest hold the same keys and values.

use disco_models::BLOCK as BLOCK_TOKENS;
use sha2::{Digest as _, Sha256};

/// 128 bits of SHA-256. A collision would show one client's text to another, so a fast hash is not enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest([u8; 16]);

/// The digests of the full blocks of one sequence. Each digest covers the tokens of its block and of all blocks before
/// it.
#[derive(Clone, Debug)]
pub struct Chain {
    root: Digest,
    digests: Vec<Digest>,
}

impl Chain {
    /// The chain of a sequence without tokens. Sequences with different salts, or that are rotated in different ways, have no
    /// digest in common.
    pub fn new(salt: u64, rotation: usize) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"disco-serve prefix");
        hash.update(salt.to_le_bytes());
        hash.update(rotation.to_le_bytes());
        Self { root: truncated(hash), digests: Vec::new() }
    }

    /// Adds the digests of the full blocks of `tokens` that the chain lacks. `tokens` are all tokens of the sequence, and
    /// begin with those of the calls before.
    pub fn extend(&mut self, tokens: &[u32]) {
        for block in tokens.chunks_exact(BLOCK_TOKENS).skip(self.digests.len()) {
            let previous = self.digests.last().unwrap_or(&self.root);
            let mut hash = Sha256::new();
            hash.update(previous.0);
            for token in block {
                hash.update(token.to_le_bytes());
            }
            self.digests.push(truncated(hash));
        }
    }

    /// The digest of each full block, in order.
    pub fn digests(&self) -> &[Digest] {
        &self.digests
    }
}

fn truncated(hash: Sha256) -> Digest {
    let mut digest = [0; 16];
    digest.copy_from_slice(&hash.finalize()[..16]);
    Digest(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(salt: u64, tokens: &[u32]) -> Vec<Digest> {
        let mut chain = Chain::new(salt, 0);
        chain.extend(tokens);
        chain.digests
    }

    #[test]
    fn only_full_blocks_have_digests() {
        let tokens: Vec<u32> = (0..33).collect();
        assert_eq!(chain(0, &tokens[..15]), []);
        assert_eq!(chain(0, &tokens[..16]).len(), 1);
        assert_eq!(chain(0, &tokens).len(), 2);
    }

    #[test]
    fn a_chain_extended_in_parts_equals_one_extended_at_once() {
        let tokens: Vec<u32> = (0..70).collect();
        let mut parts = Chain::new(3, 0);
        for end in [5, 16, 17, 50, 70] {
            parts.extend(&tokens[..end]);
        }
        assert_eq!(parts.digests(), chain(3, &tokens));
    }

    #[test]
    fn a_digest_depends_on_the_tokens_before_and_the_salt() {
        let tokens: Vec<u32> = (0..32).collect();
        let mut other = tokens.clone();
        other[0] = 9;
        let digests = chain(0, &tokens);
        for others in [chain(0, &other), chain(1, &tokens)] {
            assert!(others.iter().all(|digest| !digests.contains(digest)));
        }
    }
}
