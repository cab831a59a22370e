//! How the learning rate changes during training.

use std::f64::consts::PI;

/// Where training is, for a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The step about to be made, from 0.
    pub step: u64,
    /// Steps in each epoch.
    pub steps_per_epoch: u64,
    /// Steps in all epochs together.
    pub total_steps: u64,
}

/// Learning rate as a multiple of the configured one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// 1 throughout.
    Constant,
    /// Half a cosine wave from 1 at the first step down to `final_fraction` after the last (Loshchilov and
    /// Hutter, "SGDR", 2017, without restarts).
    Cosine {
        /// What it ends at, at least 0.
        final_fraction: f32,
    },
    /// Multiplied by `factor` after every so many epochs.
    Step {
        /// Epochs between changes, at least 1.
        every_epochs: u32,
        /// What it is multiplied by, at least 0.
        factor: f32,
    },
}

impl Schedule {
    /// The learning rate of a step, when the configured one is `base`.
    pub fn rate(self, base: f32, at: Position) -> f32 {
        let factor = match self {
            Schedule::Constant => 1.0,
            Schedule::Cosine { final_fraction } => {
                let last = f64::from(final_fraction);
                let progress = at.step.min(at.total_steps) as f64 / at.total_steps.max(1) as f64;
                last + (1.0 - last) * 0.5 * (1.0 + (PI * progress).cos())
            }
            Schedule::Step { every_epochs, factor } => {
                let epoch = at.step / at.steps_per_epoch.max(1);
                let changes = epoch / u64::from(every_epochs.max(1));
                f64::from(factor).powi(changes.min(i32::MAX as u64) as i32)
            }
        };
        (f64::from(base) * factor) as f32
    }

    /// Checks the numbers.
    pub(super) fn check(self) -> Result<(), String> {
        let (what, number) = match self {
            Schedule::Constant => return Ok(()),
            Schedule::Cosine { final_fraction } => ("final fraction", final_fraction),
            Schedule::Step { every_epochs: 0, .. } => {
                return Err("the learning rate cannot change every 0 epochs".into());
            }
            Schedule::Step { factor, .. } => ("factor", factor),
        };
        if number.is_finite() && number >= 0.0 {
            Ok(())
        } else {
            Err(format!("the {what} {number} is not a finite number of at least 0"))
        }
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
}
