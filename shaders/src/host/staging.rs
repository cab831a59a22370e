//! Copies to staging memory, on several threads if they are large.

use meganeura_core::parallel::for_each_share;

/// Number of bytes that a thread copies at once. A thread starts in the time in which one processor copies a tenth of this.
const SHARE: usize = 4 << 20;

/// Copies `bytes` to memory of the same length.
///
/// # Panics
/// The lengths differ.
pub fn copy_to_staging(bytes: &[u8], staging: &mut [u8]) {
    assert_eq!(bytes.len(), staging.len(), "the lengths of a copy differ");
    let shares = bytes.chunks(SHARE).zip(staging.chunks_mut(SHARE));
    for_each_share(shares, |(from, to): (&[u8], &mut [u8])| to.copy_from_slice(from));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_copied() {
        for len in [0, 1, 4097, 2 * SHARE, 3 * SHARE + 5] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let mut staging = vec![0; len];
            copy_to_staging(&bytes, &mut staging);
            assert!(staging == bytes, "{len} bytes");
        }
    }
}
