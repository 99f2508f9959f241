//! Leases from a file: a JSON object {key: value}, or what `etcdctl get --prefix` prints.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::model::lease::{LeaseId, Record};
use crate::store::etcd::value::{self, Origin};

/// The text is in neither form.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotLeases {
    #[error("not a JSON object {{key: value}}: {0}")]
    Json(String),
    #[error("key {0:?} has no value on the next line")]
    NoValue(String),
}

/// One record per key; a record that cannot be used holds the reason.
pub(super) fn read_leases(text: &str) -> Result<Vec<Record>, NotLeases> {
    if text.trim_start().starts_with('{') { of_object(text) } else { of_lines(text) }
}

fn of_object(text: &str) -> Result<Vec<Record>, NotLeases> {
    let values: BTreeMap<String, Value> =
        serde_json::from_str(text).map_err(|error| NotLeases::Json(error.to_string()))?;
    let record = |(key, value): (String, Value)| match value {
        Value::String(text) => record(&key, &text),
        value => record(&key, &value.to_string()),
    };
    Ok(values.into_iter().map(record).collect())
}

/// An empty value is an empty line, so blank lines count.
fn of_lines(text: &str) -> Result<Vec<Record>, NotLeases> {
    let mut lines = text.lines();
    let mut records = Vec::new();
    while let Some(key) = lines.next() {
        match lines.next() {
            Some(value) => records.push(record(key, value)),
            None if key.is_empty() => {}
            None => return Err(NotLeases::NoValue(key.to_owned())),
        }
    }
    Ok(records)
}

/// The text does not show which of two leases is older: the order of their keys decides.
const ORIGIN: Origin = Origin { created: 0, grant: None };

fn record(key: &str, value: &str) -> Record {
    let id = key.trim_end().rsplit('/').next().unwrap_or_default();
    value::decode(LeaseId::new(id), value.as_bytes(), ORIGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &str = r#"{"PublicIP":"172.16.0.9","PublicIPv6":null,"BackendType":"host-gw"}"#;

    fn ids(text: &str) -> Vec<String> {
        let records = read_leases(text).unwrap();
        records
            .iter()
            .map(|record| match &record.lease {
                Ok(lease) => format!("{} {}", record.id, lease.endpoints[0].public_ip),
                Err(malformed) => format!("{} {malformed}", record.id),
            })
            .collect()
    }

    #[test]
    fn output_of_etcdctl_is_read() {
        let text = format!("/coreos.com/network/subnets/10.244.3.0-24\n{VALUE}\n/n/subnets/x\n\n");
        assert_eq!(
            ids(&text),
            ["10.244.3.0-24 172.16.0.9", "x its key names no subnet like 10.5.52.0-24"]
        );
    }

    #[test]
    fn an_object_of_keys_is_read_with_values_as_text_or_object() {
        let quoted = serde_json::to_string(VALUE).unwrap();
        for value in [VALUE, &quoted] {
            let text = format!(r#"{{"/n/subnets/10.244.3.0-24":{value}}}"#);
            assert_eq!(ids(&text), ["10.244.3.0-24 172.16.0.9"]);
        }
    }

    #[test]
    fn no_leases_are_fine() {
        for text in ["", "\n", "{}"] {
            assert_eq!(read_leases(text), Ok(vec![]), "{text:?}");
        }
    }

    #[test]
    fn text_in_neither_form_is_refused() {
        assert_eq!(read_leases("/n/a\n{}\n/n/b"), Err(NotLeases::NoValue("/n/b".into())));
        assert!(matches!(read_leases("{\"a\":"), Err(NotLeases::Json(_))));
    }
}
