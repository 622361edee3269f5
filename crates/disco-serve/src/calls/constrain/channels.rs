//! Grammars of texts in channels.

use super::{Mark, Rules, excluding, literal};
use crate::calls::Choice;
use crate::calls::channels::{CHANNEL, CONSTRAIN, END, MESSAGE, START};
use crate::grammar::Grammar;

impl Rules<'_> {
    /// A call as a message.
    pub(super) fn message(&self, name: &str, arguments: &str) -> String {
        let [channel, constrain, message] = [CHANNEL, CONSTRAIN, MESSAGE].map(|mark| (self.mark)(mark));
        let header = literal(&format!("commentary to=functions.{name} "));
        format!("{channel} {header} {constrain} \"json\" {message} {arguments}")
    }

    /// The whole text: what the model thinks, and then a call. If none is demanded, it can also say something before the call or
    /// instead of it, which is one of `answer`.
    pub(super) fn channels(&mut self, answer: Option<&Grammar>) {
        let is_due = self.tools.choice != Choice::Auto;
        self.text += &asides(self.special, if is_due { "\"analysis\"" } else { "(\"analysis\" | \"commentary\")" });
        if is_due {
            self.add("start", "aside? call");
            return;
        }
        let [channel, message] = [CHANNEL, MESSAGE].map(|mark| (self.mark)(mark));
        match answer {
            Some(answer) => self.add("answer", &answer.definition()),
            None => {
                self.add("TEXT", &excluding("/(?s:.+)/", CHANNEL, self.special));
                self.add("answer", "TEXT?");
            }
        }
        self.add("start", &format!("aside* (call | {channel} \"final\" {message} answer)"));
    }
}

/// A grammar in the channel of the answer, behind what the model thinks.
pub(crate) fn in_final(grammar: &Grammar, special: &Mark<'_>) -> Grammar {
    let [channel, message] = [CHANNEL, MESSAGE].map(|mark| super::marked(mark, special));
    let rules = asides(special, "\"analysis\"");
    grammar.after(&format!("aside? {channel} \"final\" {message}"), &rules)
}

/// The rule of a message in some channels that another message follows.
fn asides(special: &Mark<'_>, channels: &str) -> String {
    let [channel, start, end, message] = [CHANNEL, START, END, MESSAGE].map(|mark| super::marked(mark, special));
    let aside = format!("aside: {channel} {channels} {message} thought {start} \"assistant\"\n");
    aside
        + &match special(END) {
            Some(_) => format!("thought: THOUGHT? {end}\nTHOUGHT: /(?s:.+)/\n"),
            None => format!("thought[lazy]: /(?s:.*)/ {end}\n"),
        }
}
