//! Checks before training that all ranks train the same: later, a difference would give wrong
//! results or a deadlock.

use super::{Collective, CollectiveError, CollectiveFailure, Communicator};
use crate::error::{Error, Result};

/// Maximum bytes of a text that are gathered from one rank.
const MAX_TEXT: usize = 1 << 20;

/// Gathers the texts of all ranks, each of up to 1 MiB, in the order of the ranks.
///
/// # Errors
/// As [`Communicator::all_gather`]; a longer text.
pub fn gather_texts(communicator: &dyn Communicator, tensor: &str, text: &str) -> Result<Vec<String>> {
    let size = communicator.size();
    let mut lengths = vec![0; 8 * size];
    communicator.all_gather(tensor, &(text.len() as u64).to_le_bytes(), &mut lengths)?;
    let lengths = lengths.chunks_exact(8).map(|bytes| {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        u64::from_le_bytes(word) as usize
    });
    let lengths: Vec<usize> = lengths.collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest > MAX_TEXT {
        return Err(Error::collective(CollectiveError {
            rank: communicator.rank(),
            size,
            operation: Collective::AllGather,
            tensor: tensor.to_owned(),
            failure: CollectiveFailure::Invalid(format!("a text of {longest} bytes is longer than {MAX_TEXT}")),
        }));
    }
    let mut own = text.as_bytes().to_vec();
    own.resize(longest, 0);
    let mut all = vec![0; longest * size];
    communicator.all_gather(tensor, &own, &mut all)?;
    let text = |(rank, &length): (usize, &usize)| {
        let start = rank * longest;
        String::from_utf8_lossy(&all[start..start + length]).into_owned()
    };
    Ok(lengths.iter().enumerate().map(text).collect())
}

/// Compares named facts between all ranks. `what` is their common title, as in "the plan".
///
/// # Errors
/// [`CollectiveFailure::Mismatch`] on every rank where any of them differ, with the first rank that differs from this
/// one, the name and both values; as [`Communicator::all_gather`].
pub fn agree(communicator: &dyn Communicator, what: &str, facts: &[(&str, String)]) -> Result<()> {
    // Values are one line each, so that a line is a fact.
    let line = |(name, value): &(&str, String)| format!("{name}\t{}", value.replace(['\n', '\t'], " "));
    let own: Vec<String> = facts.iter().map(line).collect();
    let texts = gather_texts(communicator, what, &own.join("\n"))?;
    // Every rank must report a difference, including ranks that agree with rank 0.
    let own_text = &texts[communicator.rank()];
    let differs = |(_, text): &(usize, &String)| *text != own_text;
    let Some((peer, text)) = texts.iter().enumerate().find(differs) else {
        return Ok(());
    };
    let theirs: Vec<&str> = text.lines().collect();
    let pairs = own.iter().map(String::as_str).zip(theirs.iter().copied());
    let different = pairs.into_iter().find(|(own, their)| own != their);
    let what_differs = match different {
        Some((own, their)) => {
            let (name, value) = own.split_once('\t').unwrap_or((own, ""));
            let (their_name, their_value) = their.split_once('\t').unwrap_or((their, ""));
            if name == their_name {
                format!("its {name} is {their_value}, that of this rank is {value}")
            } else {
                format!("it has {their_name}, this rank has {name}")
            }
        }
        None => format!("it has {} facts, this rank has {}", theirs.len(), own.len()),
    };
    Err(Error::collective(CollectiveError {
        rank: communicator.rank(),
        size: communicator.size(),
        operation: Collective::Agreement,
        tensor: what.to_owned(),
        failure: CollectiveFailure::Mismatch {
            peer,
            what: what_differs,
        },
    }))
}
