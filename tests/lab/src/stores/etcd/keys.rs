//! Reads and writes keys by `etcdctl`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Etcd;

/// etcd refuses larger transactions.
const LARGEST_TRANSACTION: usize = 128;

/// A key with its metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: String,
    pub mod_revision: i64,
    /// 0 if the key never expires.
    pub lease: i64,
}

impl Etcd {
    /// Without an expiry: for flannel such a key is a reservation.
    pub fn put(&self, key: &str, value: &str) -> Result<()> {
        self.etcdctl(&["put", "--", key, value]).map(drop)
    }

    /// Expires with `lease`, which [`grant`](Self::grant) gave.
    pub fn put_with_lease(&self, key: &str, value: &str, lease: i64) -> Result<()> {
        self.etcdctl(&["put", &format!("--lease={lease:x}"), "--", key, value]).map(drop)
    }

    /// Writes many keys in few transactions: thousands take a second or two.
    pub fn put_all(&self, pairs: &[(String, String)]) -> Result<()> {
        pairs.chunks(LARGEST_TRANSACTION).try_for_each(|chunk| {
            let mut script = String::from("\n");
            for (key, value) in chunk {
                let (key, value) = (serde_json::to_string(key)?, serde_json::to_string(value)?);
                writeln!(script, "put -- {key} {value}")?;
            }
            script.push_str("\n\n");
            self.transaction(&script)
        })
    }

    pub fn get(&self, key: &str) -> Result<Option<Entry>> {
        Ok(entries(&self.etcdctl(&["get", "-w", "fields", "--", key])?)?.pop())
    }

    /// All keys that begin with `prefix`, in order.
    pub fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        entries(&self.etcdctl(&["get", "--prefix", "-w", "fields", "--", prefix])?)
    }

    /// The number of keys that begin with `prefix`; waits for a busy server.
    pub fn count(&self, prefix: &str) -> Result<usize> {
        let limit = ["--dial-timeout=60s", "--command-timeout=60s"];
        let get = ["get", "--prefix", "--keys-only", "--limit=1", "-w", "fields", "--", prefix];
        let text = self.etcdctl(&[&limit[..], &get].concat())?;
        let mut fields = text.lines().filter_map(field);
        let found = fields.find(|(name, _)| *name == "Count").context("no count")?;
        Ok(found.1.parse()?)
    }

    /// An error if the key does not exist.
    pub fn delete(&self, key: &str) -> Result<()> {
        let deleted = self.etcdctl(&["del", "--", key])?;
        ensure!(deleted.trim() == "1", "{key} is not in etcd");
        Ok(())
    }

    /// The present revision of the store.
    pub fn revision(&self) -> Result<i64> {
        let text = self.etcdctl(&["get", "-w", "fields", "--", "/"])?;
        let mut fields = text.lines().filter_map(field);
        let found = fields.find(|(name, _)| *name == "Revision").context("no revision")?;
        Ok(found.1.parse()?)
    }

    /// Compacts the history, so that a watch from an older revision fails.
    pub fn compact(&self) -> Result<()> {
        let revision = self.revision()?.to_string();
        self.etcdctl(&["compact", "--physical", &revision]).map(drop)
    }

    /// A lease with this TTL.
    pub fn grant(&self, seconds: u32) -> Result<i64> {
        let text = self.etcdctl(&["lease", "grant", &seconds.to_string()])?;
        let word = text.split_whitespace().nth(1).with_context(|| text.clone())?;
        i64::from_str_radix(word, 16).with_context(|| text.clone())
    }

    /// Revokes a lease, and removes every key attached to it.
    pub fn revoke(&self, lease: i64) -> Result<()> {
        self.etcdctl(&["lease", "revoke", &format!("{lease:x}")]).map(drop)
    }

    /// `etcdctl` with a running member.
    pub fn etcdctl(&self, arguments: &[&str]) -> Result<String> {
        self.any()?.etcdctl(arguments)
    }

    fn transaction(&self, script: &str) -> Result<()> {
        let member = self.any()?;
        let mut command = Command::new("etcdctl");
        command.args(member.etcdctl_flags()).arg("txn");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = member.namespace().spawn(&mut command)?;
        child.stdin.take().context("no stdin")?.write_all(script.as_bytes())?;
        let output = child.wait_with_output()?;
        let output_text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output_text.starts_with("SUCCESS"),
            "etcdctl txn: {}: {output_text}",
            output.status
        );
        Ok(())
    }
}

/// Reads `-w fields`: a line `"Name" : value` per field, texts quoted as in JSON.
fn entries(text: &str) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    for (name, value) in text.lines().filter_map(field) {
        if name == "Key" {
            entries.push(Entry { key: unquoted(value)?, ..Entry::default() });
        } else if let Some(entry) = entries.last_mut() {
            match name {
                "ModRevision" => entry.mod_revision = value.parse()?,
                "Lease" => entry.lease = value.parse()?,
                "Value" => entry.value = unquoted(value)?,
                _ => {}
            }
        }
    }
    Ok(entries)
}

fn field(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(" : ")?;
    Some((name.trim_matches('"'), value))
}

fn unquoted(text: &str) -> Result<String> {
    serde_json::from_str(text).with_context(|| text.to_owned())
}
