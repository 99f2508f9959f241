//! Removes secrets from what leaves the host: by the names of values, and by their forms.

use regex::Regex;
use serde_json::Value;

use crate::excerpt;

const REMOVED: &str = "(removed)";

/// Parts of the names of secret values.
const NAMES: &str = "password|passwd|passphrase|secret|token|credential|authorization\
                     |private[-_]?key|key[-_]?data|api[-_]?key";

/// Finds secrets.
pub(super) struct Redactor {
    name: Regex,
    /// The forms of secrets in text, and what replaces each.
    forms: Vec<(Regex, String)>,
}

impl Redactor {
    pub(super) fn new() -> Result<Self, regex::Error> {
        let forms = [
            // Also one whose end is cut off.
            (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END[^\n]*|\z)".to_owned(), ""),
            // The text of the probe secret, and of other keys.
            (r"\b[0-9a-fA-F]{64}\b".to_owned(), ""),
            (r"\beyJ[\w-]+\.[\w-]+\.[\w-]+".to_owned(), ""),
            (r"((?i-u:bearer|basic)[ \t]+)[\w.~+/=-]{8,}".to_owned(), "$1"),
            (r#"(://)[^/\s:@"']*:[^/\s"']*@"#.to_owned(), "$1"),
            (
                format!(
                    r#"([\w.-]*(?i-u:{NAMES})[\w.-]*\\?["']?[ \t]*[:=][ \t]*)(?:\\?"[^"]*"|'[^']*'|[^\s,;&"']+)"#
                ),
                "$1",
            ),
            (format!(r"(--[\w-]*(?i-u:{NAMES})[\w-]*[ \t]+)\S+"), "$1"),
        ];
        let form =
            |(form, kept): (String, &str)| Ok((Regex::new(&form)?, format!("{kept}{REMOVED}")));
        let forms = forms.into_iter().map(form).collect::<Result<_, regex::Error>>()?;
        Ok(Self { name: Regex::new(&format!("(?i-u:{NAMES})"))?, forms })
    }

    /// `text` without secrets and without characters that drive a terminal; JSON stays JSON.
    pub(super) fn redacted(&self, text: &str) -> String {
        let redacted = self.without_secrets(text);
        let fields = redacted.split('\t').map(|field| excerpt::printable_json(field.to_owned()));
        fields.collect::<Vec<_>>().join("\t")
    }

    fn without_secrets(&self, text: &str) -> String {
        match serde_json::from_str::<Value>(text) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => {
                format!("{:#}\n", self.value(value))
            }
            Ok(_) | Err(_) => self.text(text),
        }
    }

    fn value(&self, value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let field = |(name, value): (String, Value)| {
                    let is_secret = self.name.is_match(&name) && !is_flag(&value);
                    let value = if is_secret { REMOVED.into() } else { self.value(value) };
                    (self.text(&name), value)
                };
                Value::Object(fields.into_iter().map(field).collect())
            }
            Value::Array(values) => values.into_iter().map(|value| self.value(value)).collect(),
            Value::String(text) => self.text(&text).into(),
            other => other,
        }
    }

    fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (form, instead) in &self.forms {
            if form.is_match(&text) {
                text = form.replace_all(&text, instead).into_owned();
            }
        }
        text
    }
}

const fn is_flag(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "MARKED-4711";

    fn redacted(text: &str) -> String {
        Redactor::new().unwrap().redacted(text)
    }

    #[test]
    fn secrets_are_found_by_their_names() {
        let texts = [
            format!("FLANNELD_ETCD_PASSWORD={MARK}"),
            format!("tweedd --etcd-password={MARK} --iface=eth0"),
            format!("tweedd --etcd-password {MARK} --iface=eth0"),
            format!("client-key-data: {MARK}"),
            format!("password: '{MARK} of two words'"),
            format!(r#"edit {{"Token":"{MARK}","Network":"10.244.0.0/16"}} was rejected"#),
            format!(r#"edit {{\"Token\":\"{MARK}\",\"Network\":\"10.244.0.0/16\"}}"#),
            format!("Authorization: Bearer {MARK}"),
            format!("GET https://10.0.0.1:6443/?access_token={MARK}&watch=1"),
            format!("dial http://root:{MARK}@10.0.0.2:2379: refused"),
            format!("dial http://root:a@{MARK}@10.0.0.2:2379: refused"),
        ];
        for text in texts {
            let shown = redacted(&text);
            assert!(!shown.contains("MARKED") && shown.contains(REMOVED), "{text}: {shown}");
        }
    }

    #[test]
    fn secrets_are_found_by_their_form() {
        let key =
            format!("a -----BEGIN EC PRIVATE KEY-----\n{MARK}\n-----END EC PRIVATE KEY----- b");
        assert_eq!(redacted(&key), "a (removed)");
        let cut = format!("a\n-----BEGIN PRIVATE KEY-----\n{MARK}");
        assert_eq!(redacted(&cut), "a\n(removed)");
        assert_eq!(redacted(&format!("read {}", "0a".repeat(32))), "read (removed)");
        assert_eq!(redacted("jwt eyJhbGci.eyJzdWIi.c2ln"), "jwt (removed)");
    }

    #[test]
    fn json_stays_json_without_the_values_of_secret_names() {
        let text = format!(
            r#"{{"Network":"10.244.0.0/16","Auth":{{"Tokens":["{MARK}"],"secret":{{"a":"{MARK}"}},
            "passwordSet":true,"apiKey":4711}},"log":["password={MARK}","plain"]}}"#
        );
        let shown: Value = serde_json::from_str(&redacted(&text)).unwrap();
        let expected = serde_json::json!({
            "Network": "10.244.0.0/16",
            "Auth": {
                "Tokens": REMOVED, "secret": REMOVED, "passwordSet": true, "apiKey": REMOVED,
            },
            "log": ["password=(removed)", "plain"],
        });
        assert_eq!(shown, expected);
    }

    #[test]
    fn foreign_text_drives_no_terminal() {
        let text = "peer \u{1b}[2J\u{202e}\n\tnext";
        assert_eq!(redacted(text), "peer \\u001b[2J\\u202e\n\tnext");
        let json: Value = serde_json::from_str(&redacted(r#"{"a":"\u202e"}"#)).unwrap();
        assert_eq!(json["a"], "\u{202e}");
        assert!(!redacted("{\"a\":\"\u{202e}\"}").contains('\u{202e}'));
    }

    #[test]
    fn other_text_is_not_changed() {
        let text = "10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 241 onlink\n\
                    reading the probe secret failed\nlladdr 02:00:ac:10:00:09 PERMANENT\n";
        assert_eq!(redacted(text), text);
    }
}
