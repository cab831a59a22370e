//! A U-Net that learns to find squares and discs in noise: a class for every pixel, with a custom training loop.
//!
//! `cargo run --release --example segmentation`

use meganeura::nn::models::{FEATURES, LABELS, UnetConfig, segmentation};
use meganeura::random::SplitMix64;
use meganeura::{Adam, build_inference_session, build_session, profiler};

const BATCH: usize = 16;
const SIZE: usize = 24;
const CLASSES: usize = 3;
const STEPS: usize = 120;

/// Draws images with a square (class 1) or a disc (class 2) each, and the class of every pixel.
fn draw(rng: &mut SplitMix64, images: &mut Vec<f32>, classes: &mut Vec<u32>) {
    images.clear();
    classes.clear();
    for _ in 0..BATCH {
        let class = 1 + rng.below(2) as u32;
        let radius = 3 + rng.below(4) as i32;
        let room = SIZE - 2 * radius as usize;
        let [cx, cy] = [(); 2].map(|()| radius + rng.below(room) as i32);
        for y in 0..SIZE as i32 {
            for x in 0..SIZE as i32 {
                let (dx, dy) = ((x - cx).abs(), (y - cy).abs());
                let inside = match class {
                    1 => dx.max(dy) <= radius,
                    _ => dx * dx + dy * dy <= radius * radius,
                };
                let noise = rng.unit() as f32 - 0.5;
                images.push(if inside { 0.7 } else { 0.0 } + noise);
                classes.push(if inside { class } else { 0 });
            }
        }
    }
}

fn main() -> meganeura::Result<()> {
    let _trace = profiler::from_environment()?;
    let config = UnetConfig::new(1, CLASSES).width(8);
    let graph = segmentation(BATCH, [1, SIZE, SIZE], |g, x| config.build(g, "").forward(g, x));
    let mut session = build_session(&graph);
    session.initialize_parameters(0);
    session.set_optimizer(Adam::new(5e-3));

    let mut rng = SplitMix64::new(1);
    let (mut images, mut classes) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        draw(&mut rng, &mut images, &mut classes);
        session.set_input(FEATURES, &images);
        session.set_input_u32(LABELS, &classes);
        session.step();
        if step % 20 == 0 || step + 1 == STEPS {
            println!("step {step:>3}: loss {:.3}", session.read_loss());
        }
    }

    // Forward only: batch norms use their running statistics.
    let mut model = build_inference_session(&graph);
    model.try_copy_weights_from(&mut session)?;
    draw(&mut rng, &mut images, &mut classes);
    model.set_input(FEATURES, &images);
    model.set_input_u32(LABELS, &classes);
    model.step();
    let plane = SIZE * SIZE;
    let mut logits = vec![0.0; BATCH * CLASSES * plane];
    model.read_output_by_index(1, &mut logits);
    let score = |image: usize, class: usize, pixel: usize| logits[(image * CLASSES + class) * plane + pixel];
    let predicted = |image: usize, pixel: usize| {
        let best = (0..CLASSES).max_by(|&a, &b| score(image, a, pixel).total_cmp(&score(image, b, pixel)));
        best.unwrap_or_default() as u32
    };
    let pixels = (0..BATCH).flat_map(|image| (0..plane).map(move |pixel| (image, pixel)));
    let correct = pixels
        .zip(&classes)
        .filter(|&((i, p), &class)| predicted(i, p) == class);
    let share = 100.0 * correct.count() as f64 / classes.len() as f64;
    println!("{share:.1} % of the pixels of new images are right; the first image:");
    for y in 0..SIZE {
        let marks = (0..SIZE).map(|x| [". ", "# ", "o "][predicted(0, y * SIZE + x) as usize]);
        println!("{}", marks.collect::<String>().trim_end());
    }
    Ok(())
}
