//! A JSON object parser with flannel's rules: keys match in any case, unknown keys are ignored, and
//! of equal keys the last one counts.

use std::fmt;
use std::iter;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tweed_cni::protocol::json::typed;

use crate::excerpt;

pub use tweed_cni::protocol::json::WrongType;

/// The fields of one object in their order. Objects have few fields, so lookups scan them.
#[derive(Debug, Default)]
pub struct Fields<V = Value>(pub Vec<(String, V)>);

/// The text is not a JSON object, and why.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoObject(String);

impl Fields {
    pub fn parse(json: &[u8]) -> Result<Self, NoObject> {
        Ok(serde_json::from_slice(json)?)
    }

    /// The value of `key`; `null` counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let mut fields = self.0.iter().rev();
        let found = fields.find(|(known, _)| is_same(known, key));
        found.map(|(_, value)| value).filter(|value| !value.is_null())
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, WrongType> {
        typed(self.get(key), key, "true or false", Value::as_bool)
    }

    pub fn u32(&self, key: &str) -> Result<Option<u32>, WrongType> {
        typed(self.get(key), key, "a whole number from 0 to 4294967295", |value| {
            value.as_u64()?.try_into().ok()
        })
    }

    pub fn str(&self, key: &str) -> Result<Option<&str>, WrongType> {
        typed(self.get(key), key, "a string", Value::as_str)
    }

    pub fn object(&self, key: &str) -> Result<Option<Self>, WrongType> {
        typed(self.get(key), key, "an object", |value| Self::deserialize(value).ok())
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, WrongType> {
        typed(self.get(key), key, "a list of strings", |value| Deserialize::deserialize(value).ok())
    }
}

impl From<serde_json::Error> for NoObject {
    fn from(error: serde_json::Error) -> Self {
        Self(excerpt::value(&error.to_string()))
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Fields<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor(PhantomData))
    }
}

struct FieldsVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for FieldsVisitor<V> {
    type Value = Fields<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<V>, A::Error> {
        iter::from_fn(|| map.next_entry().transpose()).collect::<Result<_, _>>().map(Fields)
    }
}

/// Keys are almost always ASCII.
pub fn is_same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
        || (!one.is_ascii() && one.to_lowercase() == other.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_in_any_case_and_the_later_of_two_wins() {
        let fields = Fields::parse(br#"{"network":"a","NETWORK":"b","other":{}}"#).unwrap();
        assert_eq!(fields.str("Network"), Ok(Some("b")));
        // U+212A, the Kelvin sign, is an uppercase form of k.
        let fields = Fields::parse("{\"Networ\u{212a}\":\"c\"}".as_bytes()).unwrap();
        assert_eq!(fields.str("Network"), Ok(Some("c")));
    }

    #[test]
    fn a_wrong_type_names_key_value_and_what_is_allowed() {
        let fields = Fields::parse(br#"{"SubnetLen":"24"}"#).unwrap();
        assert_eq!(
            fields.u32("SubnetLen").unwrap_err().to_string(),
            r#"SubnetLen is "24", but must be a whole number from 0 to 4294967295"#
        );
    }

    #[test]
    fn null_counts_as_absent() {
        let fields = Fields::parse(br#"{"PublicIPv6":null}"#).unwrap();
        assert_eq!(fields.str("PublicIPv6"), Ok(None));
    }

    #[test]
    fn a_text_that_is_not_an_object_is_rejected() {
        assert!(Fields::parse(b"[]").is_err());
        assert!(Fields::parse(b"{").is_err());
    }
}
