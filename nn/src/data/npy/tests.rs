use std::io::Write;

use super::*;

/// Returns the bytes that `numpy.save` writes, in version 1 unless the header is too long.
pub(in crate::data) fn npy(descr: &str, fortran: bool, shape: &str, elements: &[u8]) -> Vec<u8> {
    let fortran = if fortran { "True" } else { "False" };
    with_header(
        &format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}"),
        elements,
    )
}

fn with_header(header: &str, elements: &[u8]) -> Vec<u8> {
    let mut header = header.to_owned();
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(elements);
    bytes
}

fn parsed(bytes: &[u8]) -> NpyArray {
    parse_npy(bytes, "a.npy").expect("valid")
}

#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let message = parse_npy(bytes, "a.npy").expect_err("refused").to_string();
    for part in ["a.npy"].iter().chain(parts) {
        assert!(message.contains(part), "'{part}' in: {message}");
    }
}

#[test]
fn every_element_type_in_either_byte_order() {
    /// Checks that -2, 1 and 3 (or 0, 1 and 3) of a type are read correctly in both byte orders.
    macro_rules! check {
        ($code:expr, $dtype:ident, $type:ty, $first:expr) => {
            let values = [$first as $type, 1 as $type, 3 as $type];
            let little: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let big: Vec<u8> = values.iter().flat_map(|v| v.to_be_bytes()).collect();
            for (order, bytes) in [("<", &little), (">", &big)] {
                let array = parsed(&npy(&format!("{order}{}", $code), false, "(3,)", bytes));
                assert_eq!((array.dtype(), array.shape()), (NpyType::$dtype, &[3][..]));
                assert_eq!(array.to_f32(), [$first as f32, 1.0, 3.0]);
                assert_eq!(array.to_i64().unwrap(), [$first as i64, 1, 3]);
            }
        };
    }
    check!("i2", I16, i16, -2);
    check!("i4", I32, i32, -2);
    check!("i8", I64, i64, -2);
    check!("u2", U16, u16, 0);
    check!("u4", U32, u32, 0);
    check!("u8", U64, u64, 0);
    check!("f4", F32, f32, -2.0);
    check!("f8", F64, f64, -2.0);
    let halves: Vec<u8> = [-2.0, 1.0, 3.0]
        .iter()
        .flat_map(|&v| f16::from_f32(v).to_le_bytes())
        .collect();
    assert_eq!(parsed(&npy("<f2", false, "(3,)", &halves)).to_f32(), [-2.0, 1.0, 3.0]);
    assert_eq!(parsed(&npy("|i1", false, "(2,)", &[254, 3])).to_f32(), [-2.0, 3.0]);
    assert_eq!(parsed(&npy("|u1", false, "(2,)", &[254, 3])).to_f32(), [254.0, 3.0]);
    assert_eq!(parsed(&npy("|b1", false, "(2,)", &[0, 1])).to_i64().unwrap(), [0, 1]);
}

#[test]
fn fortran_order_becomes_row_major() {
    let columns: Vec<u8> = vec![0, 10, 1, 11, 2, 12];
    let array = parsed(&npy("|u1", true, "(2, 3)", &columns));
    assert_eq!(array.to_f32(), [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
    // Element (i, j, k) of a [2, 3, 4] is 100 i + 10 j + k, the first index fastest in the file.
    let mut file = Vec::new();
    for k in 0..4_i32 {
        for j in 0..3 {
            for i in 0..2 {
                file.extend((100 * i + 10 * j + k).to_le_bytes());
            }
        }
    }
    let array = parsed(&npy("<i4", true, "(2, 3, 4)", &file));
    let expected: Vec<i64> = (0..24).map(|n| n / 12 * 100 + n / 4 % 3 * 10 + n % 4).collect();
    assert_eq!(array.to_i64().unwrap(), expected);
    for empty in ["(3, 0)", "(0, 3)", "(4294967295, 0, 4294967295)"] {
        assert!(parsed(&npy("<i4", true, empty, &[])).to_f32().is_empty());
    }
}

#[test]
fn headers_of_all_versions_and_spellings() {
    let v1 = npy("|u1", false, "(2,)", &[1, 2]);
    let length = u16::from_le_bytes([v1[8], v1[9]]);
    for major in [2, 3] {
        let mut bytes = v1[..6].to_vec();
        bytes.extend([major, 0]);
        bytes.extend(u32::from(length).to_le_bytes());
        bytes.extend(&v1[10..]);
        assert_eq!(parsed(&bytes).to_f32(), [1.0, 2.0]);
    }
    for header in [
        r#"{"shape":(2L,),"descr":"|u1","fortran_order":False}"#,
        "  { 'fortran_order' : False , 'shape' : ( 2 , 1 ) , 'descr' : 'u1' , }  ",
    ] {
        assert_eq!(parsed(&with_header(header, &[1, 2])).to_f32(), [1.0, 2.0]);
    }
    let number = parsed(&npy("<f4", false, "()", &7_f32.to_le_bytes()));
    assert_eq!((number.shape(), number.to_f32()), (&[][..], vec![7.0]));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&v1).unwrap();
    assert_eq!(parsed(&encoder.finish().unwrap()).to_f32(), [1.0, 2.0]);
}

#[test]
fn other_files_types_and_damaged_headers_are_refused() {
    refused(b"", &["truncated"]);
    refused(b"x,y,label\n1,2,3\n", &["not a .npy file", "numpy.save"]);
    let mut version = npy("|u1", false, "(1,)", &[1]);
    version[6] = 9;
    refused(&version, &["version 9"]);
    for (descr, what) in [
        ("|O", "Python objects"),
        ("<U0", "text"),
        ("<c8", "complex"),
        ("<f16", "float16 to float64"),
        ("", "float16"),
        ("é", "float16"),
    ] {
        refused(&npy(descr, false, "(1,)", &[1]), &["cannot be read", what]);
    }
    let records = "{'descr': [('a', '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (1,), }";
    refused(&with_header(records, &[0; 8]), &["records"]);
    for header in [
        "",
        "{",
        "{'descr'",
        "{'descr': '<f4'",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} and more",
        "{'descr': [('a', '<f4', 'fortran_order': False, 'shape': (1,)}",
    ] {
        refused(&with_header(header, &[0; 4]), &["header is damaged"]);
    }
    let ones = format!("({})", "1,".repeat(65));
    refused(&npy("|u1", false, &ones, &[1]), &["64 dimensions"]);
    let mut long = b"\x93NUMPY\x02\x00".to_vec();
    long.extend(u32::MAX.to_le_bytes());
    refused(&long, &["4294967295 bytes for itself"]);
}

#[test]
fn sizes_are_checked_before_anything_is_allocated() {
    refused(
        &npy("<f8", false, "(4294967296, 4294967296)", &[]),
        &["at most 4294967296 bytes"],
    );
    refused(&npy("<f8", true, "(18446744073709551615, 2)", &[]), &["at most"]);
    refused(&npy("<f8", false, "(536870912,)", &[0; 8]), &["truncated"]);
    refused(&npy("<f4", false, "(3,)", &[0; 11]), &["truncated", "download or copy"]);
    refused(&npy("<f4", false, "(3,)", &[0; 13]), &["expected"]);
    refused(&npy("<f4", false, "(0, 9)", &[0; 4]), &["expected"]);
}

#[test]
fn only_whole_numbers_become_whole_numbers() {
    let bad = |descr: &str, bytes: &[u8]| {
        let array = parsed(&npy(descr, false, "(1,)", bytes));
        array.to_i64().expect_err("not whole").to_string()
    };
    assert!(bad("<f4", &1.5_f32.to_le_bytes()).contains("element 0 is 1.5"));
    assert!(bad("<f4", &f32::NAN.to_le_bytes()).contains("NaN"));
    assert!(bad("<f8", &1e300_f64.to_le_bytes()).contains("not a whole number"));
    assert!(bad("<u8", &u64::MAX.to_le_bytes()).contains("not a whole number"));
}

/// Parsing does not panic for any truncation or flipped bit.
#[test]
fn no_damage_panics() {
    let bytes = npy("<f4", true, "(2, 3)", &[7; 24]);
    for end in 0..bytes.len() {
        assert!(parse_npy(&bytes[..end], "cut").is_err());
    }
    for bit in 0..8 * bytes.len() {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let _ = parse_npy(&damaged, "flipped");
    }
}
