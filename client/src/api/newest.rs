//! The newest event that a client has received of any object. A cluster that has it in its history has
//! all that came before, of any kind; one that was restored from a backup has not. An API server that
//! keeps some kinds in an etcd of their own (`--etcd-servers-overrides`) has two histories: then the
//! restore of one of both may be noticed only by the next listing.

use serde_json::Value;

use super::request::{ApiRequest, Collection};

#[derive(Default)]
pub(super) struct Newest {
    pub(super) version: u64,
    /// As it was received.
    line: Vec<u8>,
    /// The path of all objects of its kind.
    path: &'static str,
    /// How often it was forgotten, because the cluster may have another history.
    pub(super) generation: u64,
}

impl Newest {
    pub(super) fn note(&mut self, version: u64, line: &[u8], path: &'static str) {
        if version > self.version {
            (self.version, self.path) = (version, path);
            line.clone_into(&mut self.line);
        }
    }

    /// Unless that was done since `generation`.
    pub(super) fn forget(&mut self, generation: u64) {
        if self.generation == generation {
            *self = Self { generation: generation + 1, ..Self::default() };
        }
    }

    /// The request for the object of the event at its version, and the object; none without an event.
    pub(super) fn ask(&self) -> Option<(ApiRequest, Value)> {
        let mut event: Value = serde_json::from_slice(&self.line).ok()?;
        let object = without_kind(event.get_mut("object")?.take());
        let name = object.pointer("/metadata/name")?.as_str()?;
        let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
        let collection = Collection::all(self.path);
        Some((collection.at(namespace.unwrap_or_default(), name, self.version), object))
    }
}

/// The only item of a list; none if it has none, or several.
pub(super) fn only_item(list: &[u8]) -> Option<Value> {
    let mut list: Value = serde_json::from_slice(list).ok()?;
    match list.get_mut("items")?.as_array_mut()?.as_mut_slice() {
        [item] => Some(without_kind(item.take())),
        _ => None,
    }
}

/// The items of a list have no kind.
fn without_kind(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}
