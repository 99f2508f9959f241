//! JSON objects read by Go's rules: keys in any case, unknown keys ignored, `null` is absent.

use serde_json::{Map, Value};

use crate::error::Error;

/// A view of an object; the errors of its getters name the key and what it must be.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a>(&'a Map<String, Value>);

impl<'a> From<&'a Map<String, Value>> for Object<'a> {
    fn from(map: &'a Map<String, Value>) -> Self {
        Self(map)
    }
}

impl<'a> Object<'a> {
    /// The value under `key` as it is written, or else in any other case.
    pub fn get(self, key: &str) -> Option<&'a Value> {
        let in_any_case = || self.0.iter().rfind(|(name, _)| name.eq_ignore_ascii_case(key));
        let value = self.0.get(key).or_else(|| in_any_case().map(|(_, value)| value));
        value.filter(|value| !value.is_null())
    }

    pub fn text(self, key: &str) -> Result<Option<&'a str>, Error> {
        self.typed(key, "a text", Value::as_str)
    }

    pub fn boolean(self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn number(self, key: &str) -> Result<Option<u32>, Error> {
        self.typed(key, "a whole number from 0 to 4294967295", |value| {
            value.as_u64().and_then(|number| number.try_into().ok())
        })
    }

    pub fn object(self, key: &str) -> Result<Option<Object<'a>>, Error> {
        self.typed(key, "an object", |value| value.as_object().map(Object))
    }

    /// Nothing for an absent list.
    pub fn list(self, key: &str) -> Result<&'a [Value], Error> {
        self.typed(key, "a list", Value::as_array).map(|list| list.map_or(&[][..], Vec::as_slice))
    }

    /// Nothing for an absent list.
    pub fn objects(self, key: &str) -> Result<Vec<Object<'a>>, Error> {
        let all = |list: &'a Vec<Value>| list.iter().map(|item| item.as_object().map(Object));
        self.typed(key, "a list of objects", |value| all(value.as_array()?).collect())
            .map(Option::unwrap_or_default)
    }

    /// Nothing for an absent list.
    pub fn texts(self, key: &str) -> Result<Vec<&'a str>, Error> {
        let all = |list: &'a Vec<Value>| list.iter().map(Value::as_str);
        self.typed(key, "a list of texts", |value| all(value.as_array()?).collect())
            .map(Option::unwrap_or_default)
    }

    fn typed<T>(
        self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let wrong = |value| Error::invalid_config(format!("{key} is {value}, not {expected}"));
        self.get(key).map(|value| read(value).ok_or_else(|| wrong(value))).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(json: &str) -> Map<String, Value> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_key_counts_in_any_case_and_as_written_counts_most() {
        let map = map(r#"{"RANGESTART": "a", "rangestart": "b", "Gateway": "c", "mtu": null}"#);
        let object = Object::from(&map);
        assert_eq!(object.text("gateway").unwrap(), Some("c"));
        assert_eq!(object.text("rangestart").unwrap(), Some("b"));
        assert_eq!(object.text("RANGESTART").unwrap(), Some("a"));
        assert_eq!(object.number("mtu").unwrap(), None);
    }

    #[test]
    fn a_value_of_another_type_is_named_with_its_key() {
        let map = map(r#"{"ipMasq": "yes", "ips": ["1.2.3.4", 5]}"#);
        let object = Object::from(&map);
        let error = object.boolean("ipmasq").unwrap_err();
        assert_eq!(error.msg, "ipmasq is \"yes\", not true or false");
        assert!(object.texts("ips").is_err());
        assert_eq!(object.texts("absent").unwrap(), Vec::<&str>::new());
    }
}
