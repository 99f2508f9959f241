//! Keys of several fields, by which sets and maps are searched.

use std::fmt;

use crate::Family;

/// Fields of a packet, in the order in which a set or map has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub family: Family,
    pub fields: Vec<Field>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Address(Side),
    /// The protocol above IP.
    Protocol,
    DestinationPort,
    /// A random number lower than this, in the byte order of the machine.
    Random(u32),
}

/// Which of the two addresses in an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Destination,
}

/// The length of a register, in bytes: each field begins in one of its own.
pub(super) const REGISTER: u32 = 4;

/// How `nft(8)` numbers the type of protocols above IP, and their length in bytes.
pub(super) const PROTOCOL: (u32, u32) = (12, 1);

/// How `nft(8)` numbers the expressions that a key consists of, and their attributes.
const PAYLOAD: u32 = 7;
const META: u32 = 9;
const CONCATENATION: u32 = 13;
const NUMGEN: u32 = 23;
const KIND: u8 = 0;
const DATA: u8 = 1;

impl Key {
    pub fn of(family: Family, fields: impl IntoIterator<Item = Field>) -> Self {
        Self { family, fields: fields.into_iter().collect() }
    }

    /// How many registers its fields fill.
    pub(super) fn registers(&self) -> u32 {
        self.fields.iter().map(|field| field.registers(self.family)).sum()
    }

    /// Of each field, in bytes.
    pub(super) fn lengths(&self) -> impl Iterator<Item = u32> {
        self.fields.iter().map(|field| field.data(self.family).1)
    }

    /// In bytes.
    pub(super) fn length(&self) -> u32 {
        self.registers() * REGISTER
    }

    /// How `nft(8)` numbers the type of it.
    pub(super) fn kind(&self) -> u32 {
        const BITS: u32 = 6;
        self.fields.iter().fold(0, |kind, field| kind << BITS | field.data(self.family).0)
    }

    /// The expression that `nft(8)` shows behind `typeof`.
    pub(super) fn expression(&self) -> Vec<u8> {
        let fields = (0..).zip(&self.fields);
        let fields = fields.map(|(index, field)| attribute(index, &field.expression(self.family)));
        expression(CONCATENATION, &fields.collect::<Vec<_>>().concat())
    }
}

impl Field {
    /// How many of them it fills.
    pub(super) const fn registers(self, family: Family) -> u32 {
        match (self, family) {
            (Self::Address(_), Family::V6) => 4,
            _ => 1,
        }
    }

    /// How `nft(8)` numbers the type of it, and its length in bytes.
    const fn data(self, family: Family) -> (u32, u32) {
        match self {
            Self::Address(_) => family.key(),
            Self::Protocol => PROTOCOL,
            Self::DestinationPort => (13, 2),
            Self::Random(_) => (4, 4),
        }
    }

    fn expression(self, family: Family) -> Vec<u8> {
        match self {
            Self::Address(side) => {
                let (header, field) = match (family, side) {
                    (Family::V4, Side::Source) => (12, 11),
                    (Family::V4, Side::Destination) => (12, 12),
                    (Family::V6, Side::Source) => (13, 8),
                    (Family::V6, Side::Destination) => (13, 9),
                };
                expression(PAYLOAD, &numbers([header, field]))
            }
            Self::Protocol => expression(META, &numbers([16])),
            Self::DestinationPort => expression(PAYLOAD, &numbers([11, 2])),
            Self::Random(below) => expression(NUMGEN, &numbers([1, below, 0])),
        }
    }
}

impl Side {
    pub(super) const fn keyword(self) -> &'static str {
        match self {
            Self::Source => "saddr",
            Self::Destination => "daddr",
        }
    }
}

/// What `nft(8)` keeps of a set with these keys, or of a map with these values.
pub(super) fn user_data(key: &Key, value: Option<&Key>) -> Vec<u8> {
    const KEY_ORDER: u8 = 0;
    const VALUE_ORDER: u8 = 1;
    const KEY_TYPE: u8 = 3;
    const VALUE_TYPE: u8 = 4;
    let order = |kind| attribute(kind, &[0; 4]);
    let mut data = order(KEY_ORDER);
    if value.is_some() {
        data.extend(order(VALUE_ORDER));
    }
    data.extend(attribute(KEY_TYPE, &key.expression()));
    data.extend(value.map(|value| attribute(VALUE_TYPE, &value.expression())).unwrap_or_default());
    data
}

fn expression(kind: u32, data: &[u8]) -> Vec<u8> {
    [attribute(KIND, &kind.to_ne_bytes()), attribute(DATA, data)].concat()
}

fn numbers<const N: usize>(numbers: [u32; N]) -> Vec<u8> {
    let all = (0..).zip(numbers);
    all.flat_map(|(kind, number)| attribute(kind, &number.to_ne_bytes())).collect()
}

fn attribute(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut attribute = vec![kind, u8::try_from(value.len()).unwrap_or(u8::MAX)];
    attribute.extend(value);
    attribute
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family.keyword();
        for (index, field) in self.fields.iter().enumerate() {
            let separator = if index == 0 { "" } else { " . " };
            f.write_str(separator)?;
            match field {
                Field::Address(side) => write!(f, "{family} {}", side.keyword())?,
                Field::Protocol => f.write_str("meta l4proto")?,
                Field::DestinationPort => f.write_str("th dport")?,
                Field::Random(below) => write!(f, "numgen random mod {below}")?,
            }
        }
        Ok(())
    }
}
