//! Prints lines of other programs on this program's output, with control characters escaped on a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write};

/// Prints a line, without its newline, with a prefix in brackets, in one write. On a terminal, control characters are
/// escaped.
pub fn print(prefix: &str, is_err: bool, line: &[u8]) {
    // The program's output may be closed.
    _ = if is_err {
        write(&mut io::stderr().lock(), io::stderr().is_terminal(), prefix, line)
    } else {
        write(&mut io::stdout().lock(), io::stdout().is_terminal(), prefix, line)
    };
}

fn write(output: &mut impl Write, is_terminal: bool, prefix: &str, line: &[u8]) -> io::Result<()> {
    let line = if is_terminal { visible(line) } else { line.into() };
    output.write_all(&[b"[", prefix.as_bytes(), b"] ", &line, b"\n"].concat())
}

/// Escapes control characters other than newline and tab: `\x1b` for ESC, `\u{9b}` for a C1 character, and `\x9b` for a
/// byte that is not UTF-8 but a C1 character on an 8-bit terminal.
fn visible(line: &[u8]) -> Cow<'_, [u8]> {
    let is_harmless = |byte: u8| matches!(byte, b'\n' | b'\t' | b' '..=b'~');
    if line.iter().all(|byte| is_harmless(*byte)) {
        return line.into();
    }
    let mut shown = Vec::with_capacity(line.len() + 16);
    for chunk in line.utf8_chunks() {
        let mut text = String::with_capacity(chunk.valid().len());
        for character in chunk.valid().chars() {
            // Writing to a string does not fail.
            _ = match character {
                '\n' | '\t' => text.write_char(character),
                '\0'..='\x1f' | '\x7f' => write!(text, "\\x{:02x}", u32::from(character)),
                '\u{80}'..='\u{9f}' => write!(text, "\\u{{{:x}}}", u32::from(character)),
                _ => text.write_char(character),
            };
        }
        shown.extend_from_slice(text.as_bytes());
        for byte in chunk.invalid() {
            match byte {
                0x80..=0x9f => shown.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
                _ => shown.push(*byte),
            }
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_text_is_unchanged() {
        let shown = |line: &[u8]| visible(line).into_owned();
        for text in ["", "plain text,\tand more\n", "Grüße, 世界 🦀", "\\x1b"] {
            assert_eq!(shown(text.as_bytes()), text.as_bytes());
        }
        assert_eq!(shown(b"\x1b[2J\x07\r\0\x7f"), b"\\x1b[2J\\x07\\x0d\\x00\\x7f");
        assert_eq!(shown("\u{9b}31m\u{85}".as_bytes()), b"\\u{9b}31m\\u{85}");
        // No UTF-8: a C1 character of 8 bits, and a letter of Latin-1.
        assert_eq!(shown(b"\x9b31m \xe9t\xe9"), b"\\x9b31m \xe9t\xe9");
        // The end of a character that began in the previous line.
        assert_eq!(shown(b"\x9b\xc2"), b"\\x9b\xc2");
    }

    #[test]
    fn control_characters_are_escaped_on_a_terminal_only() {
        let line: Vec<u8> = (0..=u8::MAX).chain("\u{80}\u{9f}é".bytes()).collect();
        let mut output = Vec::new();
        write(&mut output, true, "worker 1", &line).unwrap();
        let printed: Vec<u8> = output.strip_prefix(b"[worker 1] ").unwrap().to_vec();
        assert!(printed.iter().all(|byte| !byte.is_ascii_control() || matches!(byte, b'\n' | b'\t')));
        let text: String = printed.utf8_chunks().map(|chunk| chunk.valid()).collect();
        assert!(!text.contains(|character| ('\u{80}'..='\u{9f}').contains(&character)), "{text:?}");
        assert!(printed.utf8_chunks().all(|chunk| !chunk.invalid().iter().any(|byte| (0x80..=0x9f).contains(byte))));
        output.clear();
        write(&mut output, false, "worker 1", &line).unwrap();
        assert_eq!(output, [b"[worker 1] ", &line[..], b"\n"].concat());
    }
}
