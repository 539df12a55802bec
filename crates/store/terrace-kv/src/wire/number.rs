//! Number formats of Redis: integers without spaces or leading zeros, floats with at most 17 digits.

/// An integer, as strict as Redis: no sign `+`, no leading zeros, no spaces.
pub(crate) fn parse_int(text: &[u8]) -> Option<i64> {
    let (digits, negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    if digits == b"0" {
        return (!negative).then_some(0);
    }
    if digits.is_empty() || digits.len() > 19 || digits[0] == b'0' {
        return None;
    }
    let value = self::digits(digits)?;
    i64::try_from(if negative { -value } else { value }).ok()
}

/// Decimal digits, at least one and at most 30.
pub(super) fn digits(text: &[u8]) -> Option<i128> {
    if text.is_empty() || text.len() > 30 {
        return None;
    }
    let mut value: i128 = 0;
    for digit in text {
        value = value * 10 + i128::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
    }
    Some(value)
}

/// A float: decimal or with an exponent, or infinite; never NaN, no spaces.
pub(crate) fn parse_float(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let is_number = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
    let infinite =
        matches!(text.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str(), "inf" | "infinity");
    if !infinite && !text.chars().all(is_number) {
        return None;
    }
    // A number out of range parses as infinite, which only the text "inf" may mean.
    text.parse::<f64>().ok().filter(|value| infinite || value.is_finite())
}

/// Appends an integer's text.
pub(crate) fn write_int(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A float's text: the shortest that reads back the same, without an exponent where Redis has none.
pub(crate) fn float_text(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let size = value.abs();
    if (1e-5..1e17).contains(&size) {
        return format!("{value}");
    }
    // The exponent format of printf's %.17g: a sign and at least two digits.
    let short = ryu::Buffer::new().format_finite(value).to_owned();
    let Some((digits, exponent)) = short.split_once('e') else { return short };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", digits.trim_end_matches(".0"), exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_strict() {
        for (text, value) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("1x", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse_int(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn floats_read_back_as_written() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.5, "1.5"),
            (3.0, "3"),
            (1e300, "1e+300"),
            (1.5e-9, "1.5e-09"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (17179869185.5, "17179869185.5"),
        ] {
            assert_eq!(float_text(value), text);
            assert_eq!(parse_float(text.as_bytes()), Some(value));
        }
        for text in ["", "nan", " 1", "1 ", "1x", "0x10", "1e999", "--1", "1\0"] {
            assert_eq!(parse_float(text.as_bytes()), None, "{text:?}");
        }
    }
}
