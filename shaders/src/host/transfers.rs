//! Host writes that wait for the next submission, and results that the host is expected to read.

use meganeura_core::plan::BufferRef;

use super::places::BufferLocation;

/// Maximum number of bytes of results that a step copies to the host because the host read them after the last step.
pub(super) const MAX_EXPECTED: u64 = 64 << 10;

/// A copy between device and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// Buffer on the device.
    pub(super) buffer: BufferRef,
    /// Offset in the device buffer, in bytes.
    pub(super) offset: u64,
    /// Number of bytes to copy.
    pub(super) len: u64,
    /// Offset in the memory of the host, in bytes.
    pub(super) host: u64,
}

impl Copy {
    /// Returns true if both copies have the same device bytes.
    pub(super) fn is_same(&self, other: &Copy) -> bool {
        (self.buffer, self.offset, self.len) == (other.buffer, other.offset, other.len)
    }

    /// Returns true if both copies have device bytes in common.
    pub(super) fn overlaps(&self, other: &Copy) -> bool {
        self.buffer == other.buffer && self.offset < other.offset + other.len && other.offset < self.offset + self.len
    }
}

/// A copy between a location in device memory and the staging memory of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Location of the device buffer.
    pub place: BufferLocation,
    /// Offset in this location, in bytes.
    pub offset: u64,
    /// Offset in the staging memory, in bytes.
    pub host: u64,
    /// Number of bytes to copy.
    pub len: u64,
}

impl Transfer {
    /// Returns true if both transfers have device bytes in common.
    pub fn overlaps(&self, other: &Transfer) -> bool {
        let start = |transfer: &Transfer| transfer.place.offset + transfer.offset;
        let (own, others) = (start(self), start(other));
        self.place.slab == other.place.slab && own < others + other.len && others < own + self.len
    }
}

/// Writes of the host since the last submission, in order.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    /// Data of all writes.
    pub(super) bytes: Vec<u8>,
    /// Destination of each write.
    pub(super) copies: Vec<Copy>,
}

impl PendingWrites {
    /// Adds a write. If it replaces an earlier write, changes that one instead.
    ///
    /// # Errors
    /// The queued writes would exceed `most` bytes and have to be submitted first.
    pub(super) fn add(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8], most: usize) -> Result<(), QueueFull> {
        let mut copy = Copy {
            buffer,
            offset,
            len: bytes.len() as u64,
            host: 0,
        };
        let known = self.copies.iter().rposition(|c| c.is_same(&copy));
        let last = known.filter(|&i| !self.copies[i + 1..].iter().any(|c| c.overlaps(&copy)));
        if let Some(at) = last {
            // The earlier write has not been submitted yet.
            let start = self.copies[at].host as usize;
            self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let start = self.bytes.len().next_multiple_of(4);
        if start + bytes.len() > most && !self.copies.is_empty() {
            return Err(QueueFull);
        }
        self.bytes.resize(start, 0);
        copy.host = start as u64;
        self.bytes.extend_from_slice(bytes);
        self.copies.push(copy);
        Ok(())
    }

    /// Removes the queued writes after their submission.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.copies.clear();
    }

    /// Returns true if a queued write overlaps a copy.
    pub(super) fn change(&self, copy: &Copy) -> bool {
        self.copies.iter().any(|c| c.overlaps(copy))
    }
}

/// The error that the queue of writes is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

/// Assigns offsets in the memory of the host, from `first` on, to copies that the host is expected to read. Omits
/// copies that do not fit.
pub(super) fn place_expected(expected: impl Iterator<Item = Copy>, first: u64) -> Vec<Copy> {
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
        let mut writes = PendingWrites::default();
        let mut add =
            |buffer, offset, bytes: &[u8]| writes.add(buffer, offset, bytes, 32).map(|()| writes.copies.len());
        assert_eq!(add(a, 0, &[1; 6]), Ok(1));
        assert_eq!(add(b, 0, &[2; 4]), Ok(2));
        assert_eq!(add(a, 0, &[3; 6]), Ok(2), "in its place");
        assert_eq!(add(a, 4, &[4; 4]), Ok(3));
        assert_eq!(add(a, 0, &[5; 6]), Ok(4), "behind what it overlaps");
        assert_eq!(add(b, 8, &[6; 12]), Err(QueueFull));
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
