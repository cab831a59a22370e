//! Tests of saved models of images: arrays, and files in folders.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use super::predict::run_in;

#[test]
fn images_go_through_arrays() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let train = "train digits --model cnn --epochs 3 --out d --device cpu";
    let (ok, _, err) = run_in(path, &train.split(' ').collect::<Vec<_>>());
    assert!(ok, "{err}");
    let (_, test) = meganeura::nn::data::digits_split().expect("ships");
    let archive = path.join("test.npz");
    let labels: Vec<f32> = test.labels().iter().map(|&l| l as f32).collect();
    let mut zip = zip::ZipWriter::new(fs::File::create(&archive).expect("writable"));
    let images: [(&str, Vec<usize>, &[f32]); 2] = [
        ("x.npy", vec![test.len(), 8, 8], test.features()),
        ("y.npy", vec![test.len()], &labels),
    ];
    for (name, shape, data) in images {
        let file = path.join(name);
        meganeura::nn::data::write_npy(&file, &shape, data).expect("writes");
        zip.start_file(name, zip::write::SimpleFileOptions::default())
            .expect("starts");
        zip.write_all(&fs::read(file).expect("readable")).expect("writes");
    }
    zip.finish().expect("ends");
    let (ok, out, err) = run_in(
        path,
        &[
            "evaluate", "--model", "d", "--npz", "test.npz", "--device", "cpu", "--json",
        ],
    );
    assert!(ok, "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["examples"], 360);
    assert!(report["accuracy"].as_f64().expect("a number") > 0.9, "{out}");
    let (ok, _, err) = run_in(
        path,
        &[
            "predict", "--model", "d", "--npz", "test.npz", "--x", "y", "--device", "cpu",
        ],
    );
    assert!(!ok && err.contains("[1]") && err.contains("[1, 8, 8]"), "{err}");
    let (ok, _, err) = run_in(path, &["predict", "--model", "d", "--csv", "no.csv", "--device", "cpu"]);
    assert!(!ok && err.contains("does not accept tables"), "{err}");
}

/// Writes a BMP image of 10x12 pixels in one colour, with small variations between pixels.
pub(super) fn bmp(path: &Path, [red, green, blue]: [u8; 3], seed: usize) {
    const WIDTH: usize = 10;
    const HEIGHT: usize = 12;
    // Rows are padded to four bytes.
    let row = (3 * WIDTH).next_multiple_of(4);
    let mut bytes = b"BM".to_vec();
    let word = |n: usize| (n as u32).to_le_bytes();
    for field in [
        54 + row * HEIGHT,
        0,
        54,
        40,
        WIDTH,
        HEIGHT,
        1 | 24 << 16,
        0,
        row * HEIGHT,
        0,
        0,
        0,
        0,
    ] {
        bytes.extend(word(field));
    }
    for y in 0..HEIGHT {
        let start = bytes.len();
        for x in 0..WIDTH {
            let noise = ((x * 31 + y * 17 + seed * 13) % 40) as u8;
            bytes.extend([blue, green, red].map(|c| c.saturating_add(noise)));
        }
        bytes.resize(start + row, 0);
    }
    fs::write(path, bytes).expect("writable");
}

/// Writes `photos/sky` and `photos/rose` into the folder, with `count` images in each.
pub(super) fn photos(folder: &Path, count: usize) {
    for (class, colour) in [("sky", [20, 60, 200]), ("rose", [200, 30, 40])] {
        let class = folder.join("photos").join(class);
        fs::create_dir_all(&class).expect("makes");
        for i in 0..count {
            bmp(&class.join(format!("{i}.bmp")), colour, i);
        }
    }
}

#[test]
fn photos_in_folders_are_learned_and_files_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    photos(path, 30);
    let train = "train --images photos --image-size 8 --model cnn --epochs 10 --batch 8 --out p --device cpu";
    let (ok, out, err) = run_in(path, &train.split(' ').collect::<Vec<_>>());
    assert!(ok && out.contains("2 classes: rose, sky"), "{out}{err}");
    bmp(&path.join("new.bmp"), [190, 20, 50], 99);
    let args = [
        "predict",
        "--model",
        "p",
        "--image",
        "new.bmp",
        "photos/sky/1.bmp",
        "--device",
        "cpu",
    ];
    let (ok, out, err) = run_in(path, &args);
    assert!(
        ok && out.starts_with("new.bmp: rose ") && out.contains("photos/sky/1.bmp: sky "),
        "{out}{err}"
    );
    let (ok, out, _) = run_in(
        path,
        &[
            "predict",
            "--model",
            "p",
            "--images",
            "photos/sky",
            "--json",
            "--device",
            "cpu",
        ],
    );
    assert!(
        ok && out.lines().count() == 30 && out.contains("\"file\":\"photos/sky/0.bmp\""),
        "{out}"
    );
    let (ok, out, err) = run_in(
        path,
        &["evaluate", "--model", "p", "--images", "photos", "--device", "cpu"],
    );
    assert!(ok && out.contains("(60 of 60)"), "{out}{err}");
    // Files that are not images, and images without labels.
    fs::write(path.join("text.png"), "not a picture").expect("writable");
    let (ok, _, err) = run_in(
        path,
        &["predict", "--model", "p", "--image", "text.png", "--device", "cpu"],
    );
    assert!(!ok && err.contains("text.png"), "{err}");
    let (ok, _, err) = run_in(
        path,
        &["evaluate", "--model", "p", "--image", "new.bmp", "--device", "cpu"],
    );
    assert!(!ok && err.contains("--images DIR"), "{err}");
    let args = ["predict", "--model", "p", "--images", "photos", "--device", "cpu"];
    let (ok, _, err) = run_in(path, &args);
    let help = "photos: the folder contains no images (PNG, JPEG, BMP), only folders of images\n  help: use one of them, \
                such as 'photos/rose'";
    assert!(!ok && err.contains(help), "{err}");
    let (ok, _, err) = run_in(path, &["train", "--images", "photos/sky", "--device", "cpu"]);
    assert!(!ok && err.contains("photos/sky"), "{err}");
    let (ok, _, err) = run_in(
        path,
        &["train", "--images", "photos", "--image-size", "0x4", "--device", "cpu"],
    );
    assert!(!ok && err.contains("HEIGHTxWIDTH"), "{err}");
}

/// Returns the first words after `FILE: ` of each line.
fn classes(out: &str) -> Vec<&str> {
    out.lines()
        .filter_map(|line| line.split_once(": ")?.1.split(' ').next())
        .collect()
}

#[test]
fn an_exported_model_runs_on_image_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    photos(path, 12);
    fs::create_dir(path.join("all")).expect("makes");
    for i in 0..7 {
        bmp(
            &path.join(format!("all/{i}.bmp")),
            [40 * (i as u8 % 2) + 10, 20, 120],
            i,
        );
    }
    let run = |line: &str| run_in(path, &line.split(' ').collect::<Vec<_>>());
    let train = "train --images photos --image-size 8 --model cnn --epochs 6 --batch 8 --out p --device cpu";
    let (ok, _, err) = run(train);
    assert!(ok, "{err}");
    let (ok, predicted, err) = run("predict --model p --images all --device cpu --batch 3");
    assert!(ok && err.contains("7 images, "), "{predicted}{err}");
    let (ok, _, err) = run("export p --out p.onnx");
    assert!(ok, "{err}");
    // The file has the preprocessing and the names of the classes.
    for batch in ["", " --batch 3"] {
        let (ok, found, err) = run(&format!("run p.onnx --images all --device cpu{batch}"));
        assert!(ok && err.contains("7 images on"), "{found}{err}");
        assert_eq!(found, predicted);
        assert!(classes(&found).iter().all(|class| ["sky", "rose"].contains(class)));
    }
    let (ok, json, _) = run("run p.onnx --images all --device cpu --json --top 2 --output-dir results");
    let first: serde_json::Value = serde_json::from_str(json.lines().next().expect("a line")).expect("JSON");
    assert!(
        ok && first["file"] == "all/0.bmp" && first["classes"].as_array().map(Vec::len) == Some(2),
        "{json}"
    );
    let probabilities = meganeura::nn::data::read_npy(path.join("results/output_0.npy")).expect("written");
    assert_eq!(probabilities.shape(), [7, 2]);
    fs::write(path.join("names.txt"), "red\nblue\n").expect("writes");
    let (ok, found, _) = run("run p.onnx --image all/1.bmp all/2.bmp --labels names.txt --bgr --device cpu");
    assert!(
        ok && classes(&found).iter().all(|class| ["red", "blue"].contains(class)),
        "{found}"
    );
    // A file with a fixed batch.
    assert!(run("export p --out fixed.onnx --batch 2").0);
    let (ok, found, err) = run("run fixed.onnx --images all --device cpu");
    assert!(ok && found == predicted, "{found}{err}");
    for (line, said) in [
        ("run fixed.onnx --images all --batch 3", "only batches of 2"),
        (
            "run p.onnx --images all --image-size 9",
            "height 9, but the model accepts only 8",
        ),
        ("run p.onnx --images photos", "only folders of images"),
        ("run p.onnx --images all --repeat 1", "--repeat"),
        ("run p.onnx --images all --input x=x.npy", "cannot be used with"),
        ("run p.onnx --input x=x.npy --bgr", "--bgr is only for --image"),
        ("run p.onnx --image p.onnx", "p.onnx: it is not a readable image"),
        ("run p.onnx --image all/1.bmp --labels missing.txt", "missing.txt"),
    ] {
        let (ok, _, err) = run(line);
        assert!(!ok && err.contains(said), "{line}: {err}");
    }
}
