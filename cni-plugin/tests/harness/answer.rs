//! The output of a plugin.

use std::process::Child;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    /// Waits until `call` ends.
    pub(crate) fn of(call: Child) -> Self {
        let output = call.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// The result of a call that succeeded.
    #[track_caller]
    pub(crate) fn result(&self) -> Value {
        assert_eq!(self.status, 0, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A call that succeeded and prints nothing.
    #[track_caller]
    pub(crate) fn is_silent(&self) {
        assert_eq!((self.status, self.stdout.as_str()), (0, ""), "{self:?}");
    }

    /// Code and text of a call that failed: one JSON object, and nothing else.
    #[track_caller]
    pub(crate) fn error(&self) -> (u64, String) {
        assert_ne!(self.status, 0, "{self:?}");
        let error: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        let (msg, details) = (text("msg"), text("details"));
        let text = if details.is_empty() { msg } else { format!("{msg}; {details}") };
        (error["code"].as_u64().unwrap(), text)
    }

    /// The first address in a result.
    #[track_caller]
    pub(crate) fn address(&self) -> String {
        self.addresses().swap_remove(0)
    }

    #[track_caller]
    pub(crate) fn addresses(&self) -> Vec<String> {
        let result = self.result();
        let ips = result["ips"].as_array().unwrap();
        ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
    }
}
