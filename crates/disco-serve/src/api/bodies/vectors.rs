//! The fields of requests for vectors of texts, and for scores of pairs.

use super::body::{Body, Part, obeyed, refused, required};
use super::shape::{Shape, TEXT, count};
use super::texts::ALL;

/// The most texts of a request.
const MAX_TEXTS: usize = 2048;
const TOKENS: Shape = Shape::List { least: 1, most: usize::MAX, of: &Shape::Token };
/// A text, or several ones, which may be objects with a `text`.
const TEXTS: Shape = Shape::Either(&[
    TEXT,
    Shape::Object,
    Shape::List { least: 1, most: MAX_TEXTS, of: &Shape::Either(&[TEXT, Shape::Object]) },
]);

const CUT: Part = Part {
    title: "Texts that are too long",
    obeyed: &[
        obeyed("truncate", Shape::Bool, "whether a text is cut to the tokens that the model takes, instead of refused"),
        obeyed(
            "truncate_prompt_tokens",
            Shape::Limit { least: 1 },
            "the same, to so many tokens; -1: those that the model takes",
        ),
    ],
    without_effect: &["user", "priority", "request_id"],
    refused: &[],
};

const EMBEDDINGS: Part = Part {
    title: "Embeddings",
    obeyed: &[
        required(
            "input",
            Shape::Either(&[
                TEXT,
                TOKENS,
                Shape::List { least: 1, most: MAX_TEXTS, of: &Shape::Either(&[TEXT, TOKENS]) },
            ]),
            "a text, or several, or their tokens",
        ),
        obeyed("encoding_format", Shape::Word(&["float", "base64"]), "how a vector is written"),
        obeyed("dimensions", count(1), "so many numbers of a vector, which then gets the length 1"),
    ],
    without_effect: &[],
    refused: &[refused("true", ": vectors are as the model's files say", &["normalize"])],
};

const SCORES: Part = Part {
    title: "Scores",
    obeyed: &[
        obeyed("raw_scores", Shape::Bool, "whether a score is the model's number, instead of its sigmoid"),
        obeyed("use_activation", Shape::Bool, "the contrary of `raw_scores`"),
        obeyed("activation", Shape::Bool, "the same by its old name"),
    ],
    without_effect: &[],
    refused: &[],
};

const RERANKING: Part = Part {
    title: "Reranking",
    obeyed: &[
        required("query", TEXT, "the first text of all pairs"),
        required("documents", TEXTS, "the second texts, which may be objects with a `text`"),
        obeyed("top_n", count(1), "so many documents are in the reply, the best ones"),
        obeyed("return_documents", Shape::Bool, "whether the reply has the documents (default: true)"),
    ],
    without_effect: &[],
    refused: &[refused("", ": use `truncate`", &["max_tokens_per_doc"])],
};

const PAIRS: Part = Part {
    title: "Pairs of texts",
    obeyed: &[
        required("text_1", TEXTS, "the first texts, which may be objects with a `text`"),
        required("text_2", TEXTS, "the second texts: as many, or any number for one first text"),
    ],
    without_effect: &[],
    refused: &[],
};

pub(crate) static EMBED: Body = Body { name: "Embed", parts: &[&ALL, &EMBEDDINGS, &CUT] };
pub(crate) static RERANK: Body = Body { name: "Rerank", parts: &[&ALL, &RERANKING, &SCORES, &CUT] };
pub(crate) static SCORE: Body = Body { name: "Score", parts: &[&ALL, &PAIRS, &SCORES, &CUT] };
