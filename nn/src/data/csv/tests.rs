use super::*;

const FLOWERS: &str = "length,width,kind\n5.1,3.5,setosa\n6.3,2.9,virginica\n4.9,3,setosa\n";

fn parse(text: &str, options: &CsvOptions) -> Result<Table, DataError> {
    parse_csv(text.as_bytes(), "t.csv", options)
}

fn plain(text: &str) -> Result<Table, DataError> {
    parse(text, &CsvOptions::default())
}

fn labelled_by(label: Column) -> CsvOptions {
    CsvOptions {
        label,
        ..CsvOptions::default()
    }
}

/// Checks that the result is an error whose message contains all these parts.
#[track_caller]
fn refused(result: Result<Table, DataError>, parts: &[&str]) {
    let message = result.expect_err("refused").to_string();
    for part in ["t.csv"].iter().chain(parts) {
        assert!(message.contains(part), "'{part}' in: {message}");
    }
}

#[test]
fn a_table_with_a_header_and_words_for_labels() {
    let table = plain(FLOWERS).unwrap();
    assert_eq!(table.feature_names, ["length", "width"]);
    assert_eq!(
        (table.label_name.as_str(), table.class_names.join(" ")),
        ("kind", "setosa virginica".into())
    );
    let data = &table.data;
    assert_eq!((data.len(), data.feature_shape(), data.classes()), (3, &[2][..], 2));
    assert_eq!(data.features(), [5.1, 3.5, 6.3, 2.9, 4.9, 3.0]);
    assert_eq!(data.labels(), [0, 1, 0]);
    assert_eq!(data.name(), "t.csv");
}

#[test]
fn the_first_line_is_a_header_if_no_field_is_a_number() {
    // The classic file of iris flowers: words in the label column only.
    let table = plain("5.1,3.5,setosa\n6.3,2.9,virginica\n").unwrap();
    assert_eq!((table.data.len(), table.label_name.as_str()), (2, "column 3"));
    assert_eq!(table.feature_names, ["column 1", "column 2"]);
    // A header of numbers has to be declared as a header.
    let numbered = "0,1,2\n0.5,0.25,7\n";
    assert_eq!(plain(numbered).unwrap().data.len(), 2);
    let header = CsvOptions {
        header: Header::Yes,
        ..CsvOptions::default()
    };
    assert_eq!(parse(numbered, &header).unwrap().feature_names, ["0", "1"]);
    let no_header = CsvOptions {
        header: Header::No,
        ..CsvOptions::default()
    };
    refused(
        parse(FLOWERS, &no_header),
        &["line 1, column 1", "'length' is not a number"],
    );
}

#[test]
fn labels_are_found_by_name_and_number() {
    let text = "kind,a,b\n1,10,20\n0,30,40\n";
    for label in [Column::name("kind"), Column::Number(1), Column::name("1")] {
        let table = parse(text, &labelled_by(label)).unwrap();
        assert_eq!(
            (table.data.labels(), table.data.features()),
            (&[1, 0][..], &[10.0, 20.0, 30.0, 40.0][..])
        );
    }
    let ignoring = CsvOptions {
        ignore: vec![Column::Number(2)],
        ..labelled_by(Column::name("kind"))
    };
    assert_eq!(
        parse("kind,a,b\n1,what?,20\n0,,40\n", &ignoring).unwrap().feature_names,
        ["b"]
    );

    let missing = parse(text, &labelled_by(Column::name("species")));
    refused(missing, &["no column 'species'", "'kind', 'a', 'b'"]);
    for number in [0, 4, usize::MAX] {
        refused(parse(text, &labelled_by(Column::Number(number))), &["no column"]);
    }
    let twice = parse("a,b,a\n1,2,3\n", &labelled_by(Column::name("a")));
    refused(twice, &["column 3", "column 1 is called 'a', too"]);
    let many = format!("{}\n", (0..30).map(|i| format!("c{i}")).collect::<Vec<_>>().join(","));
    refused(parse(&many, &labelled_by(Column::name("x"))), &["'c19' and 10 more"]);
}

#[test]
fn whole_numbers_are_classes_in_their_order_and_fractions_are_not() {
    let table = plain("0.1,10\n0.2,2\n0.3,-1\n0.4,2.0\n").unwrap();
    assert_eq!(
        (table.data.labels(), table.class_names.join(" ")),
        (&[2, 1, 0, 1][..], "-1 2 10".into())
    );
    refused(
        plain("x,price\n1,2.5\n2,3\n"),
        &["column 2", "'price'", "2.5", "fractions"],
    );
    let of_training = CsvOptions {
        classes: Some(vec!["virginica".into(), "setosa".into(), "versicolor".into()]),
        ..CsvOptions::default()
    };
    let table = parse(FLOWERS, &of_training).unwrap();
    assert_eq!((table.data.labels(), table.data.classes()), (&[1, 0, 1][..], 3));
    let unknown = CsvOptions {
        classes: Some(vec!["setosa".into()]),
        ..CsvOptions::default()
    };
    refused(parse(FLOWERS, &unknown), &["line 3, column 3", "'virginica'"]);
}

#[test]
fn quotes_spaces_marks_and_delimiters() {
    let text = "\u{feff}\"length\" ; kind\r\n\r\n 1.5 ;\"with; semicolon\"\r\n-2e3;\"with \"\"quotes\"\"\"\r\n";
    let options = CsvOptions {
        delimiter: b';',
        ..CsvOptions::default()
    };
    let table = parse(text, &options).unwrap();
    assert_eq!(
        (table.feature_names.join(","), table.data.features()),
        ("length".into(), &[1.5, -2000.0][..])
    );
    assert_eq!(table.class_names, ["with \"quotes\"", "with; semicolon"]);
    assert_eq!(plain("a,b\n1,2").unwrap().data.len(), 1, "no end of the last line");
    refused(plain("length;kind\n1;2\n"), &["is left for features", "','"]);
}

#[test]
fn damaged_cells_are_named_by_line_and_column() {
    for (cell, part) in [
        ("tall", "'tall' is not a number"),
        ("", "there is nothing"),
        ("  ", "there is nothing"),
        ("NaN", "'NaN' is not a finite"),
        ("inf", "'inf' is not a finite"),
        ("1e39", "'1e39' is not a finite"),
        ("1,5", "found 4"),
    ] {
        let text = format!("length,width,kind\n1,2,a\n\n3,{cell},b\n");
        refused(plain(&text), &["line 4", part]);
        refused(plain(&text.replace('\n', "\r\n")), &["line 4", part]);
        refused(plain(text.trim_end()), &["line 4", part]);
    }
    refused(plain("a,b,c\n1,x,2\n"), &["line 2, column 2", "in 'b'"]);
    refused(
        plain("a,b\n1,2\n1\n"),
        &["line 3", "expected 2 fields as in the first line, found 1"],
    );
    refused(plain("a,b\n1,\n"), &["line 2, column 2", "label is empty"]);
    // Line numbers are those of the file, also after a field with several lines.
    refused(plain("a,b\n1,\"x\ny\"\nz,2\n"), &["line 4, column 1"]);
}

#[test]
fn files_that_are_no_tables_are_refused() {
    for text in ["", "\n\n", "\u{feff}"] {
        assert!(plain(text).is_err(), "{text:?}");
    }
    assert!(matches!(plain(""), Err(DataError::Empty { .. })));
    assert!(matches!(plain("a,b\n"), Err(DataError::Empty { .. })), "a header alone");
    refused(plain("only\n1\n"), &["of the 1 columns"]);
    let result = parse_csv(&b"a,b\n\xff\xfe,1\n"[..], "t.csv", &CsvOptions::default());
    refused(result, &["line 2, column 1", "UTF-8"]);
    let result = parse_csv(&b"\x93NUMPY\x01\x00v\x00{'descr'"[..], "t.csv", &CsvOptions::default());
    assert!(result.is_err());

    /// A reader that fails, like a broken disk.
    struct FailingReader;
    impl Read for FailingReader {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is broken"))
        }
    }
    let error = parse_csv(FailingReader, "t.csv", &CsvOptions::default()).expect_err("a broken disk");
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(cause.as_deref(), Some("the disk is broken"));
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("t.csv"), folder.path().into()] {
        let error = read_csv(path, &CsvOptions::default()).unwrap_err();
        assert!(matches!(error, DataError::Io { .. }), "{error}");
    }
}

#[test]
fn files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flowers.csv");
    std::fs::write(&path, FLOWERS).unwrap();
    let table = read_csv(&path, &CsvOptions::default()).unwrap();
    assert!(table.data.name().ends_with("flowers.csv"));
    assert_eq!(table.data.len(), 3);
}

/// Parsing does not panic for any truncation or flipped bit.
#[test]
fn no_damage_panics() {
    for end in 0..FLOWERS.len() {
        let _ = plain(&FLOWERS[..end]);
    }
    for bit in 0..8 * FLOWERS.len() {
        let mut bytes = FLOWERS.as_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let _ = parse_csv(&bytes[..], "t.csv", &CsvOptions::default());
    }
}
