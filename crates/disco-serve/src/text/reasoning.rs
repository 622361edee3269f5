//! Separates the reasoning of a model from its answer.

use super::stops::undecided;

/// What begins and ends a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) open: &'static str,
    pub(crate) close: &'static str,
    /// What follows `open`, and is no reasoning.
    label: &'static str,
}

const KNOWN: [Marks; 3] = [
    Marks { open: "<think>", close: "</think>", label: "" },
    Marks { open: "[THINK]", close: "[/THINK]", label: "" },
    // Gemma 4 has other channels, but its template shows only this one.
    Marks { open: "<|channel>", close: "<channel|>", label: "thought\n" },
];

impl Marks {
    /// The marks that a chat template shows.
    pub(crate) fn of(template: &str) -> Option<Self> {
        KNOWN.into_iter().find(|marks| template.contains(marks.close))
    }

    /// Whether a prompt ends with the begin of the reasoning.
    pub(crate) fn are_open(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }

    /// Whether a text ends inside of the reasoning.
    pub(crate) fn are_open_in(self, text: &str) -> bool {
        text.rfind(self.open).is_some_and(|open| !text[open..].contains(self.close))
    }
}

/// The reasoning at the begin of a growing text, and what follows. Text that may be a mark, and white space beside one, is held back
/// until the next part decides it, so the result does not depend on the parts.
#[derive(Debug)]
pub(crate) struct Reasoning {
    marks: Marks,
    state: State,
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come, and perhaps the begin of a mark.
    Begin,
    /// Behind the mark that begins the reasoning.
    Opened,
    Thinking,
    /// Behind the reasoning, before the first letter.
    Between,
    Saying,
}

/// A part of the reasoning, and a part of the text behind it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Thought {
    pub(crate) reasoning: String,
    pub(crate) text: String,
}

impl Reasoning {
    /// A text whose prompt has begun the reasoning, or has not.
    pub(crate) fn new(marks: Marks, is_open: bool) -> Self {
        Self { marks, state: if is_open { State::Opened } else { State::Begin }, held: String::new() }
    }

    /// Whether the text so far ends inside of the reasoning.
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Thinking
    }

    /// Adds a part.
    pub(crate) fn push(&mut self, part: &str) -> Thought {
        self.held.push_str(part);
        let mut thought = Thought::default();
        if self.state == State::Begin {
            let said = self.held.trim_start();
            if let Some(rest) = said.strip_prefix(self.marks.open) {
                (self.held, self.state) = (rest.to_owned(), State::Opened);
            } else if !self.marks.open.starts_with(said) {
                self.state = State::Saying;
            }
        }
        if self.state == State::Opened {
            let label = self.marks.label;
            if let Some(rest) = self.held.strip_prefix(label) {
                (self.held, self.state) = (rest.to_owned(), State::Thinking);
            } else if !label.starts_with(&self.held) {
                self.state = State::Thinking;
            }
        }
        if self.state == State::Thinking {
            let close = self.marks.close;
            match self.held.find(close) {
                Some(place) => {
                    thought.reasoning = self.held[..place].to_owned();
                    self.held.drain(..place + close.len());
                    self.state = State::Between;
                }
                None => {
                    let shown = undecided(&self.held, close);
                    thought.reasoning = self.held.drain(..shown).collect();
                }
            }
        }
        if self.state == State::Between {
            self.held = self.held.trim_start().to_owned();
            if !self.held.is_empty() {
                self.state = State::Saying;
            }
        }
        if self.state == State::Saying {
            thought.text = std::mem::take(&mut self.held);
        }
        thought
    }

    /// The text that was held back, after the last part.
    pub(crate) fn finish(&mut self) -> Thought {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Opened | State::Thinking => Thought { reasoning: held, text: String::new() },
            State::Between => Thought::default(),
            State::Begin | State::Saying => Thought { reasoning: String::new(), text: held },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const THINK: Marks = KNOWN[0];
    const CHANNEL: Marks = KNOWN[2];

    fn parted(is_open: bool, parts: &[&str]) -> (String, String) {
        parted_by(THINK, is_open, parts)
    }

    fn parted_by(marks: Marks, is_open: bool, parts: &[&str]) -> (String, String) {
        let mut reasoning = Reasoning::new(marks, is_open);
        let mut all: Vec<_> = parts.iter().map(|part| reasoning.push(part)).collect();
        all.push(reasoning.finish());
        let of = |part: fn(&Thought) -> &str| all.iter().map(part).collect::<String>();
        (of(|thought| &thought.reasoning), of(|thought| &thought.text))
    }

    #[test]
    fn the_prompt_and_the_text_say_where_reasoning_begins() {
        for (is_open, text, reasoning, said) in [
            (true, "a</think>\n\nb", "a", "b"),
            (false, "<think>\na</think> b", "\na", "b"),
            (false, "\n<think>a</think>", "a", ""),
            (false, "b <think>a</think>", "", "b <think>a</think>"),
            (true, "a", "a", ""),
            (true, "a</thin", "a</thin", ""),
            (false, "<thin", "", "<thin"),
            (false, "", "", ""),
        ] {
            assert_eq!(parted(is_open, &[text]), (reasoning.into(), said.into()), "{text:?}");
        }
        assert!(THINK.are_open_in("<think>\nIs") && !THINK.are_open_in("<think>\nIs</think>Yes"));
        assert!(THINK.are_open("<|assistant|><think>\n") && !THINK.are_open("<think>\n\n</think>\n\n"));
    }

    #[test]
    fn the_label_of_a_channel_is_no_reasoning() {
        for (text, reasoning, said) in [
            ("<|channel>thought\nHm.\n<channel|>Yes", "Hm.\n", "Yes"),
            ("<|channel>though", "though", ""),
            ("<|channel>thin<channel|>", "thin", ""),
            ("<|channel>thought\n<channel|>Yes", "", "Yes"),
        ] {
            for cut in 0..=text.len() {
                let parts = [&text[..cut], &text[cut..]];
                assert_eq!(parted_by(CHANNEL, false, &parts), (reasoning.into(), said.into()), "{text} at {cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_parts_do_not_matter(
            is_open: bool, open in prop::option::of(Just("<think>")), reasoning in "[a<>/ ]{0,6}", close in prop::option::of(Just("</think>")),
            said in "[b<>\n ]{0,6}", cuts in prop::collection::vec(0usize..40, 0..4),
        ) {
            let text = format!("{}{reasoning}{}{said}", open.unwrap_or(""), close.unwrap_or(""));
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let parts: Vec<_> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            prop_assert_eq!(parted(is_open, &parts), parted(is_open, &[&text]));
        }
    }
}
