//! Dates in tables.

use jiff::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;

/// Name of ISO 8601 among the formats: `2024-03-01`, with or without a time and an offset.
pub(super) const ISO: &str = "iso";
/// Formats of dates that are guessed, with the conversions of `strftime`.
const DATES: [&str; 11] = [
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%d.%m.%y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %d, %Y",
];
/// Formats of a time after a date.
const TIMES: [&str; 3] = ["", " %H:%M", " %H:%M:%S"];
/// Maximum length of a date, in bytes.
const MAX_LEN: usize = 40;

/// Reads a date and time in a format. Offsets are converted to UTC.
pub(super) fn read_date(cell: &str, format: &str) -> Option<DateTime> {
    if cell.len() > MAX_LEN {
        return None;
    }
    if format == ISO {
        // Only full dates: a year, or a number of eight digits, is a number.
        let is_date = cell.as_bytes().get(4) == Some(&b'-');
        // A date without an offset is no timestamp; a civil time would ignore the offset.
        let with_offset = || Some(TimeZone::UTC.to_datetime(cell.parse::<Timestamp>().ok()?));
        return is_date.then(|| with_offset().or_else(|| cell.parse().ok()))?;
    }
    let parsed = BrokenDownTime::parse(format, cell).ok()?;
    let time = parsed.to_time().unwrap_or(Time::midnight());
    Some(parsed.to_date().ok()?.to_datetime(time))
}

/// Returns the formats that can read every cell.
pub(super) fn formats<'c>(mut cells: impl Iterator<Item = &'c str>) -> Vec<String> {
    let mut all = vec![ISO.to_owned()];
    all.extend(DATES.iter().flat_map(|date| TIMES.map(|time| format!("{date}{time}"))));
    let mut any = false;
    while let Some(cell) = cells.next().filter(|_| !all.is_empty()) {
        all.retain(|format| read_date(cell, format).is_some());
        any = true;
    }
    if any { all } else { Vec::new() }
}

/// Returns the number of days since 1970, with the time as a fraction.
pub(super) fn days(date: DateTime) -> f64 {
    // Without a zone, all days have the same length.
    TimeZone::UTC
        .to_timestamp(date)
        .map_or(0.0, |time| time.as_second() as f64 / 86_400.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_in_their_formats() {
        let found = |cells: &[&str]| formats(cells.iter().copied());
        assert_eq!(found(&["2024-03-01", "2024-12-31"]), [ISO]);
        assert_eq!(found(&["2024-03-01 12:30", "2024-12-31T01:02:03"]), [ISO]);
        assert_eq!(found(&["2024-03-01T12:30:00Z", "2024-12-31T01:02:03+02:00"]), [ISO]);
        assert_eq!(found(&["01.03.2024", "31.12.2024"]), ["%d.%m.%Y"]);
        assert_eq!(found(&["01/03/2024", "02/04/2024"]), ["%d/%m/%Y", "%m/%d/%Y"]);
        assert_eq!(found(&["01/03/2024", "02/14/2024"]), ["%m/%d/%Y"]);
        assert_eq!(found(&["1 Mar 2024 10:00"]), ["%d %b %Y %H:%M"]);
        for words in [&["a"][..], &["2024"], &["2024-03-01", "x"], &["3.14"], &["12:30"], &[]] {
            assert!(found(words).is_empty(), "{words:?}");
        }
        let date = read_date("01.01.1971 12:00", "%d.%m.%Y %H:%M").expect("a date");
        assert_eq!(days(date), 365.5);
        assert_eq!(days(read_date("1969-12-31", ISO).expect("a date")), -1.0);
        assert_eq!(read_date("2024-03-01T00:30:00+01:00", ISO).map(|d| d.day()), Some(29));
    }
}
