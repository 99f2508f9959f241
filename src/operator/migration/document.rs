//! The network config as its operators wrote it: one field changes, every other byte stays.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A JSON object. Keys match in any case, and the later of two counts, as in [`crate::model::json`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document(String);

/// Where a field stands in the text.
struct Field {
    key: String,
    /// Of its value, in bytes.
    value: Range<usize>,
}

impl Document {
    pub fn parse(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        let document = Self(text.into());
        fields(&document.0).map(|_| document)
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// The JSON under `key`, as it was written.
    pub fn get(&self, key: &str) -> Option<&str> {
        let field = self.fields().into_iter().rfind(|field| field.is(key))?;
        self.0.get(field.value)
    }

    /// In the order of the text.
    pub fn keys(&self) -> Vec<String> {
        self.fields().into_iter().map(|field| field.key).collect()
    }

    /// The object under `key`; none if there is no object.
    pub fn object(&self, key: &str) -> Option<Self> {
        Self::parse(self.get(key)?).ok()
    }

    /// With `json` under `key`: in the place of its old value, or behind all other fields.
    #[must_use]
    pub fn with(&self, key: &str, json: &str) -> Self {
        let fields = self.fields();
        match fields.iter().rfind(|field| field.is(key)) {
            Some(field) => self.replaced(field.value.clone(), json),
            None => self.appended(fields.last(), key, json),
        }
    }

    /// Without any field `key`.
    #[must_use]
    pub fn without(&self, key: &str) -> Self {
        let fields = self.fields();
        let Some(index) = fields.iter().rposition(|field| field.is(key)) else {
            return self.clone();
        };
        let end_of = |index: Option<usize>| Some(fields.get(index?)?.value.end);
        let end = end_of(Some(index)).unwrap_or_default();
        // The comma before it goes with a field; with the first one, the comma behind it.
        let range = match (end_of(index.checked_sub(1)), fields.get(index + 1)) {
            (Some(before), _) => before..end,
            (None, Some(_)) => self.next_key(0)..self.next_key(end),
            (None, None) => self.next_key(0)..end,
        };
        self.replaced(range, "").without(key)
    }

    fn fields(&self) -> Vec<Field> {
        // The text was parsed before.
        fields(&self.0).unwrap_or_default()
    }

    fn replaced(&self, range: Range<usize>, by: &str) -> Self {
        let part = |range: Range<usize>| self.0.get(range).unwrap_or_default();
        Self(format!("{}{by}{}", part(0..range.start), part(range.end..self.0.len())))
    }

    /// In the style of the last field, where there is one.
    fn appended(&self, last: Option<&Field>, key: &str, json: &str) -> Self {
        let Some(last) = last else {
            let inside = self.0.find('{').map_or(0, |brace| brace + 1);
            return self.replaced(inside..inside, &format!("\"{key}\": {json}"));
        };
        let written = self.0.get(..last.value.start).unwrap_or_default();
        let behind_colon = Self::space_at_end(written);
        let key_starts = written.trim_end().trim_end_matches(':').trim_end();
        let before_key = key_starts.trim_end_matches('"').rfind('"').unwrap_or_default();
        let before_key = Self::space_at_end(written.get(..before_key).unwrap_or_default());
        let field = format!(",{before_key}\"{key}\":{behind_colon}{json}");
        self.replaced(last.value.end..last.value.end, &field)
    }

    fn space_at_end(text: &str) -> &str {
        text.get(text.trim_end().len()..).unwrap_or_default()
    }

    /// Where the first key behind `start` begins: nothing but a comma and space lies before it.
    fn next_key(&self, start: usize) -> usize {
        let rest = self.0.get(start..).unwrap_or_default();
        rest.find('"').map_or(start, |quote| start + quote)
    }
}

impl Default for Document {
    fn default() -> Self {
        Self("{}".to_owned())
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Field {
    fn is(&self, key: &str) -> bool {
        self.key.eq_ignore_ascii_case(key)
    }
}

/// In the order of the text.
fn fields(text: &str) -> Result<Vec<Field>, serde_json::Error> {
    let Values(values) = serde_json::from_str(text)?;
    let field = |(key, value): (Cow<'_, str>, &RawValue)| {
        // The value is a part of the text: the distance of the two is its place.
        let start = value.get().as_ptr().addr() - text.as_ptr().addr();
        Field { key: key.into_owned(), value: start..start + value.get().len() }
    };
    Ok(values.into_iter().map(field).collect())
}

struct Values<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Values<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ValuesVisitor)
    }
}

struct ValuesVisitor;

impl<'de> Visitor<'de> for ValuesVisitor {
    type Value = Values<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Values<'de>, A::Error> {
        let mut values = Vec::new();
        while let Some(entry) = map.next_entry()? {
            values.push(entry);
        }
        Ok(Values(values))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    fn document(text: &str) -> Document {
        Document::parse(text).unwrap()
    }

    #[test]
    fn one_field_changes_and_every_other_byte_stays() {
        let text = "{ \"Network\":\"10.244.0.0/16\",\n\n  \"Own\" : {\"z\":1, \"a\":[1.50]},\n  \"mixed\": false }\n";
        expect![[r#"
            { "Network":"10.244.0.0/16",

              "Own" : {"z":1, "a":[1.50]},
              "mixed": true,
              "Rollout": {"Percent":25} }
        "#]]
        .assert_eq(
            document(text).with("Mixed", "true").with("Rollout", r#"{"Percent":25}"#).text(),
        );
    }

    #[test]
    fn a_field_that_is_added_and_removed_leaves_no_trace() {
        for text in [r#"{"a":1}"#, "{ \"a\": 1 }", "{\n  \"a\": \"\\\"x\",\n  \"b\": {}\n}\n"] {
            let with = document(text).with("Rollout", "{}");
            assert_eq!(with.get("rollout"), Some("{}"), "{with}");
            assert_eq!(with.without("ROLLOUT").text(), text);
        }
    }

    #[test]
    fn a_field_goes_wherever_it_stands() {
        for (text, left) in [
            (r#"{"a":1,"b":2,"c":3}"#, r#"{"b":2,"c":3}"#),
            (r#"{ "x": 0, "a" : 1, "c":3 }"#, r#"{ "x": 0, "c":3 }"#),
            (r#"{"x":0,"a":1}"#, r#"{"x":0}"#),
            (r#"{"a":1}"#, "{}"),
            (r#"{"a":1,"A":2,"b":3}"#, r#"{"b":3}"#),
            ("{}", "{}"),
        ] {
            assert_eq!(document(text).without("a").text(), left);
        }
    }

    #[test]
    fn of_two_fields_the_later_counts() {
        let text = r#"{"Mixed":false,"mixed":false}"#;
        assert_eq!(document(text).with("Mixed", "true").text(), r#"{"Mixed":false,"mixed":true}"#);
        assert_eq!(document(r#"{"a":1,"A":2}"#).get("a"), Some("2"));
    }

    #[test]
    fn an_object_inside_is_a_document_too() {
        let text = r#"{"Backend":{"Type":"vxlan", "VNI": 7}}"#;
        let backend = document(text).object("Backend").unwrap().with("Type", "\"host-gw\"");
        assert_eq!(
            document(text).with("Backend", backend.text()).text(),
            r#"{"Backend":{"Type":"host-gw", "VNI": 7}}"#
        );
        assert_eq!(document(r#"{"Backend":7}"#).object("Backend"), None);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[]", "{", "7", "{}{}"] {
            assert!(Document::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_change_is_what_the_same_change_of_the_parsed_object_is(
            object in proptest::collection::btree_map("[a-dA-D\"]{1,2}", "[{}\",: a]{0,4}", 0..5), key in "[a-d]", pretty: bool,
        ) {
            let parsed = serde_json::to_value(&object).unwrap();
            let text = if pretty { format!("{parsed:#}") } else { parsed.to_string() };
            let changed = document(&text).with(&key, "7");
            let value: serde_json::Value = serde_json::from_str(changed.text()).unwrap();
            let fields = crate::model::json::Fields::parse(changed.text().as_bytes()).unwrap();
            prop_assert_eq!(fields.get(&key), Some(&7.into()));
            prop_assert!(value.as_object().unwrap().len() >= object.len());
            let without = document(&text).without(&key);
            let kept = object.keys().filter(|other| !other.eq_ignore_ascii_case(&key)).count();
            let value: serde_json::Value = serde_json::from_str(without.text()).unwrap();
            prop_assert_eq!(value.as_object().unwrap().len(), kept);
        }
    }
}
