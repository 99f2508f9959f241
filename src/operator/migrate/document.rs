//! The text of the network config, edited so that one field changes and every other byte stays.

use std::ops::Range;

use serde_json::value::RawValue;

use crate::model::json::{self, Fields, NoObject};

/// A JSON object. Keys ignore case, and the later of two equal keys counts, as in
/// [`crate::model::json`].
// The syntax tree of jsonc-parser inserts in its own style, and a removal leaves traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Document(String);

/// A field of the text, with its position in bytes.
struct Field {
    key: String,
    /// Position of the quote before the key.
    start: usize,
    value: Range<usize>,
}

impl Document {
    pub(super) fn parse(text: impl Into<String>) -> Result<Self, NoObject> {
        let document = Self(text.into());
        document.parse_fields().map(|_| document)
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// The JSON under `key`, as it was written.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let field = self.fields().into_iter().rfind(|field| json::is_same(&field.key, key))?;
        self.0.get(field.value)
    }

    /// In the order of the text.
    pub(super) fn keys(&self) -> Vec<String> {
        self.fields().into_iter().map(|field| field.key).collect()
    }

    /// The object under `key`; none if there is no object.
    pub(super) fn object(&self, key: &str) -> Option<Self> {
        Self::parse(self.get(key)?).ok()
    }

    /// With `json` under `key`: replaces the old value, or is appended as the last field.
    #[must_use]
    pub(super) fn with(&self, key: &str, json: &str) -> Self {
        let fields = self.fields();
        if let Some(field) = fields.iter().rfind(|field| json::is_same(&field.key, key)) {
            return self.replaced(field.value.clone(), json);
        }
        let Some(last) = fields.last() else {
            let inside = self.0.find('{').map_or(0, |brace| brace + 1);
            return self.replaced(inside..inside, &format!("\"{key}\": {json}"));
        };
        // In the style of the last field.
        let before_key = self.space_before(last.start);
        let before_value = self.space_before(last.value.start);
        let field = format!(",{before_key}\"{key}\":{before_value}{json}");
        self.replaced(last.value.end..last.value.end, &field)
    }

    /// Without any field `key`.
    #[must_use]
    pub(super) fn without(&self, key: &str) -> Self {
        let fields = self.fields();
        let found = fields.iter().enumerate().rfind(|(_, field)| json::is_same(&field.key, key));
        let Some((index, field)) = found else { return self.clone() };
        let previous = index.checked_sub(1).and_then(|previous| fields.get(previous));
        // The comma before a field is removed with it; with the first field, the comma behind it.
        let range = match (previous, fields.get(index + 1)) {
            (Some(previous), _) => previous.value.end..field.value.end,
            (None, Some(next)) => field.start..next.start,
            (None, None) => field.start..field.value.end,
        };
        self.replaced(range, "").without(key)
    }

    fn fields(&self) -> Vec<Field> {
        // `parse` has accepted this text.
        self.parse_fields().unwrap_or_default()
    }

    fn parse_fields(&self) -> Result<Vec<Field>, NoObject> {
        let fields: Fields<&RawValue> = serde_json::from_str(&self.0)?;
        let mut end = 0;
        let positioned = |(key, value): (String, &RawValue)| {
            // The value is a slice of the text, so the difference of the addresses is its position.
            let at = value.get().as_ptr().addr() - self.0.as_ptr().addr();
            let start = end + self.part(end..at).find('"').unwrap_or_default();
            end = at + value.get().len();
            Field { key, start, value: at..end }
        };
        Ok(fields.0.into_iter().map(positioned).collect())
    }

    fn part(&self, range: Range<usize>) -> &str {
        self.0.get(range).unwrap_or_default()
    }

    fn replaced(&self, range: Range<usize>, by: &str) -> Self {
        Self(format!("{}{by}{}", self.part(0..range.start), self.part(range.end..self.0.len())))
    }

    fn space_before(&self, end: usize) -> &str {
        let text = self.part(0..end);
        self.part(text.trim_end().len()..end)
    }
}

impl Default for Document {
    fn default() -> Self {
        Self("{}".to_owned())
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
            assert_eq!(with.get("rollout"), Some("{}"), "{}", with.text());
            assert_eq!(with.without("ROLLOUT").text(), text);
        }
    }

    #[test]
    fn a_field_is_removed_from_any_position() {
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
    fn the_later_of_two_equal_fields_is_used() {
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
    fn text_that_is_not_an_object_is_refused() {
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
