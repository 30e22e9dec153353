//! Sets of CPUs in the kernel's notations.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Most CPUs of a machine: the kernel's largest `NR_CPUS`.
pub(crate) const CPUS_MAX: u32 = 8192;

/// A set of CPUs. Its text is the kernel's list format: `0-3,8`.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CpuSet(BTreeSet<u32>);

/// A text that is no list or mask of CPUs.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is no list of CPUs; write it as 0-3,8")]
pub struct ParseCpuSetError(String);

impl CpuSet {
    /// True if there is no CPU in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if `cpu` is in it.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The CPUs of this set that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// The CPUs of both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Reads the kernel's mask format: hexadecimal words of 32 bits, the highest first, `ff,00000001`.
    ///
    /// # Errors
    /// The text is no mask.
    pub fn from_mask(text: &str) -> Result<Self, ParseCpuSetError> {
        let error = || ParseCpuSetError(text.to_owned());
        let mut cpus = BTreeSet::new();
        for (word, digits) in text.trim().split(',').rev().enumerate() {
            if digits.len() > 8 || word as u32 * 32 >= CPUS_MAX {
                return Err(error());
            }
            let bits = u32::from_str_radix(digits, 16).map_err(|_| error())?;
            let set = (0..32).filter(|bit| bits >> bit & 1 == 1);
            cpus.extend(set.map(|bit| word as u32 * 32 + bit));
        }
        Ok(Self(cpus))
    }

    /// The kernel's mask format, with as many digits as the kernel shows for `cpus` CPUs.
    #[must_use]
    pub fn to_mask(&self, cpus: u32) -> String {
        let highest = self.0.last().map_or(0, |cpu| cpu + 1);
        let digits = cpus.max(highest).max(1).div_ceil(4);
        let digit = |number: u32| {
            let bits = (0..4).filter(|bit| self.contains(number * 4 + bit));
            let comma = if number > 0 && number.is_multiple_of(8) { "," } else { "" };
            format!("{:x}{comma}", bits.fold(0_u8, |digit, bit| digit | 1 << bit))
        };
        (0..digits).rev().map(digit).collect()
    }

    /// The same as wide as the mask `shown` by the kernel, which shows what is written to it in that width.
    #[must_use]
    pub fn to_mask_like(&self, shown: &str) -> String {
        let digits = shown.trim().split(',').map(str::len).sum::<usize>();
        self.to_mask(u32::try_from(digits * 4).unwrap_or(CPUS_MAX).min(CPUS_MAX))
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseCpuSetError(text.to_owned());
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.trim().is_empty()) {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| digits.trim().parse::<u32>().map_err(|_| error());
            let (low, high) = (number(low)?, number(high)?);
            if low > high || high >= CPUS_MAX {
                return Err(error());
            }
            cpus.extend(low..=high);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        let texts = ranges.iter().map(|(low, high)| match low == high {
            true => low.to_string(),
            false => format!("{low}-{high}"),
        });
        f.write_str(&texts.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().expect(text)
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for text in ["", "0", "0-3,8", "4-19,24-39", "1,3,5", "63-65"] {
            assert_eq!(set(text).to_string(), text);
        }
        assert_eq!(set("3,1-2\n").to_string(), "1-3");
        for wrong in ["3-1", "a", "1-", "-1", "9999", "0-99999999"] {
            assert!(wrong.parse::<CpuSet>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn masks_have_their_highest_word_first() {
        assert_eq!(CpuSet::from_mask("00000001,80000000").expect("a mask").to_string(), "31-32");
        assert_eq!(set("31-32").to_mask(40), "01,80000000");
        assert_eq!(set("").to_mask(4), "0");
        assert_eq!(set("0-1").to_mask(2), "3");
        assert_eq!(set("0-1").to_mask(13), "0003");
        assert_eq!(set("0-1,32").to_mask(64), "00000001,00000003");
        assert_eq!(set("0-1").to_mask_like("ff\n"), "03");
        assert_eq!(set("7").to_mask_like("ff,ffffffff"), "00,00000080");
        assert_eq!(set("8").to_mask_like("ff"), "100");
        for wrong in ["xyz", "123456789", ""] {
            assert!(CpuSet::from_mask(wrong).is_err(), "{wrong}");
        }
    }
}
