//! Tests of blocks of GGUF files against the package `gguf`: see `scripts/verify-external/make_gguf_blocks.py`.

use half::f16;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use serde_json::Value;

use super::arrangement::Arrangement;
use super::convert::{blocks_bytes, to_blocks, to_f16, to_f32};
use super::element::Element;
use super::shard::{Shard, Tensor};

const WIDTH: usize = 256;
const SHAPE: [usize; 2] = [2, WIDTH];

/// A block type of GGUF files, with stored blocks and their numbers.
struct BlockFile {
    name: String,
    element: Element,
    /// Original values, if the package quantizes to this type.
    values: Option<Vec<u8>>,
    bytes: Vec<u8>,
    numbers: Vec<f32>,
}

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("bytes").as_bytes();
    let digit = |byte: u8| (byte as char).to_digit(16).expect("a digit") as u8;
    let pairs = text.as_chunks::<2>().0.iter();
    pairs.map(|&[high, low]| digit(high) << 4 | digit(low)).collect()
}

fn fixture() -> Vec<BlockFile> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/gguf/blocks.json");
    let text = std::fs::read_to_string(path).expect("a fixture");
    let json: Value = serde_json::from_str(&text).expect("json");
    let types = json["types"].as_object().expect("types").iter();
    let stored = types.map(|(name, entry)| {
        let number = entry["number"].as_u64().expect("a number") as u32;
        let numbers = hex(&entry["numbers"]);
        BlockFile {
            name: name.clone(),
            element: Element::of_gguf(number).expect(name),
            values: entry.get("values").map(hex),
            bytes: hex(&entry["bytes"]),
            numbers: numbers.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        }
    });
    stored.collect()
}

fn tensor(element: Element, bytes: &[u8]) -> Tensor<'_> {
    Tensor {
        element,
        shape: &SHAPE,
        bytes,
        arrangement: &Arrangement::Rows,
        scales: &[],
    }
}

/// Converts a tensor to blocks; returns their integers and scales.
fn packed(tensor: &Tensor, format: BlockFormat) -> (Vec<u8>, Vec<f16>) {
    let [mut integers, mut scales] = blocks_bytes(tensor, format).map(|bytes| vec![7; bytes]);
    to_blocks(tensor, format, &mut integers, &mut scales).expect("finite");
    let scales = scales.as_chunks::<2>().0.iter().map(|&b| f16::from_le_bytes(b));
    (integers, scales.collect())
}

#[test]
fn numbers_are_those_that_gguf_reads() {
    let all = fixture();
    assert_eq!(all.len(), 13);
    for stored in all {
        let mut numbers = vec![7.0; stored.numbers.len()];
        to_f32(&tensor(stored.element, &stored.bytes), false, &mut numbers);
        assert_eq!(numbers, stored.numbers, "{}", stored.name);
    }
}

#[test]
fn blocks_keep_their_integers() {
    for stored in fixture() {
        let Some(format) = stored.element.format() else {
            assert_eq!(stored.element, Element::Q2K);
            continue;
        };
        let (integers, scales) = packed(&tensor(stored.element, &stored.bytes), format);
        let found = format.dequantize(&integers, &scales);
        if !stored.name.ends_with("_K") && stored.element != Element::Iq4Xs {
            assert_eq!(found, stored.numbers, "{}", stored.name);
            continue;
        }
        // Scales are rounded to binary16, with the minima.
        let of_row = format.scales();
        for (i, (x, y)) in found.iter().zip(&stored.numbers).enumerate() {
            let minimum = if format.has_minimum() {
                scales[i / BLOCK * of_row + 1].to_f32()
            } else {
                0.0
            };
            // The largest integer, of IQ4_XS, is 127.
            let bound = ((y - minimum).abs() + minimum.abs()) * 5e-4 + 127.0 * 2f32.powi(-25);
            assert!((x - y).abs() <= bound, "{}: {x}, not {y}", stored.name);
        }
    }
}

/// Q2_K has no equivalent block format on devices, so its numbers are stored as `f16`.
#[test]
fn numbers_of_q2_k_are_rounded_to_f16() {
    let all = fixture();
    let stored = all.iter().find(|stored| stored.element == Element::Q2K).expect("Q2_K");
    let mut halves = vec![7; 2 * stored.numbers.len()];
    to_f16(&tensor(stored.element, &stored.bytes), &mut halves).expect("in range");
    let wanted = stored.numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes());
    assert_eq!(halves, wanted.collect::<Vec<u8>>());
}

#[test]
fn numbers_are_rounded_as_gguf_rounds_them() {
    let mut count = 0;
    for stored in fixture() {
        let Some(values) = stored.values else { continue };
        let format = stored.element.format().expect("blocks");
        let of_file = packed(&tensor(stored.element, &stored.bytes), format);
        let own = packed(&tensor(Element::F32, &values), format);
        assert!(own == of_file, "{}", stored.name);
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn integers_of_fewer_bits_are_bytes() {
    let without_minima = ["Q8_0", "Q5_0", "Q4_0", "IQ4_NL", "MXFP4"];
    for stored in fixture() {
        if without_minima.contains(&stored.name.as_str()) {
            let (integers, scales) = packed(&tensor(stored.element, &stored.bytes), BlockFormat::Q8_0);
            let found = BlockFormat::Q8_0.dequantize(&integers, &scales);
            assert_eq!(found, stored.numbers, "{}", stored.name);
        }
    }
}

#[test]
fn powers_of_two_that_binary16_has_not() {
    let of = |exponent: u8, pair: u8| {
        let block: Vec<u8> = [&[exponent][..], &[pair; BLOCK / 2]].concat();
        let bytes = block.repeat(SHAPE[0] * WIDTH / BLOCK);
        let tensor = tensor(Element::Mxfp4, &bytes);
        let [mut integers, mut scales] = blocks_bytes(&tensor, BlockFormat::Q8_0).map(|bytes| vec![7; bytes]);
        let outcome = to_blocks(&tensor, BlockFormat::Q8_0, &mut integers, &mut scales);
        outcome.map(|()| (integers, scales))
    };
    assert_eq!(of(200, 0x11), Err(0), "too large");
    let (_, scales) = of(90, 0x11).expect("very small");
    assert!(scales.iter().all(|&byte| byte == 0));
    assert!(of(0, 0x77).is_ok() && of(1, 0x77).is_ok());
}

#[test]
fn a_released_tensor_can_be_read_again() {
    let numbers: Vec<u8> = (0..3 << 20).map(|i: u32| (i % 251) as u8).collect();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![numbers.len()], &numbers);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    safetensors::serialize_to_file([("a", view.expect("a tensor"))], None, &path).expect("written");
    let shard = Shard::open(path).expect("a file");
    let stored = |shard: &Shard| shard.map[shard.tensors["a"].range.clone()].to_vec();
    assert_eq!(shard.stored_bytes("a"), 3 << 20);
    assert!(stored(&shard) == numbers);
    shard.release("a");
    shard.release("another");
    assert!(stored(&shard) == numbers);
}
