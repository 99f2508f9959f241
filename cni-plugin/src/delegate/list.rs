//! Runs the plugins of a network config for one container, as a runtime does.

use std::env;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::exec::Delegate;
use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::request::Command;

/// The plugins of a network, in the order in which they join a container.
#[derive(Clone, Debug)]
pub struct PluginList {
    name: String,
    /// None if the config names none.
    version: Option<String>,
    plugins: Vec<Object>,
}

/// The container that the plugins join by its interface `eth0`.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    pub id: &'a str,
    pub netns: &'a Path,
    /// The folders of the plugins, in the order in which they are searched.
    pub path: &'a [PathBuf],
}

/// The interface of a container.
pub const INTERFACE: &str = "eth0";

impl PluginList {
    /// A list of plugins, or a config of a single one.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let config: Object = serde_json::from_str(text)
            .map_err(|error| Error::decode(format!("no valid JSON: {error}")))?;
        let name = json::filled_text(&config, "name")?;
        let name = name.ok_or_else(|| Error::invalid_config("the network has no name"))?;
        let plugins = match json::list(&config, "plugins")? {
            Some(_) => json::objects(&config, "plugins")?.into_iter().cloned().collect(),
            None => vec![config.clone()],
        };
        let version = json::filled_text(&config, "cniVersion")?.map(str::to_owned);
        Ok(Self { name: name.to_owned(), version, plugins })
    }

    /// The name of the network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Joins the container; returns the result of the last plugin. After an error, too, the
    /// plugins have to [`delete`](Self::delete) what they have added.
    pub fn add(&self, container: &Container<'_>) -> Result<Option<Value>, Error> {
        let mut result = None;
        for plugin in &self.plugins {
            let output = self.run(Command::Add, plugin, container, result.as_ref())?;
            let added = serde_json::from_slice(&output).map_err(|error| {
                let kind = excerpt::value(kind(plugin));
                Error::decode(format!("the result of plugin {kind} is no valid JSON: {error}"))
            })?;
            result = Some(added);
        }
        Ok(result)
    }

    /// Lets all plugins remove what they have added, the last one first; returns the errors.
    /// `result` is that of [`add`](Self::add), if there is one.
    pub fn delete(&self, container: &Container<'_>, result: Option<&Value>) -> Vec<Error> {
        let plugins = self.plugins.iter().rev();
        let deleted = plugins.map(|plugin| self.run(Command::Del, plugin, container, result));
        deleted.filter_map(Result::err).collect()
    }

    fn run(
        &self,
        command: Command,
        plugin: &Object,
        container: &Container<'_>,
        previous: Option<&Value>,
    ) -> Result<Vec<u8>, Error> {
        let Container { id, netns, path } = container;
        let mut config = plugin.clone();
        config.insert("name".to_owned(), self.name.clone().into());
        let version = self.version.clone().map(|version| ("cniVersion".to_owned(), version.into()));
        let previous = previous.cloned().map(|result| ("prevResult".to_owned(), result));
        config.extend(version.into_iter().chain(previous));
        let (netns, folders) = (netns.display().to_string(), join(path)?);
        let variables = [
            ("CNI_CONTAINERID", *id),
            ("CNI_NETNS", netns.as_str()),
            ("CNI_IFNAME", INTERFACE),
            ("CNI_PATH", folders.as_str()),
            ("CNI_ARGS", ""),
        ];
        let delegate = Delegate { kind: kind(plugin), path, config: &config };
        let doing = || format!("{} of plugin {}", command.as_str(), excerpt::value(kind(plugin)));
        delegate.run(command, &variables).map_err(|failure| Error::from(failure).context(doing()))
    }
}

fn kind(plugin: &Object) -> &str {
    json::lenient_text(plugin, "type").unwrap_or_default()
}

fn join(path: &[PathBuf]) -> Result<String, Error> {
    let joined = env::join_paths(path).map_err(|error| Error::failed(error.to_string()))?;
    Ok(joined.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command as Program;

    use super::*;

    /// A folder with plugins that log command, container and config, and print a result or fail.
    struct Plugins(tempfile::TempDir);

    impl Plugins {
        /// Another process writes the plugins: a child of another test would inherit a file that is
        /// open for writing, and until it has executed its program, the kernel executes no such file.
        fn install(plugins: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("log").display().to_string();
            for (name, ending) in plugins {
                let file = folder.path().join(name);
                let heading =
                    format!("{name} $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS");
                let script =
                    format!("#!/bin/sh\n(echo \"{heading}\"; cat; echo) >>{log}\n{ending}\n");
                let text = file.with_extension("sh");
                fs::write(&text, script).unwrap();
                let mut install = Program::new("install");
                assert!(install.arg("-m755").args([&text, &file]).status().unwrap().success());
            }
            Self(folder)
        }

        fn log(&self) -> String {
            fs::read_to_string(self.0.path().join("log")).unwrap_or_default()
        }
    }

    const LIST: &str = r#"{"name":"n","cniVersion":"1.0.0",
        "plugins":[{"type":"one","mtu":1400},{"type":"two"}]}"#;

    #[test]
    fn plugins_join_in_their_order_and_leave_in_reverse() {
        let plugins =
            Plugins::install(&[("one", r#"echo '{"ips":1}'"#), ("two", r#"echo '{"ips":2}'"#)]);
        let path = [plugins.0.path().to_owned()];
        let container = Container { id: "c1", netns: Path::new("/proc/1/fd/2"), path: &path };
        let list = PluginList::parse(LIST).unwrap();
        let result = list.add(&container).unwrap().unwrap();
        assert_eq!(result, serde_json::json!({ "ips": 2 }));
        assert_eq!(list.delete(&container, Some(&result)), []);
        let expected = [
            "one ADD c1 eth0 /proc/1/fd/2",
            r#"{"cniVersion":"1.0.0","mtu":1400,"name":"n","type":"one"}"#,
            "two ADD c1 eth0 /proc/1/fd/2",
            r#"{"cniVersion":"1.0.0","name":"n","prevResult":{"ips":1},"type":"two"}"#,
            "two DEL c1 eth0 /proc/1/fd/2",
            r#"{"cniVersion":"1.0.0","name":"n","prevResult":{"ips":2},"type":"two"}"#,
            "one DEL c1 eth0 /proc/1/fd/2",
            r#"{"cniVersion":"1.0.0","mtu":1400,"name":"n","prevResult":{"ips":2},"type":"one"}"#,
        ];
        assert_eq!(plugins.log().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_plugin_is_asked_to_leave_and_each_error_names_its_plugin() {
        let fail = r#"echo '{"code":7,"msg":"no"}'; exit 1"#;
        let plugins = Plugins::install(&[("one", fail), ("two", fail)]);
        let path = [plugins.0.path().to_owned()];
        let container = Container { id: "c1", netns: Path::new("/proc/1/fd/2"), path: &path };
        let list = PluginList::parse(LIST).unwrap();
        assert_eq!(list.add(&container).unwrap_err().to_string(), "ADD of plugin one: no");
        let errors = list.delete(&container, None);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, ["DEL of plugin two: no", "DEL of plugin one: no"]);
        let missing = PluginList::parse(r#"{"name":"n","type":"three"}"#).unwrap();
        let error = missing.add(&container).unwrap_err().to_string();
        assert!(error.starts_with("ADD of plugin three: failed to find plugin"), "{error}");
    }

    #[test]
    fn a_config_without_a_name_is_invalid() {
        assert!(PluginList::parse(r#"{"plugins":[]}"#).is_err());
        assert!(PluginList::parse("[]").is_err());
    }
}
