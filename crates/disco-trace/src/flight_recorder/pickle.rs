//! Python's pickles, protocol 2: the values that a dump needs.

/// A value of Python.
pub(super) enum Value {
    None,
    Bool(bool),
    Number(i128),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    Tuple(Box<[Value; 2]>),
    Dict(Vec<(Value, Value)>),
}

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    pub(super) fn number(number: u64) -> Self {
        Self::Number(number.into())
    }

    pub(super) fn dict<const N: usize>(items: [(&str, Self); N]) -> Self {
        Self::Dict(items.into_iter().map(|(key, value)| (Self::text(key), value)).collect())
    }

    /// The bytes of a file.
    pub(super) fn pickle(&self) -> Vec<u8> {
        let mut out = vec![0x80, 2];
        self.write(&mut out);
        out.push(b'.');
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::None => out.push(b'N'),
            Self::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
            Self::Number(number) => {
                // LONG1: little-endian, two's complement.
                let bytes = number.to_le_bytes();
                out.extend([0x8a, bytes.len() as u8]);
                out.extend(bytes);
            }
            Self::Float(value) => {
                out.push(b'G');
                out.extend(value.to_be_bytes());
            }
            Self::Text(text) => {
                // BINUNICODE has a length of 32 bits; names are shorter.
                let text = &text.as_bytes()[..text.floor_char_boundary(u32::MAX as usize)];
                out.push(b'X');
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(text);
            }
            Self::List(items) => {
                out.extend(b"](");
                items.iter().for_each(|item| item.write(out));
                out.push(b'e');
            }
            Self::Tuple(items) => {
                items.iter().for_each(|item| item.write(out));
                out.push(0x86);
            }
            Self::Dict(items) => {
                out.extend(b"}(");
                for (key, value) in items {
                    key.write(out);
                    value.write(out);
                }
                out.push(b'u');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_reads_them() {
        // As printed by `pickletools.dis`: EMPTY_DICT MARK BINUNICODE 'a' EMPTY_LIST MARK NONE NEWTRUE APPENDS SETITEMS STOP.
        let value = Value::dict([("a", Value::List(vec![Value::None, Value::Bool(true)]))]);
        assert_eq!(value.pickle(), b"\x80\x02}(X\x01\0\0\0a](N\x88eu.");
        assert_eq!(Value::Number(-2).pickle(), [&b"\x80\x02\x8a\x10\xfe"[..], &[0xff; 15], b"."].concat());
        assert_eq!(Value::Float(0.5).pickle(), b"\x80\x02G\x3f\xe0\0\0\0\0\0\0.");
        let pair = Value::Tuple(Box::new([Value::None, Value::text("é")]));
        assert_eq!(pair.pickle(), b"\x80\x02NX\x02\0\0\0\xc3\xa9\x86.");
    }
}
