//! Variants that take turns: which of them is right, and faster than the default one by more than times scatter.

use meganeura_core::Result;
use meganeura_core::backend::RefusedSchedule;

/// Turns of a variant and the default one, from which the most promising is found.
const FIRST_TURNS: usize = 5;
/// Turns after which a variant that takes this many times longer is given up.
const FEW_TURNS: usize = 2;
const HOPELESS: f64 = 1.3;
/// Turns that decide.
const LAST_TURNS: usize = 15;
/// Part of the default variant's time that has to be saved.
const MIN_GAIN: f64 = 0.03;
/// Seconds of a turn, at least.
const TURN: f64 = 0.005;
/// Most times that a variant is run in a turn.
const MAX_TIMES: u32 = 512;

/// A computation with several variants.
pub(super) trait Subject {
    /// A variant, ready to be run.
    type Ready;

    /// Names of the variants, the default one first.
    fn variants(&self) -> &[String];

    /// Makes a variant ready.
    ///
    /// # Errors
    /// No kernel, or one that the driver refuses.
    fn prepare(&self, variant: &str) -> Result<Self::Ready>;

    /// Compares a variant's results with those of the default one.
    ///
    /// # Errors
    /// The device fails. What differs is no error of the call, but its answer.
    fn difference(&self, usual: &mut Self::Ready, other: &mut Self::Ready) -> Result<Option<String>>;

    /// Seconds of a run, of so many that follow each other.
    ///
    /// # Errors
    /// The device fails.
    fn time(&self, ready: &mut Self::Ready, times: u32) -> Result<f64>;

    /// Brings the device to its full clock.
    ///
    /// # Errors
    /// The device fails.
    fn warm_up(&self, ready: &mut Self::Ready) -> Result<()>;

    /// Whether no more variants shall be tried.
    fn is_over(&self) -> bool;
}

/// How a comparison ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decision {
    /// The variant that was faster, if one was.
    pub(super) winner: Option<String>,
    /// Median seconds of a run in the default variant.
    pub(super) usual: f64,
    /// The same of the winner, if there is one.
    pub(super) best: f64,
    /// Variants that were timed, beside the default one.
    pub(super) timed: usize,
    /// Variants that were not tried, as the time was over.
    pub(super) untried: usize,
    pub(super) refused: Vec<RefusedSchedule>,
}

/// Lets the variants take turns.
///
/// # Errors
/// The default variant fails, or the device does.
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
    let mut best: Option<(f64, &String, S::Ready)> = None;
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
        let turns = Turns::of(subject, [&mut usual, &mut other], times, FIRST_TURNS)?;
        let [usual_time, time] = turns.medians();
        let ratio = time / usual_time;
        if best.as_ref().is_none_or(|(least, ..)| ratio < *least) {
            best = Some((ratio, variant, other));
        }
    }
    // The least of several that scatter is likely to be too low, so it is measured again.
    if let Some((ratio, variant, mut other)) = best
        && ratio < 1.0 - MIN_GAIN
    {
        // Kernels have been made meanwhile, for which the device waited.
        subject.warm_up(&mut usual)?;
        let turns = Turns::of(subject, [&mut usual, &mut other], times, LAST_TURNS)?;
        let [usual_time, time] = turns.medians();
        decision.usual = usual_time;
        if time < usual_time * (1.0 - MIN_GAIN) && turns.are_apart() {
            decision.winner = Some(variant.clone());
            decision.best = time;
        }
    }
    Ok(decision)
}

/// How often a variant is run in a turn.
fn times_of_a_turn<S: Subject>(subject: &S, usual: &mut S::Ready) -> Result<u32> {
    let mut times = 1;
    // The first run pays for what the driver does once.
    subject.time(usual, 1)?;
    while times < MAX_TIMES && subject.time(usual, times)? * f64::from(times) < TURN {
        times *= 2;
    }
    Ok(times)
}

/// Times of the default variant and another, in ascending order.
struct Turns([Vec<f64>; 2]);

impl Turns {
    fn of<S: Subject>(subject: &S, mut variants: [&mut S::Ready; 2], times: u32, turns: usize) -> Result<Self> {
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
        Ok(Turns(found))
    }

    fn medians(&self) -> [f64; 2] {
        self.0.each_ref().map(|times| times[times.len() / 2])
    }

    /// Whether three quarters of the other variant's times are below three quarters of the default one's.
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

    /// Variants with times that are told, not measured.
    struct Told {
        variants: Vec<String>,
        /// Seconds of each variant, one after the other, again and again.
        times: Vec<Vec<f64>>,
        /// How often each was timed.
        turns: RefCell<Vec<usize>>,
        over: bool,
    }

    const BROKEN: &str = "broken";
    const WRONG: &str = "wrong";

    fn told(variants: &[(&str, &[f64])]) -> Told {
        Told {
            variants: variants.iter().map(|(name, _)| (*name).to_owned()).collect(),
            times: variants.iter().map(|(_, times)| times.to_vec()).collect(),
            turns: RefCell::new(vec![0; variants.len()]),
            over: false,
        }
    }

    impl Subject for Told {
        type Ready = usize;

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

        fn warm_up(&self, _: &mut Self::Ready) -> Result<()> {
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
