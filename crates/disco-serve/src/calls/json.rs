//! Where JSON values end in a growing text.

/// Follows a text, an array or an object of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    depth: usize,
    in_text: bool,
    is_escaped: bool,
}

/// How far a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Beyond the text.
    On,
    /// So many bytes.
    End(usize),
    /// So many bytes, behind which no JSON goes on.
    Broken(usize),
}

impl Reach {
    /// The bytes of a text that belong to the value, and whether it ends behind them.
    pub(super) fn within(self, text: &str) -> (usize, bool) {
        match self {
            Self::On => (text.len(), false),
            Self::End(length) | Self::Broken(length) => (length, true),
        }
    }
}

impl Scan {
    /// Goes on inside of an object.
    pub(super) fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Follows the next part of the text. Only brackets and texts are looked at, and characters that JSON has nowhere else.
    pub(super) fn follow(&mut self, part: &str) -> Reach {
        self.compact(part, &mut String::new())
    }

    /// The same, and adds the value to `json` without the white space between its parts, and with escapes for control characters in
    /// texts.
    pub(super) fn compact(&mut self, part: &str, json: &mut String) -> Reach {
        for (place, letter) in part.char_indices() {
            match letter {
                _ if self.is_escaped => self.is_escaped = false,
                '\\' if self.in_text => self.is_escaped = true,
                '"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                ' ' | '\t' | '\r' | '\n' => continue,
                ',' | ':' | '+' | '-' | '.' | '0'..='9' | 'a'..='z' | 'A'..='Z' => {}
                _ => return Reach::Broken(place),
            }
            match letter {
                // Models write lines of a text as they are.
                '\0'..' ' => json.push_str(&escaped(letter.encode_utf8(&mut [0; 4]))),
                _ => json.push(letter),
            }
            if self.depth == 0 && !self.in_text {
                return Reach::End(place + letter.len_utf8());
            }
        }
        Reach::On
    }
}

/// A text between quotation marks, without them.
pub(super) fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_texts_become_json() {
        let mut json = String::new();
        let text = "{ \"a\" : \"x\ny\t\\n\" } rest";
        assert_eq!(Scan::default().compact(text, &mut json), Reach::End(text.len() - 5));
        assert_eq!(json, r#"{"a":"x\ny\t\n"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["a"], "x\ny\t\n");
    }
}
