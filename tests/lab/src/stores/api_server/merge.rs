//! Strategic merge patches, as far as Nodes need them.

use serde_json::Value;

/// Applies `patch` to `target`: objects are merged, `null` deletes, conditions are merged by type.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(key);
                } else if key == "conditions" {
                    merge_conditions(target.entry(key).or_insert(Value::Array(Vec::new())), value);
                } else {
                    merge(target.entry(key).or_insert(Value::Null), value);
                }
                // A real server does not store empty maps: a patch that leaves one changes nothing.
                if target.get(key).and_then(Value::as_object).is_some_and(serde_json::Map::is_empty)
                {
                    target.remove(key);
                }
            }
        }
        (target, Value::Object(patch)) => {
            *target = Value::Object(serde_json::Map::new());
            merge(target, &Value::Object(patch.clone()));
        }
        (target, patch) => *target = patch.clone(),
    }
}

fn merge_conditions(target: &mut Value, patch: &Value) {
    let (Value::Array(known), Value::Array(news)) = (target, patch) else { return };
    for news in news {
        match known.iter_mut().find(|known| known["type"] == news["type"]) {
            Some(known) => merge(known, news),
            None => known.push(news.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn removing_what_is_not_there_changes_nothing() {
        let mut node = json!({ "metadata": { "name": "n1" } });
        let before = node.clone();
        merge(&mut node, &json!({ "metadata": { "annotations": { "key": null } } }));
        assert_eq!(node, before);
    }
}
