//! Tables as people have them: other delimiters, decimal commas, dates, identifiers, words for missing values.

use meganeura_nn::data::{
    Column, ColumnType, ColumnUse, DecimalMark, MissingCells, RawTable, TableFormat, TableOptions, TableProfile,
    TableReadOptions, TaskChoice, TrainingTable, TypeChoice, parse_table, profile_table,
};

fn read(bytes: &[u8], options: &TableOptions) -> Result<TrainingTable, String> {
    parse_table(bytes, "t.csv", options).map_err(|e| e.to_string())
}

/// Returns the names of the features.
fn features(bytes: impl AsRef<[u8]>) -> Result<Vec<String>, String> {
    Ok(read(bytes.as_ref(), &TableOptions::default())?.schema.feature_names())
}

fn profile(text: &str, options: &TableOptions) -> TableProfile {
    let raw = RawTable::parse(text.as_bytes(), "t.csv", &options.format).expect("a table");
    profile_table(&raw, options).expect("a profile")
}

/// Returns a table with a header and `rows` rows.
fn table(header: &str, rows: usize, row: impl Fn(usize) -> String) -> String {
    let lines: Vec<String> = (0..rows).map(row).collect();
    format!("{header}\n{}\n", lines.join("\n"))
}

fn utf16(text: &str, bytes_of: fn(u16) -> [u8; 2]) -> Vec<u8> {
    "\u{feff}"
        .encode_utf16()
        .chain(text.encode_utf16())
        .flat_map(bytes_of)
        .collect()
}

#[test]
fn json_lines_are_tables() {
    let text = "{\"rooms\": 3, \"where\": \"north, west\", \"price\": 250.5}\n\n\
                {\"price\": 1.8e2, \"rooms\": 2, \"where\": null, \"garden\": true}\r\n\
                {\"rooms\": 4, \"where\": \"south\", \"price\": 300, \"garden\": false}\n";
    let options = TableOptions {
        target: Column::name("price"),
        task: TaskChoice::Regression,
        missing: MissingCells::Mean,
        ..TableOptions::default()
    };
    for text in [text.as_bytes().to_vec(), utf16(text, u16::to_le_bytes)] {
        let table = read(&text, &options).expect("a table");
        let names = [
            "rooms",
            "where=north, west",
            "where=south",
            "garden=false",
            "garden=true",
        ];
        assert_eq!(table.schema.feature_names(), names);
        assert_eq!(table.data.targets(), [250.5, 180.0, 300.0]);
        assert_eq!(table.filled, 2);
        // CSV files of the same columns are read for the model, too.
        let rows = table.schema.parse(
            &b"garden,where,rooms\ntrue,south,1\n"[..],
            "n.csv",
            &[],
            TableReadOptions::default(),
        );
        assert_eq!(rows.expect("rows").features, [1.0, 0.0, 1.0, 0.0, 1.0]);
    }
    for (text, said) in [
        (
            "{\"a\": [1]}\n",
            "t.csv: line 1, column 1: 'a': expected a string, number, boolean or null, found an array",
        ),
        (
            "{\"a\": 1}\n{\"a\": {}}\n",
            "line 2, column 1: 'a': expected a string, number, boolean or null, found an object",
        ),
        ("{\"a\": 1, \"a\": 2}\n", "'a' occurs twice"),
        ("{\"a\": 1}\n[1]\n", "no JSON object"),
        ("{\"a\": 1\n", "no JSON object"),
        ("{}\n", "no examples"),
    ] {
        let error = read(text.as_bytes(), &TableOptions::default()).expect_err(text);
        assert!(error.contains(said), "{error}");
    }
    // Thousands of different keys would take the memory of all their combinations.
    let many: String = (0..30_000).map(|i| format!("{{\"k{i}\": 1}}\n")).collect();
    let error = read(many.as_bytes(), &TableOptions::default()).expect_err("too many");
    assert!(
        error.contains("expected the same keys in most lines, found 30000 keys in all"),
        "{error}"
    );
}

#[test]
fn delimiters_and_encodings_are_guessed() {
    let names = ["a", "b=x", "b=z"];
    let text = "a,b,y\n1,x,p\n2,z,q\n";
    for delimiter in [',', ';', '\t', '|'] {
        let text = text.replace(',', &delimiter.to_string());
        assert_eq!(features(&text).expect("read"), names, "{delimiter:?}");
        assert_eq!(features(text.replace('\n', "\r\n")).expect("read"), names, "CRLF");
        assert_eq!(features(format!("\u{feff}{text}")).expect("read"), names, "BOM");
        assert_eq!(
            features(utf16(&text, u16::to_le_bytes)).expect("read"),
            names,
            "UTF-16LE"
        );
        assert_eq!(
            features(utf16(&text, u16::to_be_bytes)).expect("read"),
            names,
            "UTF-16BE"
        );
    }
    // Commas within quotes, and decimal commas between semicolons.
    assert_eq!(
        features("name;size;y\n\"Smith, J.\";1;p\n\"Lee, K.\";2;q\n").expect("read")[0],
        "name=Lee, K."
    );
    let odd = [utf16(text, u16::to_le_bytes), vec![b'a']].concat();
    let error = features(odd).expect_err("damaged");
    assert!(error.contains("t.csv"), "{error}");
    // Lines of different lengths.
    let error = features("a,b,y\n1,2,p\n1,q\n").expect_err("ragged");
    assert!(error.contains("line 3") && error.contains("found 2"), "{error}");
}

#[test]
fn numbers_have_commas_groups_and_units() {
    for (text, expected) in [
        ("3,25;2,71;p\n1,5;2;q\n", [3.25, 2.71, 1.5, 2.0]),
        ("a;b;y\n3,25;2,71;p\n1,5;2;q\n", [3.25, 2.71, 1.5, 2.0]),
        ("a;b;y\n1.234,5;2;p\n12;3;q\n", [1234.5, 2.0, 12.0, 3.0]),
        ("a;b;y\n3,251;2;p\n2,625;3;q\n", [3.251, 2.0, 2.625, 3.0]),
        (
            "a,b,y\n\"1,234\",2,p\n\"12,345,678\",3,q\n",
            [1234.0, 2.0, 12_345_678.0, 3.0],
        ),
        ("a,b,y\n\"$1,234.50\",2,p\n$7,3,q\n", [1234.5, 2.0, 7.0, 3.0]),
        ("a,b,y\n12.5%,2,p\n7 %,3,q\n", [12.5, 2.0, 7.0, 3.0]),
        ("a\tb\ty\n7 €\t2\tp\n1 000 €\t3\tq\n", [7.0, 2.0, 1000.0, 3.0]),
        ("a,b,y\n1e3,-2,p\n.5,+3,q\n", [1000.0, -2.0, 0.5, 3.0]),
    ] {
        let table = read(text.as_bytes(), &TableOptions::default()).expect(text);
        assert_eq!(table.data.features(), expected, "{text}");
    }
    let comma = TableOptions {
        format: TableFormat {
            decimal: Some(DecimalMark::Comma),
            ..TableFormat::default()
        },
        ..TableOptions::default()
    };
    let text = "a,y\n\"1,234\",p\n\"2,5\",q\n";
    assert_eq!(
        read(text.as_bytes(), &comma).expect("read").data.features(),
        [1.234, 2.5]
    );
    // The target of regression, and new tables for the trained model.
    let table = read(b"a;price\n1;2,5\n2;3,75\n3;4,5\n", &TableOptions::default()).expect("read");
    assert_eq!(table.data.targets(), [2.5, 3.75, 4.5]);
    let rows = table
        .schema
        .parse(&b"a\n1,25\n"[..], "new.csv", &[], TableReadOptions::default());
    assert_eq!(rows.expect("read").features, [1.25]);
}

#[test]
fn headers_with_numbers_are_headers() {
    let years = table("city,2019,2020,grew", 8, |i| {
        format!(
            "{},{},{},{}",
            ["Bern", "Rome"][i / 2 % 2],
            i,
            i + 3,
            ["yes", "no"][i % 2]
        )
    });
    let read = read(years.as_bytes(), &TableOptions::default()).expect("read");
    assert_eq!(read.class_names, ["no", "yes"]);
    assert_eq!(read.schema.feature_names(), ["city=Bern", "city=Rome", "2019", "2020"]);
    // A word above numbers.
    let text = table("size,1,y", 5, |i| format!("{},{},{}", i * i, i % 2, i % 3));
    assert_eq!(features(&text).expect("read"), ["size", "1"]);
    // Without a header.
    let text = table("5.1,3.5,setosa", 6, |i| {
        format!("{}.5,{},{}", i, i, ["setosa", "virginica"][i % 2])
    });
    assert_eq!(features(&text).expect("read"), ["column 1", "column 2"]);
}

#[test]
fn words_for_missing_values_are_no_categories() {
    let fill = TableOptions {
        missing: MissingCells::Mean,
        ..TableOptions::default()
    };
    let text = "n,c,y\n1,red,p\nNULL,null,q\n3,N/A,p\nNone,red,q\n-,None,p\nn/a,<NA>,q\n5,None,p\n";
    let table = read(text.as_bytes(), &fill).expect("read");
    assert_eq!(table.schema.feature_names(), ["n", "c=None", "c=red"]);
    assert_eq!(table.filled, 4 + 3);
    let words = TableOptions {
        format: TableFormat {
            missing: vec!["none".into()],
            ..TableFormat::default()
        },
        ..fill
    };
    let table = read(text.as_bytes(), &words).expect("read");
    assert_eq!(table.schema.feature_names(), ["n", "c=red"]);
    // The trained model treats these words in the same way.
    let rows = table.schema.parse(
        &b"n,c\n-,none\n"[..],
        "new.csv",
        &table.class_names,
        TableReadOptions::default(),
    );
    assert_eq!(rows.expect("read").features, [3.0, 1.0]);
    let error = read(text.as_bytes(), &TableOptions::default()).expect_err("missing");
    assert!(error.contains("line 3") && error.contains("'n' is missing"), "{error}");
}

#[test]
fn identifiers_dates_and_texts_are_recognized() {
    let titanic = table(
        "PassengerId,Name,Ticket,Age,Sex,Cabin,Boarded,Const,Survived",
        60,
        |i| {
            let names = ["Braund", "Heikkinen", "Allen", "Moran"];
            format!(
                "{},\"{}, Mr. {i}\",A/5 2117{i},{},{},,1912-04-{:02},1,{}",
                i + 1,
                names[i % 4],
                20 + i * 7 % 40,
                ["male", "female"][i % 2],
                10 + i % 5,
                i / 3 % 2,
            )
        },
    );
    let found = profile(&titanic, &TableOptions::default());
    let types: Vec<ColumnType> = found.columns.iter().map(|c| c.column_type).collect();
    use ColumnType::{Category, Constant, Date, Empty, Identifier, Integer, Text};
    assert_eq!(
        types,
        [
            Identifier, Text, Text, Integer, Category, Empty, Date, Constant, Integer
        ]
    );
    let used: Vec<&str> = found
        .columns
        .iter()
        .filter(|c| c.usage == ColumnUse::Features)
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(used, ["Age", "Sex", "Boarded"]);
    assert_eq!(found.columns[8].usage, ColumnUse::Target);
    assert_eq!((found.columns[5].missing, found.columns[4].distinct), (60, 2));
    assert_eq!((found.rows, found.delimiter, found.header), (60, ',', true));

    // The same columns are left out when the table is read.
    let drop = TableOptions {
        missing: MissingCells::Drop,
        ..TableOptions::default()
    };
    let table = read(titanic.as_bytes(), &drop).expect("read");
    let names = [
        "Age",
        "Sex=female",
        "Sex=male",
        "Boarded.days",
        "Boarded.month",
        "Boarded.weekday",
    ];
    assert_eq!(table.schema.feature_names(), names);
    // 10 April 1912 was a Wednesday, 21,085 days before 1970.
    assert_eq!(table.data.features()[3..6], [-21_085.0, 4.0, 3.0]);
    let new = "Age,Sex,Boarded\n30,male,1912-04-15 12:00\n";
    let rows = table.schema.parse(
        new.as_bytes(),
        "new.csv",
        &table.class_names,
        TableReadOptions::default(),
    );
    assert_eq!(rows.expect("read").features, [30.0, 0.0, 1.0, -21_079.5, 4.0, 1.0]);

    // A given type keeps a column.
    let kept = TableOptions {
        types: vec![(Column::name("PassengerId"), TypeChoice::Number)],
        ..drop
    };
    assert_eq!(
        read(titanic.as_bytes(), &kept).expect("read").schema.feature_names()[0],
        "PassengerId"
    );
}

#[test]
fn row_numbers_without_a_name_are_left_out() {
    let text = table(",x,y", 30, |i| format!("{i},{},{}", i * 17 % 10, i % 2));
    assert_eq!(features(&text).expect("read"), ["x"]);
    // A column of different numbers is no identifier by itself: an area, or a year.
    let text = table("area,year,y", 30, |i| format!("{},{},{}", 37 * i + 11, 1990 + i, i % 2));
    assert_eq!(features(&text).expect("read"), ["area", "year"]);
    let codes = table("code,x,y", 30, |i| format!("AX-{i},{},{}", i * 17 % 10, i % 2));
    assert_eq!(features(&codes).expect("read"), ["x"]);
}

#[test]
fn dates_need_a_format_if_it_is_not_clear() {
    let text = table("when,x,y", 6, |i| format!("0{}/0{}/2024,{},{}", i + 1, i + 2, i, i % 2));
    let found = profile(&text, &TableOptions::default());
    let ColumnUse::LeftOut(reason) = &found.columns[0].usage else {
        panic!("{:?}", found.columns[0]);
    };
    assert!(reason.contains("%d/%m/%Y or %m/%d/%Y"), "{reason}");
    let typed = |choice: &str| TableOptions {
        types: vec![(Column::name("when"), choice.parse().expect("a type"))],
        ..TableOptions::default()
    };
    let table = read(text.as_bytes(), &typed("date:%d/%m/%Y")).expect("read");
    assert_eq!(table.data.features()[1], 2.0, "the month");
    let error = read(text.as_bytes(), &typed("date:%Y")).expect_err("no date");
    assert!(error.contains("line 2, column 1") && error.contains("%Y"), "{error}");
    let error = read(text.replace("2024", "x").as_bytes(), &typed("date")).expect_err("no date");
    assert!(error.contains("no format of dates fits"), "{error}");
    assert!(
        "dates"
            .parse::<TypeChoice>()
            .expect_err("unknown")
            .contains("date:FORMAT")
    );
    let hours = table_of_times();
    let names = features(&hours).expect("read");
    assert_eq!(names[..4], ["at.days", "at.month", "at.weekday", "at.hour"]);
}

fn table_of_times() -> String {
    table("at,x,y", 6, |i| format!("01.02.2024 1{i}:30,{i},{}", i % 2))
}

#[test]
fn warnings_name_what_may_be_wrong() {
    let text = table("code,truth,answer,x,y", 40, |i| {
        let truth = ["True", "true", "FALSE"][i % 3];
        format!(
            "{},{truth},{},{},{}",
            20_000_000 + i % 7,
            ["good", "bad"][i % 2],
            i % 11,
            ["p", "q"][i % 2]
        )
    });
    let found = profile(&text, &TableOptions::default());
    let notes = |column: usize| found.columns[column].notes.join("; ");
    assert!(notes(0).contains("16,777,216"), "{}", notes(0));
    assert!(notes(1).contains("'True' and 'true' are different"), "{}", notes(1));
    assert!(notes(2).contains("contain the answer?"), "{}", notes(2));
    assert!(notes(3).is_empty(), "{}", notes(3));
    let text = table("cents,x,price", 40, |i| format!("{},{},{}.5", i * 100 + 50, i % 7, i));
    let found = profile(&text, &TableOptions::default());
    assert!(found.columns[0].notes.join("").contains("correlation"), "{found:?}");
    assert!(found.columns[1].notes.is_empty());
}
