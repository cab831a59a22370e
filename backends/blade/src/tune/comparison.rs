//! Comparison of the variants of a call. It finds a variant that is correct, and faster than the default variant by
//! more than the scatter of the times.
//!
//! The default variant and another one run alternately, in turns. In a turn, one variant runs several times.

use meganeura_core::Result;
use meganeura_core::backend::RefusedSchedule;

/// Number of turns of each pair of variants for finding the most promising variant.
const FIRST_TURNS: usize = 5;
/// Number of turns before a variant can be dropped. It is dropped if it is slower by more than the factor
/// [`HOPELESS`].
const FEW_TURNS: usize = 2;
const HOPELESS: f64 = 1.3;
/// Number of turns of the final comparison.
const LAST_TURNS: usize = 15;
/// Minimum relative reduction of the time of a winner.
const MIN_GAIN: f64 = 0.03;
/// Minimum duration of a turn, in seconds.
const TURN: f64 = 0.005;
/// Maximum number of runs of a variant in a turn.
const MAX_TIMES: u32 = 512;

/// A computation that has several variants.
pub(super) trait Subject {
    /// Type of a variant that is prepared to run.
    type Prepared;

    /// Returns the names of the variants, beginning with the default one.
    fn variants(&self) -> &[String];

    /// Prepares a variant for running.
    ///
    /// # Errors
    /// The variant has no kernel, or the driver rejects the kernel.
    fn prepare(&self, variant: &str) -> Result<Self::Prepared>;

    /// Compares the results of a variant and of the default one, and returns the first difference.
    ///
    /// # Errors
    /// The device fails. A difference is not an error.
    fn difference(&self, usual: &mut Self::Prepared, other: &mut Self::Prepared) -> Result<Option<String>>;

    /// Measures `times` successive runs, and returns the seconds per run.
    ///
    /// # Errors
    /// The device fails.
    fn time(&self, ready: &mut Self::Prepared, times: u32) -> Result<f64>;

    /// Keeps the device busy until it has reached its full clock.
    ///
    /// # Errors
    /// The device fails.
    fn warm_up(&self, ready: &mut Self::Prepared) -> Result<()>;

    /// Returns `true` if no more variants should be tried.
    fn is_over(&self) -> bool;
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decision {
    /// Name of the variant that is faster than the default one, if any.
    pub(super) winner: Option<String>,
    /// Median time of a run of the default variant, in seconds.
    pub(super) usual: f64,
    /// Median time of a run of the winner, in seconds.
    pub(super) best: f64,
    /// Number of variants that were timed, in addition to the default one.
    pub(super) timed: usize,
    /// Number of variants that were not tried because of the time limit.
    pub(super) untried: usize,
    pub(super) refused: Vec<RefusedSchedule>,
}

/// Runs the variants alternately and compares them.
///
/// # Errors
/// The default variant or the device fails.
pub(super) fn comparison<S: Subject>(subject: &S) -> Result<Decision> {
    let [usual_name, others @ ..] = subject.variants() else {
        return Err(meganeura_core::Error::misuse("it cannot be computed", "report this"));
    };
    let mut usual = subject.prepare(usual_name)?;
    subject.warm_up(&mut usual)?;
    let times = times_of_a_turn(subject, &mut usual)?;
    let mut decision = Decision {
        winner: None,
        usual: subject.time(&mut usual, times)?,
        best: 0.0,
        timed: 0,
        untried: 0,
        refused: Vec::new(),
    };
    let mut best: Option<(f64, &String, S::Prepared)> = None;
    for (number, variant) in others.iter().enumerate() {
        if subject.is_over() {
            decision.untried = others.len() - number;
            break;
        }
        let refusal = |reason: String, wrong| RefusedSchedule {
            schedule: variant.clone(),
            reason,
            wrong,
        };
        let mut other = match subject.prepare(variant) {
            Ok(other) => other,
            Err(error) => {
                decision.refused.push(refusal(error.to_string(), false));
                continue;
            }
        };
        if let Some(difference) = subject.difference(&mut usual, &mut other)? {
            decision.refused.push(refusal(difference, true));
            continue;
        }
        decision.timed += 1;
        let turns = VariantTimes::of(subject, [&mut usual, &mut other], times, FIRST_TURNS)?;
        let [usual_time, time] = turns.medians();
        let ratio = time / usual_time;
        if best.as_ref().is_none_or(|(least, ..)| ratio < *least) {
            best = Some((ratio, variant, other));
        }
    }
    // The minimum of several measured times is probably too low, so it is measured again.
    if let Some((ratio, variant, mut other)) = best
        && ratio < 1.0 - MIN_GAIN
    {
        // The device was idle during the compilation of kernels.
        subject.warm_up(&mut usual)?;
        let turns = VariantTimes::of(subject, [&mut usual, &mut other], times, LAST_TURNS)?;
        let [usual_time, time] = turns.medians();
        decision.usual = usual_time;
        if time < usual_time * (1.0 - MIN_GAIN) && turns.are_apart() {
            decision.winner = Some(variant.clone());
            decision.best = time;
        }
    }
    Ok(decision)
}

/// Returns the number of runs of a turn of the default variant that takes long enough.
fn times_of_a_turn<S: Subject>(subject: &S, usual: &mut S::Prepared) -> Result<u32> {
    let mut times = 1;
    // The first run includes work that the driver does only once.
    subject.time(usual, 1)?;
    while times < MAX_TIMES && subject.time(usual, times)? * f64::from(times) < TURN {
        times *= 2;
    }
    Ok(times)
}

/// The times of the default variant and of another one, each in ascending order.
struct VariantTimes([Vec<f64>; 2]);

impl VariantTimes {
    fn of<S: Subject>(subject: &S, mut variants: [&mut S::Prepared; 2], times: u32, turns: usize) -> Result<Self> {
        let mut found = [Vec::new(), Vec::new()];
        for turn in 0..turns {
            for (found, variant) in found.iter_mut().zip(&mut variants) {
                found.push(subject.time(variant, times)?);
            }
            let least = found
                .each_ref()
                .map(|f| f.iter().copied().fold(f64::INFINITY, f64::min));
            if turn + 1 >= FEW_TURNS && turns < LAST_TURNS && least[1] > HOPELESS * least[0] {
                break;
            }
        }
        found.iter_mut().for_each(|f| f.sort_by(f64::total_cmp));
        Ok(VariantTimes(found))
    }

    fn medians(&self) -> [f64; 2] {
        self.0.each_ref().map(|times| times[times.len() / 2])
    }

    /// Returns `true` if the times clearly differ: the upper quartile of the other variant's times is below the lower
    /// quartile of the default variant's times.
    fn are_apart(&self) -> bool {
        let [usual, other] = &self.0;
        other[3 * (other.len() - 1) / 4] < usual[usual.len() / 4]
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use meganeura_core::Error;

    use super::*;

    /// Variants with predefined times.
    struct PredefinedTimes {
        variants: Vec<String>,
        /// Seconds per run in each turn of each variant. After the last turn, they repeat.
        times: Vec<Vec<f64>>,
        /// Number of turns of each variant so far.
        turns: RefCell<Vec<usize>>,
        over: bool,
    }

    const BROKEN: &str = "broken";
    const WRONG: &str = "wrong";

    fn told(variants: &[(&str, &[f64])]) -> PredefinedTimes {
        PredefinedTimes {
            variants: variants.iter().map(|(name, _)| (*name).to_owned()).collect(),
            times: variants.iter().map(|(_, times)| times.to_vec()).collect(),
            turns: RefCell::new(vec![0; variants.len()]),
            over: false,
        }
    }

    impl Subject for PredefinedTimes {
        type Prepared = usize;

        fn variants(&self) -> &[String] {
            &self.variants
        }

        fn prepare(&self, variant: &str) -> Result<usize> {
            match variant {
                BROKEN => Err(Error::misuse("the driver refuses it", "")),
                _ => Ok(self.variants.iter().position(|w| w == variant).expect("a variant")),
            }
        }

        fn difference(&self, usual: &mut usize, other: &mut usize) -> Result<Option<String>> {
            assert_eq!(*usual, 0);
            let is_wrong = self.variants[*other] == WRONG;
            Ok(is_wrong.then(|| "element 3 is 1, not 2".to_owned()))
        }

        fn time(&self, ready: &mut usize, _: u32) -> Result<f64> {
            let turn = &mut self.turns.borrow_mut()[*ready];
            *turn += 1;
            Ok(self.times[*ready][*turn % self.times[*ready].len()])
        }

        fn warm_up(&self, _: &mut Self::Prepared) -> Result<()> {
            Ok(())
        }

        fn is_over(&self) -> bool {
            self.over
        }
    }

    #[test]
    fn the_fastest_right_way_wins() {
        let told = told(&[
            ("usual", &[1.0]),
            (WRONG, &[0.1]),
            ("slow", &[2.0]),
            (BROKEN, &[0.1]),
            ("fast", &[0.5]),
            ("faster", &[0.4]),
            ("less fast", &[0.6]),
        ]);
        let decision = comparison(&told).expect("it ends");
        assert_eq!(decision.winner.as_deref(), Some("faster"));
        assert_eq!((decision.usual, decision.best), (1.0, 0.4));
        assert_eq!((decision.timed, decision.untried), (4, 0));
        let [wrong, broken] = &decision.refused[..] else {
            panic!("{decision:?}")
        };
        assert_eq!((wrong.schedule.as_str(), wrong.wrong), (WRONG, true));
        assert!(wrong.reason.contains("element 3"), "{wrong:?}");
        assert_eq!((broken.schedule.as_str(), broken.wrong), (BROKEN, false));
        let turns = told.turns.borrow();
        assert_eq!((turns[1], turns[3]), (0, 0), "what is wrong is not timed");
        assert_eq!(turns[2], FEW_TURNS, "what is hopeless is given up");
    }

    #[test]
    fn a_gain_has_to_be_more_than_scatter() {
        let winner = |usual: &[f64], other: &[f64]| {
            let told = told(&[("usual", usual), ("other", other)]);
            comparison(&told).expect("it ends").winner
        };
        assert_eq!(winner(&[1.0], &[0.98]), None, "too little");
        assert!(winner(&[1.0], &[0.95]).is_some());
        assert_eq!(winner(&[1.0, 0.7, 1.3], &[0.9, 0.6, 1.2]), None, "they overlap");
        assert!(winner(&[1.0, 1.02, 0.98], &[0.9, 0.92, 0.88]).is_some());
    }

    #[test]
    fn what_there_is_no_time_for_is_counted() {
        let mut told = told(&[("usual", &[1.0]), ("fast", &[0.5]), ("faster", &[0.4])]);
        told.over = true;
        let decision = comparison(&told).expect("it ends");
        assert_eq!((decision.winner, decision.untried, decision.timed), (None, 2, 0));
    }

    #[test]
    fn without_the_default_variant_nothing_is_compared() {
        assert!(comparison(&told(&[(BROKEN, &[1.0]), ("fast", &[0.5])])).is_err());
        assert!(comparison(&told(&[])).is_err());
    }
}
