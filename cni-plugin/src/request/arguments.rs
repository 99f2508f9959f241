//! `CNI_ARGS`: pairs of key and value, separated by semicolons.

use crate::error::Error;
use crate::excerpt;

/// The value under `key`, which matches in its own case only; the last of several.
pub(super) fn value<'a>(arguments: &'a str, key: &str) -> Result<Option<&'a str>, Error> {
    let mut found = None;
    if arguments.is_empty() {
        return Ok(None);
    }
    for pair in arguments.split(';') {
        let (name, value) = split(pair).ok_or_else(|| {
            Error::bad_environment(format!("CNI_ARGS: invalid pair {}", excerpt::quoted(pair)))
        })?;
        if name == key {
            found = Some(value);
        }
    }
    Ok(found)
}

fn split(pair: &str) -> Option<(&str, &str)> {
    pair.split_once('=').filter(|(_, value)| !value.contains('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_under_its_key() {
        let arguments = "IgnoreUnknown=1;K8S_POD_NAME=web;MAC=0a:58:0a:f4:07:02";
        assert_eq!(value(arguments, "MAC"), Ok(Some("0a:58:0a:f4:07:02")));
        assert_eq!(value(arguments, "mac"), Ok(None));
        assert_eq!(value("", "MAC"), Ok(None));
    }

    #[test]
    fn a_pair_that_is_none_is_named() {
        for arguments in ["MAC", "A=1;", "A=b=c"] {
            assert_eq!(value(arguments, "X").unwrap_err().code, 4, "{arguments}");
        }
    }
}
