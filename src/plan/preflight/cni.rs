//! CNI checks: whether runtimes use the config of tweed's plugin, and find the plugins that it names.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Finding, Level};

/// The `type` of tweed's plugin, which is flannel's.
const OWN: &str = "flannel";
/// The plugins that are part of tweed's.
const INCLUDED: [&str; 2] = ["bridge", "host-local"];
/// containerd runs it for each pod, without a config.
const LOOPBACK: &str = "loopback";
/// The plugins of Multus, which start those of another config.
const MULTUS: &str = "multus";

/// What container runtimes read on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cni {
    /// In the order in which runtimes read them. They use the first one.
    pub configs: Vec<CniConfig>,
    /// The folders of plugins, in the order in which runtimes search them; none if they are not
    /// visible.
    pub folders: Vec<PluginFolder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginFolder {
    pub path: String,
    /// The names of its executable files.
    pub plugins: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniConfig {
    pub path: String,
    /// The plugins that it names, or why it is invalid.
    plugins: Result<Vec<String>, String>,
}

impl CniConfig {
    pub fn parse(path: String, text: &str) -> Self {
        let plugins = serde_json::from_str(text).map_err(|error| format!("no valid JSON: {error}"));
        let plugins = plugins.map(|config| named(&config)).and_then(|plugins| {
            if plugins.is_empty() { Err("it names no plugin".to_owned()) } else { Ok(plugins) }
        });
        Self { path, plugins }
    }

    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    fn plugins(&self) -> &[String] {
        self.plugins.as_deref().unwrap_or_default()
    }

    /// Whether it names the plugin of tweed, which has flannel's name.
    pub fn is_own(&self) -> bool {
        self.plugins().iter().any(|plugin| plugin == OWN)
    }

    fn is_multus(&self) -> bool {
        self.plugins().iter().any(|plugin| plugin.starts_with(MULTUS))
    }
}

/// The types of all plugins that run for a pod: those of a list, of a single config, and those that
/// they start in turn.
fn named(config: &Value) -> Vec<String> {
    let get = |key| config.get(key);
    let lists = ["plugins", "delegates"].into_iter().filter_map(get).filter_map(Value::as_array);
    let single = ["delegate", "ipam"].into_iter().filter_map(get);
    let own = get("type").and_then(Value::as_str).map(str::to_owned);
    own.into_iter().chain(lists.flatten().chain(single).flat_map(named)).collect()
}

pub(super) fn findings(cni: &Cni) -> Vec<Finding> {
    let own = cni.configs.iter().find(|config| config.is_own());
    let before = cni.configs.iter().take_while(|config| !config.is_own());
    let others = before.filter_map(|config| match (&config.plugins, own) {
        (Err(reason), _) => Some(invalid(config, reason)),
        (Ok(_), Some(own)) => Some(rival(config, own)),
        // The host has no pods of tweed, or not yet.
        (Ok(_), None) => None,
    });
    others.chain(own.into_iter().flat_map(|own| missing(own, &cni.folders))).collect()
}

fn invalid(config: &CniConfig, reason: &str) -> Finding {
    Finding {
        what: format!("{} is no valid CNI config", config.name()),
        why: format!("containerd creates no pods as long as it is the first config: {reason}"),
        fix: format!("correct or remove {}", config.path),
        ..Finding::of(Level::Warning, "cni-config-invalid", config.path.clone())
    }
}

/// A config that runtimes use instead of `own`.
fn rival(config: &CniConfig, own: &CniConfig) -> Finding {
    let plugins = config.plugins().join(", ");
    let (level, why, fix) = if config.is_multus() {
        (
            Level::Note,
            "Multus starts the plugins of another config, which must be that of flannel",
            format!("check that {} delegates to {}", config.name(), own.name()),
        )
    } else {
        (
            Level::Warning,
            "new pods get addresses of another network: pods of other nodes do not reach them",
            format!(
                "if no other network is in use, remove {}, then recreate the pods that were \
                 created with it",
                config.path
            ),
        )
    };
    Finding {
        what: format!(
            "runtimes use {} (plugins: {plugins}), because it sorts before {}",
            config.name(),
            own.name()
        ),
        why: why.to_owned(),
        fix,
        ..Finding::of(level, "other-cni-config", config.path.clone())
    }
}

/// The plugins that `own` needs and runtimes do not find.
fn missing(own: &CniConfig, folders: &[PluginFolder]) -> Vec<Finding> {
    let holds = |folder: &&PluginFolder, plugin: &str| folder.plugins.contains(plugin);
    let Some(home) = folders.iter().find(|it| holds(it, OWN)).or(folders.first()) else {
        return Vec::new();
    };
    let named = own.plugins().iter().map(String::as_str).chain([LOOPBACK]);
    let needed: BTreeSet<&str> = named.filter(|plugin| !INCLUDED.contains(plugin)).collect();
    let absent = needed.into_iter().filter(|plugin| !home.plugins.contains(*plugin));
    let place = |plugin| folders.iter().find(|folder| holds(folder, plugin));
    absent.map(|plugin| plugin_missing(plugin, own, home, place(plugin))).collect()
}

fn plugin_missing(
    plugin: &str,
    own: &CniConfig,
    home: &PluginFolder,
    elsewhere: Option<&PluginFolder>,
) -> Finding {
    let user = if plugin == LOOPBACK { "containerd" } else { own.name() };
    let (level, what, why) = match elsewhere {
        None => (
            Level::Warning,
            format!("the CNI plugin {plugin} is missing"),
            format!("{user} uses it for each pod: no pod can be created"),
        ),
        Some(folder) => (
            Level::Note,
            format!("the CNI plugin {plugin} is in {}, not next to {OWN}", folder.path),
            format!(
                "{user} uses it for each pod: CRI-O finds it, a runtime that searches only {} \
                 creates no pod",
                home.path
            ),
        ),
    };
    let fix = if plugin == OWN {
        format!("run the plugin's own command: flannel install {}", home.path)
    } else {
        format!("install {plugin} of the containernetworking plugins in {}", home.path)
    };
    let place = format!("{}/{plugin}", home.path);
    Finding { id: "cni-plugin-missing", level, what, place, why, fix, drop_in: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLANNEL: &str = include_str!("../../../config/cni/10-flannel.conflist");
    const CALICO: &str = r#"{"name":"k8s","plugins":[{"type":"calico","ipam":{"type":"calico-ipam"}},
        {"type":"portmap"}]}"#;
    const MULTUS_SHIM: &str = r#"{"name":"multus","type":"multus-shim"}"#;

    /// Configs by name, and plugins by folder.
    fn found(configs: &[(&str, &str)], folders: &[(&str, &[&str])]) -> Vec<String> {
        let config =
            |(name, text): &(&str, &str)| CniConfig::parse(format!("/etc/cni/net.d/{name}"), text);
        let folder = |(path, plugins): &(&str, &[&str])| PluginFolder {
            path: (*path).to_owned(),
            plugins: plugins.iter().map(ToString::to_string).collect(),
        };
        let cni = Cni {
            configs: configs.iter().map(config).collect(),
            folders: folders.iter().map(folder).collect(),
        };
        let line = |it: &Finding| format!("{} {}: {}", it.level.as_str(), it.id, it.what);
        findings(&cni).iter().map(line).collect()
    }

    #[test]
    fn only_configs_that_sort_before_that_of_flannel_are_reported() {
        let own = ("10-flannel.conflist", FLANNEL);
        let none = [] as [&str; 0];
        assert_eq!(found(&[], &[]), none);
        assert_eq!(found(&[own, ("87-podman.conflist", CALICO), ("99.conf", "{")], &[]), none);
        assert_eq!(
            found(&[("05-old.conf", "{"), ("10-calico.conflist", CALICO), own], &[]),
            [
                "warning cni-config-invalid: 05-old.conf is no valid CNI config",
                "warning other-cni-config: runtimes use 10-calico.conflist (plugins: calico, \
                 calico-ipam, portmap), because it sorts before 10-flannel.conflist",
            ]
        );
        assert_eq!(
            found(&[("05-empty.json", r#"{"plugins":[]}"#), own], &[]),
            ["warning cni-config-invalid: 05-empty.json is no valid CNI config"]
        );
    }

    #[test]
    fn a_config_that_starts_the_plugin_of_flannel_is_not_foreign() {
        let own = ("10-flannel.conflist", FLANNEL);
        let delegating = format!(r#"{{"type":"multus","delegates":[{FLANNEL}]}}"#);
        let chained = r#"{"plugins":[{"type":"flannel"},{"type":"cilium-cni"}]}"#;
        for text in [&delegating, chained] {
            assert_eq!(found(&[("00-first.conf", text), own], &[]), [] as [&str; 0]);
        }
        assert_eq!(
            found(&[("00-multus.conf", MULTUS_SHIM), own], &[]),
            ["note other-cni-config: runtimes use 00-multus.conf (plugins: multus-shim), because \
              it sorts before 10-flannel.conflist"]
        );
    }

    #[test]
    fn on_a_host_without_the_config_of_flannel_only_an_invalid_one_is_reported() {
        let others = [("10-calico.conflist", CALICO), ("10-flannel.conflist", "[")];
        assert_eq!(
            found(&others, &[("/opt/cni/bin", &[])]),
            ["warning cni-config-invalid: 10-flannel.conflist is no valid CNI config"]
        );
    }

    #[test]
    fn plugins_that_are_needed_and_missing_are_reported() {
        fn found(folders: &[(&str, &[&str])]) -> Vec<String> {
            super::tests::found(&[("10-flannel.conflist", FLANNEL)], folders)
        }
        let missing =
            |name| format!("warning cni-plugin-missing: the CNI plugin {name} is missing");
        // Folders that are not visible hide no plugin.
        assert_eq!(found(&[]), [] as [&str; 0]);
        let all = ["flannel", "loopback", "portmap"];
        assert_eq!(found(&[("/opt/cni/bin", &all)]), [] as [&str; 0]);
        assert_eq!(found(&[("/opt/cni/bin", &[])]), all.map(missing));
        assert_eq!(found(&[("/opt/cni/bin", &["flannel", "loopback"])]), [missing("portmap")]);
        let debian: &[&str] = &["loopback", "portmap"];
        assert_eq!(
            found(&[("/opt/cni/bin", &["flannel", "loopback"]), ("/usr/lib/cni", debian)]),
            ["note cni-plugin-missing: the CNI plugin portmap is in /usr/lib/cni, not next to \
              flannel"]
        );
        assert_eq!(found(&[("/opt/cni/bin", &[]), ("/usr/lib/cni", &all)]), [] as [&str; 0]);
    }

    #[test]
    fn plugins_that_a_config_starts_in_turn_are_needed() {
        let config = r#"{"type":"flannel","delegate":{"type":"ipvlan","ipam":{"type":"dhcp"}}}"#;
        let found = found(
            &[("10-flannel.conf", config)],
            &[("/opt/cni/bin", &["flannel", "loopback", "ipvlan"])],
        );
        assert_eq!(found, ["warning cni-plugin-missing: the CNI plugin dhcp is missing"]);
    }
}
