//! What somebody else changed in the config, for the one whose change it kept out.

use super::course::{Course, Entry, Note};
use super::document::Document;

/// A field that somebody else wrote: `Rollout.Percent: 25 → 50`.
pub fn changes(before: &Course, after: &Course) -> Vec<String> {
    let mut changes = Vec::new();
    differ("", &before.document, &after.document, &mut changes);
    changes
}

/// Who wrote `after`, if it says so.
pub fn author(before: &Course, after: &Course) -> Option<Note> {
    let after = after.under_way.as_ref()?;
    let known = before.under_way.as_ref();
    let paused = after.paused.clone().filter(|_| known.is_none_or(|it| it.paused.is_none()));
    let last = || {
        let entry: &Entry = after.history.last()?;
        let is_new = known.is_none_or(|known| !known.history.contains(entry));
        is_new.then(|| entry.note.clone())
    };
    paused.or_else(last)
}

fn differ(prefix: &str, before: &Document, after: &Document, changes: &mut Vec<String>) {
    let mut keys = before.keys();
    keys.extend(after.keys().into_iter().filter(|key| before.get(key).is_none()));
    for key in keys.iter().filter(|key| before.get(key) != after.get(key) && !is_our_record(key)) {
        let name = format!("{prefix}{key}");
        match (before.object(key), after.object(key)) {
            (Some(before), Some(after)) => differ(&format!("{name}."), &before, &after, changes),
            (_, _) => {
                changes.push(format!("{name}: {} → {}", shown(before, key), shown(after, key)));
            }
        }
    }
}

/// What says who did it is told as such.
fn is_our_record(key: &str) -> bool {
    ["History", "Paused"].iter().any(|own| key.eq_ignore_ascii_case(own))
}

fn shown<'a>(document: &'a Document, key: &str) -> &'a str {
    document.get(key).unwrap_or("nothing")
}
