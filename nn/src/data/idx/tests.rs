use std::io::Write;

use flate2::{Compression, write::GzEncoder};

use super::*;
use meganeura_core::random::SplitMix64;

fn idx(code: u8, dims: &[u32], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, code, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    bytes.extend(payload);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn error(bytes: &[u8]) -> DataError {
    parse_idx(bytes, "file").unwrap_err()
}

/// Returns a small image file of shape [2, 3, 2].
fn images() -> Vec<u8> {
    idx(0x08, &[2, 3, 2], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255])
}

#[test]
fn plain_and_gzip_images_are_read() {
    for bytes in [images(), gzip(&images())] {
        let array = parse_idx(&bytes, "file").unwrap();
        assert_eq!(array.shape(), [2, 3, 2]);
        assert_eq!(array.dtype(), IdxType::U8);
        assert_eq!(array.data(), &IdxData::U8(vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255]));
    }
}

#[test]
fn every_element_type_is_big_endian() {
    let cases: [(u8, Vec<u8>, IdxData); 6] = [
        (0x08, vec![1, 200], IdxData::U8(vec![1, 200])),
        (0x09, vec![1, 0xff], IdxData::I8(vec![1, -1])),
        (0x0b, vec![1, 2, 0xff, 0xfe], IdxData::I16(vec![258, -2])),
        (
            0x0c,
            vec![0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff],
            IdxData::I32(vec![256, -1]),
        ),
        (
            0x0d,
            [1.5_f32.to_be_bytes(), (-0.25_f32).to_be_bytes()].concat(),
            IdxData::F32(vec![1.5, -0.25]),
        ),
        (
            0x0e,
            [1.5_f64.to_be_bytes(), 1e300_f64.to_be_bytes()].concat(),
            IdxData::F64(vec![1.5, 1e300]),
        ),
    ];
    let names = ["u8", "i8", "i16", "i32", "f32", "f64"];
    for ((code, payload, expected), name) in cases.into_iter().zip(names) {
        let array = parse_idx(&idx(code, &[2], &payload), "file").unwrap();
        assert_eq!(array.dtype().to_string(), name);
        assert_eq!(array.dtype().size() * 2, payload.len());
        let as_f32 = array.data().to_f32();
        assert_eq!(as_f32.len(), 2);
        let (shape, data) = array.into_parts();
        assert_eq!((shape, data), (vec![2], expected));
    }
}

#[test]
fn conversion_to_f32() {
    assert_eq!(IdxData::I32(vec![16_777_217, -3]).to_f32(), [16_777_216.0, -3.0]);
    assert_eq!(IdxData::F64(vec![1e300, 0.5]).to_f32(), [f32::INFINITY, 0.5]);
    assert_eq!(IdxData::I8(vec![-128]).to_f32(), [-128.0]);
}

#[test]
fn large_arrays_take_several_steps() {
    let payload: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
    for bytes in [idx(8, &[300_000], &payload), gzip(&idx(8, &[300_000], &payload))] {
        let array = parse_idx(&bytes, "file").unwrap();
        assert_eq!(array.data(), &IdxData::U8(payload.clone()));
    }
}

#[test]
fn something_else_is_not_idx() {
    assert_eq!(
        error(b"<html></html>").to_string(),
        "file: not an IDX file: expected the first two bytes 00 00, found 3c 68; download it \
         again (a common cause is a web page saved under the file's name)"
    );
    assert!(matches!(error(&gzip(b"hello")), DataError::NotIdx { .. }));
}

#[test]
fn unknown_type_codes_are_refused() {
    for code in (0..=255).filter(|code| IdxType::from_code(*code).is_none()) {
        let error = error(&idx(code, &[1], &[0; 8]));
        assert!(matches!(error, DataError::IdxType { code: found, .. } if found == code));
    }
}

#[test]
fn empty_shapes_are_refused() {
    for dims in [&[][..], &[0], &[5, 0, 5], &[0, u32::MAX, u32::MAX, u32::MAX]] {
        let error = error(&idx(8, dims, &[]));
        assert!(matches!(error, DataError::IdxEmpty { .. }), "{error}");
    }
}

#[test]
fn every_cut_of_a_plain_file_is_truncated() {
    let whole = images();
    for len in 0..whole.len() {
        let error = error(&whole[..len]);
        let DataError::Truncated { expected, found, .. } = error else {
            panic!("{len}: {error}");
        };
        // Before the header was read, only the header is expected.
        let known = match len {
            0..4 => 4,
            4..16 => 16,
            _ => 28,
        };
        assert_eq!((expected, found), (known, len as u64));
    }
    assert_eq!(
        error(&whole[..20]).to_string(),
        "file: truncated: expected 28 bytes (uncompressed), found 20; download or copy the file \
         again"
    );
}

#[test]
fn every_cut_of_a_gzip_file_is_an_error() {
    let whole = gzip(&images());
    for len in 0..whole.len() {
        let error = error(&whole[..len]);
        // Without its two magic bytes it is no longer gzip.
        let expected = match len {
            0 | 1 => matches!(error, DataError::Truncated { .. }),
            _ => matches!(error, DataError::Gzip { .. }),
        };
        assert!(expected, "{len}: {error}");
    }
}

#[test]
fn too_short_or_long_payload_inside_gzip() {
    let whole = images();
    let short = error(&gzip(&whole[..27]));
    assert!(
        matches!(
            short,
            DataError::Truncated {
                expected: 28,
                found: 27,
                ..
            }
        ),
        "{short}"
    );
    let long = error(&gzip(&[&whole[..], &[0; 100]].concat()));
    assert!(
        matches!(
            long,
            DataError::TrailingBytes {
                expected: 28,
                found: 29,
                ..
            }
        ),
        "{long}"
    );
}

#[test]
fn trailing_bytes_are_refused() {
    let error = error(&[images(), vec![1, 2, 3]].concat());
    assert_eq!(
        error.to_string(),
        "file: expected 28 bytes (uncompressed), found 31 or more; the header or the file is \
         damaged, download it again"
    );
}

#[test]
fn a_gzip_bomb_is_not_unpacked() {
    let bomb = gzip(&[idx(8, &[10], &[]), vec![0; 64 << 20]].concat());
    let error = error(&bomb);
    assert!(
        matches!(
            error,
            DataError::TrailingBytes {
                expected: 18,
                found: 19,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn wrong_checksum_length_and_rubbish_after_gzip_are_refused() {
    let good = gzip(&images());
    // The last eight bytes are the CRC-32 and the length.
    for at in good.len() - 8..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(matches!(error(&bad), DataError::Gzip { .. }), "{at}");
    }
    let message = error(&[&good[..], b"rubbish"].concat()).to_string();
    assert!(message.starts_with("file: damaged gzip data: "), "{message}");
    assert!(message.ends_with("; download or copy the file again"), "{message}");
}

#[test]
fn gzip_members_are_joined() {
    let whole = images();
    let (front, back) = whole.split_at(9);
    let joined = [gzip(front), gzip(back)].concat();
    assert_eq!(
        parse_idx(&joined, "file").unwrap(),
        parse_idx(&images(), "file").unwrap()
    );
}

#[test]
fn absurd_sizes_are_refused_before_anything_is_allocated() {
    let max = u32::MAX;
    for dims in [&[max, max, max][..], &[max, max], &[max; 255], &[(1 << 30) + 1]] {
        for bytes in [idx(8, dims, &[]), gzip(&idx(8, dims, &[]))] {
            let error = error(&bytes);
            assert!(matches!(error, DataError::IdxTooLarge { .. }), "{error}");
        }
    }
    // The limit counts bytes, not elements.
    assert!(matches!(
        error(&idx(0x0e, &[(1 << 27) + 1], &[])),
        DataError::IdxTooLarge { .. }
    ));
    // Just within the limit, but missing.
    assert!(matches!(error(&idx(8, &[1 << 30], &[0])), DataError::Truncated { .. }));
    assert!(matches!(
        error(&gzip(&idx(8, &[1 << 30], &[0]))),
        DataError::Truncated { .. }
    ));
}

#[test]
fn files_are_read_whatever_their_name() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in [("plain.gz", images()), ("packed", gzip(&images()))] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read_idx(&path).unwrap().shape(), [2, 3, 2]);
    }
}

#[test]
fn unreadable_paths_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent");
    let message = read_idx(&absent).unwrap_err().to_string();
    assert!(
        message == format!("{}: the file cannot be read", absent.display()),
        "{message}"
    );
    // A folder; opening one succeeds on some systems.
    assert!(matches!(read_idx(dir.path()), Err(DataError::Io { .. })));
}

/// Makes one to four random edits: flips, overwrites, cuts, insertions, removals.
fn mutate(rng: &mut SplitMix64, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.next_u64() % 4 {
        let at = rng.next_u64() as usize % (bytes.len() + 1);
        let value = rng.next_u64() as u8;
        match rng.next_u64() % 6 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, value),
            _ if at == bytes.len() => bytes.push(value),
            2 => drop(bytes.remove(at)),
            3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][value as usize % 5],
            4 => bytes[at] = value,
            _ => bytes[at] ^= 1 << (value % 8),
        }
    }
}

#[test]
fn random_damage_never_panics_and_never_yields_a_wrong_size() {
    let floats: Vec<u8> = (0..30).flat_map(|i| (i as f32).to_be_bytes()).collect();
    let seeds = [
        images(),
        gzip(&images()),
        idx(0x0d, &[5, 6], &floats),
        gzip(&idx(0x0d, &[5, 6], &floats)),
    ];
    let mut rng = SplitMix64::new(2024);
    let mut accepted = 0;
    for round in 0..20_000 {
        let mut bytes = seeds[round % seeds.len()].clone();
        mutate(&mut rng, &mut bytes);
        // Errors must be printable too.
        match parse_idx(&bytes, "fuzz") {
            Err(error) => assert!(error.to_string().starts_with("fuzz: "), "{error}"),
            Ok(array) => {
                accepted += 1;
                let elements: usize = array.shape().iter().product();
                assert_eq!(array.data().to_f32().len(), elements);
                // Deflate cannot expand by more than 1032 to 1.
                assert!(elements * array.dtype().size() <= bytes.len() * 1032);
            }
        }
    }
    // Damage to uncompressed elements is not detected; most other damage is.
    assert!((500..15_000).contains(&accepted), "{accepted}");
}
