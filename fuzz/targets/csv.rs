//! Target: tables of comma-separated values, for classes and for tables with a schema.
#![no_main]

use meganeura_fuzz::{target, text};
use meganeura_nn::data::{CsvOptions, MissingCells, TableFormat, TableOptions, TableReadOptions, parse_csv, parse_table};

const FLOWERS: &str =
    "id,length,width,kind\n1,5.1,3.5,setosa\n2,6.3,2.9,virginica\n3,4.9,3.0,setosa\n4,6.5,3.0,virginica\n";
const MIXED: &str =
    "town,rooms,\"the, price\"\r\nBern,3,1e5\r\n\"Z\u{fc}rich \"\"City\"\"\",,2.5e5\r\nBern,4,NaN\r\n,2,90000\r\n";
const NUMBERS: &str = "1;2;0\n3;4;1\n-1e38;0.5;0\n";

fn seeds() -> Vec<Vec<u8>> {
    vec![FLOWERS.into(), MIXED.into(), NUMBERS.into()]
}

target!(seeds: seeds, change: text::change, |data| {
    // One way to read it each: making a reader takes longer than such a file.
    let (delimiter, missing) = match data.len() % 4 {
        0 => {
            let _ = parse_csv(data, "x.csv", &CsvOptions::default());
            return;
        }
        1 => (None, MissingCells::Mean),
        2 => (Some(b';'), MissingCells::Drop),
        _ => (Some(b','), MissingCells::Refuse),
    };
    let options = TableOptions {
        format: TableFormat {
            delimiter,
            ..TableFormat::default()
        },
        missing,
        ..TableOptions::default()
    };
    if let Ok(table) = parse_table(data, "x.csv", &options) {
        let _ = table.schema.parse(data, "x.csv", &table.class_names, TableReadOptions::default());
    }
});
