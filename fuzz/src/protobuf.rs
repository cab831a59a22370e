//! Mutations of Protocol Buffers: fields are removed, repeated, exchanged and renumbered, and all
//! enclosing lengths are updated.

use crate::{SplitMix64, binary, number};

/// Maximum nesting depth of messages. Deeper ones are treated as bytes.
const MAX_DEPTH: usize = 12;

#[derive(Clone)]
enum Value {
    Varint(u64),
    /// Number of four or eight bytes.
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

#[derive(Clone)]
struct Field {
    number: u64,
    value: Value,
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 128 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

/// Parses a message; returns `None` for anything else.
fn read(mut bytes: &[u8], depth: usize) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes)?;
        if key >> 3 == 0 {
            return None;
        }
        let value = match key & 7 {
            0 => Value::Varint(read_varint(&mut bytes)?),
            1 => Value::Fixed(take(&mut bytes, 8)?.to_vec()),
            5 => Value::Fixed(take(&mut bytes, 4)?.to_vec()),
            2 => {
                let len = usize::try_from(read_varint(&mut bytes)?).ok()?;
                let inner = take(&mut bytes, len)?;
                // Names consist of letters, which are hardly ever a valid message.
                let message = match depth < MAX_DEPTH && !inner.is_empty() {
                    true => read(inner, depth + 1),
                    false => None,
                };
                message.map_or_else(|| Value::Bytes(inner.to_vec()), Value::Message)
            }
            _ => return None,
        };
        fields.push(Field {
            number: key >> 3,
            value,
        });
    }
    Some(fields)
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

fn write(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields {
        let wire = match &field.value {
            Value::Varint(_) => 0,
            Value::Fixed(bytes) if bytes.len() == 8 => 1,
            Value::Fixed(_) => 5,
            Value::Bytes(_) | Value::Message(_) => 2,
        };
        write_varint(field.number << 3 | wire, &mut out);
        match &field.value {
            Value::Varint(value) => write_varint(*value, &mut out),
            Value::Fixed(bytes) => out.extend(bytes),
            Value::Bytes(bytes) => {
                write_varint(bytes.len() as u64, &mut out);
                out.extend(bytes);
            }
            Value::Message(inner) => {
                let inner = write(inner);
                write_varint(inner.len() as u64, &mut out);
                out.extend(inner);
            }
        }
    }
    out
}

/// Selects a list of fields at random, among the message and its nested messages.
fn descend<'a>(fields: &'a mut Vec<Field>, rng: &mut SplitMix64) -> &'a mut Vec<Field> {
    let messages: Vec<usize> = (0..fields.len())
        .filter(|i| matches!(&fields[*i].value, Value::Message(inner) if !inner.is_empty()))
        .collect();
    if messages.is_empty() || rng.below(5) == 0 {
        return fields;
    }
    match &mut fields[messages[rng.below(messages.len())]].value {
        Value::Message(inner) => descend(inner, rng),
        _ => unreachable!("only messages were listed"),
    }
}

/// Applies one random mutation to bytes, which need not be a valid message.
pub fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut SplitMix64) {
    let Some(mut fields) = read(bytes, 0).filter(|fields| !fields.is_empty()) else {
        return binary::change(bytes, seeds, rng);
    };
    // Fields from elsewhere, for insertion.
    let mut from = match rng.below(2) {
        0 => fields.clone(),
        _ => read(&seeds[rng.below(seeds.len())], 0).unwrap_or_else(|| fields.clone()),
    };
    let from = descend(&mut from, rng);
    let other = from[rng.below(from.len())].clone();
    let place = descend(&mut fields, rng);
    let at = rng.below(place.len());
    match rng.below(8) {
        0 => drop(place.remove(at)),
        1 => place.insert(at, place[at].clone()),
        2 => {
            let same = rng.below(place.len());
            place.swap(at, same);
        }
        // Names of values define the graph: replacing one by another of the same field changes the
        // graph.
        3 | 4 => {
            let number = place[at].number;
            let same: Vec<Value> = from
                .iter()
                .filter(|f| f.number == number)
                .map(|f| f.value.clone())
                .collect();
            place[at].value = match same.is_empty() {
                true => other.value,
                false => same[rng.below(same.len())].clone(),
            };
        }
        5 => place.insert(at, other),
        _ => match &mut place[at].value {
            Value::Varint(value) => *value = number(rng),
            Value::Fixed(bytes) => {
                let len = bytes.len();
                bytes.copy_from_slice(&number(rng).to_le_bytes()[..len]);
            }
            Value::Bytes(bytes) if !bytes.is_empty() => binary::change(bytes, seeds, rng),
            Value::Bytes(_) => place[at].value = Value::Varint(number(rng)),
            Value::Message(_) => place[at].number = 1 + rng.below(32) as u64,
        },
    }
    *bytes = write(&fields);
}
