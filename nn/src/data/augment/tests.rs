use super::*;

const SHAPE: [usize; 3] = [2, 4, 5];

/// Returns pixels that all differ, none of them 0.
fn picture() -> Vec<f32> {
    (1..=40).map(|i| i as f32).collect()
}

fn applied(augmentation: &Augmentation, epoch: u64, row: usize) -> Vec<f32> {
    let mut image = picture();
    augmentation.apply(&mut image, &SHAPE, 3, epoch, row);
    image
}

fn everything() -> Augmentation {
    Augmentation::new()
        .flip(0.5)
        .shift(2)
        .cutout(2)
        .erase(0.5)
        .noise(0.1)
        .brightness(0.2)
        .contrast(0.3)
}

#[test]
fn flips_mirror_every_row_or_none() {
    let mirrored: Vec<f32> = picture().chunks(5).flat_map(|row| row.iter().rev().copied()).collect();
    assert_eq!(applied(&Augmentation::new().flip(1.0), 0, 0), mirrored);
    assert_eq!(applied(&Augmentation::new().flip(0.0), 0, 0), picture());
    let half = Augmentation::new().flip(0.5);
    let flips = (0..1000).filter(|&row| applied(&half, 0, row) == mirrored).count();
    assert!((420..=580).contains(&flips), "{flips}");
}

#[test]
fn shifts_move_the_image_and_fill_with_zeros() {
    let by = |down: isize, right: isize| {
        let (mut moved, source) = (picture(), picture());
        for plane in moved.chunks_exact_mut(20) {
            shift(plane, 5, down, right);
        }
        for (at, &value) in moved.iter().enumerate() {
            let (channel, y, x) = (at / 20, (at / 5 % 4) as isize - down, (at % 5) as isize - right);
            let inside = (0..4).contains(&y) && (0..5).contains(&x);
            let expected = if inside {
                source[channel * 20 + (y * 5 + x) as usize]
            } else {
                0.0
            };
            assert_eq!(value, expected, "{down} {right} at {at}");
        }
        moved
    };
    let all: Vec<Vec<f32>> = (-3..=3).flat_map(|dy| (-3..=3).map(move |dx| by(dy, dx))).collect();
    // Each of the 5 by 5 distances up to 2 occurs, and no other.
    let augmentation = Augmentation::new().shift(2);
    let mut seen: Vec<usize> = (0..2000)
        .map(|row| {
            let image = applied(&augmentation, 1, row);
            all.iter().position(|moved| *moved == image).expect("one of the shifts")
        })
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 25);
}

/// Returns height and width of the cleared rectangle. There must be one, and it must be the same in every channel.
fn hole(image: &[f32]) -> (usize, usize) {
    let holes = |plane: &[f32]| -> Vec<usize> { (0..20).filter(|&i| plane[i] == 0.0).collect() };
    let (first, second) = (holes(&image[..20]), holes(&image[20..]));
    assert_eq!(first, second);
    let extent = |values: Vec<usize>| match (values.iter().min(), values.iter().max()) {
        (Some(low), Some(high)) => high - low + 1,
        _ => 0,
    };
    let (h, w) = (
        extent(first.iter().map(|i| i / 5).collect()),
        extent(first.iter().map(|i| i % 5).collect()),
    );
    assert_eq!(first.len(), h * w, "a full rectangle");
    (h, w)
}

#[test]
fn cutouts_are_squares_cut_by_the_edge() {
    for size in [1, 2, 3, 100] {
        let augmentation = Augmentation::new().cutout(size);
        let holes: Vec<_> = (0..200).map(|row| hole(&applied(&augmentation, 0, row))).collect();
        assert!(
            holes
                .iter()
                .all(|&(h, w)| h >= 1 && w >= 1 && h <= size.min(4) && w <= size.min(5))
        );
        assert!(holes.contains(&(size.min(4), size.min(5))), "{size}");
    }
}

#[test]
fn erasing_clears_a_rectangle_of_a_plausible_area() {
    let augmentation = Augmentation::new().erase(1.0);
    let areas: Vec<usize> = (0..300)
        .map(|row| {
            let (h, w) = hole(&applied(&augmentation, 0, row));
            h * w
        })
        .collect();
    assert!(areas.iter().all(|&a| a <= 12), "{areas:?}");
    assert!(areas.contains(&1) && areas.iter().any(|&a| a >= 6), "{areas:?}");
    assert_eq!(applied(&Augmentation::new().erase(0.0), 0, 0), picture());
    // One row high: hardly any rectangle fits, which must not take forever.
    let mut line = vec![1.0; 400];
    augmentation.apply(&mut line, &[1, 1, 400], 0, 0, 0);
}

#[test]
fn noise_has_its_deviation_and_brightness_and_contrast_their_range() {
    let mut features = vec![0.0; 10_000];
    Augmentation::new().noise(0.5).apply(&mut features, &[10_000], 0, 0, 0);
    let mean = features.iter().sum::<f32>() / 1e4;
    let deviation = (features.iter().map(|v| v * v).sum::<f32>() / 1e4).sqrt();
    assert!(
        mean.abs() < 0.02 && (deviation - 0.5).abs() < 0.02,
        "{mean} {deviation}"
    );

    let brightness: Vec<f32> = (0..500)
        .map(|row| {
            let mut features = vec![1.0, 3.0];
            Augmentation::new()
                .brightness(0.2)
                .apply(&mut features, &[2], 0, 0, row);
            assert!((features[1] - features[0] - 2.0).abs() < 1e-6);
            features[0] - 1.0
        })
        .collect();
    assert!(brightness.iter().all(|b| b.abs() <= 0.2001));
    assert!(brightness.iter().any(|&b| b > 0.15) && brightness.iter().any(|&b| b < -0.15));

    let contrast: Vec<f32> = (0..500)
        .map(|row| {
            let mut features = vec![1.0, 3.0];
            Augmentation::new().contrast(0.5).apply(&mut features, &[2], 0, 0, row);
            assert!((features[0] + features[1] - 4.0).abs() < 1e-6, "the mean stays");
            (features[1] - features[0]) / 2.0
        })
        .collect();
    assert!(contrast.iter().all(|c| (0.4999..=1.5001).contains(c)));
    assert!(contrast.iter().any(|&c| c > 1.4) && contrast.iter().any(|&c| c < 0.6));
}

#[test]
fn results_depend_on_seed_epoch_and_row_only() {
    let all = everything();
    assert_eq!(applied(&all, 2, 5), applied(&all, 2, 5));
    assert_ne!(applied(&all, 2, 5), applied(&all, 3, 5));
    assert_ne!(applied(&all, 2, 5), applied(&all, 2, 6));
    let mut other_seed = picture();
    all.apply(&mut other_seed, &SHAPE, 4, 2, 5);
    assert_ne!(applied(&all, 2, 5), other_seed);
    assert_eq!(applied(&Augmentation::new(), 0, 0), picture());
}

#[test]
fn what_cannot_be_applied_is_refused_and_changes_nothing() {
    let refused = |augmentation: Augmentation, shape: &[usize], part: &str| {
        let error = augmentation.check(shape).expect_err(part);
        assert!(matches!(error, DataError::Augment { .. }));
        assert!(error.to_string().contains(part), "{error}");
        let mut features: Vec<f32> = (0..shape.iter().product()).map(|i: usize| i as f32).collect();
        let before = features.clone();
        augmentation.apply(&mut features, shape, 0, 0, 0);
        assert_eq!(features, before);
    };
    let new = Augmentation::new;
    for shape in [&[64][..], &[1, 1, 8, 8]] {
        refused(new().noise(0.1).flip(0.5), shape, "flip=0.5");
        refused(new().shift(1), shape, "with_feature_shape");
        refused(new().cutout(1), shape, "[channels, height, width]");
        refused(new().erase(0.1), shape, "erase=0.1");
    }
    refused(new().shift(4), &SHAPE, "4x5");
    refused(new().shift(usize::MAX), &SHAPE, "fewer pixels");
    refused(new().cutout(0), &SHAPE, "at least 1");
    for bad in [-0.1, 1.1, f32::NAN] {
        refused(new().flip(bad), &SHAPE, "0 to 1");
        refused(new().erase(bad), &SHAPE, "0 to 1");
        refused(new().contrast(bad), &SHAPE, "0 to 1");
    }
    for bad in [-0.1, f32::INFINITY, f32::NAN] {
        refused(new().noise(bad), &SHAPE, "at least 0");
        refused(new().brightness(bad), &SHAPE, "at least 0");
    }
    // A number of features that does not match the shape.
    let mut features = vec![1.0; 3];
    new().noise(1.0).apply(&mut features, &SHAPE, 0, 0, 0);
    assert_eq!(features, [1.0; 3]);
    assert!(new().shift(3).check(&[4, 5]).is_ok(), "images without channels");
}

#[test]
fn text_is_parsed_and_printed() {
    let parsed: Augmentation = "flip, shift=2,noise=0.05,erase".parse().expect("valid");
    assert_eq!(parsed, Augmentation::new().flip(0.5).shift(2).noise(0.05).erase(0.5));
    assert_eq!(parsed.to_string(), "flip=0.5,shift=2,noise=0.05,erase=0.5");
    assert_eq!(everything().to_string().parse(), Ok(everything()));
    for (text, part) in [
        ("", "there is no augmentation ''"),
        ("rotate=3", "cutout"),
        ("shift", "shift=2"),
        ("shift=1.5", "whole number"),
        ("shift=-1", "whole number"),
        ("noise", "noise=0.1"),
        ("noise=x", "'x'"),
        ("flip,", "''"),
    ] {
        let error = text.parse::<Augmentation>().expect_err(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}
