//! The merge of the datastore: appends to a value, up to a maximum length.
//!
//! A value that is as long as the maximum, or longer because a smaller maximum was set later, stays as it is.
//! Bytes beyond the maximum are dropped. The merge is associative: operands may be combined with each other before
//! they meet the value, in any grouping.

/// Appends `operands` to `base` up to `len_max` bytes.
pub fn merge<'a>(
    base: Option<&[u8]>,
    operands: impl IntoIterator<Item = &'a [u8]>,
    len_max: usize,
) -> Vec<u8> {
    let mut value = base.unwrap_or_default().to_vec();
    for operand in operands {
        let room = len_max.saturating_sub(value.len());
        value.extend_from_slice(&operand[..operand.len().min(room)]);
    }
    value
}

/// The length of a value of `len` bytes after `more` were appended to it, or `None` if they do not fit.
#[must_use]
pub fn appended_len(len: usize, more: usize, len_max: usize) -> Option<usize> {
    len.checked_add(more).filter(|all| *all <= len_max || more == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_grows_to_its_maximum_and_no_further() {
        let operands: [&[u8]; 3] = [b"abc", b"de", b"fgh"];
        assert_eq!(merge(None, operands, 6), b"abcdef");
        assert_eq!(merge(Some(b"0123456789"), operands, 6), b"0123456789", "longer ones stay");
        assert_eq!(appended_len(4, 2, 6), Some(6));
        assert_eq!(appended_len(4, 3, 6), None);
        assert_eq!(appended_len(9, 0, 6), Some(9));
        assert_eq!(appended_len(usize::MAX, 1, usize::MAX), None);
    }

    proptest! {
        /// Operands combined among themselves first give what they give one by one.
        #[test]
        fn the_merge_is_associative(
            base in prop::option::of(prop::collection::vec(any::<u8>(), 0..30)),
            operands in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..6),
            split in 0usize..7,
            len_max in 0usize..40,
        ) {
            let slices: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
            let base = base.as_deref();
            let (left, right) = slices.split_at(split.min(slices.len()));
            let combined = merge(None, right.iter().copied(), len_max);
            let grouped = left.iter().copied().chain([combined.as_slice()]);
            let one_by_one = merge(base, slices.iter().copied(), len_max);
            prop_assert_eq!(merge(base, grouped, len_max), one_by_one);
        }
    }
}
