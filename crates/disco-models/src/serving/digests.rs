//! Digests of logits, by which a text can be computed again and compared.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::plan::{Chosen, Params};

/// What a text was computed from, and the digests of its logits: the field `logits_digest` of replies of `disco-serve`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Digests {
    /// Tokens of the prompt.
    pub prompt_token_ids: Vec<u32>,
    /// Tokens of the text, with that of its end.
    pub token_ids: Vec<u32>,
    /// For each token of the text, the digest of the logits that it was chosen from, before bias, penalties and grammar: the first 64 bits of SHA-256 of
    /// all logits as 32-bit floats, little-endian, in hexadecimal digits.
    pub digests: Vec<String>,
    /// How the tokens were chosen.
    pub params: Params,
    /// Whether a grammar permitted some tokens only.
    pub has_grammar: bool,
}

impl Digests {
    /// Those of a text without tokens.
    pub fn new(prompt: &[u32], params: Params, has_grammar: bool) -> Self {
        Self { prompt_token_ids: prompt.to_vec(), token_ids: Vec::new(), digests: Vec::new(), params, has_grammar }
    }

    /// Adds a token of the text, and the [digest](Chosen::digest) of its logits.
    pub fn push(&mut self, token: u32, digest: u64) {
        self.token_ids.push(token);
        self.digests.push(format!("{digest:016x}"));
    }

    /// What differs from a choice of the token at `place`, if something does. With a grammar, the token is not compared.
    pub fn difference(&self, place: usize, chosen: &Chosen) -> Option<String> {
        let (token, digest) = (self.token_ids[place], &self.digests[place]);
        let own = format!("{:016x}", chosen.digest);
        if own != *digest {
            return Some(format!("the logits have the digest {own} here, and {digest} in the reply"));
        }
        let differs = chosen.id != token && !self.has_grammar;
        differs.then(|| format!("the token is {} here, and {token} in the reply", chosen.id))
    }
}

/// The digest of logits.
pub(super) fn digest(logits: &[f32]) -> u64 {
    let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
    let digest = Sha256::digest(bytes);
    u64::from_be_bytes(std::array::from_fn(|index| digest[index]))
}
