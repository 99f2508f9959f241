//! `Probe`: how daemons probe whether a path carries packets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Invalid, within, wrong};
use crate::model::json::Fields;

/// How paths to peers are probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    pub enabled: bool,
    /// The UDP port on which every daemon answers.
    pub port: u16,
    /// The time between two probes of one peer; longer with many peers.
    pub interval: Duration,
    /// Consecutive unanswered probes after which a path is bad.
    pub failure_threshold: u32,
    /// Consecutive answers after which a bad path is good again.
    pub success_threshold: u32,
}

impl Probe {
    /// Close to flannel's 8472, and the default port of no program that usually runs on nodes.
    pub const DEFAULT_PORT: u16 = 8475;
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            enabled: true,
            port: Self::DEFAULT_PORT,
            interval: Duration::from_secs(1),
            failure_threshold: 3,
            success_threshold: 5,
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);
const MAX_THRESHOLD: u32 = 100;

/// Parses `Probe`. Its port must differ from `tunnel_port`.
pub(super) fn parse(fields: &Fields, tunnel_port: u16) -> Result<Probe, Invalid> {
    let given = fields.object("Probe")?.unwrap_or_default();
    let default = Probe::default();
    Ok(Probe {
        enabled: given.bool("Enabled")?.unwrap_or(default.enabled),
        port: parse_port(&given, tunnel_port)?,
        interval: parse_interval(&given)?.unwrap_or(default.interval),
        failure_threshold: threshold(&given, "Probe.FailureThreshold", default.failure_threshold)?,
        success_threshold: threshold(&given, "Probe.SuccessThreshold", default.success_threshold)?,
    })
}

fn parse_port(probe: &Fields, tunnel_port: u16) -> Result<u16, Invalid> {
    let port = probe.u32("Port")?.unwrap_or(Probe::DEFAULT_PORT.into());
    let expected = || format!("from 1 to 65535, and not Backend.Port, which is {tunnel_port}");
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0 && *port != tunnel_port)
        .ok_or_else(|| wrong("Probe.Port", port, expected()))
}

fn parse_interval(probe: &Fields) -> Result<Option<Duration>, Invalid> {
    let Some(text) = probe.str("Interval")? else { return Ok(None) };
    let interval = duration(text).filter(|it| (SHORTEST..=LONGEST).contains(it));
    let expected = "from \"100ms\" to \"60s\"";
    interval.map(Some).ok_or_else(|| wrong("Probe.Interval", format!("{text:?}"), expected.into()))
}

/// `500ms` or `2s`.
fn duration(text: &str) -> Option<Duration> {
    match text.strip_suffix("ms") {
        Some(number) => number.parse().ok().map(Duration::from_millis),
        None => text.strip_suffix('s')?.parse().ok().map(Duration::from_secs),
    }
}

fn threshold(probe: &Fields, key: &'static str, default: u32) -> Result<u32, Invalid> {
    let given = probe.u32(key.trim_start_matches("Probe."))?;
    within(key, given.unwrap_or(default), 1..=MAX_THRESHOLD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::NetworkConfig;

    fn parsed(keys: &str) -> Result<Probe, String> {
        let json = format!(r#"{{"Network":"10.244.0.0/16",{keys}}}"#);
        let config = NetworkConfig::parse(json.as_bytes());
        config.map(|config| config.probe).map_err(|error| error.to_string())
    }

    #[test]
    fn by_default_paths_are_probed_once_a_second() {
        let probe = parsed(r#""Mixed":true"#).unwrap();
        assert_eq!(probe, Probe::default());
        assert_eq!((probe.enabled, probe.port), (true, 8475));
        assert_eq!(probe.interval, Duration::from_secs(1));
    }

    #[test]
    fn every_key_is_applied() {
        let keys = r#""Probe":{"Enabled":false,"Port":9000,"Interval":"250ms",
            "FailureThreshold":2,"successthreshold":7,"Unknown":1}"#;
        let expected = Probe {
            enabled: false,
            port: 9000,
            interval: Duration::from_millis(250),
            failure_threshold: 2,
            success_threshold: 7,
        };
        assert_eq!(parsed(keys), Ok(expected));
    }

    #[test]
    fn bad_values_are_rejected_with_a_message() {
        let cases = [
            (
                r#""Port":8472"#,
                "Probe.Port is 8472, but must be from 1 to 65535, and not Backend.Port, which is 8472",
            ),
            (
                r#""Port":0"#,
                "Probe.Port is 0, but must be from 1 to 65535, and not Backend.Port, which is 8472",
            ),
            (r#""Interval":"1h""#, r#"Probe.Interval is "1h", but must be from "100ms" to "60s""#),
            (
                r#""Interval":"10ms""#,
                r#"Probe.Interval is "10ms", but must be from "100ms" to "60s""#,
            ),
            (r#""Interval":1"#, "Interval is 1, but must be a string"),
            (r#""FailureThreshold":0"#, "Probe.FailureThreshold is 0, but must be from 1 to 100"),
            (
                r#""SuccessThreshold":101"#,
                "Probe.SuccessThreshold is 101, but must be from 1 to 100",
            ),
        ];
        for (keys, sentence) in cases {
            assert_eq!(parsed(&format!(r#""Probe":{{{keys}}}"#)), Err(sentence.to_owned()));
        }
    }
}
