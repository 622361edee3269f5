//! The pre-tokenizers of byte-pair vocabularies in GGUF files: how a text is cut into words before pairs are merged.
//!
//! Source: the names are those of llama.cpp's `llama-vocab.cpp` (2026-10). The expressions are those of the families' own
//! `tokenizer.json`, as llama.cpp cites them. llama.cpp simplifies a few of them for characters beyond ASCII; a name whose
//! tokens differ there has a comment.

use tokenizers::SplitDelimiterBehavior::Isolated;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::Why;

/// How families cut their texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pre {
    /// The families: names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Each expression cuts the pieces that the one before it has left.
    expressions: &'static [&'static str],
    /// Whether a word that is a token is taken whole, whatever the merges say.
    pub(super) ignores_merges: bool,
    /// Whether a text begins with the token for its beginning, unless the file says so itself.
    pub(super) adds_bos: bool,
    /// The characters of the vocabulary.
    pub(super) alphabet: Alphabet,
}

/// The characters of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// One character for each byte.
    Bytes,
    /// Those of the text, with `▁` for a space. A character without a token is its bytes.
    Text,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const SEED: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Punctuation and letters of East Asia, for Youtu.
const YOUTU_ASIA: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
/// Letters of scripts with upper and lower case, for DeepSeek LLM.
const CASED: &str = r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";
/// Scripts without spaces between words, for AFMoE.
const UNSPACED: &str = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+";
const KANA_AND_HAN: &str = "[一-龥぀-ゟ゠-ヿ]+";
const HAN_AND_HANGUL: &str = "[一-龥ࠀ-一가-퟿]+";
/// Groups of three digits, counted from the end of the number. The group of the look-ahead is atomic, so that a long number
/// does not reach the limit of backtracking.
const THOUSANDS: &str = r"\p{N}{1,3}(?=(?>(?:\p{N}{3})*)(?!\p{N}))";

/// All families.
const FAMILIES: [Pre; 32] = [
    plain(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    plain(
        &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
        &[LLAMA3],
    )
    .ignoring_merges()
    .adding_bos(),
    plain(&["dbrx", "smaug-bpe", "glm4", "glm5", "chatglm-bpe"], &[LLAMA3]),
    plain(
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"],
        &[QWEN2],
    ),
    plain(&["qwen35"], &[QWEN35]),
    plain(
        &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    plain(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[r"\p{N}", GPT2],
    ),
    // llama.cpp takes letters beyond ASCII for both upper and lower case, and marks for no part of a word.
    plain(&["tekken"], &[TEKKEN]).ignoring_merges().adding_bos(),
    plain(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    plain(&["granite-embed-multi-97m"], &[GPT4O]).ignoring_merges(),
    // llama.cpp does not tell upper from lower case, and takes digits and letters of ASCII only for `\d` and `\b`.
    plain(&["tiny_aya", "cohere2moe"], &[r"\d{1,3}(?=(?>(?:\d{3})*)\b)", GPT4O]),
    plain(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[r"\p{N}{1,3}", KANA_AND_HAN, DEEPSEEK3]),
    plain(&["spark2_5"], &[r"\p{N}{1,3}", KANA_AND_HAN, SPARK, r"\p{N}"]),
    // llama.cpp joins the first group of digits and the characters before it.
    plain(&["afmoe"], &[THOUSANDS, UNSPACED, DEEPSEEK3]),
    // llama.cpp takes white space beyond ASCII for that of ASCII.
    plain(&["deepseek-llm"], &["[\r\n]", CASED, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", HAN_AND_HANGUL, r"\p{N}+"]),
    plain(&["deepseek-coder"], &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_HANGUL, r"\p{N}"]),
    plain(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    plain(&["seed-coder"], &[SEED]),
    // llama.cpp does not tell upper from lower case.
    plain(&["youtu"], &[YOUTU_ASIA, YOUTU]).ignoring_merges(),
    plain(&["jais-2"], &[JAIS2]),
    plain(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    plain(&["viking"], &[BLOOM, r"\p{N}"]),
    plain(
        &["chameleon"],
        &[
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            "([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
    )
    .adding_bos(),
    // llama.cpp takes digits of ASCII only for `\d`.
    plain(&["superbpe"], &[r"\p{N}+", r"(?=(?>(?:\d{3})+)(?!\d))"]),
    plain(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    plain(&["ufakzeka"], &[UFAKZEKA]),
    plain(&["laguna"], &["[^\n]+|[\n]+", QWEN2]),
    plain(&["exaone-moe"], &[EXAONE_MOE]),
    plain(&["minicpm5"], &[r"\p{N}{1,3}", MINICPM5]).ignoring_merges(),
    // llama.cpp does not tell upper from lower case, and takes marks for no part of a word.
    plain(&["kimi-k2"], &[KIMI]),
    plain(&["gemma4", "granite-embed-multi-311m"], &["[^\n]+|[\n]+"]).of_text().adding_bos(),
    plain(&["sarvam-moe"], &["[^\n]+|[\n]+"]).of_text(),
];

const fn plain(names: &'static [&'static str], expressions: &'static [&'static str]) -> Pre {
    Pre { names, expressions, ignores_merges: false, adds_bos: false, alphabet: Alphabet::Bytes }
}

impl Pre {
    const fn ignoring_merges(self) -> Self {
        Self { ignores_merges: true, ..self }
    }

    const fn adding_bos(self) -> Self {
        Self { adds_bos: true, ..self }
    }

    const fn of_text(self) -> Self {
        Self { alphabet: Alphabet::Text, ..self }
    }

    /// The pre-tokenizer that `tokenizer.ggml.pre` names. Without a name, llama.cpp's default.
    ///
    /// # Errors
    /// The name is not known.
    pub(super) fn named(name: Option<&str>) -> Why<Self> {
        let name = name.unwrap_or("default");
        FAMILIES.into_iter().find(|family| family.names.contains(&name)).ok_or_else(|| {
            let remedy = "use the model as safetensors with its `tokenizer.json`";
            format!("the pre-tokenizer {name:?} (tokenizer.ggml.pre) is not supported; {remedy}")
        })
    }

    /// The steps that cut a text and turn its bytes into the characters of the vocabulary.
    ///
    /// # Errors
    /// An expression can't be compiled.
    pub(super) fn steps(&self) -> Why<PreTokenizerWrapper> {
        let split = |expression: &&str| {
            let split = Split::new(SplitPattern::Regex((*expression).to_owned()), Isolated, false);
            split.map(PreTokenizerWrapper::from).map_err(|error| format!("{expression}: {error}"))
        };
        let mut steps = self.expressions.iter().map(split).collect::<Why<Vec<_>>>()?;
        if self.alphabet == Alphabet::Bytes {
            steps.push(ByteLevel::new(false, true, false).into());
        }
        Ok(Sequence::new(steps).into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::{FAMILIES, Pre};

    /// The pieces of `text`, whose characters are of ASCII.
    fn pieces(name: &str, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        Pre::named(Some(name)).unwrap().steps().unwrap().pre_tokenize(&mut pieces).unwrap();
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(piece, ..)| piece.to_owned()).collect()
    }

    #[test]
    fn all_expressions_compile_and_no_name_has_two_families() {
        let mut names: Vec<_> = FAMILIES.iter().flat_map(|family| family.names).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for family in FAMILIES {
            assert!(family.steps().is_ok(), "{:?}", family.names);
        }
    }

    #[test]
    fn groups_of_digits_begin_at_the_end_of_a_number_however_long_it_is() {
        for name in ["afmoe", "tiny_aya", "superbpe"] {
            assert_eq!(pieces(name, "1234567"), ["1", "234", "567"], "{name}");
            assert_eq!(pieces(name, &"1".repeat(3001)).len(), 1001, "{name}");
        }
    }

    #[test]
    fn a_vocabulary_of_text_is_cut_at_line_breaks_only() {
        assert_eq!(pieces("gemma4", "a b\n\nc"), ["a b", "\n\n", "c"]);
    }
}
