mod common;
use common::*;
use meganeura_nn::data::digits_split;
use meganeura_nn::models::*;
use meganeura_nn::trainer::*;
#[test]
#[ignore]
fn sweep() {
    let (train, test) = digits_split().unwrap();
    let flat = flat_digits();
    for epochs in [15usize, 20] {
        let mut e = vec![];
        for seed in 0..20 {
            let c = TrainConfig { seed, epochs, evaluate_every: 0, ..config() };
            let mut t = Trainer::new(|b| mlp_classifier(b, 64, 10), c).unwrap();
            let r = t.fit(&flat.0, Some(&flat.1), &mut Silent).unwrap();
            e.push(360 - r.evaluation.unwrap().correct);
        }
        println!("mlp {epochs}: mean {} max {:?} {e:?}", e.iter().sum::<usize>() as f64 / e.len() as f64, e.iter().max());
    }
    for (ch, hidden, epochs) in [([16, 32, 64], 64, 15usize), ([8, 16, 32], 64, 20), ([8, 16, 32], 64, 30), ([16, 32, 64], 64, 20)] {
        let (mut e, mut s) = (vec![], 0.0);
        for seed in 0..10 {
            let c = TrainConfig { seed, epochs, evaluate_every: 0, ..config() };
            let m = CnnConfig::new([1, 8, 8], 10).channels(ch).hidden(hidden);
            let mut t = Trainer::new(|b| classifier(b, &[1, 8, 8], |g, x| m.build(g, "").forward(g, x)), c).unwrap();
            let r = t.fit(&train, Some(&test), &mut Silent).unwrap();
            e.push(360 - r.evaluation.unwrap().correct);
            s += r.seconds;
        }
        println!("cnn {ch:?} {epochs}: mean {} max {:?} {e:?} {:.1} s", e.iter().sum::<usize>() as f64 / e.len() as f64, e.iter().max(), s / 10.0);
    }
}
