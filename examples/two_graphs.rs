//! Text generation by a language model with two graphs: one reads the whole prompt, the other appends token after token.
//!
//! The weights are random, and so is the text; the example shows how keys and values get from one graph to the other. `meganeura
//! generate` and `meganeura::llm::Generator` do all this for checkpoints.
//!
//! `cargo run --release --example two_graphs`

use meganeura::nn::models::{KV_POS, LlamaConfig, LogitsOf, TOKENS, kv_cache_names};
use meganeura::{build_inference_session, profiler};

const VOCAB: usize = 50;
const CAPACITY: usize = 64;
const PROMPT: [u32; 7] = [3, 14, 15, 9, 26, 5, 35];

fn most_likely(logits: &[f32]) -> u32 {
    let best = (0u32..).zip(logits).max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(token, _)| token)
}

pub(crate) fn main() -> meganeura::Result<()> {
    let _trace = profiler::from_environment()?;
    let model = LlamaConfig::small(VOCAB);
    // Equal seeds and names give both sessions the same weights.
    let mut prefill = build_inference_session(&model.prefill_graph(PROMPT.len()));
    prefill.initialize_parameters(1);
    let mut decode = build_inference_session(&model.decode_graph(&[], 1, CAPACITY, LogitsOf::AllRows));
    decode.initialize_parameters(1);

    prefill.set_input_u32(TOKENS, &PROMPT);
    prefill.step();
    let mut token = most_likely(&prefill.read_output(VOCAB));
    let written = PROMPT.len() * model.kv_width();
    for (output, name) in (1..).zip((0..model.layers).flat_map(kv_cache_names)) {
        // Unwritten rows are never read, whatever they contain.
        let mut rows = vec![f32::NAN; CAPACITY * model.kv_width()];
        prefill.try_read_output_by_index(output, &mut rows[..written])?;
        decode.upload_param(&name, &rows);
    }

    let mut text = PROMPT.to_vec();
    while text.len() < 24 {
        decode.set_input_u32(TOKENS, &[token]);
        decode.set_input_u32(KV_POS, &[text.len() as u32]);
        decode.step();
        text.push(token);
        token = most_likely(&decode.read_output(VOCAB));
    }
    println!("{text:?}");

    // The same by reading the whole text again for each token.
    let mut again = PROMPT.to_vec();
    while again.len() < text.len() {
        let mut session = build_inference_session(&model.prefill_graph(again.len()));
        session.initialize_parameters(1);
        session.set_input_u32(TOKENS, &again);
        session.step();
        again.push(most_likely(&session.read_output(VOCAB)));
    }
    assert_eq!(text, again, "a cache changes nothing but the time");
    Ok(())
}
