//! Class ids for labels that are words or arbitrary whole numbers.

use std::collections::{BTreeMap, HashMap};

use meganeura_core::error::names_there_are;

/// Maximum magnitude up to which `f64` represents every whole number.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Class ids of labels, in the order of their first occurrence.
#[derive(Debug, Default)]
pub(super) struct Labels {
    ids: HashMap<String, u32>,
    names: Vec<String>,
    labels: Vec<u32>,
    /// True if only labels that exist already are accepted.
    closed: bool,
    /// True if texts that look like numbers are compared as text.
    exact: bool,
}

impl Labels {
    /// Creates labels that are compared as text, with these classes if there are any given.
    pub(super) fn of_texts(classes: Option<&[String]>) -> Self {
        let names = classes.unwrap_or_default();
        Labels {
            ids: names.iter().cloned().zip(0..).collect(),
            names: names.to_vec(),
            labels: Vec::new(),
            closed: classes.is_some(),
            exact: true,
        }
    }

    /// Creates labels whose ids are the positions in `classes`; other labels are refused.
    pub(super) fn of(classes: &[String]) -> Self {
        let ids = classes.iter().enumerate();
        Labels {
            ids: ids.map(|(id, name)| (normal(name), id as u32)).collect(),
            names: classes.to_vec(),
            labels: Vec::new(),
            closed: true,
            exact: false,
        }
    }

    /// Adds the label of the next example. The error is the reason why a label is invalid.
    pub(super) fn push(&mut self, text: &str) -> Result<(), String> {
        if text.is_empty() {
            return Err("the label is empty; fill it in, or remove the example".into());
        }
        let name = if self.exact { text.to_owned() } else { normal(text) };
        let id = match self.ids.get(&name) {
            Some(&id) => id,
            None if self.closed => {
                let known = names_there_are(text, self.names.iter().map(String::as_str));
                let known = if known.is_empty() {
                    String::new()
                } else {
                    format!("; {known}")
                };
                return Err(format!(
                    "'{text}' is none of the {} known classes{known}",
                    self.names.len()
                ));
            }
            None => {
                let id = u32::try_from(self.names.len()).map_err(|_| "there are too many classes".to_owned())?;
                self.names.push(name.clone());
                self.ids.insert(name, id);
                id
            }
        };
        self.labels.push(id);
        Ok(())
    }

    /// Returns the labels of all examples and the names of the classes. Ids that were not given
    /// follow the order of the names: of numbers if all are numbers, else of their bytes. The error
    /// is a fraction among numeric labels: fractions are quantities, not classes.
    pub(super) fn finish(self) -> Result<(Vec<u32>, Vec<String>), String> {
        if self.closed {
            return Ok((self.labels, self.names));
        }
        let all_numbers = !self.exact && self.names.iter().all(|n| n.parse::<f64>().is_ok());
        if let (true, Some(name)) = (all_numbers, self.names.iter().find(|n| n.parse::<i64>().is_err())) {
            return Err(name.clone());
        }
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (&self.names[a], &self.names[b]);
            match (a.parse::<i64>(), b.parse::<i64>()) {
                (Ok(a), Ok(b)) if all_numbers => a.cmp(&b),
                _ => a.cmp(b),
            }
        });
        let mut new_ids = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            new_ids[old] = new as u32;
        }
        let labels = self.labels.iter().map(|&old| new_ids[old as usize]).collect();
        Ok((labels, order.iter().map(|&old| self.names[old].clone()).collect()))
    }
}

/// Returns the text in normal form: whole numbers `01` and `1.0` become `1`, other texts do not change.
fn normal(text: &str) -> String {
    match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(number), _) => number.to_string(),
        (_, Ok(number)) if number.fract() == 0.0 && number.abs() <= EXACT => (number as i64).to_string(),
        _ => text.to_owned(),
    }
}

/// Returns ids for whole numbers, by their order, and the numbers as names.
pub(super) fn of_numbers(numbers: &[i64]) -> (Vec<u32>, Vec<String>) {
    let mut ids: BTreeMap<i64, u32> = numbers.iter().map(|&n| (n, 0)).collect();
    for (new, id) in ids.values_mut().enumerate() {
        *id = new as u32;
    }
    let labels = numbers.iter().filter_map(|n| ids.get(n).copied()).collect();
    (labels, ids.keys().map(i64::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(texts: &[&str]) -> Result<(Vec<u32>, Vec<String>), String> {
        let mut labels = Labels::default();
        for text in texts {
            labels.push(text)?;
        }
        labels.finish()
    }

    #[test]
    fn words_are_sorted_as_words_and_numbers_as_numbers() {
        let (labels, names) = ids(&["cat", "ant", "bee", "ant"]).unwrap();
        assert_eq!((labels, names.join(" ")), (vec![2, 0, 1, 0], "ant bee cat".into()));
        let (labels, names) = ids(&["10", "9", "-1", "010", "9.0", "1e1"]).unwrap();
        assert_eq!((labels, names.join(" ")), (vec![2, 1, 0, 2, 1, 2], "-1 9 10".into()));
        let (labels, names) = ids(&["10", "9", "none"]).unwrap();
        assert_eq!((labels, names.join(" ")), (vec![0, 1, 2], "10 9 none".into()));
        assert_eq!(
            of_numbers(&[7, -2, 7, 300]),
            (vec![1, 0, 1, 2], vec!["-2".into(), "7".into(), "300".into()])
        );
    }

    #[test]
    fn texts_are_told_apart_to_the_letter() {
        let mut labels = Labels::of_texts(None);
        for text in ["9", "10", "09", "2.5", "9"] {
            labels.push(text).unwrap();
        }
        let (ids, names) = labels.finish().unwrap();
        assert_eq!((ids, names.join(" ")), (vec![3, 1, 0, 2, 3], "09 10 2.5 9".into()));
        let mut labels = Labels::of_texts(Some(&names));
        labels.push("10").unwrap();
        assert!(labels.push("9.0").is_err() && labels.push("").is_err());
        assert_eq!(labels.finish().unwrap(), (vec![1], names));
    }

    #[test]
    fn quantities_and_nothing_are_no_classes() {
        assert_eq!(ids(&["1", "2.5", "3"]).unwrap_err(), "2.5");
        assert!(ids(&["1", ""]).unwrap_err().contains("empty"));
        assert_eq!(
            ids(&["2.5", "tall"]).unwrap().1,
            ["2.5", "tall"],
            "a name may look like a number"
        );
    }

    #[test]
    fn known_classes_keep_their_ids_and_others_are_refused() {
        let classes = ["10".to_owned(), "9".into(), "x".into()];
        let mut labels = Labels::of(&classes);
        for text in ["x", "10.0", "09"] {
            labels.push(text).unwrap();
        }
        let error = labels.push("y").unwrap_err();
        assert!(
            error.contains("none of the 3") && error.contains("there are 10, 9, x"),
            "{error}"
        );
        assert_eq!(labels.finish().unwrap(), (vec![2, 0, 1], classes.to_vec()));
    }
}
