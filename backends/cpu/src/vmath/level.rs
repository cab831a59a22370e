//! Instruction-set levels, and the macro that compiles a loop once per level.

/// The widest instruction set that loops compiled by `multiversion!` may use.
///
/// Only [`detect`] and [`Level::available`] create a `Level` other than [`Level::BASELINE`]. A value of this type
/// therefore proves that the CPU has the instructions. `multiversion!` relies on this proof for the safety of its
/// calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(Isa);

/// The instruction set of a [`Level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// Level with only the features that the compilation target guarantees.
    pub(crate) const BASELINE: Self = Self(Isa::Baseline);

    /// True if the baseline has a fused multiply-add instruction. Without it, `f32::mul_add` would call the C library
    /// for every element.
    pub(crate) const BASELINE_FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

    /// Returns the instruction set, for `multiversion!`.
    pub(crate) fn isa(self) -> Isa {
        self.0
    }

    /// Returns every level that this CPU can run, narrowest first.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        let mut levels = vec![Self::BASELINE];
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx2() {
                levels.push(Self(Isa::Avx2));
            }
            if has_avx512() {
                levels.push(Self(Isa::Avx512));
            }
        }
        levels
    }

    /// Returns a short name for logs and benchmark labels.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Isa::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
        }
    }
}

/// Detects the widest level of this CPU. Call it once and keep the result.
pub(crate) fn detect() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if has_avx512() {
            return Level(Isa::Avx512);
        }
        if has_avx2() {
            return Level(Isa::Avx2);
        }
    }
    Level::BASELINE
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Returns true if the CPU has every feature of the AVX-512 branch of `multiversion!`.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
}

/// Defines a function whose first argument is a `Level`. It runs `body`, compiled for this level. `Isa` and `Level`
/// must be in scope.
///
/// `body` must be `#[inline(always)]`, and so must all hot functions that it calls: only code that is inlined into
/// the `#[target_feature]` functions is compiled with their instructions. The first generic parameter of `body` is
/// `const FMA: bool`. It is true if `f32::mul_add` is one instruction.
macro_rules! multiversion {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident $(<$g:ident: $bound:path>)? ($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? = $body:ident;
    ) => {
        $(#[$meta])*
        $vis fn $name $(<$g: $bound>)? (level: Level, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                $body::<true $(, $g)?>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")]
            fn avx512 $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                $body::<true $(, $g)?>($($arg),*)
            }

            match level.isa() {
                Isa::Baseline => {
                    $body::<{ Level::BASELINE_FMA } $(, $g)?>($($arg),*)
                }
                // SAFETY: a `Level` with this `Isa` is created only if the CPU has every feature that the function
                // enables.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    };
}
pub(crate) use multiversion;
