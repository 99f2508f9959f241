//! The bytes of one packet of a probe.

/// The minimum length of a packet in bytes.
pub(super) const LENGTH: usize = 16;

/// Number of packets that are not counted.
const WARM_UP: u64 = u64::MAX;

/// The index of a pair in the plan, and the number of the packet in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) pair: usize,
    pub(super) number: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    WarmUp,
    Counted(usize),
}

impl Packet {
    /// Writes to the start of `bytes`, which must have at least [`LENGTH`] bytes.
    pub(super) fn encode(self, bytes: &mut [u8]) {
        let number = match self.number {
            Number::WarmUp => WARM_UP,
            Number::Counted(number) => number as u64,
        };
        let fields = [(self.pair as u64).to_be_bytes(), number.to_be_bytes()].concat();
        bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (pair, rest) = bytes.split_first_chunk()?;
        let (number, _) = rest.split_first_chunk()?;
        let number = match u64::from_be_bytes(*number) {
            WARM_UP => Number::WarmUp,
            number => Number::Counted(usize::try_from(number).ok()?),
        };
        Some(Self { pair: usize::try_from(u64::from_be_bytes(*pair)).ok()?, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for number in [Number::WarmUp, Number::Counted(0), Number::Counted(70_000)] {
            let (packet, mut bytes) = (Packet { pair: 11, number }, [0; 20]);
            packet.encode(&mut bytes);
            assert_eq!(Packet::decode(&bytes), Some(packet));
        }
        assert_eq!(Packet::decode(&[0; 15]), None);
    }
}
