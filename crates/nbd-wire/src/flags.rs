//! The tests that all types of flags have.

/// Gives a type of flags the tests and the union that all of them have.
macro_rules! flags {
    ($($name:ident),*) => {$(
        impl $name {
            /// Returns whether all flags of `other` are set.
            #[must_use]
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns the flags of both.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Returns whether there are others than those of `allowed`.
            #[must_use]
            pub const fn has_others_than(self, allowed: Self) -> bool {
                self.0 & !allowed.0 != 0
            }
        }
    )*};
}
pub(crate) use flags;
