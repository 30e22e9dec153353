//! Switches by which tests break the code on purpose, to show that they would notice.
//!
//! Absent from this crate: the mutations themselves. Each crate has its own, in its `sabotage.rs`.

#![no_std]

/// Defines an enum of mutations, a function that chooses one for this thread, and one that asks for it.
///
/// It stands in a module. Where the condition behind `if` does not hold in the crate that uses this, there is no function that
/// chooses, and the one that asks always says no: the compiler removes every trace.
///
/// ```
/// mod sabotage {
///     mutation_points::mutations! {
///         if all();
///         /// One broken promise.
///         pub enum Sabotage {
///             /// A flush that failed counts as done.
///             IgnoreFlushError,
///         }
///         /// Breaks this thread so from now on, or no more.
///         pub fn sabotage;
///         /// Returns whether this promise is broken.
///         pub fn broken;
///     }
/// }
/// use sabotage::{Sabotage, broken, sabotage};
///
/// assert_eq!(Sabotage::ALL, [Sabotage::IgnoreFlushError]);
/// assert!(!broken(Sabotage::IgnoreFlushError));
/// sabotage(Some(Sabotage::IgnoreFlushError));
/// assert!(broken(Sabotage::IgnoreFlushError));
/// ```
#[macro_export]
macro_rules! mutations {
    (
        if $on:meta;
        $(#[$of_enum:meta])*
        $vis:vis enum $name:ident { $($(#[$of_variant:meta])* $variant:ident,)* }
        $(#[$of_choose:meta])*
        $choose_vis:vis fn $choose:ident;
        $(#[$of_ask:meta])*
        $ask_vis:vis fn $ask:ident;
    ) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        $vis enum $name { $($(#[$of_variant])* $variant,)* }

        #[cfg($on)]
        #[allow(dead_code, unreachable_pub, reason = "for tests that go through all")]
        impl $name {
            /// All of them, in order.
            $vis const ALL: [Self; [$(stringify!($variant)),*].len()] = [$(Self::$variant),*];
        }

        #[cfg($on)]
        mod chosen {
            extern crate std;

            std::thread_local! {
                pub(super) static CHOSEN: core::cell::Cell<Option<super::$name>> =
                    const { core::cell::Cell::new(None) };
            }
        }

        $(#[$of_choose])*
        #[cfg($on)]
        $choose_vis fn $choose(which: Option<$name>) {
            chosen::CHOSEN.set(which);
        }

        $(#[$of_ask])*
        #[cfg($on)]
        $ask_vis fn $ask(which: $name) -> bool {
            chosen::CHOSEN.get() == Some(which)
        }

        $(#[$of_ask])*
        #[cfg(not($on))]
        #[inline(always)]
        $ask_vis const fn $ask(_: $name) -> bool {
            false
        }
    };
}
