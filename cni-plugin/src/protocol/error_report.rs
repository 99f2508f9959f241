//! An error as it is printed for the runtime.

use serde_json::json;

use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::version::Version;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReport {
    /// Of the config; the latest where there is none to go by.
    pub version: Version,
    pub error: Error,
}

impl ErrorReport {
    pub fn to_json(&self) -> String {
        let Error { code, msg, details } = &self.error;
        let (msg, details) = (excerpt::answer(msg), excerpt::answer(details));
        let mut told = json!({ "cniVersion": self.version.as_str(), "code": code, "msg": msg });
        if let (Some(object), false) = (told.as_object_mut(), details.is_empty()) {
            object.insert("details".to_owned(), details.into());
        }
        format!("{told}\n")
    }
}

impl From<Error> for ErrorReport {
    fn from(error: Error) -> Self {
        Self { version: Version::V1_1_0, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_went_into_it_it_is_printable_and_has_an_end() {
        let error = Error::failed(format!("\u{9b}2J{}", "a path ".repeat(60_000)));
        let json = ErrorReport::from(error).to_json();
        assert!(excerpt::is_printable(json.trim_end()) && json.len() < 5000, "{json}");
    }

    #[test]
    fn empty_details_are_left_out() {
        let report = ErrorReport { version: Version::V0_3_1, error: Error::decode("no JSON") };
        assert_eq!(report.to_json(), "{\"cniVersion\":\"0.3.1\",\"code\":6,\"msg\":\"no JSON\"}\n");
        let report = ErrorReport::from(Error::incompatible_version("config is 9"));
        assert!(report.to_json().contains(r#""details":"config is 9""#));
    }
}
