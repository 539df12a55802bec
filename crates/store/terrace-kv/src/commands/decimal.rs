//! Sums of decimal numbers in Redis' format, for INCRBYFLOAT and HINCRBYFLOAT: 0.1 and 0.2 are 0.3, and
//! large numbers keep all digits.
//!
//! Redis adds in 80 bits, and writes at most 17 decimal places and no exponent. Here decimal numbers are
//! added exactly, in units of the last decimal place. Numbers that are too small or too large are added in 64
//! bits.

use crate::error::{Outcome, Refusal};
use crate::wire::number::parse_float;

/// Decimal places.
const DIGITS: u32 = 17;
/// Units of the last place in 1.
const ONE: u128 = 10_u128.pow(DIGITS);

/// A number from a request or a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    float: f64,
    /// The exact number in units of the last place, if it fits.
    units: Option<i128>,
}

impl Number {
    /// The value of a missing key.
    pub(super) const ZERO: Number = Number { float: 0.0, units: Some(0) };

    /// Parses a float like [`parse_float`].
    pub(super) fn parse(text: &[u8]) -> Option<Number> {
        parse_float(text).map(|float| Number { float, units: units(text) })
    }

    pub(super) fn is_infinite(self) -> bool {
        self.float.is_infinite()
    }

    /// The sum as text.
    ///
    /// # Errors
    /// The sum is not a number, or infinite.
    pub(super) fn plus(self, other: Number) -> Outcome<String> {
        let sum = self.float + other.float;
        if !sum.is_finite() {
            return Err(Refusal::err("increment would produce NaN or Infinity"));
        }
        let exact = self.units.zip(other.units).and_then(|(a, b)| a.checked_add(b));
        Ok(exact.map_or_else(|| float_text(sum), units_text))
    }
}

/// The exact units of a float's text. None: too many decimal places, or too large.
fn units(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?.to_ascii_lowercase();
    let (number, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let fraction = number.split_once('.').map_or("", |(_, fraction)| fraction);
    let mut units: i128 = 0;
    for digit in number.chars().filter(|c| !"+-.".contains(*c)) {
        units = units.checked_mul(10)?.checked_add(digit.to_digit(10)?.into())?;
    }
    let shift = i64::from(DIGITS) + i64::from(exponent.parse::<i32>().ok()?) - fraction.len() as i64;
    let factor = 10_i128.checked_pow(u32::try_from(shift.unsigned_abs()).ok()?)?;
    let units = match shift >= 0 {
        true => units.checked_mul(factor)?,
        false => Some(units / factor).filter(|_| units % factor == 0)?,
    };
    Some(if number.starts_with('-') { -units } else { units })
}

fn units_text(units: i128) -> String {
    let (sign, size) = (if units < 0 { "-" } else { "" }, units.unsigned_abs());
    let (whole, fraction) = (size / ONE, size % ONE);
    trimmed(&format!("{sign}{whole}.{fraction:0digits$}", digits = DIGITS as usize))
}

/// The shortest text that reads back the same, within the decimal places.
fn float_text(value: f64) -> String {
    let mut text = format!("{value}");
    if text.split_once('.').is_some_and(|(_, fraction)| fraction.len() > DIGITS as usize) {
        text = trimmed(&format!("{value:.digits$}", digits = DIGITS as usize));
    }
    if text == "-0" { "0".to_owned() } else { text }
}

/// Removes zeros behind the last digit.
fn trimmed(text: &str) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(old: &str, amount: &str) -> String {
        let number = |text: &str| Number::parse(text.as_bytes()).unwrap();
        number(old).plus(number(amount)).unwrap_or_else(|refusal| refusal.to_string())
    }

    fn check(sums: &[(&str, &str, &str)]) {
        for (old, amount, text) in sums {
            assert_eq!(sum(old, amount), *text, "{old} + {amount}");
        }
    }

    #[test]
    fn sums_are_those_of_redis() {
        check(&[
            ("0.1", "0.2", "0.3"),
            ("1.1", "2.2", "3.3"),
            ("3.0", "1", "4"),
            ("-0.5", "0.5", "0"),
            ("-1", "0.5", "-0.5"),
            ("-0.0", "0", "0"),
            (".5", "5.", "5.5"),
            ("+1", "+1E0", "2"),
            ("5.0e3", "200", "5200"),
            ("5e-1", "1", "1.5"),
            ("123456789012345678", "1", "123456789012345679"),
            ("1e17", "1", "100000000000000001"),
            ("10000000000000000000", "1", "10000000000000000001"),
            // The last digit does not fit into 80 bits.
            ("1e20", "1", "100000000000000000001"),
            ("-0.00000000000000001", "0", "-0.00000000000000001"),
            ("1e-18", "1", "1"),
            ("0.000000000000000004", "0", "0"),
            ("-1e-300", "0", "0"),
            ("0.1234567890123456789", "0", "0.12345678901234568"),
        ]);
    }

    #[test]
    fn numbers_that_do_not_fit_are_added_as_floats() {
        check(&[
            ("1e30", "1", "1000000000000000000000000000000"),
            ("-2e36", "0.1", "-2000000000000000000000000000000000000"),
            ("0e999", "-0e999", "0"),
            ("-1e-999", "-1e-999", "0"),
            ("1e21", "1.7e21", "2700000000000000000000"),
            ("1.00000000000000000001", "0.5", "1.5"),
            ("1e308", "1e308", "ERR increment would produce NaN or Infinity"),
            ("inf", "-inf", "ERR increment would produce NaN or Infinity"),
        ]);
    }
}
