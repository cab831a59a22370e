//! A memory budget in bytes.

use super::{MemoryBudget, MemoryForecast};
use crate::error::{Error, Result};

impl MemoryBudget {
    /// Returns the budget in bytes. Shares refer to the forecast `without` recomputation, or to the
    /// memory of the device.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] for a share that is not between 0 and 1, or a share of the memory of a device whose memory
    /// size is not known.
    pub fn bytes(&self, without: &MemoryForecast, device_memory: Option<u64>) -> Result<usize> {
        let share = |share: f64, whole: usize| {
            if share > 0.0 && share <= 1.0 {
                Ok((share * whole as f64) as usize)
            } else {
                Err(Error::misuse(
                    format!("a memory budget of {} % is out of range", share * 100.0),
                    "use a share above 0 % and at most 100 %",
                ))
            }
        };
        match *self {
            MemoryBudget::Bytes(bytes) => Ok(usize::try_from(bytes).unwrap_or(usize::MAX)),
            MemoryBudget::OfPeak(part) => share(part, without.planned),
            MemoryBudget::OfStep(part) => Ok(without.planned - without.transient + share(part, without.transient)?),
            MemoryBudget::OfDevice(part) => match device_memory {
                Some(bytes) => share(part, usize::try_from(bytes).unwrap_or(usize::MAX)),
                None => Err(Error::misuse(
                    "the memory budget is a share of the device's memory, but its size is not known",
                    "give the budget in bytes, such as 4GB",
                )),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_they_say() {
        let without = MemoryForecast {
            planned: 1000,
            transient: 400,
            ..MemoryForecast::default()
        };
        let bytes = |budget: MemoryBudget, memory| budget.bytes(&without, memory);
        assert_eq!(bytes(MemoryBudget::Bytes(7), None).expect("known"), 7);
        assert_eq!(bytes(MemoryBudget::OfPeak(0.5), None).expect("known"), 500);
        assert_eq!(bytes(MemoryBudget::OfStep(0.5), None).expect("known"), 800);
        assert_eq!(bytes(MemoryBudget::OfDevice(0.5), Some(3000)).expect("known"), 1500);
        let error = bytes(MemoryBudget::OfDevice(0.5), None).expect_err("unknown");
        assert!(error.to_string().contains("give the budget in bytes"), "{error}");
        for share in [0.0, -1.0, 1.5, f64::NAN] {
            assert!(bytes(MemoryBudget::OfPeak(share), None).is_err());
        }
    }
}
