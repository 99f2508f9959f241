//! The network config: an accepted one can be planned with, any other is refused in a short line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tweed::model::config::NetworkConfig;
use tweed::excerpt::{self, SENTENCE};

fuzz_target!(|json: &[u8]| match NetworkConfig::parse(json) {
    Ok(config) => {
        assert!(!config.pools.is_empty());
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<NetworkConfig>(&text).unwrap(), config);
    }
    Err(error) => {
        let text = error.to_string();
        assert!(excerpt::is_printable(&text) && text.chars().count() <= SENTENCE, "{text:?}");
    }
});
