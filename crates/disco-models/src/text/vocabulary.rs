//! Tokenizers from the metadata of GGUF files.

use std::borrow::Cow;

use disco_candle::weights::gguf::{self, Array, Value};
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

use super::pre::{Alphabet, Pre};
use super::{Why, metadata_text};

/// The character that SentencePiece writes for a space.
const SPACE: &str = "▁";

/// The special tokens of Phi-3 that leave white space after them. Others take it, which files do not say; as llama.cpp, by
/// the name of the model.
const PLAIN_OF_PHI3: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// The metadata of a vocabulary.
struct Vocabulary<'a> {
    metadata: &'a gguf::Metadata,
    tokens: Vec<Cow<'a, str>>,
}

/// The tokenizer of a GGUF file.
///
/// # Errors
/// The kind of tokenizer is not supported; a key is missing or does not fit the others.
pub(super) fn tokenizer(metadata: &gguf::Metadata) -> Why<Tokenizer> {
    let vocabulary = Vocabulary { metadata, tokens: texts(metadata, "tokenizer.ggml.tokens")? };
    let (mut tokenizer, adds_bos) = match metadata_text(metadata, "tokenizer.ggml.model").as_deref() {
        Some("gpt2") => vocabulary.byte_pairs(metadata_text(metadata, "tokenizer.ggml.pre").as_deref())?,
        Some("gemma4") => vocabulary.byte_pairs(Some("gemma4"))?,
        Some("llama") => vocabulary.sentence_piece()?,
        found => {
            let found = found.unwrap_or("(none)");
            return Err(format!(
                "the kind of tokenizer is {found:?} (tokenizer.ggml.model), which is not supported; use the model as \
                 safetensors with its `tokenizer.json`"
            ));
        }
    };
    vocabulary.add_specials(&mut tokenizer)?;
    if let Some(ends) = vocabulary.ends(adds_bos)? {
        tokenizer.with_post_processor(Some(ends));
    }
    Ok(tokenizer)
}

/// The text of the token that the key `key` names.
pub(super) fn special(metadata: &gguf::Metadata, key: &str) -> Option<String> {
    let Value::U32(token) = metadata.get(key)? else { return None };
    let Value::Array(tokens) = metadata.get("tokenizer.ggml.tokens")? else { return None };
    tokens.iter().nth(token as usize)?.text().map(Cow::into_owned)
}

impl Vocabulary<'_> {
    /// Byte pairs as `pre` cuts them, and whether texts begin with a token unless the file says so itself.
    fn byte_pairs(&self, pre: Option<&str>) -> Why<(Tokenizer, bool)> {
        let pre = Pre::named(pre)?;
        let merges = texts(self.metadata, "tokenizer.ggml.merges")?;
        let merges = merges.into_iter().map(|merge| {
            let pair = merge.split_once(' ').ok_or_else(|| format!("tokenizer.ggml.merges: {merge:?} is no pair"))?;
            Ok((pair.0.to_owned(), pair.1.to_owned()))
        });
        let model = BPE::builder().vocab_and_merges(self.numbers(), merges.collect::<Why<Vec<_>>>()?);
        let model = model.ignore_merges(pre.ignores_merges).byte_fallback(pre.alphabet == Alphabet::Text);
        let mut tokenizer = Tokenizer::new(model.build().map_err(|error| error.to_string())?);
        tokenizer.with_pre_tokenizer(Some(pre.steps()?));
        match pre.alphabet {
            Alphabet::Bytes => {
                tokenizer.with_decoder(Some(ByteLevel::default()));
            }
            Alphabet::Text => {
                let space = Replace::new(" ", SPACE).map_err(|error| error.to_string())?;
                tokenizer.with_normalizer(Some(space)).map_err(|error| error.to_string())?;
                tokenizer.with_decoder(Some(pieces(false)?));
            }
        }
        Ok((tokenizer, pre.adds_bos))
    }

    /// SentencePiece: the pair whose token has the highest score is merged first, and a character without a token is its
    /// bytes.
    fn sentence_piece(&self) -> Why<(Tokenizer, bool)> {
        let numbers = self.numbers();
        let unknown = self.number("tokenizer.ggml.unknown_token_id")?.and_then(|token| self.tokens.get(token as usize));
        let mut model = BPE::builder().vocab_and_merges(numbers.clone(), self.merges(&numbers)?);
        model = model.fuse_unk(true).byte_fallback(true);
        if let Some(unknown) = unknown {
            model = model.unk_token(unknown.clone().into_owned());
        }
        let mut tokenizer = Tokenizer::new(model.build().map_err(|error| error.to_string())?);
        let prepends = self.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let space = Replace::new(" ", SPACE).map_err(|error| error.to_string())?;
        let prefix = prepends.then(|| Prepend::new(SPACE.to_owned()).into());
        let normalizers = prefix.into_iter().chain([space.into()]).collect();
        tokenizer.with_normalizer(Some(Normalizers::new(normalizers))).map_err(|error| error.to_string())?;
        tokenizer.with_decoder(Some(pieces(prepends)?));
        Ok((tokenizer, true))
    }

    /// The pairs that merge, the highest score first.
    fn merges(&self, numbers: &Vocab) -> Why<Vec<(String, String)>> {
        let scores = array(self.metadata, "tokenizer.ggml.scores")?;
        if scores.len() != self.tokens.len() {
            return Err("tokenizer.ggml.scores: one score per token is needed".into());
        }
        let mut merges = Vec::new();
        for (token, score) in self.tokens.iter().zip(scores.iter()) {
            let Value::F32(score) = score else { return Err("tokenizer.ggml.scores: a score is no float".into()) };
            let pairs = token.char_indices().skip(1).map(|(cut, _)| token.split_at(cut));
            let known = pairs.filter(|(left, right)| numbers.contains_key(*left) && numbers.contains_key(*right));
            merges.extend(known.map(|(left, right)| (score, left, right)));
        }
        merges.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        Ok(merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect())
    }

    /// Tells the tokenizer which tokens are no pieces of text.
    fn add_specials(&self, tokenizer: &mut Tokenizer) -> Why<()> {
        let kinds = read(self.metadata, "tokenizer.ggml.token_type", "an array", Value::array)?;
        let Some(kinds) = kinds else { return Ok(()) };
        let name = metadata_text(self.metadata, "general.name").unwrap_or_default().to_lowercase();
        let is_phi3 = name.contains("phi-3") || name.contains("phi3");
        // `llama_token_type`: unknown 2, control 3, user defined 4.
        let of = |wanted: &[i128]| -> Vec<AddedToken> {
            let is = |kind: &Value<'_>| kind.integer().is_some_and(|kind| wanted.contains(&kind));
            let found = kinds.iter().zip(&self.tokens).filter(|(kind, _)| is(kind));
            let special = wanted != [4];
            let strips = |token: &str| special && is_phi3 && !PLAIN_OF_PHI3.contains(&token);
            found
                .map(|(_, token)| AddedToken::from(&**token, special).normalized(false).rstrip(strips(token)))
                .collect()
        };
        tokenizer.add_special_tokens(of(&[2, 3])).map_err(|error| error.to_string())?;
        tokenizer.add_tokens(of(&[4])).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// The tokens before and after each text.
    fn ends(&self, adds_bos: bool) -> Why<Option<TemplateProcessing>> {
        let end = |add: bool, key: &str| -> Why<Option<(String, u32)>> {
            if !add {
                return Ok(None);
            }
            let number = self.number(key)?.ok_or_else(|| format!("{key} is missing, and texts shall have it"))?;
            let token = self.tokens.get(number as usize).ok_or_else(|| format!("{key} {number} is no token"))?;
            Ok(Some((token.clone().into_owned(), number)))
        };
        let first = self.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos);
        let last = self.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let first = end(first, "tokenizer.ggml.bos_token_id")?;
        let last = end(last, "tokenizer.ggml.eos_token_id")?;
        if first.is_none() && last.is_none() {
            return Ok(None);
        }
        let text = |token: &Option<(String, u32)>| token.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>();
        let single = [text(&first), vec!["$0".to_owned()], text(&last)].concat();
        let mut specials: Vec<_> = first.into_iter().chain(last).collect();
        specials.dedup();
        let mut template = TemplateProcessing::builder();
        template.try_single(single).map_err(|error| error.to_string())?;
        Ok(Some(template.special_tokens(specials).build().map_err(|error| error.to_string())?))
    }

    fn numbers(&self) -> Vocab {
        (0..).zip(&self.tokens).map(|(number, token)| (token.clone().into_owned(), number)).collect()
    }

    fn number(&self, key: &str) -> Why<Option<u32>> {
        read(self.metadata, key, "a number of 32 bits", |value| u32::try_from(value.integer()?).ok())
    }

    fn flag(&self, key: &str) -> Why<Option<bool>> {
        read(self.metadata, key, "true or false", |value| value.flag())
    }
}

/// The decoder of a vocabulary whose tokens are pieces of text, which begins with a space of its own if it `prepends`.
fn pieces(prepends: bool) -> Why<Decoders> {
    let space = Replace::new(SPACE, " ").map_err(|error| error.to_string())?;
    let strip = prepends.then(|| Strip::new(' ', 1, 0).into());
    let decoders = [space.into(), ByteFallback::default().into(), Fuse::default().into()].into_iter().chain(strip);
    Ok(Decoders::new(decoders.collect()))
}

fn array<'a>(metadata: &'a gguf::Metadata, key: &str) -> Why<Array<'a>> {
    read(metadata, key, "an array", Value::array)?.ok_or_else(|| format!("{key} is missing"))
}

fn texts<'a>(metadata: &'a gguf::Metadata, key: &str) -> Why<Vec<Cow<'a, str>>> {
    let texts = array(metadata, key)?.iter().map(Value::text).collect::<Option<_>>();
    texts.ok_or_else(|| format!("{key}: expected texts"))
}

fn read<'a, T>(
    metadata: &'a gguf::Metadata,
    key: &str,
    expected: &str,
    read: impl FnOnce(Value<'a>) -> Option<T>,
) -> Why<Option<T>> {
    metadata.read(key, expected, read).map_err(|why| format!("{key}: {why}"))
}
