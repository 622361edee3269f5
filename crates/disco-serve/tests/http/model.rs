//! The tokenizer of a tiny model, whose vocabulary has a token for each byte.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use disco_candle::weights::Weights;
use disco_models::text::Text;
use disco_serve::engine::Token;
use serde_json::{Value, json};

/// Marks roles; has a variable; refuses a role.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'rude' %}{{ raise_exception('be kind') }}{% endif %}\
    <|begin|>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if loud %}LOUD{% endif %}<|begin|>assistant:";

/// The token that ends a text of the model.
pub(crate) const END: u32 = 2;
/// Number of tokens of the model.
pub(crate) const VOCABULARY: usize = 512;

/// Tokenizer and chat template.
pub(crate) static TEXT: LazyLock<Arc<Text>> = LazyLock::new(|| Arc::new(changed(TEMPLATE, |_| ())));

/// The tokenizer with a chat template, after a change of its `tokenizer.json`.
fn changed(template: &str, change: impl FnOnce(&mut Value)) -> Text {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../disco-models/tests/models/llama-3");
    let folder = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer_config.json"] {
        std::fs::copy(model.join(file), folder.path().join(file)).unwrap();
    }
    let mut tokenizer = serde_json::from_slice(&std::fs::read(model.join("tokenizer.json")).unwrap()).unwrap();
    change(&mut tokenizer);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Text::open(&Weights::open(folder.path()).unwrap()).unwrap()
}

/// A tokenizer that begins each text with the special token 1.
pub(crate) fn beginning() -> Text {
    changed(TEMPLATE, |tokenizer| {
        let special = json!({"SpecialToken": {"id": "<|begin|>", "type_id": 0}});
        let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing", "single": [special, sequence("A")], "pair": [special, sequence("A"), sequence("B")],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [1], "tokens": ["<|begin|>"]}},
        });
    })
}

/// A tokenizer with another chat template.
pub(crate) fn with_template(template: &str) -> Arc<Text> {
    Arc::new(changed(template, |_| ()))
}

/// A tokenizer with another chat template, and with these two special tokens instead of two of its own. Its end is no mark of gpt-oss.
pub(crate) fn with_specials(template: &str, specials: [&str; 2]) -> Arc<Text> {
    Arc::new(changed(template, |tokenizer| {
        let mut text = tokenizer.to_string().replace("<|end|>", "<|eot|>");
        for (own, special) in ["<|begin|>", "<|pad|>"].into_iter().zip(specials) {
            text = text.replace(&Value::from(own).to_string(), &Value::from(special).to_string());
        }
        *tokenizer = serde_json::from_str(&text).unwrap();
    }))
}

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
    Token { id, logprob: f32::NAN, top: Vec::new(), digest: 0 }
}
