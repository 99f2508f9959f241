//! JSON objects and addresses as Go reads them: keys match in any case, and `null` is no value.

use std::net::IpAddr;

use serde_json::{Map, Value};

use crate::excerpt;

pub type Object = Map<String, Value>;

/// A field holds a value of another type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, but must be {wanted}")]
pub struct WrongType {
    pub key: String,
    pub value: String,
    pub wanted: &'static str,
}

/// The value under `key`: of several spellings the exact one.
pub fn get<'a>(object: &'a Object, key: &str) -> Option<&'a Value> {
    let in_any_case =
        || object.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value);
    object.get(key).or_else(in_any_case).filter(|value| !value.is_null())
}

/// Whether `key` is there in any case, be it with `null`.
pub fn contains(object: &Object, key: &str) -> bool {
    object.keys().any(|name| name.eq_ignore_ascii_case(key))
}

pub fn text<'a>(object: &'a Object, key: &str) -> Result<Option<&'a str>, WrongType> {
    typed(get(object, key), key, "a text", Value::as_str)
}

/// A text; a value of another type counts as absent.
pub fn lenient_text<'a>(object: &'a Object, key: &str) -> Option<&'a str> {
    get(object, key)?.as_str()
}

/// A text that is not empty; Go's plugins treat an empty one as absent.
pub fn filled_text<'a>(object: &'a Object, key: &str) -> Result<Option<&'a str>, WrongType> {
    Ok(text(object, key)?.filter(|text| !text.is_empty()))
}

pub fn flag(object: &Object, key: &str) -> Result<Option<bool>, WrongType> {
    typed(get(object, key), key, "true or false", Value::as_bool)
}

pub fn number(object: &Object, key: &str) -> Result<Option<u32>, WrongType> {
    let whole = |value: &Value| value.as_u64()?.try_into().ok();
    typed(get(object, key), key, "a whole number from 0 to 4294967295", whole)
}

pub fn object<'a>(object: &'a Object, key: &str) -> Result<Option<&'a Object>, WrongType> {
    typed(get(object, key), key, "an object", Value::as_object)
}

/// What the operator passes to plugins in `args`.
pub fn cni_args(config: &Object) -> Result<Option<&Object>, WrongType> {
    object(config, "args")?.map_or(Ok(None), |args| object(args, "cni"))
}

pub fn list<'a>(object: &'a Object, key: &str) -> Result<Option<&'a Vec<Value>>, WrongType> {
    typed(get(object, key), key, "a list", Value::as_array)
}

/// An address as Go reads it; `None` for anything else.
pub fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Nothing for an absent list.
pub fn objects<'a>(object: &'a Object, key: &str) -> Result<Vec<&'a Object>, WrongType> {
    let all = |value: &'a Value| value.as_array()?.iter().map(Value::as_object).collect();
    typed(get(object, key), key, "a list of objects", all).map(Option::unwrap_or_default)
}

/// Nothing for an absent list.
pub fn texts<'a>(object: &'a Object, key: &str) -> Result<Vec<&'a str>, WrongType> {
    let all = |value: &'a Value| value.as_array()?.iter().map(Value::as_str).collect();
    typed(get(object, key), key, "a list of texts", all).map(Option::unwrap_or_default)
}

/// What `read` makes of the value that was `found` under `key`.
pub fn typed<'a, T>(
    found: Option<&'a Value>,
    key: &str,
    wanted: &'static str,
    read: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<Option<T>, WrongType> {
    let wrong = |value: &Value| {
        let value = excerpt::value(&value.to_string());
        WrongType { key: key.to_owned(), value, wanted }
    };
    found.map(|value| read(value).ok_or_else(|| wrong(value))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Object {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn keys_match_in_any_case_and_the_exact_one_wins() {
        assert_eq!(text(&parse(r#"{"SUBNETFILE":"a"}"#), "subnetFile"), Ok(Some("a")));
        let both = parse(r#"{"SubnetFile":"a","subnetFile":"b"}"#);
        assert_eq!(text(&both, "subnetFile"), Ok(Some("b")));
    }

    #[test]
    fn null_counts_as_absent() {
        assert_eq!(object(&parse(r#"{"delegate":null}"#), "delegate"), Ok(None));
    }

    #[test]
    fn a_long_value_is_not_repeated_whole() {
        let config = parse(&format!(r#"{{"mtu":"{}\u009b"}}"#, "a".repeat(60_000)));
        assert!(number(&config, "mtu").unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn a_wrong_type_names_key_value_and_what_is_allowed() {
        let config = parse(r#"{"mtu":"1450"}"#);
        assert_eq!(
            number(&config, "mtu").unwrap_err().to_string(),
            r#"mtu is "1450", but must be a whole number from 0 to 4294967295"#
        );
    }

    #[test]
    fn a_mapped_address_is_read_as_ipv4() {
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
        assert_eq!(address("10.0.0.01"), None);
        assert_eq!(address("10.0.0.1/24"), None);
    }
}
