//! The cost of a request.

/// Fine enough for shares of a millionth, and far from overflow in 64 bits.
pub const UNITS_PER_BLOCK: u64 = 1 << 16;

/// Kinds of cost that are accounted apart.
pub const CLASSES: usize = 2;

/// The direction of data.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device: writes, and what changes blocks without data.
    Write,
}

/// A request as the scheduler sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// The direction of its data.
    pub direction: Direction,
    /// Length in blocks; at least one is accounted.
    pub blocks: u32,
}

/// A request's cost, in the currency of its class.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cost {
    /// Below [`CLASSES`].
    pub class: usize,
    /// In 1/[`UNITS_PER_BLOCK`] of a block.
    pub units: u64,
}

/// The accounting of requests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CostModel {
    /// Reads and writes have quotas of their own, a block each (Decibel, section 3.2).
    #[default]
    Separate,
    /// One currency, reads: a written block costs as many read ones as the device can read in the
    /// time of one write, in thousandths.
    WriteCosts {
        /// Thousandths of a read; at least one.
        per_mille: u32,
    },
}

impl CostModel {
    /// The class of what goes that way.
    #[must_use]
    pub fn class(self, direction: Direction) -> usize {
        match self {
            Self::Separate => direction as usize,
            Self::WriteCosts { .. } => 0,
        }
    }

    /// The cost of `request`.
    #[must_use]
    pub fn cost(self, request: Request) -> Cost {
        let class = self.class(request.direction);
        let units = u64::from(request.blocks.max(1)) * UNITS_PER_BLOCK;
        match (self, request.direction) {
            (Self::WriteCosts { per_mille }, Direction::Write) => {
                let units = u128::from(units) * u128::from(per_mille.max(1)) / 1000;
                Cost { class, units: u64::try_from(units).unwrap_or(u64::MAX / 4) }
            }
            _ => Cost { class, units },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_apart_or_in_reads() {
        let write = Request { direction: Direction::Write, blocks: 2 };
        let cost = CostModel::Separate.cost(write);
        assert_eq!(cost, Cost { class: 1, units: 2 * UNITS_PER_BLOCK });
        let cost = CostModel::WriteCosts { per_mille: 4_600 }.cost(write);
        assert_eq!(cost, Cost { class: 0, units: 2 * UNITS_PER_BLOCK * 46 / 10 });
    }

    #[test]
    fn the_dearest_request_leaves_room_for_others() {
        let model = CostModel::WriteCosts { per_mille: u32::MAX };
        let cost = model.cost(Request { direction: Direction::Write, blocks: u32::MAX });
        assert_eq!(cost.units, u64::MAX / 4);
        let free = CostModel::WriteCosts { per_mille: 0 };
        let cost = free.cost(Request { direction: Direction::Write, blocks: 1_000 });
        assert_eq!(cost.units, UNITS_PER_BLOCK, "as if it were one");
    }

    #[test]
    fn a_request_without_data_still_costs_a_block() {
        let flush = Request { direction: Direction::Write, blocks: 0 };
        assert_eq!(CostModel::Separate.cost(flush).units, UNITS_PER_BLOCK);
    }
}
