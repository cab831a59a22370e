//! Tests of invalid sizes, sessions and files.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_core::random::SplitMix64;
use meganeura_core::{Graph, NodeId};
use meganeura_cpu::CpuDevice;
use meganeura_nn::data::{CsvOptions, Header, parse_csv, parse_npy};
use meganeura_nn::layers::{Conv2dConfig, ConvNorm, SelfAttentionConfig};
use meganeura_nn::models::{LlamaConfig, ResNetConfig, UnetConfig, VitConfig};

const SIZES: [usize; 9] = [0, 1, 2, 3, 8, 1 << 31, 1 << 33, 1 << 62, usize::MAX];

fn build(what: &str, rank: usize, model: impl FnOnce(&mut Graph, NodeId) -> NodeId) {
    let mut g = Graph::new();
    let shape = [2, 3, 8, 8];
    let x = match rank {
        1 => g.input_u32("x", &[2, 8]),
        rank => g.input("x", &shape[4 - rank..]),
    };
    let y = model(&mut g, x);
    g.set_outputs(vec![y]);
    // Neither valid nor invalid sizes panic, and errors have messages.
    if let Err(error) = g.verify() {
        assert!(!error.to_string().is_empty(), "{what}");
    }
}

#[test]
fn models_of_any_size_are_built_or_refused() {
    let mut rng = SplitMix64::new(5);
    let mut pick = || SIZES[rng.below(SIZES.len())];
    for _ in 0..200 {
        let [a, b, c, d] = [pick(), pick(), pick(), pick()];
        let what = format!("{a} {b} {c} {d}");
        build(&what, 4, |g, x| {
            VitConfig::new([3, a, b], c, d).build(g, "m").forward(g, x)
        });
        build(&what, 4, |g, x| {
            VitConfig::new([a, 8, 8], 4, 10)
                .size(b, 1, c, d)
                .build(g, "m")
                .forward(g, x)
        });
        build(&what, 4, |g, x| {
            let config = ResNetConfig::resnet50(a).width(b).channels(c).depths([1; 4]);
            config.build(g, "m").forward(g, x)
        });
        build(&what, 4, |g, x| {
            UnetConfig::new(a, b)
                .width(c)
                .depth(d.min(70))
                .build(g, "m")
                .forward(g, x)
        });
        build(&what, 1, |g, x| {
            let config = LlamaConfig {
                layers: 1,
                dim: a,
                heads: b,
                kv_heads: c,
                hidden: d,
                ..LlamaConfig::small(17)
            };
            config.build(g, "m").forward(g, x)
        });
        build(&what, 3, |g, x| {
            let config = SelfAttentionConfig::new(8, a).kv_heads(b).head_dim(c).rope(10.0);
            config.window(d.min(1 << 31) as u32).build(g, "m").forward(g, x)
        });
    }
}

#[test]
fn folding_refuses_the_layers_of_another_model() {
    let layer = |g: &mut Graph, conv: usize, norm: usize| {
        let conv = Conv2dConfig::new(1, conv, [1, 1]);
        ConvNorm::new(g, ["conv", "bn"], conv, norm, false)
    };
    let mut g = Graph::new();
    // The number of weights fits no whole number of channels, and both are used separately.
    let x = g.input("x", &[2, 7, 3, 3]);
    let weight = g.parameter("conv.weight", &[7, 1, 1, 1]);
    let norm = meganeura_nn::layers::BatchNorm::new(&mut g, "bn", 4);
    let part = g.slice_axis(x, 1, 0, 4);
    let y = norm.forward(&mut g, part);
    let (a, b) = (g.sum_all(y), g.sum_all(weight));
    let loss = g.add(a, b);
    g.set_outputs(vec![loss]);
    let device = Arc::new(CpuDevice::new(1));
    let (mut session, _) = Builder::on(device).build(&g).expect("a session");
    let folded = layer(&mut Graph::new(), 7, 7).folded(&mut session);
    let message = folded.expect_err("they do not fit").to_string();
    assert!(
        message.contains("7 weights") && message.contains("4 channels"),
        "{message}"
    );
}

/// Returns a file with some bytes replaced, removed or repeated.
fn damaged(bytes: &[u8], rng: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + rng.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.below(bytes.len());
        match rng.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, b"0123456789,'\"(){}[]<>\n\r\\\xff\xef"[rng.below(25)]),
            3 => bytes[at] = rng.next_u64() as u8,
            _ => {
                let end = (at + rng.below(20)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn damaged_files_are_read_or_refused() {
    let mut rng = SplitMix64::new(9);
    let files = [
        npy("<f4", "False", "(3, 4)", &[1; 48]),
        npy(">i8", "True", "(2, 3)", &[7; 48]),
        npy("|b1", "False", "()", &[1]),
        npy("<f2", "True", "(2, 0, 18446744073709551615)", &[]),
    ];
    for file in &files {
        assert!(parse_npy(file, "file").is_ok(), "{}", String::from_utf8_lossy(file));
        for _ in 0..3000 {
            match parse_npy(&damaged(file, &mut rng), "file") {
                Ok(array) => {
                    let numbers = array.to_f32().len();
                    assert_eq!(
                        numbers,
                        array.shape().iter().fold(1, |n: usize, &d| n.saturating_mul(d))
                    );
                    let _ = array.to_i64();
                }
                Err(error) => assert!(error.to_string().contains("file"), "{error}"),
            }
        }
    }
    let tables: [&[u8]; 3] = [
        b"a,b,kind\n1,2.5,x\n3,\"4\",y\n5,6,x\n",
        b"\xef\xbb\xbf1,2,0\r\n3,4,1\r\n\r\n5,6,0\r\n",
        b"\"a\nb\",c,d\n1,2,3\n4,5,\"6\"\n",
    ];
    for table in tables {
        for header in [Header::Auto, Header::Yes, Header::No] {
            let options = CsvOptions {
                header,
                ..CsvOptions::default()
            };
            for _ in 0..1000 {
                let bytes = damaged(table, &mut rng);
                match parse_csv(&bytes[..], "file", &options) {
                    Ok(table) => assert_eq!(table.feature_names.len(), table.data.feature_shape()[0]),
                    Err(error) => assert!(error.to_string().contains("file"), "{error}"),
                }
            }
        }
    }
}
