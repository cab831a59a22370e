//! Learning rate schedules.
//!
//! A [`Schedule`] defines the shape of the curve; a [`Warmup`] raises the rate to it over the first
//! steps. They are multiplied: `rate = configured rate x schedule x warm-up`, see
//! [`TrainConfig::rate_at`](super::TrainConfig::rate_at).

use std::f64::consts::PI;
use std::str::FromStr;

/// The position in the training, for a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Index of the next step, from 0.
    pub step: u64,
    /// Number of steps in each epoch.
    pub steps_per_epoch: u64,
    /// Number of steps in all epochs together.
    pub total_steps: u64,
}

/// Learning rate as a multiple of the configured one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// The factor is 1 in all steps.
    Constant,
    /// Half a cosine wave from 1 at the first step down to `final_fraction` after the last (Loshchilov and
    /// Hutter, "SGDR", 2017, without restarts).
    Cosine {
        /// Final fraction, at least 0.
        final_fraction: f32,
    },
    /// Multiplied by `factor` after every `every_epochs` epochs.
    Step {
        /// Number of epochs between changes, at least 1.
        every_epochs: u32,
        /// Factor of each change, at least 0.
        factor: f32,
    },
    /// Up from `1 / div_factor` to 1 over the first `pct_start` of all steps, then down to
    /// `1 / (div_factor * final_div_factor)` at the last one, each along half a cosine wave (Smith
    /// and Topin, "Super-convergence", 2018, in the form of PyTorch's `OneCycleLR`). It includes a
    /// warm-up.
    OneCycle {
        /// Fraction of the steps in which the rate rises, 0 to 1.
        pct_start: f32,
        /// Highest rate divided by the first one, above 0.
        div_factor: f32,
        /// First rate divided by the last one, above 0.
        final_div_factor: f32,
    },
}

impl Schedule {
    /// Returns [`Schedule::OneCycle`] with the usual numbers: 0.3, 25 and 10,000.
    pub fn one_cycle() -> Self {
        Schedule::OneCycle {
            pct_start: 0.3,
            div_factor: 25.0,
            final_div_factor: 1e4,
        }
    }

    /// Returns the learning rate of a step, if the configured one is `base`.
    pub fn rate(self, base: f32, at: Position) -> f32 {
        (f64::from(base) * self.factor(at)) as f32
    }

    fn factor(self, at: Position) -> f64 {
        match self {
            Schedule::Constant => 1.0,
            Schedule::Cosine { final_fraction } => {
                let progress = at.step.min(at.total_steps) as f64 / at.total_steps.max(1) as f64;
                cosine(1.0, f64::from(final_fraction), progress)
            }
            Schedule::Step { every_epochs, factor } => {
                let epoch = at.step / at.steps_per_epoch.max(1);
                let changes = epoch / u64::from(every_epochs.max(1));
                f64::from(factor).powi(changes.min(i32::MAX as u64) as i32)
            }
            Schedule::OneCycle {
                pct_start,
                div_factor,
                final_div_factor,
            } => {
                let first = 1.0 / f64::from(div_factor);
                let last = first / f64::from(final_div_factor);
                let (step, end) = (at.step as f64, at.total_steps as f64 - 1.0);
                let peak = f64::from(pct_start) * at.total_steps as f64 - 1.0;
                if step < peak {
                    cosine(first, 1.0, step / peak)
                } else if end > peak {
                    cosine(1.0, last, ((step - peak) / (end - peak)).min(1.0))
                } else {
                    1.0
                }
            }
        }
    }

    /// Returns the position of the schedule if it starts after a warm-up. A schedule that is
    /// stretched over the steps starts after it; one that counts epochs counts all of them.
    fn after(self, warmup: u64, at: Position) -> Position {
        match self {
            Schedule::Constant | Schedule::Step { .. } => at,
            Schedule::Cosine { .. } | Schedule::OneCycle { .. } => Position {
                step: at.step.saturating_sub(warmup),
                total_steps: at.total_steps.saturating_sub(warmup),
                ..at
            },
        }
    }

    /// Checks the numbers.
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Schedule::Constant => Ok(()),
            Schedule::Cosine { final_fraction } => not_negative("final fraction", final_fraction),
            Schedule::Step { every_epochs: 0, .. } => Err("the learning rate cannot change every 0 epochs".into()),
            Schedule::Step { factor, .. } => not_negative("factor", factor),
            Schedule::OneCycle {
                pct_start,
                div_factor,
                final_div_factor,
            } => {
                if !(0.0..=1.0).contains(&pct_start) {
                    return Err(format!(
                        "expected a fraction of rising steps from 0 to 1, found {pct_start}"
                    ));
                }
                for (what, number) in [("div_factor", div_factor), ("final_div_factor", final_div_factor)] {
                    if !number.is_finite() || number <= 0.0 {
                        return Err(format!("{what}: expected a finite number above 0, found {number}"));
                    }
                }
                Ok(())
            }
        }
    }
}

impl FromStr for Schedule {
    type Err = String;

    /// Parses `constant`, `cosine` (down to 0), `step` (a tenth every 10 epochs) or `onecycle`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "constant" => Ok(Schedule::Constant),
            "cosine" => Ok(Schedule::Cosine { final_fraction: 0.0 }),
            "step" => Ok(Schedule::Step {
                every_epochs: 10,
                factor: 0.1,
            }),
            "onecycle" => Ok(Schedule::one_cycle()),
            _ => Err(format!(
                "there is no schedule '{text}'; use constant, cosine, step or onecycle"
            )),
        }
    }
}

/// A linear warm-up to the schedule's learning rate over the first steps of a run: the first of `n`
/// steps has `1/n` of the rate and the `n`-th all of it. Large first updates, while the moments of
/// Adam are estimates from a few batches, can ruin a model permanently.
///
/// [`Schedule::Cosine`] and [`Schedule::OneCycle`] start after the warm-up and are stretched over
/// the remaining steps; [`Schedule::Step`] counts its epochs from the start.
///
/// ```
/// use meganeura_nn::trainer::{Position, Schedule, TrainConfig, Warmup};
///
/// let config = TrainConfig {
///     learning_rate: 1.0,
///     warmup: Warmup::Steps(4),
///     schedule: Schedule::Cosine { final_fraction: 0.0 },
///     ..TrainConfig::default()
/// };
/// let at = |step| config.rate_at(Position { step, steps_per_epoch: 12, total_steps: 12 });
/// assert_eq!([at(0), at(1), at(2), at(3)], [0.25, 0.5, 0.75, 1.0]);
/// // Four of the other eight steps later, the cosine is half way down.
/// assert!((at(8) - 0.5).abs() < 1e-6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmup {
    /// Over this number of steps; 0 for none.
    Steps(u64),
    /// Over this fraction of all steps of the run, 0 to 1, rounded to whole steps.
    Fraction(f32),
}

impl Default for Warmup {
    /// Returns no warm-up.
    fn default() -> Self {
        Warmup::Steps(0)
    }
}

impl Warmup {
    /// Returns the number of its steps in a run of `total` steps.
    pub fn steps(self, total: u64) -> u64 {
        match self {
            Warmup::Steps(steps) => steps,
            Warmup::Fraction(fraction) => (f64::from(fraction) * total as f64).round() as u64,
        }
    }

    /// Checks the numbers.
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Warmup::Fraction(fraction) if !(0.0..=1.0).contains(&fraction) => {
                Err(format!("expected a fraction from 0 to 1, found {fraction}"))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Warmup {
    type Err = String;

    /// Parses a number of steps (`100`) or a percentage of all steps (`5%`).
    fn from_str(text: &str) -> Result<Self, String> {
        let warmup = match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().map(|p: f32| Warmup::Fraction(p / 100.0)),
            None => text.parse().ok().map(Warmup::Steps),
        };
        let warmup = warmup.ok_or_else(|| format!("'{text}' is neither a number of steps nor a percentage like 5%"))?;
        warmup.check()?;
        Ok(warmup)
    }
}

/// Returns the learning rate of a step by schedule and warm-up together.
pub(super) fn rate(base: f32, schedule: Schedule, warmup: Warmup, at: Position) -> f32 {
    let steps = warmup.steps(at.total_steps);
    let rate = schedule.rate(base, schedule.after(steps, at));
    if at.step < steps {
        (f64::from(rate) * ((at.step + 1) as f64 / steps as f64)) as f32
    } else {
        rate
    }
}

/// Interpolates along half a cosine wave from one number to another.
fn cosine(from: f64, to: f64, progress: f64) -> f64 {
    to + (from - to) * 0.5 * (1.0 + (PI * progress).cos())
}

fn not_negative(what: &str, number: f32) -> Result<(), String> {
    if number.is_finite() && number >= 0.0 {
        Ok(())
    } else {
        Err(format!(
            "{what}: expected a finite number of at least 0, found {number}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: u64) -> Position {
        Position {
            step,
            steps_per_epoch: 10,
            total_steps: 100,
        }
    }

    #[test]
    fn constant_is_constant() {
        assert_eq!(Schedule::Constant.rate(0.3, at(0)), 0.3);
        assert_eq!(Schedule::Constant.rate(0.3, at(99)), 0.3);
    }

    #[test]
    fn cosine_falls_from_all_to_the_final_fraction() {
        let cosine = Schedule::Cosine { final_fraction: 0.1 };
        assert_eq!(cosine.rate(2.0, at(0)), 2.0);
        assert!((cosine.rate(2.0, at(50)) - 1.1).abs() < 1e-6);
        assert!((cosine.rate(2.0, at(25)) - (0.2 + 1.8 * 0.853_553_4)).abs() < 1e-6);
        assert!((cosine.rate(2.0, at(100)) - 0.2).abs() < 1e-6);
        assert_eq!(cosine.rate(2.0, at(1000)), cosine.rate(2.0, at(100)));
        let falling: Vec<f32> = (0..=100).map(|s| cosine.rate(1.0, at(s))).collect();
        assert!(falling.windows(2).all(|w| w[1] < w[0]));
    }

    #[test]
    fn steps_come_at_epoch_boundaries() {
        let step = Schedule::Step {
            every_epochs: 2,
            factor: 0.5,
        };
        let rates = [0, 19, 20, 39, 40, 99].map(|s| step.rate(8.0, at(s)));
        assert_eq!(rates, [8.0, 8.0, 4.0, 4.0, 2.0, 0.5]);
    }

    #[test]
    fn degenerate_positions_give_numbers() {
        let nowhere = Position {
            step: 0,
            steps_per_epoch: 0,
            total_steps: 0,
        };
        let step = Schedule::Step {
            every_epochs: 1,
            factor: 0.5,
        };
        for schedule in [Schedule::Constant, Schedule::Cosine { final_fraction: 0.0 }, step] {
            assert_eq!(schedule.rate(1.0, nowhere), 1.0);
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let step = |every_epochs, factor| Schedule::Step { every_epochs, factor };
        for bad in [
            Schedule::Cosine { final_fraction: -0.1 },
            Schedule::Cosine {
                final_fraction: f32::NAN,
            },
            step(0, 0.5),
            step(1, f32::INFINITY),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(step(1, 0.0).check().is_ok());
    }

    /// The rates equal the published formula: in a run of ten steps, of which 0.3 rise, the peak is at step 2 and the
    /// end at step 9.
    #[test]
    fn one_cycle_matches_hand_computed_values() {
        let cycle = Schedule::OneCycle {
            pct_start: 0.3,
            div_factor: 10.0,
            final_div_factor: 100.0,
        };
        let rate = |step| {
            cycle.rate(
                2.0,
                Position {
                    step,
                    steps_per_epoch: 5,
                    total_steps: 10,
                },
            )
        };
        // 0.2; half way to 2; 2; then 2 + (0.002 - 2) * (1 - cos(pi * k / 7)) / 2.
        let expected = [
            0.2,
            1.1,
            2.0,
            1.901_067_9,
            1.623_866_3,
            1.223_298_4,
            0.778_701_6,
            0.378_133_7,
            0.100_932_1,
            0.002,
        ];
        for (step, expected) in expected.into_iter().enumerate() {
            let rate = rate(step as u64);
            assert!((rate - expected).abs() < 2e-6, "step {step}: {rate} and {expected}");
        }
        assert_eq!(rate(10), rate(9), "it stays there");
    }

    #[test]
    fn one_cycle_may_only_fall_or_only_rise() {
        let cycle = |pct_start, step| {
            let cycle = Schedule::OneCycle {
                pct_start,
                div_factor: 2.0,
                final_div_factor: 2.0,
            };
            cycle.rate(
                1.0,
                Position {
                    step,
                    steps_per_epoch: 4,
                    total_steps: 4,
                },
            )
        };
        // No step rises: the first step is one of four below the peak, as in PyTorch.
        assert!((cycle(0.0, 0) - (1.0 - 0.75 * 0.146_446_6)).abs() < 1e-6);
        assert!((cycle(0.0, 3) - 0.25).abs() < 1e-6);
        // A single rising step is the peak itself, where the formula divides 0 by 0.
        assert_eq!(cycle(0.25, 0), 1.0);
        assert_eq!((cycle(1.0, 0), cycle(1.0, 3), cycle(1.0, 9)), (0.5, 1.0, 1.0));
        for total_steps in [0, 1, 2] {
            let at = Position {
                step: 0,
                steps_per_epoch: 0,
                total_steps,
            };
            assert!(Schedule::one_cycle().rate(1.0, at).is_finite());
        }
    }

    #[test]
    fn warm_up_rises_to_every_schedule() {
        let rates = |schedule, warmup| [0, 4, 9, 10, 30, 55, 99].map(|s| rate(1.0, schedule, warmup, at(s)));
        let constant = rates(Schedule::Constant, Warmup::Steps(10));
        assert_eq!(constant, [0.1, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(constant, rates(Schedule::Constant, Warmup::Fraction(0.1)));
        // The cosine is stretched over the other 90 steps: step 55 is in the middle.
        let cosine = Schedule::Cosine { final_fraction: 0.0 };
        let warm = rates(cosine, Warmup::Steps(10));
        assert_eq!(warm[..4], [0.1, 0.5, 1.0, 1.0]);
        assert!((warm[5] - 0.5).abs() < 1e-6 && (warm[4] - 0.883_022_2).abs() < 1e-6);
        // Epochs have ten steps; they are counted from the start.
        let step = Schedule::Step {
            every_epochs: 3,
            factor: 0.5,
        };
        assert_eq!(rates(step, Warmup::Steps(10)), [0.1, 0.5, 1.0, 1.0, 0.5, 0.5, 0.125]);
        assert_eq!(
            rates(cosine, Warmup::default()),
            [0, 4, 9, 10, 30, 55, 99].map(|s| cosine.rate(1.0, at(s)))
        );
        // A warm-up that is longer than the run does not reach the full rate.
        assert_eq!(rate(1.0, cosine, Warmup::Steps(400), at(99)), 0.25);
    }

    #[test]
    fn schedules_and_warm_ups_are_parsed_and_checked() {
        assert_eq!("onecycle".parse(), Ok(Schedule::one_cycle()));
        assert_eq!("constant".parse(), Ok(Schedule::Constant));
        for name in ["cosine", "step", "onecycle"] {
            assert_eq!(name.parse::<Schedule>().map(|s| s.check()), Ok(Ok(())));
        }
        assert!("linear".parse::<Schedule>().is_err_and(|e| e.contains("onecycle")));
        assert_eq!("100".parse(), Ok(Warmup::Steps(100)));
        assert_eq!("5%".parse(), Ok(Warmup::Fraction(0.05)));
        for bad in ["", "%", "-1", "1.5", "101%", "-1%", "NaN%"] {
            assert!(bad.parse::<Warmup>().is_err(), "{bad}");
        }
        let cycle = |pct_start, div_factor, final_div_factor| Schedule::OneCycle {
            pct_start,
            div_factor,
            final_div_factor,
        };
        for bad in [
            cycle(1.5, 25.0, 1e4),
            cycle(f32::NAN, 25.0, 1e4),
            cycle(0.3, 0.0, 1e4),
            cycle(0.3, 25.0, f32::INFINITY),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(Warmup::Fraction(f32::NAN).check().is_err());
    }
}
