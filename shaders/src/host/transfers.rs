//! Writes of the host that wait for the next submission, and results that the host is expected to read.

use meganeura_core::plan::BufferRef;

/// Bytes of results that a step copies for the host because the last one was asked for them.
pub const MAX_EXPECTED: u64 = 64 << 10;

/// A copy between device and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The buffer of the device.
    pub buffer: BufferRef,
    /// First byte there.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// First byte in the host's memory.
    pub host: u64,
}

impl Copy {
    /// Whether both are of the same bytes of the device.
    pub fn is_same(&self, other: &Copy) -> bool {
        (self.buffer, self.offset, self.len) == (other.buffer, other.offset, other.len)
    }

    /// Whether both are of some byte of the device.
    pub fn overlaps(&self, other: &Copy) -> bool {
        self.buffer == other.buffer && self.offset < other.offset + other.len && other.offset < self.offset + self.len
    }
}

/// What the host has written since the last submission, in the order of writing.
#[derive(Debug, Default)]
pub struct Writes {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Where they belong.
    pub copies: Vec<Copy>,
}

impl Writes {
    /// Adds a write, or changes one that it replaces.
    ///
    /// # Errors
    /// It would be more than `most` bytes together with what is there, which has to be submitted first.
    pub fn add(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8], most: usize) -> Result<(), Full> {
        let mut copy = Copy {
            buffer,
            offset,
            len: bytes.len() as u64,
            host: 0,
        };
        let known = self.copies.iter().rposition(|c| c.is_same(&copy));
        let last = known.filter(|&i| !self.copies[i + 1..].iter().any(|c| c.overlaps(&copy)));
        if let Some(at) = last {
            // Written again before anybody has seen it.
            let start = self.copies[at].host as usize;
            self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let start = self.bytes.len().next_multiple_of(4);
        if start + bytes.len() > most && !self.copies.is_empty() {
            return Err(Full);
        }
        self.bytes.resize(start, 0);
        copy.host = start as u64;
        self.bytes.extend_from_slice(bytes);
        self.copies.push(copy);
        Ok(())
    }

    /// Forgets what was submitted.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.copies.clear();
    }

    /// Whether some byte of a copy is going to be overwritten.
    pub fn change(&self, copy: &Copy) -> bool {
        self.copies.iter().any(|c| c.overlaps(copy))
    }
}

/// There is no room for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Places in the host's memory from a byte on for copies that are expected to be read, as far as there is room.
pub fn place_expected(expected: impl Iterator<Item = Copy>, first: u64) -> Vec<Copy> {
    let mut next = first;
    let mut copies: Vec<Copy> = Vec::new();
    for mut copy in expected {
        if copies.iter().map(|c| c.len).sum::<u64>() + copy.len <= MAX_EXPECTED {
            copy.host = next;
            next = (next + copy.len).next_multiple_of(4);
            copies.push(copy);
        }
    }
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_again_replaces_what_nobody_has_seen() {
        let (a, b) = (BufferRef(0), BufferRef(1));
        let mut writes = Writes::default();
        let mut add =
            |buffer, offset, bytes: &[u8]| writes.add(buffer, offset, bytes, 32).map(|()| writes.copies.len());
        assert_eq!(add(a, 0, &[1; 6]), Ok(1));
        assert_eq!(add(b, 0, &[2; 4]), Ok(2));
        assert_eq!(add(a, 0, &[3; 6]), Ok(2), "in its place");
        assert_eq!(add(a, 4, &[4; 4]), Ok(3));
        assert_eq!(add(a, 0, &[5; 6]), Ok(4), "behind what it overlaps");
        assert_eq!(add(b, 8, &[6; 12]), Err(Full));
        let hosts: Vec<u64> = writes.copies.iter().map(|c| c.host).collect();
        assert_eq!(hosts, [0, 8, 12, 16]);
        assert_eq!(writes.bytes[..6], [3; 6]);
        writes.clear();
        assert_eq!(writes.add(b, 0, &[0; 100], 32), Ok(()), "larger than all, alone");
    }

    #[test]
    fn expected_results_lie_behind_each_other_as_long_as_there_is_room() {
        let copy = |len| Copy {
            buffer: BufferRef(0),
            offset: 0,
            len,
            host: 0,
        };
        let placed = place_expected([copy(6), copy(MAX_EXPECTED), copy(4)].into_iter(), 12);
        let hosts: Vec<(u64, u64)> = placed.iter().map(|c| (c.host, c.len)).collect();
        assert_eq!(hosts, [(12, 6), (20, 4)]);
    }
}
