//! Allocations and releases in any order, against a small model.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Add(u8),
    Del(u8),
    Request(u8, u8),
    /// Another program removes a record.
    Remove(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..9_u8).prop_map(Step::Add),
        5 => (0..9_u8).prop_map(Step::Del),
        1 => (0..9_u8, 0..16_u8).prop_map(|(id, wish)| Step::Request(id, wish)),
        1 => (0..16_u8).prop_map(Step::Remove),
    ]
}

/// Host-local in a few lines: the owner of each address, and the address that was allocated last.
#[derive(Default)]
struct Model {
    held: BTreeMap<u8, String>,
    last: u8,
}

impl Model {
    const FIRST: u8 = 1;
    const LAST: u8 = 14;

    fn next(&self) -> Option<u8> {
        let after = (self.last + 1..=Self::LAST).chain(Self::FIRST..=self.last);
        let after = after.filter(|host| (2..=Self::LAST).contains(host));
        after.into_iter().find(|host| !self.held.contains_key(host))
    }

    fn holds(&self, id: &str) -> bool {
        self.held.values().any(|owner| owner == id)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn allocation_matches_the_model(steps in prop::collection::vec(step(), 0..80)) {
        let home = Home::with(r#"{"subnet": "10.0.0.0/28"}"#);
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Add(id) => {
                    let id = id.to_string();
                    let expected = if model.holds(&id) { None } else { model.next() };
                    let got = home.add(&id).ok().map(|addresses| addresses.concat());
                    prop_assert_eq!(got, expected.map(|host| format!("10.0.0.{host}/28")));
                    if let Some(host) = expected {
                        model.held.insert(host, id);
                        model.last = host;
                    }
                }
                Step::Request(id, host) => {
                    let id = id.to_string();
                    let can = (2..=Model::LAST).contains(&host)
                        && !model.held.contains_key(&host)
                        && !model.holds(&id);
                    let wish = requesting(&home, &format!("10.0.0.{host}"));
                    prop_assert_eq!(allocate(&wish, &attachment(&id)).is_ok(), can);
                    if can {
                        model.held.insert(host, id);
                        model.last = host;
                    }
                }
                Step::Del(id) => {
                    home.del(&id.to_string());
                    model.held.retain(|_, owner| *owner != id.to_string());
                }
                Step::Remove(host) => {
                    drop(fs::remove_file(home.path(&format!("10.0.0.{host}"))));
                    model.held.remove(&host);
                }
            }
            if home.config.location.directory().exists() {
                let expected: Vec<_> =
                    model.held.keys().map(|host| format!("10.0.0.{host}")).collect();
                let mut found = home.addresses();
                found.sort_by_key(|name| name.parse::<IpAddr>().unwrap());
                prop_assert_eq!(found, expected);
            }
        }
    }
}
