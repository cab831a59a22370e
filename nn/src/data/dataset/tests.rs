use super::*;

/// Returns `n` examples of shape [2]: row `i` contains `i` and `-i`; labels alternate.
fn sample(n: u32) -> Dataset {
    let features = (0..n).flat_map(|i| [i as f32, -(i as f32)]).collect();
    Dataset::new("sample", features, vec![2], (0..n).map(|i| i % 2).collect(), 3).unwrap()
}

fn new(features: &[f32], shape: &[usize], labels: &[u32], classes: usize) -> DataError {
    Dataset::new("bad", features.to_vec(), shape.to_vec(), labels.to_vec(), classes).unwrap_err()
}

#[test]
fn accessors_tell_what_was_given() {
    let data = sample(4);
    assert_eq!((data.name(), data.len(), data.is_empty()), ("sample", 4, false));
    assert_eq!((data.feature_shape(), data.feature_len()), (&[2][..], 2));
    assert_eq!(data.features(), [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0]);
    assert_eq!((data.labels(), data.classes()), (&[0, 1, 0, 1][..], 3));
    assert_eq!(data.example(3), Some((&[3.0, -3.0][..], 1)));
    assert_eq!(data.example(4), None);
    assert_eq!(data.example(usize::MAX), None);
    assert_eq!(data.class_counts(), [(0, 2), (1, 2)]);
    assert_eq!(data.with_name("other").name(), "other");
}

#[test]
fn debug_output_is_short() {
    let text = format!("{:?}", sample(1000));
    assert!(text.len() < 120, "{text}");
}

#[test]
fn a_valid_shape_is_required() {
    let reason = |shape: &[usize]| new(&[], shape, &[0], 1).to_string();
    assert_eq!(
        reason(&[]),
        "bad: feature shape [] is not usable: it needs at least one dimension"
    );
    assert_eq!(
        reason(&[2, 0]),
        "bad: feature shape [2, 0] is not usable: a dimension is 0"
    );
    let huge = reason(&[usize::MAX, 2]);
    assert!(huge.contains("more elements than can be addressed"), "{huge}");
}

#[test]
fn lengths_must_match() {
    assert_eq!(
        new(&[0.0; 5], &[2], &[0, 0], 1).to_string(),
        "bad: 2 labels with feature shape [2] need 4 feature values, found 5"
    );
    // examples × features overflows without harm
    let error = new(&[0.0], &[usize::MAX], &[0, 0], 1);
    assert!(
        matches!(
            error,
            DataError::LengthMismatch {
                expected: usize::MAX,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn an_example_and_a_class_are_required() {
    assert!(matches!(new(&[], &[2], &[], 1), DataError::Empty { .. }));
    assert!(matches!(new(&[0.0], &[1], &[0], 0), DataError::NoClasses { .. }));
}

#[test]
fn labels_must_be_classes() {
    assert_eq!(
        new(&[0.0; 3], &[1], &[1, 2, 0], 2).to_string(),
        "bad: label 2 in row 1 is out of range, expected 0 to 1, for 2 classes; \
         correct the label or raise the number of classes"
    );
}

#[test]
fn non_finite_features_are_located() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = new(&[0.0, 0.0, 0.0, 0.0, 0.0, value], &[3], &[0, 0], 1);
        assert!(matches!(error, DataError::NonFinite { row: 1, feature: 2, .. }));
        let expected = format!("bad: feature 2 of row 1 is {value}; ");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

#[test]
fn subset_picks_rows_in_order_with_repeats() {
    let part = sample(4).subset(&[3, 0, 3]).unwrap();
    assert_eq!(part.features(), [3.0, -3.0, 0.0, -0.0, 3.0, -3.0]);
    assert_eq!(part.labels(), [1, 0, 1]);
    assert_eq!(part.classes(), 3);
}

#[test]
fn subset_refuses_no_rows_and_unknown_rows() {
    let data = sample(4);
    assert_eq!(
        data.subset(&[]).unwrap_err().to_string(),
        "sample (subset): no examples; a data set needs at least one"
    );
    assert_eq!(
        data.subset(&[0, 4]).unwrap_err().to_string(),
        "sample: row 4 does not exist, there are 4 examples (rows count from 0)"
    );
}

#[test]
fn split_parts_are_disjoint_and_complete() {
    let (train, test) = sample(100).split(0.25, 3).unwrap();
    assert_eq!((train.len(), test.len()), (75, 25));
    let first = |part: &Dataset| -> Vec<u32> { part.features().chunks_exact(2).map(|pair| pair[0] as u32).collect() };
    let mut all = [first(&train), first(&test)].concat();
    all.sort_unstable();
    assert_eq!(all, (0..100).collect::<Vec<_>>());
}

#[test]
fn split_depends_on_the_seed_alone() {
    let data = sample(100);
    assert_eq!(data.split(0.2, 1).unwrap(), data.split(0.2, 1).unwrap());
    assert_ne!(data.split_indices(0.2, 1).unwrap(), data.split_indices(0.2, 2).unwrap());
}

#[test]
fn test_size_is_rounded_up_but_not_by_rounding_errors() {
    let size = |n, fraction| sample(n).split_indices(fraction, 0).unwrap().1.len();
    assert_eq!(size(30, 0.1), 3);
    assert_eq!(size(25, 0.28), 7); // the product is 7.000000000000001
    assert_eq!(size(3, 0.1), 1);
    assert_eq!(size(1797, 0.2), 360);
}

#[test]
fn impossible_splits_are_refused() {
    for (n, fraction) in [
        (10, 0.0),
        (10, 1.0),
        (10, -0.5),
        (10, 1.5),
        (10, f64::NAN),
        (1, 0.5),
        (10, 0.95),
    ] {
        let error = sample(n).split(fraction, 0).unwrap_err();
        assert!(matches!(error, DataError::Split { .. }), "{n} {fraction}: {error}");
    }
    let error = sample(2).split(2.0, 0).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("sample: cannot hold out a fraction of 2 of 2 examples")
    );
}

#[test]
fn normalised_divides() {
    let data = sample(3).normalised(2.0).unwrap();
    assert_eq!(data.features(), [0.0, 0.0, 0.5, -0.5, 1.0, -1.0]);
}

#[test]
fn normalised_refuses_useless_scales_and_overflow() {
    for scale in [0.0, -0.0, f32::NAN, f32::INFINITY] {
        let error = sample(2).normalised(scale).unwrap_err();
        assert!(matches!(error, DataError::Scale { .. }), "{error}");
    }
    let big = Dataset::new("big", vec![1e30], vec![1], vec![0], 1).unwrap();
    assert!(matches!(big.normalised(1e-30), Err(DataError::NonFinite { .. })));
}

#[test]
fn feature_shape_can_change_but_not_its_size() {
    let data = Dataset::new("s", vec![0.0; 12], vec![2, 3], vec![0, 0], 1).unwrap();
    let flat = data.clone().with_feature_shape(vec![6]).unwrap();
    assert_eq!(flat.feature_shape(), [6]);
    assert_eq!(flat.features(), data.features());
    for shape in [vec![5], vec![], vec![6, 0], vec![usize::MAX, 6]] {
        let error = data.clone().with_feature_shape(shape).unwrap_err();
        assert!(matches!(error, DataError::FeatureShape { .. }), "{error}");
    }
}

#[test]
fn one_hot_of_rows() {
    let data = sample(4);
    assert_eq!(data.one_hot(&[1, 0]).unwrap(), [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    assert!(data.one_hot(&[]).unwrap().is_empty());
    let error = data.one_hot(&[9]).unwrap_err();
    assert!(
        matches!(error, DataError::RowOutOfRange { index: 9, len: 4, .. }),
        "{error}"
    );
}

#[test]
fn one_hot_of_labels_reuses_memory() {
    let mut out = vec![5.0; 6];
    let pointer = out.as_ptr();
    one_hot(&[1, 0], 2, &mut out).unwrap();
    assert_eq!(out, [0.0, 1.0, 1.0, 0.0]);
    assert_eq!(out.as_ptr(), pointer);
    one_hot(&[], 2, &mut out).unwrap();
    assert!(out.is_empty());
}

#[test]
fn one_hot_refuses_bad_labels_and_absurd_sizes() {
    let mut out = vec![1.0];
    let error = one_hot(&[2], 2, &mut out).unwrap_err();
    assert!(matches!(error, DataError::LabelOutOfRange { .. }), "{error}");
    assert!(out.is_empty());
    assert!(matches!(one_hot(&[0], 0, &mut out), Err(DataError::NoClasses { .. })));
    for labels in [&[0][..], &[0, 0]] {
        let error = one_hot(labels, usize::MAX, &mut out).unwrap_err();
        assert!(matches!(error, DataError::OutOfMemory { .. }), "{error}");
    }
}

#[test]
fn texts_are_examples_and_what_follows_them() {
    let data = Dataset::from_tokens("t", &[3, 1, 4, 1, 5, 9, 2, 6], 3, 3, 10).unwrap();
    assert_eq!((data.len(), data.feature_shape(), data.classes()), (2, &[3][..], 10));
    assert_eq!(data.example(0), Some((&[3.0, 1.0, 4.0][..], 1)));
    assert_eq!(data.example(1), Some((&[1.0, 5.0, 9.0][..], 2)));
    // Exactly one example, and one token too few for it.
    assert_eq!(Dataset::from_tokens("t", &[1, 2, 3, 4], 3, 3, 10).unwrap().len(), 1);
    // Overlapping examples, as long as a token follows them.
    let data = Dataset::from_tokens("t", &[3, 1, 4, 1, 5, 9], 3, 2, 10).unwrap();
    assert_eq!((data.len(), data.labels()), (2, &[1, 9][..]));
    assert_eq!(data.example(1), Some((&[4.0, 1.0, 5.0][..], 9)));
    let error = Dataset::from_tokens("t", &[1, 2, 3], 1, 0, 10).unwrap_err();
    assert!(matches!(error, DataError::Empty { .. }), "{error}");
    for (tokens, rows, vocab, said) in [
        (
            &[1, 2, 3][..],
            3,
            10,
            "has 3 tokens, but an example of 3 tokens and its next token need 4",
        ),
        (&[], 3, 10, "has 0 tokens"),
        (&[1, 2], 0, 10, "an example of 0"),
        (&[1, 10, 2], 1, 10, "10"),
        (&[1, 2], 1, 0, "class"),
        (&[1, 2], 1, 1 << 30, "class"),
    ] {
        let error = Dataset::from_tokens("t", tokens, rows, rows, vocab)
            .unwrap_err()
            .to_string();
        assert!(error.contains(said), "{error}");
    }
}
