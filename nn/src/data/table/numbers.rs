//! Numbers as spreadsheets write them: with a decimal comma, groups of thousands, a currency, a percent sign, or parentheses
//! instead of a minus sign.

use super::DecimalMark;

/// Signs before or after a number that do not change its value: percentages stay as they are written.
const UNITS: [&str; 22] = [
    "%", "$", "€", "£", "¥", "₹", "₩", "₽", "USD", "EUR", "GBP", "CHF", "JPY", "CNY", "INR", "AUD", "CAD", "SEK",
    "NOK", "DKK", "kr", "zł",
];
/// Separators of groups of thousands, apart from comma and point.
const GROUP_SEPARATORS: [char; 5] = [' ', '\u{a0}', '\u{202f}', '\'', '’'];

/// Reads a finite number. Errors describe the cell.
pub(super) fn read_number(cell: &str, mark: DecimalMark) -> Result<f64, String> {
    let written = match mark {
        DecimalMark::Point => cell.parse().ok(),
        DecimalMark::Comma => None,
    };
    let value = written.or_else(|| plain(cell, mark)?.parse::<f64>().ok());
    match value {
        _ if cell.is_empty() => Err("there is nothing".into()),
        None => Err(format!("'{cell}' is not a number")),
        // Features and targets are f32.
        Some(value) if !(value as f32).is_finite() => Err(format!("'{cell}' is not a finite f32")),
        Some(value) => Ok(value),
    }
}

/// Returns a number in the form of Rust; `None` for other texts.
fn plain(cell: &str, mark: DecimalMark) -> Option<String> {
    // Accounts have negative numbers in parentheses.
    if let Some(inner) = cell.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        if inner.contains(['-', '−', '+', '(']) {
            return None;
        }
        return plain(inner.trim(), mark).map(|number| format!("-{number}"));
    }
    // The sign may be before or after a currency.
    let (mut sign, mut rest) = (None, cell);
    for _ in 0..2 {
        if let Some(after) = rest.strip_prefix(['-', '−', '+']).filter(|_| sign.is_none()) {
            sign = Some(if rest.starts_with('+') { "" } else { "-" });
            rest = after;
        }
        rest = without_first_unit(rest).trim_start();
    }
    rest = without_last_unit(rest).trim_end();
    let (decimal, group) = match mark {
        DecimalMark::Point => ('.', ','),
        DecimalMark::Comma => (',', '.'),
    };
    let (whole, fraction) = rest.split_once(decimal).unwrap_or((rest, ""));
    let is_exponent = |c: char| c.is_ascii_digit() || matches!(c, 'e' | 'E' | '+' | '-');
    let has_digits = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    if !(has_digits(whole) || has_digits(fraction)) || !fraction.chars().all(is_exponent) {
        return None;
    }
    let separator = whole.chars().find(|c| *c == group || GROUP_SEPARATORS.contains(c));
    let whole = match separator {
        None => whole.to_owned(),
        Some(separator) => {
            let mut groups = whole.split(separator);
            let first = groups.next()?;
            let are_digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
            if !(1..=3).contains(&first.len()) || !are_digits(first) || !groups.all(|g| g.len() == 3 && are_digits(g)) {
                return None;
            }
            whole.replace(separator, "")
        }
    };
    Some(format!("{}{whole}.{fraction}", sign.unwrap_or_default()))
}

/// Removes a unit from the start of a text. A space separates names of currencies from the number: `CAD123` is a code.
fn without_first_unit(text: &str) -> &str {
    let rest = |unit: &&str| {
        let rest = text.strip_prefix(*unit)?;
        let is_name = unit.starts_with(char::is_alphabetic);
        (!is_name || rest.starts_with(char::is_whitespace)).then_some(rest)
    };
    UNITS.iter().find_map(rest).unwrap_or(text)
}

/// Removes a unit from the end of a text.
fn without_last_unit(text: &str) -> &str {
    UNITS.iter().find_map(|unit| text.strip_suffix(unit)).unwrap_or(text)
}

/// Form of a number with a comma.
pub(super) enum CommaForm {
    /// `3,14`: the comma is a decimal mark.
    Decimal,
    /// `1,234`: the comma may also separate thousands.
    ThreeDigits,
    /// There is no comma, or it is no number with a decimal comma.
    None,
}

pub(super) fn comma_form(cell: &str) -> CommaForm {
    if !cell.contains(',') || read_number(cell, DecimalMark::Comma).is_err() {
        CommaForm::None
    } else if read_number(cell, DecimalMark::Point).is_ok() {
        CommaForm::ThreeDigits
    } else {
        CommaForm::Decimal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_spreadsheets_are_read() {
        use DecimalMark::{Comma, Point};
        for (cell, mark, expected) in [
            ("3.25", Point, 3.25),
            ("-1e3", Point, -1000.0),
            ("1,234,567.5", Point, 1_234_567.5),
            ("1 234", Point, 1234.0),
            ("1'234.5", Point, 1234.5),
            ("$1,200", Point, 1200.0),
            ("-$5.5", Point, -5.5),
            ("$-5.5", Point, -5.5),
            ("12.5 %", Point, 12.5),
            ("(1,234.50)", Point, -1234.5),
            ("($7)", Point, -7.0),
            ("EUR 12", Point, 12.0),
            ("12,50 EUR", Comma, 12.5),
            ("-3 kr", Point, -3.0),
            (".5", Point, 0.5),
            ("3,25", Comma, 3.25),
            ("1.234,5", Comma, 1234.5),
            ("−2,5e2", Comma, -250.0),
            ("7 €", Comma, 7.0),
            ("12", Comma, 12.0),
        ] {
            assert_eq!(read_number(cell, mark), Ok(expected), "{cell}");
        }
        for (cell, mark) in [
            ("", Point),
            ("a", Point),
            ("-", Point),
            ("%", Point),
            ("1,23", Point),
            ("12,34,567", Point),
            ("1.2.3", Point),
            ("3.25", Comma),
            ("2024-01-02", Point),
            ("1e39", Point),
            ("inf", Point),
            ("--5", Point),
            ("5e", Point),
            ("(-5)", Point),
            ("($-5)", Point),
            ("((5))", Point),
            ("()", Point),
            ("5 USDUSD", Point),
            ("CAD123", Point),
        ] {
            assert!(read_number(cell, mark).is_err(), "{cell}");
        }
    }

    #[test]
    fn long_cells_of_parentheses_are_no_numbers() {
        let cell = "(".repeat(100_000) + "1" + &")".repeat(100_000);
        assert!(read_number(&cell, DecimalMark::Point).is_err());
    }
}
