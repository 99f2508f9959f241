//! The table against an ordinary map.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const START: u64 = 100;

fn empty() -> Table {
    Table::build(tempfile::tempfile().unwrap(), START, &[]).unwrap()
}

fn sorted(mut values: Vec<Value>) -> Vec<Value> {
    values.sort_unstable();
    values
}

/// Keys that all live next to each other, at the end of the slots.
fn crowded_keys() -> Vec<Key> {
    (1..).filter(|key| home(*key, FEWEST_SLOTS) >= FEWEST_SLOTS - 4).take(24).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Insert(usize, Value),
    Remove(usize, Value),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<bool>(), 0..24_usize, 0..3_u128).prop_map(|(insert, key, value)| {
        if insert { Step::Insert(key, value) } else { Step::Remove(key, value) }
    });
    prop::collection::vec(step, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_crowded_table_holds_what_a_set_would(steps in steps()) {
        let keys = crowded_keys();
        let (mut table, mut model) = (empty(), BTreeSet::new());
        for step in steps {
            match step {
                Step::Insert(key, value) => {
                    if model.insert((keys[key], value)) {
                        table.insert(keys[key], value).unwrap();
                    }
                }
                Step::Remove(key, value) => {
                    model.remove(&(keys[key], value));
                    table.remove(keys[key], value).unwrap();
                }
            }
            prop_assert_eq!(table.used(), model.len());
        }
        for key in keys {
            let expected = model.range((key, 0)..=(key, Value::MAX)).map(|(_, value)| *value);
            prop_assert_eq!(sorted(table.values(key).unwrap()), expected.collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_table_grows_and_forgets_nothing() {
    let mut table = empty();
    for key in 1..=3000 {
        table.insert(key, key * 2).unwrap();
    }
    assert!(table.slots() > FEWEST_SLOTS);
    for key in 1..=3000 {
        assert_eq!(table.values(key).unwrap(), [key * 2]);
    }
    assert_eq!(table.values(3001).unwrap(), Vec::<Value>::new());
}

#[test]
fn a_table_is_opened_as_it_was_left() {
    let file = tempfile::tempfile().unwrap();
    let mut table = Table::build(file.try_clone().unwrap(), START, &[(7, 1), (8, 2)]).unwrap();
    table.set(7, 5).unwrap();
    table.set(9, 3).unwrap();
    let (slots, used) = (table.slots(), table.used());
    let table = Table::open(file.try_clone().unwrap(), START, slots, used).unwrap();
    let values = [7, 8, 9].map(|key| table.values(key).unwrap());
    assert_eq!(values, [[5], [2], [3]]);

    assert!(Table::open(file.try_clone().unwrap(), START, slots * 2, used).is_none());
    assert!(Table::open(file.try_clone().unwrap(), START, slots - 1, used).is_none());
    assert!(Table::open(file, START + 1, slots, used).is_none());
}

#[test]
fn a_table_without_an_empty_slot_is_an_error_and_no_endless_search() {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&vec![1; FEWEST_SLOTS * SLOT], START).unwrap();
    let mut table = Table::open(file, START, FEWEST_SLOTS, 0).unwrap();
    assert!(table.values(5).is_err());
    assert!(table.insert(5, 5).is_err());
    assert!(table.remove(5, 5).is_err());
}
