//! Shapes in manifests: named sizes, and arithmetic expressions of them.

use std::collections::BTreeMap;

use crate::term::Term;

/// Name of the leading axes of a shape: any number of axes.
pub(crate) const REST: &str = "...";
/// Name of the size that is the number of elements of the first result.
pub(crate) const NUMEL: &str = "numel";

/// Values of the names in one call: sizes of axes, and integer attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) by_name: BTreeMap<String, i64>,
    /// Sizes of the axes that `...` matches.
    pub(crate) rest: Vec<usize>,
}

impl Sizes {
    /// Returns the value of an expression.
    ///
    /// # Errors
    /// An expression without a value.
    pub(crate) fn value(&self, term: &Term) -> Result<i64, String> {
        match term {
            Term::Int(v) => Ok(*v),
            Term::Name(name) => match self.by_name.get(name) {
                Some(v) => Ok(*v),
                None => Err(format!("'{name}' is neither a size nor an integer attribute")),
            },
            Term::Call(name, arguments) => {
                let values: Result<Vec<i64>, String> = arguments.iter().map(|a| self.value(a)).collect();
                arithmetic(name, &values?).ok_or_else(|| format!("'{term}' has no value"))
            }
            _ => Err(format!("'{term}' is not an integer")),
        }
    }

    /// Returns a size: a non-negative value.
    ///
    /// # Errors
    /// As [`Sizes::value`].
    pub(crate) fn size(&self, term: &Term) -> Result<usize, String> {
        let value = self.value(term)?;
        usize::try_from(value).map_err(|_| format!("'{term}' is {value}, which is not a size"))
    }

    /// Returns `true` if a condition holds.
    ///
    /// # Errors
    /// An expression that is not a condition, or has no value.
    pub(crate) fn holds(&self, term: &Term) -> Result<bool, String> {
        let Term::Call(name, arguments) = term else {
            return Err(format!("'{term}' is not a condition"));
        };
        let values: Result<Vec<i64>, String> = arguments.iter().map(|a| self.value(a)).collect();
        let values = values?;
        let [a, b] = values[..] else {
            return Err(format!("the condition '{term}' compares two numbers"));
        };
        match name.as_str() {
            "=" => Ok(a == b),
            "!=" => Ok(a != b),
            "<" => Ok(a < b),
            "<=" => Ok(a <= b),
            ">" => Ok(a > b),
            ">=" => Ok(a >= b),
            _ => Err(format!("'{name}' is not a comparison")),
        }
    }

    /// Checks that all conditions hold.
    ///
    /// # Errors
    /// The first condition that does not hold.
    pub(crate) fn check(&self, conditions: &[Term]) -> Result<(), String> {
        for condition in conditions {
            if !self.holds(condition)? {
                return Err(format!("{condition} does not hold"));
            }
        }
        Ok(())
    }
}

/// Names of the arithmetic functions of sizes.
const ARITHMETIC: [&str; 8] = ["+", "-", "*", "/", "%", "min", "max", "ceil-div"];

/// Returns `true` if a name is an arithmetic function of numbers, not an operator.
pub(crate) fn is_arithmetic(name: &str) -> bool {
    ARITHMETIC.contains(&name)
}

/// Evaluates arithmetic on real numbers.
pub(crate) fn real_arithmetic(name: &str, a: f64, b: f64) -> Option<f64> {
    let value = match name {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        "min" => a.min(b),
        "max" => a.max(b),
        _ => return None,
    };
    value.is_finite().then_some(value)
}

fn arithmetic(name: &str, values: &[i64]) -> Option<i64> {
    match (name, values) {
        ("+", [a, b]) => a.checked_add(*b),
        ("-", [a, b]) => a.checked_sub(*b),
        ("*", [a, b]) => a.checked_mul(*b),
        ("/", [a, b]) => a.checked_div(*b),
        ("%", [a, b]) => a.checked_rem(*b),
        ("min", [a, b]) => Some(*a.min(b)),
        ("max", [a, b]) => Some(*a.max(b)),
        ("ceil-div", [a, b]) if *b > 0 => Some(a.checked_add(b - 1)? / b),
        _ => None,
    }
}

/// Shape of an operand or a result, with named sizes.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    /// `true` if the shape begins with `...`, which matches any number of axes.
    pub(crate) rest: bool,
    /// The axes after the leading ones.
    pub(crate) axes: Vec<Term>,
}

impl Pattern {
    /// Parses a shape.
    ///
    /// # Errors
    /// Description of the error.
    pub(crate) fn parse(axes: &[Term], most: usize) -> Result<Self, String> {
        let is_rest = |t: &Term| matches!(t, Term::Name(name) if name == REST);
        let rest = axes.first().is_some_and(is_rest);
        let axes = &axes[usize::from(rest)..];
        if axes.iter().any(is_rest) {
            return Err("'...' must occur only once, before all other axes".into());
        }
        if axes.len() > most {
            return Err(format!("it has {} axes; {most} are allowed", axes.len()));
        }
        Ok(Pattern {
            rest,
            axes: axes.to_vec(),
        })
    }

    /// Returns the names of axes, except `...`.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().filter_map(|axis| match axis {
            Term::Name(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Binds names to sizes; [`Pattern::check`] is for the other axes, once all names are bound.
    /// `rests` collects the axes of each `...`.
    ///
    /// # Errors
    /// The difference between the shapes.
    pub(crate) fn bind(&self, shape: &[usize], sizes: &mut Sizes, rests: &mut Vec<Vec<usize>>) -> Result<(), String> {
        let Some(before) = shape
            .len()
            .checked_sub(self.axes.len())
            .filter(|&n| self.rest || n == 0)
        else {
            let plus = if self.rest { " or more" } else { "" };
            return Err(format!("{shape:?} does not have {}{plus} axes", self.axes.len()));
        };
        if self.rest {
            rests.push(shape[..before].to_vec());
        }
        for (axis, &size) in self.axes.iter().zip(&shape[before..]) {
            if let Term::Name(name) = axis {
                let size = i64::try_from(size).map_err(|_| "an axis is too long")?;
                let wanted = *sizes.by_name.entry(name.clone()).or_insert(size);
                fits(shape, size, axis, wanted)?;
            }
        }
        Ok(())
    }

    /// Compares the axes that are not names with a shape that was [bound](Pattern::bind).
    ///
    /// # Errors
    /// The difference between the shapes.
    pub(crate) fn check(&self, shape: &[usize], sizes: &Sizes) -> Result<(), String> {
        let before = shape.len().saturating_sub(self.axes.len());
        for (axis, &size) in self.axes.iter().zip(&shape[before..]) {
            if !matches!(axis, Term::Name(_)) {
                let size = i64::try_from(size).map_err(|_| "an axis is too long")?;
                fits(shape, size, axis, sizes.value(axis)?)?;
            }
        }
        Ok(())
    }

    /// Returns the shape for these sizes.
    ///
    /// # Errors
    /// An axis without a size.
    pub(crate) fn shape(&self, sizes: &Sizes) -> Result<Vec<usize>, String> {
        let rest = if self.rest { &sizes.rest[..] } else { &[] };
        let axes = self.axes.iter().map(|axis| sizes.size(axis));
        rest.iter().map(|&n| Ok(n)).chain(axes).collect()
    }
}

/// Checks that an axis has the required size.
fn fits(shape: &[usize], size: i64, axis: &Term, wanted: i64) -> Result<(), String> {
    if size == wanted {
        Ok(())
    } else {
        Err(format!(
            "an axis of {shape:?} has {size} elements, but '{axis}' is {wanted}"
        ))
    }
}

/// Returns the axes of `...`: equal everywhere, or the result of broadcasting.
///
/// # Errors
/// Axes that do not match.
pub(crate) fn join_rests(rests: &[Vec<usize>], broadcast: bool) -> Result<Vec<usize>, String> {
    let Some(longest) = rests.iter().max_by_key(|r| r.len()) else {
        return Ok(Vec::new());
    };
    if !broadcast {
        return match rests.iter().find(|r| *r != longest) {
            None => Ok(longest.clone()),
            Some(other) => Err(format!("'...' matches both {longest:?} and {other:?}")),
        };
    }
    let mut joined = vec![1; longest.len()];
    for rest in rests {
        let behind = joined.len() - rest.len();
        for (to, &size) in joined[behind..].iter_mut().zip(rest) {
            match (*to, size) {
                (_, 1) => {}
                (1, n) => *to = n,
                (a, b) if a == b => {}
                (a, b) => return Err(format!("'...' cannot be broadcast: {a} and {b} elements")),
            }
        }
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(axes: &[&str]) -> Pattern {
        let terms: Vec<Term> = axes.iter().map(|a| Term::parse(a).expect("a size")).collect();
        Pattern::parse(&terms, 8).expect("a shape")
    }

    #[test]
    fn sizes_are_found_and_used() {
        let (mut sizes, mut rests) = (Sizes::default(), Vec::new());
        let first = pattern(&["...", "(* m 2)", "n", "2"]);
        first.bind(&[5, 6, 4, 2], &mut sizes, &mut rests).expect("fits");
        assert!(first.check(&[5, 6, 4, 2], &sizes).is_err(), "what m is comes later");
        pattern(&["m"]).bind(&[3], &mut sizes, &mut rests).expect("fits");
        first.check(&[5, 6, 4, 2], &sizes).expect("fits");
        assert!(first.check(&[5, 6, 4, 3], &sizes).is_err());
        pattern(&["n"]).bind(&[4], &mut sizes, &mut rests).expect("fits");
        assert!(pattern(&["n"]).bind(&[5], &mut sizes, &mut rests).is_err());
        assert!(pattern(&["n", "m"]).bind(&[4], &mut sizes, &mut rests).is_err());
        assert_eq!(rests, [[5]]);
        sizes.rest = join_rests(&rests, false).expect("one");
        let out = pattern(&["...", "(ceil-div n 3)"]).shape(&sizes).expect("a shape");
        assert_eq!(out, [5, 2]);
        for (text, value) in [("(* n n)", 16), ("(- 1 n)", -3), ("(% n 3)", 1), ("(max n 9)", 9)] {
            assert_eq!(sizes.value(&Term::parse(text).expect("a term")), Ok(value), "{text}");
        }
        for text in ["(/ n 0)", "q", "(* 9223372036854775807 n)", "1.5", "(sin n)"] {
            assert!(sizes.value(&Term::parse(text).expect("a term")).is_err(), "{text}");
        }
        assert!(sizes.size(&Term::parse("(- 1 n)").expect("a term")).is_err());
    }

    #[test]
    fn axes_are_broadcast_only_where_that_is_asked_for() {
        let rests = [vec![4, 1], vec![3], vec![]];
        assert_eq!(join_rests(&rests, true), Ok(vec![4, 3]));
        assert!(join_rests(&rests, false).is_err());
        assert!(join_rests(&[vec![2], vec![3]], true).is_err());
    }
}
