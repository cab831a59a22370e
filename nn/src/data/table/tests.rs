use super::*;
use crate::data::{Column, DataError, Header, SplitOptions};

const HOUSES: &str = "id,rooms,district,price\na1,3,north,250.5\na2,2,south,180\na3,4,north,310\na4,1,east,95.25\n";

fn options() -> TableOptions {
    TableOptions {
        ignore: vec![Column::Number(1)],
        ..TableOptions::default()
    }
}

fn parse(text: &str, options: &TableOptions) -> Result<TrainingTable, DataError> {
    parse_table(text.as_bytes(), "t.csv", options)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, DataError>, parts: &[&str]) {
    let message = result.expect_err("refused").to_string();
    for part in ["t.csv"].iter().chain(parts) {
        assert!(message.contains(part), "'{part}' in: {message}");
    }
}

// ---- training --------------------------------------------------------------------------------------------

/// Reading a table with many columns takes linear time: comparing every name with every other one would take ten
/// billion comparisons.
#[test]
fn names_of_many_columns_are_found_at_once() {
    let line = |cell: &dyn Fn(usize) -> String| (0..100_000).map(cell).collect::<Vec<_>>().join(",");
    let text = format!(
        "{}\n{}\n{}\n",
        line(&|i| format!("c{i}")),
        line(&|i| format!("{i}")),
        line(&|i| format!("{}.5", i + 1))
    );
    let begin = std::time::Instant::now();
    let table = parse(&text, &TableOptions::default()).unwrap();
    let read = table.schema.parse(
        text.as_bytes(),
        "t.csv",
        &table.class_names,
        TableReadOptions::default(),
    );
    assert_eq!(read.unwrap().lines.len(), 2);
    assert!(begin.elapsed().as_secs() < 30, "{:?}", begin.elapsed());
}

#[test]
fn numbers_and_texts_become_features() {
    let table = parse(HOUSES, &options()).unwrap();
    let names = ["rooms", "district=east", "district=north", "district=south"];
    assert_eq!(table.schema.feature_names(), names);
    assert_eq!(
        table.data.features(),
        [
            3.0, 0.0, 1.0, 0.0, //
            2.0, 0.0, 0.0, 1.0, //
            4.0, 0.0, 1.0, 0.0, //
            1.0, 1.0, 0.0, 0.0
        ]
    );
    assert_eq!(table.data.targets(), [250.5, 180.0, 310.0, 95.25]);
    assert_eq!(
        (table.schema.target.as_str(), &table.schema.ignored[..]),
        ("price", &["id".to_owned()][..])
    );
    assert!(table.guess.unwrap().contains("regression") && table.class_names.is_empty());
    // Only numbers are scaled.
    let scale = table.schema.standardiser(&table.data);
    assert_eq!(
        (scale.mean(), &scale.std()[1..]),
        (&[2.5, 0.0, 0.0, 0.0][..], &[1.0; 3][..])
    );
}

#[test]
fn the_task_is_guessed_from_the_target() {
    let guess = |targets: &[&str]| {
        let mut text = "x,y\n".to_owned();
        let rows = (0..).zip(targets);
        rows.for_each(|(i, t)| text.push_str(&format!("{},{t}\n", i % 7)));
        let table = parse(&text, &TableOptions::default()).unwrap();
        let why = table.guess.expect("guessed");
        assert!(
            why.starts_with(if table.data.is_regression() {
                "regression"
            } else {
                "classification"
            }),
            "{why}"
        );
        table.data.is_regression()
    };
    assert!(!guess(&["yes", "no"]));
    assert!(!guess(&["0", "1", "0"]));
    assert!(!guess(&["3", "1.0", "2"]), "three may always be classes");
    assert!(guess(&["1", "2", "3", "4"]), "four in four rows");
    assert!(guess(&["0.5", "1"]));
    assert!(!guess(&["1", "2", "a"]), "words");
    let numbers =
        |different: usize, rows: usize| -> Vec<String> { (0..rows).map(|i| (i % different).to_string()).collect() };
    for (different, rows, is_regression) in [(20, 200, false), (20, 199, true), (21, 1000, true), (10, 100, false)] {
        let targets = numbers(different, rows);
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        assert_eq!(guess(&targets), is_regression, "{different} of {rows}");
    }
    // One typing error among many numbers is no reason for classes.
    let mut text = "x,y\n".to_owned();
    (0..50).for_each(|i| text.push_str(&format!("{},{i}.5\n", i % 7)));
    text.push_str("1,12..5\n");
    refused(
        parse(&text, &TableOptions::default()),
        &["line 52, column 2", "'12..5'"],
    );
}

#[test]
fn a_task_that_is_given_is_not_guessed() {
    let with = |task| TableOptions {
        task,
        ..TableOptions::default()
    };
    let text = "x,y\n1,0\n2,1\n3,1\n";
    let table = parse(text, &with(TaskChoice::Regression)).unwrap();
    assert_eq!((table.data.targets(), table.guess), (&[0.0, 1.0, 1.0][..], None));
    let table = parse(&text.replace("3,1", "3,7"), &with(TaskChoice::Classification)).unwrap();
    assert_eq!(table.class_names, ["0", "1", "7"]);
    let words = parse("x,y\n1,2\n\n2,tall\n", &with(TaskChoice::Regression));
    refused(words, &["line 4, column 2", "'tall' is not a number", "'y'"]);
    let fractions = parse("x,y\n1,2\n2,2.5\n", &with(TaskChoice::Classification));
    refused(fractions, &["line 3, column 2", "2.5", "regression?"]);
    for target in ["a", "1"] {
        let text = format!("x,y\n1,{target}\n2,{target}\n");
        refused(
            parse(&text, &with(TaskChoice::Guess)),
            &["line 2, column 2", "every row"],
        );
    }
}

#[test]
fn missing_cells_are_refused_filled_or_dropped() {
    let text = "n,c,y\n1,red,0\n?,red,1\n4,NA,1\n,blue,0\nnan,NaN,1\n7,blue,1\n9,red,\n";
    let with = |missing| TableOptions {
        missing,
        ..TableOptions::default()
    };
    refused(
        parse(text, &with(MissingCells::Refuse)),
        &["line 3, column 1", "'n' is missing"],
    );
    refused(
        parse(text, &with(MissingCells::Mean)),
        &["line 8, column 3", "target 'y' is missing"],
    );
    let dropped = parse(text, &with(MissingCells::Drop)).unwrap();
    assert_eq!((dropped.dropped, dropped.filled), (5, 0));
    assert_eq!(dropped.data.features(), [1.0, 0.0, 1.0, 7.0, 1.0, 0.0]);
    assert_eq!(dropped.schema.columns[0].kind, ColumnKind::Number { fill: None });

    let filled = parse(&text.replace("9,red,\n", ""), &with(MissingCells::Mean)).unwrap();
    assert_eq!((filled.dropped, filled.filled), (0, 5));
    // Mean of 1, 4 and 7. Red and blue are as frequent: the first by name.
    let expected = [
        1.0, 0.0, 1.0, 4.0, 0.0, 1.0, 4.0, 1.0, 0.0, 4.0, 1.0, 0.0, 4.0, 1.0, 0.0, 7.0, 1.0, 0.0,
    ];
    assert_eq!(filled.data.features(), expected);
    // A column without values is left out.
    let table = parse("a,b,y\n1,,0\n2,?,1\n", &with(MissingCells::Mean)).unwrap();
    assert_eq!(table.schema.feature_names(), ["a"]);
    refused(
        parse("a,y\n,0\n?,1\n", &with(MissingCells::Drop)),
        &["'a': it has no values"],
    );
    refused(
        parse("a,b,y\n,1,0\n2,?,1\n", &with(MissingCells::Drop)),
        &["none is left"],
    );
}

#[test]
fn columns_that_cannot_be_features_are_refused() {
    let plain = |text: &str| parse(text, &TableOptions::default());
    refused(
        plain("x,y\n1,a\n2,b\nabc,a\n"),
        &["line 4, column 1", "'abc' is not a number", "'x'"],
    );
    refused(plain("x,y\n1,a\n1e39,b\n3,b\n"), &["line 3, column 1", "finite"]);
    refused(
        plain("a,b,a,y\n1,2,3,p\n4,5,6,q\n"),
        &["column 3", "column 1 is called 'a', too"],
    );
    refused(plain("y\na\nb\n"), &["is left for features"]);
    refused(plain("x,y\n1,a\n2\n"), &["line 3", "found 1"]);
    assert!(matches!(plain("x,y\n"), Err(DataError::Empty { .. })));
    let target = TableOptions {
        target: Column::name("z"),
        ..TableOptions::default()
    };
    assert!(matches!(parse("x,y\n1,a\n", &target), Err(DataError::NotFound { .. })));
    let mut names = "x,y\n".to_owned();
    (0..1001).for_each(|i| names.push_str(&format!("name{i},{}\n", i % 2)));
    refused(
        plain(&names),
        &["no column is left", "'x': almost every row has another word"],
    );
    let given = TableOptions {
        categorical: vec![Column::name("x")],
        ..TableOptions::default()
    };
    refused(parse(&names, &given), &["line 2, column 1", "1000 different texts"]);
    // Numbers that are categories.
    let postal = TableOptions {
        categorical: vec![Column::name("zip")],
        ..TableOptions::default()
    };
    let table = parse("zip,y\n01067,a\n80331,b\n", &postal).unwrap();
    assert_eq!(table.schema.feature_names(), ["zip=01067", "zip=80331"]);
}

#[test]
fn parts_are_fitted_on_the_training_part_alone() {
    let mut text = "n,c,y\n".to_owned();
    // Every row has a category and a number of its own; some numbers are missing.
    (0..40).for_each(|i| {
        let n = if i % 4 == 0 { "?".to_owned() } else { i.to_string() };
        text.push_str(&format!("{n},c{i:02},{}\n", i % 2));
    });
    let options = TableOptions {
        missing: MissingCells::Mean,
        categorical: vec![Column::name("c")],
        ..TableOptions::default()
    };
    let split = SplitOptions {
        validation: 0.1,
        test: 0.2,
        ..SplitOptions::default()
    };
    let raw = RawTable::parse(text.as_bytes(), "t.csv", &TableFormat::default()).unwrap();
    let table = fit_table_parts(&raw, &options, split).unwrap();
    let (train, test) = (&table.parts.train, table.parts.test.as_ref().unwrap());
    let sizes = (train.len(), table.parts.validation.as_ref().unwrap().len(), test.len());
    assert_eq!((sizes, table.unknown, table.filled), ((28, 4, 8), 12, 10));
    assert_eq!(table.schema.width(), 1 + 28, "categories of the training part");
    assert!(test.features().chunks(29).all(|row| row[1..].iter().all(|v| *v == 0.0)));
    // The mean only covers the numbers of the training part, which are not changed.
    let ColumnKind::Number { fill: Some(mean) } = table.schema.columns[0].kind else {
        panic!("filled");
    };
    let rows: Vec<(f32, usize)> = train
        .features()
        .chunks(29)
        .map(|row| (row[0], row[1..].iter().position(|v| *v == 1.0).unwrap()))
        .collect();
    let own = |category: usize| match &table.schema.columns[1].kind {
        ColumnKind::Categorical { categories, .. } => categories[category][1..].parse::<u32>().unwrap(),
        _ => panic!("categories"),
    };
    let known: Vec<f32> = rows.iter().filter(|(_, c)| own(*c) % 4 != 0).map(|(n, _)| *n).collect();
    assert!((known.iter().sum::<f32>() / known.len() as f32 - mean).abs() < 1e-4);
    assert_eq!(test.class_counts(), [(0, 4), (1, 4)]);
    assert!(table.guess.is_some() && table.class_names == ["0", "1"]);
    assert_eq!(table.parts.train.name(), "t.csv (train)");
    // The rows are the same as for the split data set.
    let whole = fit_table(&raw, &options).unwrap().data.split_parts(split).unwrap();
    assert_eq!(whole.test.unwrap().labels(), test.labels());
    let too_much = SplitOptions { test: 1.0, ..split };
    assert!(matches!(
        fit_table_parts(&raw, &options, too_much),
        Err(DataError::Split { .. })
    ));
}

// ---- for the trained model -------------------------------------------------------------------------------

fn schema() -> TableSchema {
    parse(HOUSES, &options()).unwrap().schema
}

fn read(text: &str, options: TableReadOptions) -> Result<TableRows, DataError> {
    schema().parse(text.as_bytes(), "t.csv", &[], options)
}

#[test]
fn columns_are_found_by_name_in_any_order() {
    let rows = read("district,rooms\nsouth,2\n\neast,5\n", TableReadOptions::default()).unwrap();
    assert_eq!(rows.features, [2.0, 0.0, 0.0, 1.0, 5.0, 1.0, 0.0, 0.0]);
    assert_eq!((&rows.lines[..], &rows.targets), (&[2, 4][..], &TableTargets::None));
    assert!(rows.dataset(0).unwrap().is_none());
    let rows = read("price,id,rooms,district\n7,x,2,south\n", TableReadOptions::default()).unwrap();
    assert_eq!(rows.targets, TableTargets::Numbers(vec![7.0]));
    assert_eq!(rows.dataset(0).unwrap().unwrap().targets(), [7.0]);
    let not_looked_at = TableReadOptions {
        ignore_target: true,
        ..TableReadOptions::default()
    };
    let rows = read("price,rooms,district\nunknown,2,south\n", not_looked_at).unwrap();
    assert_eq!(rows.targets, TableTargets::None);
    let rows = read(
        "price,rooms,district\n,2,south\n?,3,east\n",
        TableReadOptions::default(),
    )
    .unwrap();
    assert_eq!(rows.targets, TableTargets::None, "an empty column");
}

#[test]
fn columns_that_are_not_those_of_the_training_data_are_listed() {
    let error = read("room,district,garden\n1,south,yes\n", TableReadOptions::default()).unwrap_err();
    let DataError::Columns {
        missing,
        unknown,
        twice,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (missing.join(","), unknown.join(","), twice.len()),
        ("rooms".into(), "room,garden".into(), 0)
    );
    refused::<()>(
        Err(error),
        &["missing: 'rooms'", "unknown: 'room', 'garden'", "repeated: none"],
    );
    refused(
        read("rooms,rooms,district\n1,2,south\n", TableReadOptions::default()),
        &["repeated: 'rooms'"],
    );
}

#[test]
fn cells_that_the_model_does_not_know_are_refused_or_zeros() {
    let text = "rooms,district\n1,south\n2,west\n";
    refused(
        read(text, TableReadOptions::default()),
        &["line 3, column 2", "'west' in 'district'", "'east', 'north', 'south'"],
    );
    let zeros = TableReadOptions {
        unknown_as_zeros: true,
        ..TableReadOptions::default()
    };
    let rows = read(text, zeros).unwrap();
    assert_eq!((&rows.features[4..], rows.unknown), (&[2.0, 0.0, 0.0, 0.0][..], 1));
    refused(
        read("rooms,district\nmany,south\n", zeros),
        &["line 2, column 1", "'many' is not a number"],
    );
    refused(
        read("rooms,district\n,south\n", zeros),
        &["line 2, column 1", "'rooms' is missing"],
    );
    let drop = TableReadOptions {
        drop_missing: true,
        ..TableReadOptions::default()
    };
    let rows = read("rooms,district\n,south\n2,north\n", drop).unwrap();
    assert_eq!((rows.dropped, &rows.lines[..], &rows.rows[..]), (1, &[3][..], &[1][..]));
    assert!(matches!(
        read("rooms,district\n,south\n", drop),
        Err(DataError::Empty { .. })
    ));
    let filling = TableOptions {
        missing: MissingCells::Mean,
        ..options()
    };
    let schema = parse(HOUSES, &filling).unwrap().schema;
    let rows = schema
        .parse("rooms,district\n?,NA\n".as_bytes(), "t.csv", &[], drop)
        .unwrap();
    assert_eq!((&rows.features[..], rows.filled), (&[2.5, 0.0, 1.0, 0.0][..], 2));
}

#[test]
fn known_classes_keep_their_ids() {
    let table = parse("x,y\n1,b\n2,a\n3,c\n", &TableOptions::default()).unwrap();
    let read = |text: &str| {
        let options = TableReadOptions::default();
        table
            .schema
            .parse(text.as_bytes(), "t.csv", &table.class_names, options)
    };
    let rows = read("y,x\nc,1\nb,2\n").unwrap();
    assert_eq!(rows.targets, TableTargets::Classes(vec![2, 1]));
    assert_eq!(rows.dataset(3).unwrap().unwrap().classes(), 3);
    refused(read("x,y\n1,d\n"), &["line 2, column 2", "'d'", "'a', 'b', 'c'"]);
}

#[test]
fn without_a_header_columns_are_counted() {
    let no_header = TableOptions {
        format: TableFormat {
            header: Header::No,
            ..TableFormat::default()
        },
        target: Column::Number(2),
        ..TableOptions::default()
    };
    let table = parse("1,a,10\n2,b,20\n", &no_header).unwrap();
    assert_eq!(table.schema.feature_names(), ["column 1", "column 3"]);
    let read = |text: &str| {
        let options = TableReadOptions::default();
        table
            .schema
            .parse(text.as_bytes(), "t.csv", &table.class_names, options)
    };
    let rows = read("5,b,50\n").unwrap();
    assert_eq!(
        (&rows.features[..], rows.targets),
        (&[5.0, 50.0][..], TableTargets::Classes(vec![1]))
    );
    let rows = read("5,50\n").unwrap();
    assert_eq!(
        (&rows.features[..], rows.targets),
        (&[5.0, 50.0][..], TableTargets::None)
    );
    refused(read("5\n"), &["missing: 'column 3'"]);
    refused(read("5,b,50,1\n"), &["unknown: 'column 4'"]);
}

#[test]
fn schemas_survive_json_and_damaged_ones_are_refused() {
    let filling = TableOptions {
        missing: MissingCells::Mean,
        ..options()
    };
    let schema = parse(HOUSES, &filling).unwrap().schema;
    let json = serde_json::to_string(&schema).unwrap();
    assert_eq!(serde_json::from_str::<TableSchema>(&json).unwrap(), schema);
    assert!(schema.check().is_ok());
    type Change = fn(&mut TableSchema);
    let changes: [(&str, Change); 6] = [
        ("no feature columns", |s| s.columns.clear()),
        ("two columns are called 'rooms'", |s| s.columns[1].name = "rooms".into()),
        ("two columns are called 'price'", |s| s.columns[1].name = "price".into()),
        ("fill value is inf", |s| {
            s.columns[0].kind = ColumnKind::Number {
                fill: Some(f32::INFINITY),
            };
        }),
        ("repeated", |s| {
            s.columns[1].kind = ColumnKind::Categorical {
                categories: vec!["a".into(); 2],
                fill: None,
            };
        }),
        ("none of the categories", |s| {
            s.columns[1].kind = ColumnKind::Categorical {
                categories: vec!["a".into()],
                fill: Some("b".into()),
            };
        }),
    ];
    for (part, change) in changes {
        let mut damaged = schema.clone();
        change(&mut damaged);
        let message = damaged.check().unwrap_err();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn cells_keep_their_places() {
    let raw = RawTable::parse(&b"a,b\n1,\n,2\n"[..], "t.csv", &TableFormat::default()).unwrap();
    let cells: Vec<&str> = (0..2).flat_map(|r| [raw.cell(r, 0), raw.cell(r, 1)]).collect();
    assert_eq!((cells, raw.len(), raw.line(1)), (vec!["1", "", "", "2"], 2, 3));
    assert_eq!((raw.cell(2, 0), raw.cell(0, 2), raw.line(9)), ("", "", 0));
}

/// Reading does not panic for any truncation or flipped bit.
#[test]
fn no_damage_panics() {
    let schema = schema();
    let both = |bytes: &[u8]| {
        let _ = parse_table(bytes, "t.csv", &options());
        let _ = schema.parse(bytes, "t.csv", &[], TableReadOptions::default());
    };
    for end in 0..HOUSES.len() {
        both(&HOUSES.as_bytes()[..end]);
    }
    for bit in 0..8 * HOUSES.len() {
        let mut bytes = HOUSES.as_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        both(&bytes);
    }
}
