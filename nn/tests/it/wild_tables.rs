//! Files of tables as programs and people write them. Each gives the right columns or a clear error.

use std::error::Error as _;

use meganeura_nn::data::{
    Column, ColumnType, MissingCells, TableOptions, TableProfile, TableReadOptions, TextEncoding, TrainingTable,
    TypeChoice, parse_table,
};

/// Expected result of reading a file.
enum Expected {
    /// Names of features, and the features of the first row.
    Features(&'static [&'static str], &'static [f32]),
    /// Parts of the error.
    Error(&'static [&'static str]),
}
use Expected::{Error, Features};

fn options() -> TableOptions {
    TableOptions {
        missing: MissingCells::Mean,
        ..TableOptions::default()
    }
}

fn read(bytes: &[u8], options: &TableOptions) -> Result<TrainingTable, String> {
    parse_table(bytes, "t.csv", options).map_err(|error| {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}")
    })
}

/// Returns a table with Japanese words.
fn shift_jis() -> &'static [u8] {
    b"\x96\xbc\x91\x4f,n,y\n\x93\x8c\x8b\x9e\x82\xcc\x89\x77,2,p\n\x91\xe5\x8d\xe3\x82\xcc\x89\x77,4,q\n"
}

#[test]
fn files_give_the_right_columns_or_a_clear_error() {
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let cases: Vec<(&str, Vec<u8>, Expected)> = vec![
        (
            "byte order mark, CRLF, quotes and a line break in a cell",
            "\u{feff}\"size\",\"note\",\"y\"\r\n1,\"a\nb\",p\r\n2,\"say \"\"c\"\"\",q\r\n".into(),
            Features(&["size", "note=a\nb", "note=say \"c\""], &[1.0, 1.0, 0.0]),
        ),
        (
            "groups of thousands within quotes",
            "price,n,y\n\"1,234,567\",1,p\n\"2,345\",2,q\n".into(),
            Features(&["price", "n"], &[1_234_567.0, 1.0]),
        ),
        (
            "groups of thousands as in Switzerland",
            "price;n;y\n1'234.50;1;p\n2'345.00;2;q\n".into(),
            Features(&["price", "n"], &[1234.5, 1.0]),
        ),
        (
            "percent signs",
            "rate,n,y\n12.5%,1,p\n7 %,2,q\n".into(),
            Features(&["rate", "n"], &[12.5, 1.0]),
        ),
        (
            "currencies before and after numbers",
            "a,b,c,y\n£3.50,EUR 7,12 USD,p\n£4,EUR 8.5,3 USD,q\n".into(),
            Features(&["a", "b", "c"], &[3.5, 7.0, 12.0]),
        ),
        (
            "negative numbers of accounts",
            "a,b,y\n(1.50),1,p\n2.50,2,q\n".into(),
            Features(&["a", "b"], &[-1.5, 1.0]),
        ),
        (
            "a minus sign of typesetting",
            "a,b,y\n−1.5,1,p\n2.5,2,q\n".into(),
            Features(&["a", "b"], &[-1.5, 1.0]),
        ),
        (
            "two columns of the same name",
            "a,a,y\n1,2,p\n3,4,q\n".into(),
            Error(&["line 1, column 2", "column 1 is called 'a', too", "by its number"]),
        ),
        (
            "one column without a name",
            "a,,y\n1,2,p\n3,5,q\n".into(),
            Features(&["a", ""], &[1.0, 2.0]),
        ),
        (
            "several columns without names",
            "a,,,y\n1,2,3,p\n3,5,7,q\n".into(),
            Error(&["line 1, column 3", "rename one of them"]),
        ),
        (
            "a delimiter at the end of each line",
            "a,b,y,\n1,2,p,\n3,5,q,\n".into(),
            Features(&["a", "b"], &[1.0, 2.0]),
        ),
        (
            "a line that is too short",
            "a,b,y\n1,2,p\n3,q\n".into(),
            Error(&["line 3, column 3", "expected 3 fields", "found 2"]),
        ),
        (
            "a line that is too long",
            "a,b,y\n1,2,p\n3,4,5,q\n".into(),
            Error(&["line 3, column 4", "expected 3 fields", "found 4"]),
        ),
        (
            "a title above the header",
            "Sales of 2024\n\na,b,y\n1,2,p\n3,4,q\n".into(),
            Error(&["line 3", "expected 1 fields", "remove titles"]),
        ),
        (
            "an announced delimiter",
            "sep=;\r\na;b;y\r\n1,5;2;p\r\n3,5;4;q\r\n".into(),
            Features(&["a", "b"], &[1.5, 2.0]),
        ),
        (
            "UTF-16 of a spreadsheet, with tabs",
            utf16("\u{feff}größe\tn\ty\r\n1,5\t2\tp\r\n3,5\t4\tq\r\n"),
            Features(&["größe", "n"], &[1.5, 2.0]),
        ),
        (
            "UTF-16 without a byte order mark",
            utf16("size,n,y\n1.5,2,p\n3.5,4,q\n"),
            Features(&["size", "n"], &[1.5, 2.0]),
        ),
        (
            "Windows-1252",
            b"gr\xf6\xdfe;stra\xdfe;y\n1,5;M\xfcller-Allee;p\n3,5;\xd6konomiestra\xdfe;q\n".to_vec(),
            Features(
                &["größe", "straße=Müller-Allee", "straße=Ökonomiestraße"],
                &[1.5, 1.0, 0.0],
            ),
        ),
        (
            "Shift_JIS",
            shift_jis().to_vec(),
            Features(&["名前=大阪の駅", "名前=東京の駅", "n"], &[0.0, 1.0, 2.0]),
        ),
        (
            "a spreadsheet",
            b"PK\x03\x04\x14\0\x06\0".to_vec(),
            Error(&["t.csv", "save the table as CSV"]),
        ),
        (
            "names of currencies above numbers",
            "EUR 2023,USD 2024,y\n1.5,2,p\n3.5,4,q\n".into(),
            Features(&["EUR 2023", "USD 2024"], &[1.5, 2.0]),
        ),
        (
            "damaged UTF-8",
            b"gr\xc3\xb6\xc3\x9fe,n,y\n1,2,p\n3,\xff,q\n".to_vec(),
            Error(&["line 3, column 2", "not UTF-8", "--encoding"]),
        ),
        (
            "booleans in five spellings, with a missing one",
            "a,b,c,d,e,y\ntrue,yes,Y,t,1,p\nfalse,no,N,f,0,q\ntrue,,Y,f,1,p\n".into(),
            Features(
                &["a=false", "a=true", "b=no", "b=yes", "c=N", "c=Y", "d=f", "d=t", "e"],
                &[0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0],
            ),
        ),
        (
            "huge whole numbers",
            "a,b,y\n9007199254740993,2,p\n18446744073709551615,4,q\n".into(),
            Features(&["a", "b"], &[9_007_199_254_740_992.0, 2.0]),
        ),
        (
            "numbers beyond f32",
            "a,b,y\n1,2,p\n1e39,4,q\n3,4,q\n".into(),
            Error(&["line 3, column 1", "'1e39' is not a finite f32"]),
        ),
        (
            "infinities",
            "a,b,y\n1,2,p\ninf,4,q\n3,4,q\n".into(),
            Error(&["line 3, column 1", "'inf' is not a finite f32"]),
        ),
        (
            "line ends of old computers",
            "a,b,y\r1.5,2,p\r3.5,4,q\r".into(),
            Features(&["a", "b"], &[1.5, 2.0]),
        ),
        (
            "empty lines",
            "a,b,y\n\n1.5,2,p\n\n\n3.5,4,q\n\n".into(),
            Features(&["a", "b"], &[1.5, 2.0]),
        ),
        ("a header alone", "a,b,y\n".into(), Error(&["t.csv", "no examples"])),
        ("nothing", Vec::new(), Error(&["t.csv", "no examples"])),
        (
            "columns between spaces",
            "a  b  y\n1  2  p\n3  4  q\n".into(),
            Error(&["is ',' the right delimiter"]),
        ),
        (
            "a total below the last row",
            "shop,n,y\nnorth,2,1.5\nsouth,4,2.5\neast,5,3.5\nTotal,11,\n".into(),
            Error(&["line 5, column 3", "the target 'y' is missing"]),
        ),
        (
            "dates in words",
            "day,n,y\n1 Mar 2024,2,p\n15 Dec 2024,4,q\n".into(),
            Features(
                &["day.days", "day.month", "day.weekday", "n"],
                &[19_783.0, 3.0, 5.0, 2.0],
            ),
        ),
    ];
    assert!(cases.len() >= 25);
    for (what, bytes, expected) in cases {
        match (read(&bytes, &options()), expected) {
            (Ok(table), Features(names, first)) => {
                assert_eq!(table.schema.feature_names(), names, "{what}");
                assert_eq!(&table.data.features()[..names.len()], first, "{what}");
            }
            (Err(error), Error(parts)) => {
                for part in parts {
                    assert!(error.contains(part), "{what}: {error}");
                }
            }
            (Ok(table), Error(_)) => panic!("{what}: no error, but {:?}", table.schema.feature_names()),
            (Err(error), Features(..)) => panic!("{what}: {error}"),
        }
    }
}

#[test]
fn encodings_are_given_by_name() {
    let mut options = options();
    options.format.encoding = Some("shift_jis".parse().expect("a name"));
    let bytes = b"\x96\xbc\x91O,n,y\n\x93\x8c\x8b\x9e,2,p\n\x91\xe5\x8d\xe3,4,q\n";
    let table = read(bytes, &options).expect("read");
    assert_eq!(table.schema.feature_names(), ["名前=大阪", "名前=東京", "n"]);
    assert_eq!(table.profile.encoding.map(TextEncoding::name), Some("Shift_JIS"));
    let error = read(b"a,n,y\n\x96,2,p\n", &options).expect_err("damaged");
    assert!(error.contains("not valid Shift_JIS"), "{error}");
    options.format.encoding = Some("latin1".parse().expect("a name"));
    let table = read(b"\xe9t\xe9,n,y\noui,2,p\nnon,3,q\n", &options).expect("read");
    assert_eq!(table.schema.feature_names()[0], "été=non");
    let error = "latin-9000".parse::<TextEncoding>().expect_err("unknown");
    assert!(
        error.contains("windows-1252") && error.contains("'latin-9000'"),
        "{error}"
    );
}

fn texts() -> String {
    let mut text = "subject,n,spam\n".to_owned();
    for i in 0..40 {
        let subject = if i % 2 == 0 {
            format!("Win {i} prizes now!")
        } else {
            format!("Minutes of meeting {i}")
        };
        text += &format!("\"{subject}\",{},{}\n", i % 7, ["yes", "no"][i % 2]);
    }
    text
}

#[test]
fn words_of_texts_are_hashed() {
    let text = texts();
    let reason = |table: &TableProfile| format!("{:?}", table.columns[0].usage);
    let found = read(text.as_bytes(), &options()).expect("read");
    assert_eq!(found.schema.feature_names(), ["n"]);
    assert!(
        reason(&found.profile).contains("the type text"),
        "{}",
        reason(&found.profile)
    );
    let typed = |choice: &str| TableOptions {
        types: vec![(Column::name("subject"), choice.parse().expect("a type"))],
        ..options()
    };
    let table = read(text.as_bytes(), &typed("text:16")).expect("read");
    assert_eq!(table.profile.columns[0].column_type, ColumnType::Text);
    assert_eq!(table.schema.width(), 17);
    assert_eq!(table.schema.feature_names()[15..], ["subject#15", "n"]);
    // Upper case, punctuation and the order of words do not count.
    let rows = table.schema.parse(
        &b"subject,n\nwin 8 PRIZES (now),1\n\"now, prizes 8 win\",1\n,1\n"[..],
        "new.csv",
        &table.class_names,
        TableReadOptions::default(),
    );
    let rows = rows.expect("read").features;
    let [first, second, missing] = [0, 1, 2].map(|row| &rows[row * 17..row * 17 + 16]);
    assert_eq!(first, second);
    assert!(missing.iter().all(|value| *value == 0.0));
    // Four words of weight 1/2, plus or minus.
    let sum: f32 = first.iter().map(|value| value.abs()).sum();
    assert!(sum > 0.0 && sum <= 2.0, "{first:?}");
    let known: TypeChoice = "text".parse().expect("a type");
    assert_eq!(known, TypeChoice::Text(64));
    for wrong in ["text:0", "text:x", "text:1000000"] {
        assert!(
            wrong.parse::<TypeChoice>().expect_err(wrong).contains("text:N"),
            "{wrong}"
        );
    }
    // The hash must not change: saved models depend on it.
    let rows = table
        .schema
        .parse(&b"subject,n\nhello,1\n"[..], "n.csv", &[], TableReadOptions::default());
    let place = rows.expect("read").features.iter().position(|value| value.abs() == 1.0);
    assert_eq!(place, Some(expected_bucket(b"hello", 16)));
}

/// Returns the bucket of a word: FNV-1a of 64 bits without its last bit, modulo the number of buckets.
fn expected_bucket(word: &[u8], buckets: u64) -> usize {
    let mut hash: u64 = 14_695_981_039_346_656_037;
    for byte in word {
        hash ^= u64::from(*byte);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    (hash / 2 % buckets) as usize
}

#[cfg(feature = "parquet")]
mod parquet {
    use meganeura_nn::data::{RawTable, TableFormat};

    use super::{MissingCells, TableOptions, TableReadOptions, options, parse_table, read};

    /// Files of `scripts/verify-external/make_parquet_fixtures.py`.
    const TYPES: &[u8] = include_bytes!("../data/types.parquet");
    const NESTED: &[u8] = include_bytes!("../data/nested.parquet");

    #[test]
    fn files_of_parquet_are_tables() {
        let table = read(TYPES, &options()).expect("read");
        let names = [
            "whole",
            "half",
            "word=blue",
            "word=red",
            "flag=false",
            "flag=true",
            "day.days",
            "day.month",
            "day.weekday",
            "at.days",
            "at.month",
            "at.weekday",
            "at.hour",
            "nanos.days",
            "nanos.month",
            "nanos.weekday",
            "nanos.hour",
            "price",
            "small",
        ];
        assert_eq!(table.schema.feature_names(), names);
        assert_eq!(table.class_names, ["no", "yes"]);
        assert_eq!(table.data.len(), 6);
        let first = &table.data.features()[..names.len()];
        // 1 March 2024 was a Friday.
        let expected = [
            1.0, 0.5, 0.0, 1.0, 0.0, 1.0, 19_783.0, 3.0, 5.0, 19_783.25, 3.0, 5.0, 6.0, 19_783.75, 3.0, 5.0, 18.0,
            12.5, 3.0,
        ];
        assert_eq!(first, expected);
        // The second row has nulls and NaN.
        assert_eq!(table.filled, 3);
        // A model that was trained on CSV reads it, too.
        let csv = parse_table(
            &b"whole,word,answer\n1,red,yes\n2,blue,no\n5,red,no\n"[..],
            "t.csv",
            &TableOptions {
                missing: MissingCells::Mean,
                ..TableOptions::default()
            },
        )
        .expect("a table");
        let mut schema = csv.schema;
        schema.ignored = ["half", "flag", "day", "at", "nanos", "price", "small"]
            .map(str::to_owned)
            .to_vec();
        let rows = schema.parse(TYPES, "t.parquet", &csv.class_names, TableReadOptions::default());
        assert_eq!(rows.expect("rows").features[..3], [1.0, 0.0, 1.0]);
    }

    #[test]
    fn files_that_are_no_tables_say_why() {
        let error = read(NESTED, &options()).expect_err("nested");
        assert!(error.contains("'list'") && error.contains("found a list"), "{error}");
        let error = read(&TYPES[..TYPES.len() / 2], &options()).expect_err("cut off");
        assert!(error.contains("the Parquet file cannot be read"), "{error}");
        // Damaged files are errors, or read as other values.
        for place in (4..TYPES.len()).step_by(7) {
            let mut damaged = TYPES.to_vec();
            damaged[place] ^= 0x55;
            let _ = RawTable::parse(&damaged[..], "t.parquet", &TableFormat::default());
        }
    }
}

#[cfg(not(feature = "parquet"))]
#[test]
fn parquet_needs_its_feature() {
    let error = read(b"PAR1\x15\x04\x15\x00PAR1", &options()).expect_err("no feature");
    assert!(error.contains("--features parquet"), "{error}");
}
