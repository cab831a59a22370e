//! The random order of splits and batches.
//!
//! Published results depend on the examples that are held out, so the order must never change between releases. `rand`
//! does not guarantee that for its `StdRng` or its shuffle, so this module implements both.

use meganeura_core::random::{SplitMix64, mix};

/// Number that selects the random stream of [`super::Dataset::split`], so that it differs from the stream of
/// [`super::Batches`] for the same seed. ASCII `"split"`.
pub(super) const SPLIT_DOMAIN: u64 = 0x73_70_6c_69_74;

/// Number that selects the random stream of [`super::Batches`]; see [`SPLIT_DOMAIN`]. ASCII `"epoch"`.
pub(super) const EPOCH_DOMAIN: u64 = 0x65_70_6f_63_68;

/// Number that selects the random stream of [`super::Augmentation`]; see [`SPLIT_DOMAIN`]. ASCII `"augment"`.
pub(super) const AUGMENT_DOMAIN: u64 = 0x61_75_67_6d_65_6e_74;

/// Creates the generator of one example in one epoch:
/// `state = mix(mix(mix(seed ^ domain) + epoch) + example)`.
pub(super) fn derive_example(seed: u64, domain: u64, epoch: u64, example: u64) -> SplitMix64 {
    let of_epoch = mix(mix(seed ^ domain).wrapping_add(epoch));
    SplitMix64::new(mix(of_epoch.wrapping_add(example)))
}

/// Unbiased shuffles by SplitMix64. Not for cryptography.
#[derive(Clone, Debug)]
pub(super) struct Shuffler(SplitMix64);

impl Shuffler {
    /// Creates the generator of one purpose: `state = mix(mix(seed ^ domain) + counter)`.
    ///
    /// `mix` is a bijection, so for one seed and domain no two counters share
    /// a state.
    pub(super) fn derive(seed: u64, domain: u64, counter: u64) -> Self {
        Shuffler(SplitMix64::new(mix(mix(seed ^ domain).wrapping_add(counter))))
    }

    /// Returns a uniform integer in `0..=last`, without modulo bias.
    ///
    /// Lemire's method: the high half of a 64×64-bit product is the result, unless the low half is
    /// one of the few values that would make some results more likely than the rest; then the draw
    /// is repeated.
    fn up_to(&mut self, last: u64) -> u64 {
        let Some(bound) = last.checked_add(1) else {
            return self.0.next_u64(); // every 64-bit value is in range
        };
        let reject_below = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(bound);
            if product as u64 >= reject_below {
                return (product >> 64) as u64;
            }
        }
    }

    /// Shuffles in place: Fisher-Yates from the last position down to 1,
    /// swapping position `i` with one drawn from `0..=i`.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.up_to(i as u64) as usize);
        }
    }

    /// Returns the numbers `0..len` in shuffled order.
    pub(super) fn permutation(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        self.shuffle(&mut order);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_reference_outputs() {
        let mut rng = SplitMix64::new(1_234_567);
        let got: Vec<u64> = (0..5).map(|_| rng.next_u64()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(got, expected);
    }

    #[test]
    fn bounded_draws_are_in_range_and_even() {
        let mut rng = Shuffler(SplitMix64::new(1));
        let mut counts = [0_u32; 6];
        for _ in 0..60_000 {
            counts[rng.up_to(5) as usize] += 1;
        }
        // Mean 10,000, standard deviation about 91: five deviations.
        assert!(counts.iter().all(|&c| (9_540..=10_460).contains(&c)), "{counts:?}");
        assert_eq!(rng.up_to(0), 0);
        rng.up_to(u64::MAX); // must not overflow
    }

    /// Draws are repeated as in an independent implementation. Half of all draws are rejected here, compared with
    /// almost none for the sizes of data sets. Values from an independent implementation.
    #[test]
    fn biased_draws_are_repeated() {
        let mut rng = Shuffler(SplitMix64::new(1));
        let got: Vec<u64> = (0..4).map(|_| rng.up_to(1 << 63)).collect();
        let expected = [
            8_955_919_645_141_445_295,
            4_098_490_376_910_890_117,
            4_097_618_618_563_484_380,
            7_036_458_801_432_265_024,
        ];
        assert_eq!(got, expected);
    }

    #[test]
    fn permutations_hold_every_index_once() {
        for len in [0, 1, 2, 3, 17, 1000] {
            let mut order = Shuffler(SplitMix64::new(9)).permutation(len);
            order.sort_unstable();
            assert_eq!(order, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn domains_and_counters_give_different_streams() {
        let first = |seed, domain, counter| Shuffler::derive(seed, domain, counter).0.next_u64();
        let base = first(0, EPOCH_DOMAIN, 0);
        assert_ne!(base, first(0, SPLIT_DOMAIN, 0));
        assert_ne!(base, first(0, EPOCH_DOMAIN, 1));
        assert_ne!(base, first(1, EPOCH_DOMAIN, 0));
    }
}
