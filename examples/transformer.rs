//! A language model of the Llama family that learns a few lines of text character by character, and then generates text.
//!
//! `cargo run --release --example transformer`

use meganeura::nn::models::{LlamaConfig, TARGETS, TOKENS, language_model};
use meganeura::{Adam, GradientClip, Graph, ParameterGroup, Update, build_inference_session, build_session, profiler};

const TEXT: &str = "\
the sun came up over the hill, and the hill was green.
the rain came down over the hill, and the hill was wet.
the wind came in over the sea, and the sea was grey.
the moon came up over the sea, and the sea was still.
";
const BATCH: usize = 8;
const ROWS: usize = 32;
const STEPS: usize = 200;

fn main() -> meganeura::Result<()> {
    let _trace = profiler::from_environment()?;
    // Every character in the text is a token.
    let mut letters: Vec<char> = TEXT.chars().collect();
    letters.sort_unstable();
    letters.dedup();
    let id = |c: char| letters.iter().position(|&l| l == c).map(|i| i as u32);
    let text: Vec<u32> = TEXT.chars().filter_map(id).collect();

    let config = LlamaConfig {
        vocab: letters.len(),
        dim: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        hidden: 172,
        ..LlamaConfig::small(letters.len())
    };
    let training = language_model(BATCH, ROWS, |g, tokens| config.build(g, "").forward(g, tokens));
    let mut session = build_session(&training);
    session.initialize_parameters(0);
    let update = Update::new(Adam::adamw(3e-3, 0.05))
        .clip(GradientClip::Norm(1.0))
        .group(ParameterGroup::new(["*norm.weight", "*layernorm.weight"]).weight_decay(0.0));
    session.set_optimizer(update);
    println!("{} characters, {} of them different", text.len(), letters.len());
    println!("{}", session.memory_summary());

    let (mut tokens, mut targets) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        tokens.clear();
        targets.clear();
        for row in 0..BATCH {
            // Windows from the whole text; a step of 37 does not match any period of it.
            let start = (step * BATCH + row) * 37 % (text.len() - ROWS);
            tokens.extend_from_slice(&text[start..start + ROWS]);
            targets.extend_from_slice(&text[start + 1..start + ROWS + 1]);
        }
        session.set_input_u32(TOKENS, &tokens);
        session.set_input_u32(TARGETS, &targets);
        session.step();
        if step % 40 == 0 || step + 1 == STEPS {
            println!("step {step:>3}: loss {:.3}", session.read_loss());
        }
    }

    // The same model, forward only, for one row of text.
    let mut g = Graph::new();
    let tokens = g.input_u32(TOKENS, &[1, ROWS]);
    let logits = config.build(&mut g, "").forward(&mut g, tokens);
    g.set_outputs(vec![logits]);
    let mut model = build_inference_session(&g);
    model.try_copy_weights_from(&mut session)?;
    let mut written: Vec<u32> = "the ".chars().filter_map(id).collect();
    let mut logits = vec![0.0; ROWS * letters.len()];
    while written.len() < 60 {
        // The last letter does not see later positions, so their values do not matter.
        let seen = &written[written.len().saturating_sub(ROWS)..];
        let mut window = seen.to_vec();
        window.resize(ROWS, 0);
        model.set_input_u32(TOKENS, &window);
        model.step();
        model.read_output_by_index(0, &mut logits);
        let row = &logits[(seen.len() - 1) * letters.len()..seen.len() * letters.len()];
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        written.extend(best.map(|i| i as u32));
    }
    let written: String = written.iter().map(|&i| letters[i as usize]).collect();
    println!("{written}");
    Ok(())
}
