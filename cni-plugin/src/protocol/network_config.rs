//! The config on standard input: flannel's fields, and ours.

use std::path::PathBuf;

use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::request::{Attachment, Command, check_network_name};
use crate::protocol::version::Version;

const SUBNET_FILE: &str = "/run/flannel/subnet.env";
const DATA_DIR: &str = "/var/lib/cni/flannel";

/// Under which keys runtimes list what lives: the name of the specification, and the former one.
const VALID_ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// As written; the protocol's default where nothing is.
    pub version: Version,
    /// Whether the version was written at all.
    pub has_version: bool,
    pub name: String,
    pub subnet_file: PathBuf,
    pub data_dir: PathBuf,
    /// What the delegate's config starts from.
    pub delegate: Object,
    /// What the config of the delegate's address management starts from.
    pub ipam: Object,
    pub runtime_config: Option<Object>,
    /// Whether this process does the work of a bridge with host-local addresses, where it can; else
    /// the plugins of these names in `CNI_PATH` do it.
    pub is_native: bool,
    /// The result of an earlier ADD.
    pub previous: Option<Object>,
    /// What GC may leave; none if the runtime sent no list.
    pub valid: Option<Vec<Attachment>>,
}

impl NetworkConfig {
    /// Fails for no JSON, no valid name, a version that is unknown or lacks `command`, or a wrong type.
    pub fn parse(json: &[u8], command: Command) -> Result<Self, Error> {
        let config: Object = serde_json::from_slice(json).map_err(|error| {
            let flaw = excerpt::sentence(&error.to_string());
            Error::decode(format!("error unmarshall network config: {flaw}"))
        })?;
        let config = &config;
        let name = json::text(config, "name")?.unwrap_or_default();
        check_network_name(name)?;
        let written = json::filled_text(config, "cniVersion")?;
        let path = |key, default| {
            Ok::<_, Error>(json::filled_text(config, key)?.unwrap_or(default).into())
        };
        Ok(Self {
            version: version(written, command)?,
            has_version: written.is_some(),
            name: name.to_owned(),
            subnet_file: path("subnetFile", SUBNET_FILE)?,
            data_dir: path("dataDir", DATA_DIR)?,
            delegate: map_of(config, "delegate")?.unwrap_or_default(),
            ipam: map_of(config, "ipam")?.unwrap_or_default(),
            runtime_config: map_of(config, "runtimeConfig")?,
            is_native: json::flag(config, "native")?.unwrap_or(true),
            previous: map_of(config, "prevResult")?,
            valid: valid(config)?,
        })
    }
}

fn version(written: Option<&str>, command: Command) -> Result<Version, Error> {
    let written = written.unwrap_or(Version::V0_1_0.as_str());
    let version = Version::parse(written).ok_or_else(|| {
        let (written, supported) = (excerpt::quoted(written), Version::listed());
        Error::incompatible_version(format!("config is {written}, plugin supports {supported}"))
    })?;
    if version.knows(command) {
        return Ok(version);
    }
    let command = command.as_str();
    Err(Error::incompatible_version(format!("config version does not allow {command}")))
}

fn map_of(config: &Object, key: &str) -> Result<Option<Object>, Error> {
    Ok(json::object(config, key)?.cloned())
}

/// A runtime written in Go sends `null` for an empty list.
fn valid(config: &Object) -> Result<Option<Vec<Attachment>>, Error> {
    if !VALID_ATTACHMENTS.into_iter().any(|key| json::contains(config, key)) {
        return Ok(None);
    }
    let Some(key) = VALID_ATTACHMENTS.into_iter().find(|key| json::get(config, key).is_some())
    else {
        return Ok(Some(Vec::new()));
    };
    let entries = json::objects(config, key)?.into_iter();
    entries.map(|entry| attachment(key, entry)).collect::<Result<_, _>>().map(Some)
}

/// An entry that cannot be understood must not make GC take something that lives.
fn attachment(key: &str, entry: &Object) -> Result<Attachment, Error> {
    let text = |name| {
        json::filled_text(entry, name)?
            .map(str::to_owned)
            .ok_or_else(|| Error::invalid_config(format!("an entry of {key} has no {name}")))
    };
    Ok(Attachment { container_id: text("containerID")?, interface: text("ifname")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str, command: Command) -> Result<NetworkConfig, Error> {
        NetworkConfig::parse(json.as_bytes(), command)
    }

    fn refusal(json: &str, command: Command) -> (u32, String) {
        let error = parse(json, command).unwrap_err();
        (error.code, error.to_string())
    }

    #[test]
    fn a_bare_config_has_flannels_defaults() {
        let config = parse(r#"{"name":"cbr0","type":"flannel"}"#, Command::Add).unwrap();
        assert_eq!(config.version, Version::V0_1_0);
        assert!(!config.has_version);
        assert_eq!(config.subnet_file.to_str(), Some("/run/flannel/subnet.env"));
        assert_eq!(config.data_dir.to_str(), Some("/var/lib/cni/flannel"));
        assert!(config.is_native);
        assert_eq!(config.valid, None);
    }

    #[test]
    fn keys_match_in_any_case() {
        let json = r#"{"NAME":"cbr0","CniVersion":"1.0.0","DATADIR":"/d","Native":false}"#;
        let config = parse(json, Command::Add).unwrap();
        assert_eq!(config.data_dir.to_str(), Some("/d"));
        assert!(!config.is_native);
    }

    #[test]
    fn errors_come_in_the_order_of_the_library() {
        assert_eq!(refusal("{", Command::Add).0, 6);
        assert_eq!(refusal(r#"{"cniVersion":"9.9.9"}"#, Command::Add).0, 7);
        assert_eq!(
            refusal(r#"{"name":"a","cniVersion":"9.9.9","native":1}"#, Command::Add),
            (
                1,
                "incompatible CNI versions; config is \"9.9.9\", plugin supports \
                 [0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0]"
                    .to_owned()
            )
        );
        assert_eq!(refusal(r#"{"name":"a","native":1}"#, Command::Add).0, 7);
    }

    #[test]
    fn a_command_that_the_version_lacks_is_refused() {
        let old = r#"{"name":"a","cniVersion":"0.3.1"}"#;
        assert_eq!(
            refusal(old, Command::Check).1,
            "incompatible CNI versions; config version does not allow CHECK"
        );
        let former = r#"{"name":"a","cniVersion":"1.0.0"}"#;
        assert!(parse(former, Command::Check).is_ok());
        assert_eq!(refusal(former, Command::Gc).0, 1);
        assert_eq!(refusal(former, Command::Status).0, 1);
    }

    #[test]
    fn an_absent_list_of_attachments_differs_from_an_empty_one() {
        let with = |list: &str| {
            let json = format!(r#"{{"name":"a","cniVersion":"1.1.0"{list}}}"#);
            parse(&json, Command::Gc).map(|config| config.valid)
        };
        assert_eq!(with(""), Ok(None));
        for nothing in [
            r#","cni.dev/valid-attachments":[]"#,
            r#","cni.dev/valid-attachments":null"#,
            r#","CNI.dev/Attachments":null"#,
            r#","cni.dev/valid-attachments":null,"cni.dev/attachments":null"#,
        ] {
            assert_eq!(with(nothing), Ok(Some(Vec::new())), "{nothing}");
        }
        let one = Attachment { container_id: "c".into(), interface: "eth0".into() };
        let entry = r#"[{"containerID":"c","ifname":"eth0"}]"#;
        let historical = format!(r#","cni.dev/attachments":{entry}"#);
        assert_eq!(with(&historical), Ok(Some(vec![one.clone()])));
        let either = format!(r#","cni.dev/valid-attachments":null{historical}"#);
        assert_eq!(with(&either), Ok(Some(vec![one])));
        assert!(with(r#","cni.dev/valid-attachments":[{"ifname":"eth0"}]"#).is_err());
    }
}
