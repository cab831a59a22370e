//! Formatting of numbers with metric prefixes.

/// Formats a number with three digits and a prefix: `12.3 G`.
pub fn metric(value: f64) -> String {
    const PREFIXES: [(f64, &str); 8] = [
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "µ"),
    ];
    // A number that is rounded up to the next prefix uses that prefix.
    let found = PREFIXES.iter().find(|(size, _)| value >= 0.9995 * size);
    let (size, prefix) = found.copied().unwrap_or((1e-9, "n"));
    let scaled = value / size;
    let digits = if scaled >= 99.95 {
        0
    } else if scaled >= 9.995 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$} {prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (1.0, "1.00 "),
            (999.6, "1.00 k"),
            (12_345.0, "12.3 k"),
            (2.5e12, "2.50 T"),
            (3.21e-5, "32.1 µ"),
            (5e-8, "50.0 n"),
            (0.0, "0.00 n"),
        ] {
            assert_eq!(metric(value), text);
        }
    }
}
