//! An error as it is printed for the runtime.

use serde_json::json;

use crate::error::Error;
use crate::version::Version;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Of the config; the latest where there is none to go by.
    pub version: Version,
    pub error: Error,
}

impl Refusal {
    pub fn to_json(&self) -> String {
        let Error { code, msg, details } = &self.error;
        let mut told = json!({ "cniVersion": self.version.as_str(), "code": code, "msg": msg });
        if let (Some(object), false) = (told.as_object_mut(), details.is_empty()) {
            object.insert("details".to_owned(), details.clone().into());
        }
        format!("{told}\n")
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { version: Version::V1_1_0, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_details_are_left_out() {
        let refusal = Refusal { version: Version::V0_3_1, error: Error::decode("no JSON") };
        assert_eq!(
            refusal.to_json(),
            "{\"cniVersion\":\"0.3.1\",\"code\":6,\"msg\":\"no JSON\"}\n"
        );
        let refusal = Refusal::from(Error::incompatible_version("config is 9"));
        assert!(refusal.to_json().contains(r#""details":"config is 9""#));
    }
}
