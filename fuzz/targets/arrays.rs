//! Target: arrays of data sets in the formats NPY, NPZ and IDX. Inputs that are not an archive are also wrapped in one.
#![no_main]

use std::io::Write as _;

use meganeura_fuzz::{binary, in_file, target};
use meganeura_nn::data::{npz_names, parse_idx, parse_npy, parse_npy_labels, read_npz, read_npz_labels};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn npy(kind: &str, shape: &str, bytes: usize) -> Vec<u8> {
    let mut head = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    head += &" ".repeat(117 - head.len());
    let head = format!("{head}\n");
    let length = (head.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], head.as_bytes(), &vec![65; bytes]].concat()
}

fn npz(array: &[u8], method: CompressionMethod) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    let mut archive = ZipWriter::new(&mut file);
    for name in ["x.npy", "y.npy"] {
        let options = SimpleFileOptions::default().compression_method(method);
        let written = archive.start_file(name, options).is_ok() && archive.write_all(array).is_ok();
        assert!(written, "memory has room");
    }
    archive.finish().expect("memory has room");
    file.into_inner()
}

fn seeds() -> Vec<Vec<u8>> {
    let idx = [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4][..], &[7; 24]].concat();
    vec![
        npy("<f4", "(3, 4)", 48),
        npy("|u1", "(2, 3, 4)", 24),
        npy("<U4", "(3,)", 48),
        npy(">i8", "()", 8),
        npy("|S5", "(4,)", 20),
        npz(&npy("<f8", "(3, 2)", 48), CompressionMethod::Stored),
        npz(&npy("<f2", "(3, 2)", 12), CompressionMethod::Deflated),
        idx,
    ]
}

target!(seeds: seeds, change: binary::with_text, |data| {
    let _ = parse_npy(data, "x.npy");
    let _ = parse_npy_labels(data, "x.npy");
    let _ = parse_idx(data, "x.idx");
    let archive = match data.starts_with(b"PK") {
        true => data.to_vec(),
        false => npz(data, CompressionMethod::Deflated),
    };
    in_file("arrays.npz", &archive, |path| {
        let _ = npz_names(path);
        let _ = read_npz(path, "x");
        let _ = read_npz_labels(path, "y");
    });
});
