//! What a request is about: its path and its query, and the objects that these select.

use std::collections::BTreeMap;

use serde_json::Value;

/// The path of an object: its collection, such as `/api/v1/nodes`, and its name.
pub(super) type Place = (String, String);

/// The key-value pairs after the question mark.
pub(super) struct Query(BTreeMap<String, String>);

/// The objects that a request selects.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    /// `/api/v1/services`: those of all namespaces, or `/api/v1/namespaces/default/services`.
    collection: String,
    labels: Vec<Label>,
    /// A field like `metadata.name`, as a pointer into the object, and its value.
    fields: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
enum Label {
    Is(String, String),
    Absent(String),
}

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// None if it is empty.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn is(&self, key: &str, value: &str) -> bool {
        self.get(key) == Some(value)
    }
}

impl Selector {
    pub(super) fn all(collection: &str) -> Self {
        Self { collection: collection.to_owned(), ..Self::default() }
    }

    pub(super) fn of(collection: &str, query: &Query) -> Self {
        let text = |key| query.get(key).map(decoded).unwrap_or_default();
        let labels = text("labelSelector");
        let labels = labels.split(',').filter_map(|part| match part.strip_prefix('!') {
            Some(key) => Some(Label::Absent(key.to_owned())),
            None => part.split_once('=').map(|(key, it)| Label::Is(key.to_owned(), it.to_owned())),
        });
        let fields = text("fieldSelector");
        let fields = fields.split(',').filter_map(|part| part.split_once('='));
        let fields = fields.map(|(key, it)| (format!("/{}", key.replace('.', "/")), it.to_owned()));
        Self {
            collection: collection.to_owned(),
            labels: labels.collect(),
            fields: fields.collect(),
        }
    }

    /// Whether the path includes objects of this collection.
    pub(super) fn includes(&self, collection: &str) -> bool {
        self.collection == collection
            || without_namespace(collection) == Some(self.collection.clone())
    }

    /// Whether it admits all objects of its collection.
    pub(super) fn is_open(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn admits(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let has_label = |label: &Label| match label {
            Label::Is(key, value) => labels[key] == value.as_str(),
            Label::Absent(key) => labels[key].is_null(),
        };
        let has_field = |(pointer, value): &(String, String)| {
            object.pointer(pointer).is_some_and(|found| found == value.as_str())
        };
        self.labels.iter().all(has_label) && self.fields.iter().all(has_field)
    }

    /// The only object that the fields admit, if they name one.
    pub(super) fn place(&self) -> Option<Place> {
        let field = |name: &str| {
            let found = self.fields.iter().find(|(pointer, _)| pointer == name);
            found.map(|(_, value)| value.clone())
        };
        let name = field("/metadata/name")?;
        let collection = match field("/metadata/namespace") {
            Some(namespace) => {
                let (path, kind) = self.collection.rsplit_once('/')?;
                format!("{path}/namespaces/{namespace}/{kind}")
            }
            None => self.collection.clone(),
        };
        Some((collection, name))
    }
}

/// The namespace of a collection, if it is in one.
pub(super) fn namespace(collection: &str) -> Option<&str> {
    collection.split_once("/namespaces/")?.1.split('/').next()
}

fn without_namespace(collection: &str) -> Option<String> {
    let (path, rest) = collection.split_once("/namespaces/")?;
    let (_, kind) = rest.split_once('/')?;
    Some(format!("{path}/{kind}"))
}

/// What clients encode of selectors and tokens.
pub(super) fn decoded(text: &str) -> String {
    let pairs = [("%2F", "/"), ("%3D", "="), ("%2C", ","), ("%21", "!"), ("%3A", ":")];
    pairs.iter().fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}
