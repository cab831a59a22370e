//! Tests of the evaluation of a trained model on several ranks.

use crate::common::head;
use crate::distributed::{LIMIT, on_ranks};
use crate::model::{options, small, trained};

#[test]
fn ranks_measure_what_one_process_does() {
    let (model, _, [raw, _]) = trained(small(), 320, 1);
    let data = head(&raw, 101);
    let expected = model
        .predictor(&options(8))
        .expect("opens")
        .evaluate(&data)
        .expect("evaluates");
    // 101 examples are not a multiple of the ranks, and with 3 examples the last rank has none.
    let few = head(&raw, 3);
    let of_few = model
        .predictor(&options(8))
        .expect("opens")
        .evaluate(&few)
        .expect("evaluates");
    for size in 2..=4 {
        let reports = on_ranks(size, LIMIT, |ranks| {
            let ranks = ranks.expect("several");
            let mut predictor = model.predictor(&options(8)).expect("opens");
            let mut on = |data| predictor.evaluate_on_ranks(data, &*ranks).expect("evaluates");
            (on(&data), on(&few))
        });
        for (rank, report) in reports.iter().enumerate() {
            assert_eq!(report, &(expected.clone(), of_few.clone()), "rank {rank} of {size}");
        }
    }
}

#[test]
fn ranks_that_measure_something_else_are_errors_everywhere() {
    let (model, _, [raw, _]) = trained(small(), 320, 1);
    let (other, ..) = trained(small(), 320, 2);
    for word in ["number of examples", "model"] {
        let errors = on_ranks(2, LIMIT, |ranks| {
            let ranks = ranks.expect("several");
            let is_other = ranks.rank() == 1;
            let model = if is_other && word == "model" { &other } else { &model };
            let data = head(&raw, if is_other && word != "model" { 9 } else { 10 });
            let mut predictor = model.predictor(&options(8)).expect("opens");
            let report = predictor.evaluate_on_ranks(&data, &*ranks);
            report.expect_err("they differ").to_string()
        });
        assert!(errors.iter().all(|error| error.contains(word)), "{word}: {errors:?}");
    }
}
