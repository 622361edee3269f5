//! The trace that a request belongs to, as the W3C recommendation *Trace Context* has it.

/// The most bytes of a `tracestate` that is kept.
const MAX_STATE: usize = 512;
/// Bytes of a `traceparent` of the version 00.
const LENGTH: usize = 55;
/// The flag of traces that are recorded.
const SAMPLED: u8 = 1;

/// A span of another program, which a request is a part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) trace: u128,
    pub(crate) span: u64,
    pub(crate) is_sampled: bool,
    /// What the programs before have to say about the trace, in their own words.
    pub(crate) state: String,
}

impl Context {
    /// The context of the headers `traceparent` and `tracestate`. `None` if the first one is malformed: then the second one means nothing.
    pub(crate) fn parse(parent: &str, state: &str) -> Option<Self> {
        let (head, rest) = parent.split_at_checked(LENGTH)?;
        let mut parts = head.split('-');
        let mut number = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let is_hex = part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            if is_hex { u128::from_str_radix(part, 16).ok() } else { None }
        };
        let [version, trace, span, flags] = [number(2)?, number(32)?, number(16)?, number(2)?];
        // Later versions may have more behind another dash, and the last one is not valid.
        let is_known = if version == 0 { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
        if version == 0xff || !is_known || trace == 0 || span == 0 {
            return None;
        }
        let is_sampled = flags as u8 & SAMPLED != 0;
        let state = if state.len() <= MAX_STATE { state.to_owned() } else { String::new() };
        Some(Self { trace, span: span as u64, is_sampled, state })
    }

    /// The value of the header `traceresponse`, with the span that answers.
    pub(crate) fn response(trace: u128, span: u64, is_sampled: bool) -> String {
        format!("00-{trace:032x}-{span:016x}-{:02x}", if is_sampled { SAMPLED } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_is_read_and_written() {
        let context = Context::parse(PARENT, "a=1").unwrap();
        let Context { trace, span, is_sampled, state } = context;
        assert_eq!((trace, span), (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7));
        assert_eq!((is_sampled, state.as_str()), (true, "a=1"));
        assert_eq!(Context::response(trace, span, is_sampled), PARENT);
        let unknown_flags = PARENT.replace("-01", "-02");
        assert!(!Context::parse(&unknown_flags, "").unwrap().is_sampled);
        assert_eq!(Context::parse(PARENT, &"a".repeat(513)).unwrap().state, "");
    }

    #[test]
    fn a_later_version_may_have_more_fields() {
        let later = PARENT.replacen("00", "cc", 1);
        assert!(Context::parse(&later, "").is_some());
        assert!(Context::parse(&format!("{later}-what-else"), "").is_some());
        assert!(Context::parse(&format!("{later}.what-else"), "").is_none());
    }

    #[test]
    fn a_malformed_header_is_none() {
        for wrong in [
            "",
            "00",
            &PARENT.to_uppercase(),
            &PARENT.replacen("00", "ff", 1),
            &PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &PARENT.replace('-', "_"),
            &PARENT.replace("-00f0", "00-f0"),
            &format!("{PARENT}-00"),
            &format!("{PARENT} "),
            &PARENT.replace("4bf9", "+bf9"),
            "€€€€€€€€€€€€€€€€€€€€€€€€€€",
        ] {
            assert_eq!(Context::parse(wrong, ""), None, "{wrong:?}");
        }
    }
}
