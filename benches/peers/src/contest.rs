//! Contestants that take turns.

use std::time::Instant;

/// What does the work once, and returns its result.
pub(crate) type Work<'a> = Box<dyn FnMut() -> Result<Vec<f32>, Box<dyn std::error::Error>> + 'a>;

struct Contestant<'a> {
    name: String,
    /// Greatest difference from the first contestant's result that is accepted, relative to the greatest number there.
    tolerance: f32,
    work: Work<'a>,
}

/// The same work in several ways.
pub(crate) struct Contest<'a> {
    title: String,
    contestants: Vec<Contestant<'a>>,
}

impl<'a> Contest<'a> {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Contest {
            title: title.into(),
            contestants: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, name: impl Into<String>, tolerance: f32, work: Work<'a>) {
        self.contestants.push(Contestant {
            name: name.into(),
            tolerance,
            work,
        });
    }

    /// Compares results, then times.
    pub(crate) fn run(mut self, turns: usize) {
        println!("\n{}", self.title);
        let mut reference: Option<Vec<f32>> = None;
        let mut errors = Vec::new();
        self.contestants.retain_mut(|c| {
            let result = match (c.work)() {
                Ok(result) => result,
                Err(e) => {
                    println!("{:28} left out: {e}", c.name);
                    return false;
                }
            };
            let error = reference
                .as_ref()
                .map_or(0.0, |reference| difference(reference, &result));
            reference.get_or_insert(result);
            // Written so that NaN is left out.
            let agrees = error <= c.tolerance;
            if agrees {
                errors.push(error);
            } else {
                println!(
                    "{:28} left out: off by {error:.2e}, accepted are {:.0e}",
                    c.name, c.tolerance
                );
            }
            agrees
        });
        let mut times = vec![Vec::with_capacity(turns); self.contestants.len()];
        for _ in 0..turns.max(1) {
            for (c, times) in self.contestants.iter_mut().zip(&mut times) {
                let start = Instant::now();
                let done = (c.work)();
                times.push(start.elapsed().as_secs_f64());
                if let Err(e) = done {
                    println!("{:28} failed: {e}", c.name);
                }
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        let first = medians.first().copied().unwrap_or_default();
        println!("{:28} {:>10} {:>8} {:>10}", "", "ms", "ratio", "off by");
        for ((c, time), error) in self.contestants.iter().zip(&medians).zip(&errors) {
            println!(
                "{:28} {:>10.3} {:>8.2} {:>10.1e}",
                c.name,
                time * 1e3,
                time / first,
                error
            );
        }
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The greatest difference, relative to the greatest number of the reference.
fn difference(reference: &[f32], result: &[f32]) -> f32 {
    if reference.len() != result.len() {
        return f32::INFINITY;
    }
    let size = reference.iter().fold(f32::MIN_POSITIVE, |a, x| a.max(x.abs()));
    let differences = reference.iter().zip(result).map(|(a, b)| (a - b).abs() / size);
    // A maximum would lose NaN.
    differences.fold(0.0, |a, b| if b <= a { a } else { b })
}
