//! The tokenizer of a tiny model, whose vocabulary has a token for each byte.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use disco_candle::weights::Weights;
use disco_models::text::Text;
use disco_serve::engine::Token;

/// Marks roles; has a variable; refuses a role.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'rude' %}{{ raise_exception('be kind') }}{% endif %}\
    <|begin|>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if loud %}LOUD{% endif %}<|begin|>assistant:";

/// The token that ends a text of the model.
pub(crate) const END: u32 = 2;
/// Number of tokens of the model.
pub(crate) const VOCABULARY: usize = 512;

/// Tokenizer and chat template.
pub(crate) static TEXT: LazyLock<Arc<Text>> = LazyLock::new(|| {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../disco-models/tests/models/llama-3");
    let folder = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(model.join(file), folder.path().join(file)).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    Arc::new(Text::open(&Weights::open(folder.path()).unwrap()).unwrap())
});

/// The token of a byte.
pub(crate) fn byte(byte: u8) -> u32 {
    static TOKENS: LazyLock<Vec<Option<Vec<u8>>>> =
        LazyLock::new(|| (0..VOCABULARY as u32).map(|token| TEXT.piece(token)).collect());
    TOKENS.iter().position(|piece| piece.as_deref() == Some(&[byte])).unwrap() as u32
}

/// One token for each byte of a text, without logprobs.
pub(crate) fn bytes(text: &str) -> Vec<Token> {
    text.bytes().map(|each| token(byte(each))).collect()
}

/// A token without logprobs.
pub(crate) fn token(id: u32) -> Token {
    Token { id, logprob: f32::NAN, top: Vec::new() }
}
