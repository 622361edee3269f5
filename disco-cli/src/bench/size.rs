//! Sizes as people write them.

/// Bytes: `8`, `64K`, `16M`, `1G`, in powers of 1,024.
pub(super) fn parse(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        unit => return Err(format!("unknown unit `{unit}`; known are K, M, G")),
    };
    let number: usize = digits.parse().map_err(|_| format!("`{digits}` is no number"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than memory can hold".to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(parse("8"), Ok(8));
        assert_eq!(parse("64k"), Ok(64 << 10));
        assert_eq!(parse("16MiB"), Ok(16 << 20));
        assert_eq!(parse("1G"), Ok(1 << 30));
        assert!(parse("M").is_err() && parse("12X").is_err() && parse("99999999999G").is_err());
    }
}
