//! The objects of an API server, and the history of their changes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::merge::merge;
use super::selector::{Place, Selector, namespace};

/// The number of changes in the history.
const LONGEST: usize = 4000;

#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    objects: BTreeMap<Place, Value>,
    /// The objects at the last compaction.
    base: BTreeMap<Place, Value>,
    history: Vec<Change>,
    /// The version of the last change.
    version: u64,
    /// The history up to this version is compacted.
    compacted: u64,
    created: u64,
    /// The number of writes, which takes the place of the time: a backup does not turn it back.
    writes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) kind: &'static str,
    collection: String,
    pub(super) object: Value,
}

impl Change {
    fn place(&self) -> Place {
        let name = self.object["metadata"]["name"].as_str().unwrap_or_default();
        (self.collection.clone(), name.to_owned())
    }
}

impl Store {
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    pub(super) const fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(super) fn get(&self, place: &Place) -> Option<&Value> {
        self.objects.get(place)
    }

    /// The selected objects whose places come after `after`, in order.
    pub(super) fn list(
        &self,
        selector: &Selector,
        after: Option<Place>,
    ) -> impl Iterator<Item = (&Place, &Value)> {
        let selected = self.objects.iter().filter(|((collection, _), object)| {
            selector.includes(collection) && selector.admits(object)
        });
        selected.filter(move |(place, _)| after.as_ref().is_none_or(|after| *place > after))
    }

    /// The changes of selected objects after `version`. One that is not selected any more counts as
    /// deleted.
    pub(super) fn since(&self, selector: &Selector, version: u64) -> Vec<Change> {
        let from = self.history.partition_point(|change| change.version <= version);
        let later = self.history[from..].iter();
        let of_collection = later.filter(|change| selector.includes(&change.collection));
        let selected = of_collection.filter_map(|change| {
            if selector.is_open() {
                return Some(change.clone());
            }
            let before = self.at(&change.place(), change.version - 1);
            let was_selected = before.is_some_and(|object| selector.admits(object));
            match (was_selected, selector.admits(&change.object)) {
                (_, true) => Some(change.clone()),
                (true, false) => Some(Change { kind: "DELETED", ..change.clone() }),
                (false, false) => None,
            }
        });
        selected.collect()
    }

    /// An object at a version that is not compacted; none if it did not exist then.
    pub(super) fn at(&self, place: &Place, version: u64) -> Option<&Value> {
        let to = self.history.partition_point(|change| change.version <= version);
        let last = |change: &&Change| change.place() == *place;
        match self.history[..to].iter().rev().find(last) {
            Some(change) => Some(&change.object).filter(|_| change.kind != "DELETED"),
            None => self.base.get(place),
        }
    }

    /// Returns whether it was created; an existing object stays.
    pub(super) fn create(&mut self, place: Place, mut object: Value) -> bool {
        if self.objects.contains_key(&place) {
            return false;
        }
        self.created += 1;
        let metadata = json!({
            "name": place.1,
            "uid": format!("uid-{}", self.created),
            "creationTimestamp": time(self.created),
        });
        merge(&mut object["metadata"], &metadata);
        if let Some(namespace) = namespace(&place.0) {
            object["metadata"]["namespace"] = namespace.into();
        }
        self.write("ADDED", place, object);
        true
    }

    /// The patched object; none if it does not exist.
    pub(super) fn patch(&mut self, place: &Place, patch: &Value) -> Option<Value> {
        let object = self.patched(place, patch)?;
        if self.objects.get(place) != Some(&object) {
            self.write("MODIFIED", place.clone(), object);
        }
        self.objects.get(place).cloned()
    }

    /// As a patch; a new version even if nothing changes, since the object has the time of the
    /// write in it, whatever the real clock is.
    pub(super) fn apply(&mut self, place: &Place, patch: &Value) {
        if let Some(object) = self.patched(place, patch) {
            self.write("MODIFIED", place.clone(), object);
        }
    }

    /// The object as a patch would leave it.
    pub(super) fn patched(&self, place: &Place, patch: &Value) -> Option<Value> {
        let known = self.objects.get(place)?;
        let mut object = known.clone();
        merge(&mut object, patch);
        // Every change gives a new version.
        object["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"].clone();
        Some(object)
    }

    /// The error message of a real server for a field of `object` that is too long.
    pub(super) fn too_long(object: &Value) -> Option<&'static str> {
        let length = |texts: &Value| -> usize {
            let pairs = texts.as_object().into_iter().flatten();
            pairs.map(|(key, text)| key.len() + text.as_str().map_or(0, str::len)).sum()
        };
        if length(&object["metadata"]["annotations"]) > 256 * 1024 {
            Some("metadata.annotations: Too long: must have at most 262144 bytes")
        } else if length(&object["data"]) > 1024 * 1024 {
            Some("[]: Too long: must have at most 1048576 bytes")
        } else {
            None
        }
    }

    pub(super) fn delete(&mut self, place: &Place) -> bool {
        let Some(object) = self.objects.remove(place) else { return false };
        self.record("DELETED", place.0.clone(), object);
        true
    }

    /// Removes the history.
    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.history.clear();
        self.base.clone_from(&self.objects);
    }

    /// As after a restore from a backup: the objects stay, versions start over.
    pub(super) fn rewind(&mut self, version: u64) {
        self.history.clear();
        self.version = version;
        self.compacted = 0;
        for object in self.objects.values_mut() {
            object["metadata"]["resourceVersion"] = version.to_string().into();
        }
        self.base.clone_from(&self.objects);
    }

    /// The objects and the history of a backup.
    pub(super) fn restore(&mut self, backup: Self) {
        *self = Self { writes: self.writes, ..backup };
    }

    fn write(&mut self, kind: &'static str, place: Place, object: Value) {
        let collection = place.0.clone();
        let object = self.record(kind, collection, object);
        self.objects.insert(place, object);
    }

    fn record(&mut self, kind: &'static str, collection: String, mut object: Value) -> Value {
        self.version += 1;
        self.writes += 1;
        let metadata = json!({
            "resourceVersion": self.version.to_string(),
            "managedFields": [{ "time": time(self.writes) }],
        });
        merge(&mut object["metadata"], &metadata);
        let change = Change { version: self.version, kind, collection, object: object.clone() };
        self.history.push(change);
        if self.history.len() > LONGEST {
            for change in self.history.drain(..LONGEST / 2) {
                self.compacted = change.version;
                if change.kind == "DELETED" {
                    self.base.remove(&change.place());
                } else {
                    self.base.insert(change.place(), change.object);
                }
            }
        }
        object
    }
}

/// Not of the clock: what happens has to be repeatable.
fn time(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("2026-01-01T{hours:02}:{minutes:02}:{:02}Z", seconds % 60)
}
