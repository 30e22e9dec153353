//! Numbers of devices, shards and cores, each of its own type: one is never taken for another.

use core::fmt;

macro_rules! index {
    ($(#[$doc:meta])* $index:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $index(pub usize);

        impl From<usize> for $index {
            fn from(index: usize) -> Self {
                Self(index)
            }
        }

        impl From<$index> for usize {
            fn from(index: $index) -> Self {
                index.0
            }
        }

        impl fmt::Display for $index {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

index! {
    /// A device of a server, in the order in which they are configured. Every core uses the same numbers.
    DeviceIndex
}

index! {
    /// A shard in service on a core, in the order in which the core took them, counting those of all its devices. The
    /// number of a shard on its device is another.
    ShardIndex
}

index! {
    /// A data core of a server, in the order in which they are configured. The number of its CPU is another.
    CoreIndex
}
