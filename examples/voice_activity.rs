//! Speech detection in a recording, with a third-party model: silero-vad, as an ONNX file.
//!
//! ```sh
//! pip download --no-deps silero-vad==6.2.3 && unzip silero_vad-*.whl 'silero_vad/data/silero_vad_openvino_16k.onnx'
//! cargo run --release --example voice_activity -- silero_vad/data/silero_vad_openvino_16k.onnx recording.wav
//! ```
//!
//! The recording has one channel, 16000 samples a second and 16 bits a sample. The source package of the model has one of 169 s of
//! speech, in which this program finds the same 70 stretches as a loop over ONNX Runtime:
//!
//! ```sh
//! pip download --no-deps --no-binary :all: silero-vad==6.2.3 && tar xzf silero_vad-*.tar.gz
//! cargo run --release --example voice_activity -- silero_vad/data/silero_vad_openvino_16k.onnx \
//!     silero_vad-6.2.3/examples/c++/aepyx.wav
//! ```

use std::error::Error;
use std::process::ExitCode;

use meganeura::Builder;
use meganeura::onnx::{Dims, Model, Runner, Tensor};

/// Sampling rate of the recording, in samples per second.
const RATE: usize = 16_000;

/// Number of new samples in a step, and number of samples of the previous step that the model sees again.
const STEP: usize = 512;
const CONTEXT: usize = 64;

/// Probability above which a step counts as speech.
const THRESHOLD: f32 = 0.5;

fn main() -> ExitCode {
    match find_speech() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn find_speech() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, recording] = arguments.as_slice() else {
        println!("usage: voice_activity MODEL.onnx RECORDING.wav (see the head of this file for the model)");
        return Ok(());
    };
    let samples = read_wav(recording)?;
    let model = Model::open(model)?;
    let mut runner = Runner::new(&model, &Dims::new(), &Builder::new())?;

    let mut state = Tensor::f32(&[2, 1, 128], vec![0.0; 256]);
    let mut window = vec![0.0; CONTEXT + STEP];
    let mut begin = None;
    let mut heard = false;
    let seconds = |step: usize| (step * STEP) as f64 / RATE as f64;
    let steps = samples.chunks(STEP);
    let count = steps.len();
    for (step, chunk) in steps.enumerate() {
        window.copy_within(STEP.., 0);
        window[CONTEXT..].fill(0.0);
        window[CONTEXT..CONTEXT + chunk.len()].copy_from_slice(chunk);
        let mut results = runner
            .run(&[Tensor::f32(&[1, CONTEXT + STEP], window.clone()), state])?
            .into_iter();
        let probability = results.next().map_or(0.0, |p| p.to_f32()[0]);
        state = results.next().ok_or("the model gives no state")?;
        match (begin, probability > THRESHOLD) {
            (None, true) => {
                begin = Some(step);
                heard = true;
            }
            (Some(first), false) => {
                println!("speech from {:.2} s to {:.2} s", seconds(first), seconds(step));
                begin = None;
            }
            _ => {}
        }
    }
    if let Some(first) = begin {
        println!("speech from {:.2} s to {:.2} s", seconds(first), seconds(count));
    }
    let length = samples.len() as f64 / RATE as f64;
    let found = if heard { "" } else { ", without speech" };
    println!("{length:.2} s of sound in {count} steps{found}");
    Ok(())
}

/// Reads the samples of a recording as numbers from -1 to 1.
fn read_wav(path: &str) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut reader = hound::WavReader::open(path)?;
    let spec = reader.spec();
    if (spec.channels, spec.sample_rate, spec.bits_per_sample) != (1, RATE as u32, 16) {
        return Err(format!("{path}: one channel, {RATE} Hz and 16 bits are needed, and it is {spec:?}").into());
    }
    reader
        .samples::<i16>()
        .map(|sample| Ok(f32::from(sample?) / 32768.0))
        .collect()
}
