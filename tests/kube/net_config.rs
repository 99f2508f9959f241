//! The network config as a file that a ConfigMap is mounted as.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use futures::StreamExt;
use tempfile::TempDir;
use tokio::time::timeout;
use tweed::model::config::ConfigUpdate;
use tweed::model::status::StoreState;
use tweed::store::Documents;
use tweed::store::kube::KubeSubnetManager;

use crate::node::{TIMEOUT, V4, options};

/// As the kubelet does it: a folder for each version, and a link that is switched to the next one.
struct Mount {
    folder: TempDir,
    versions: u32,
}

impl Mount {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap(), versions: 0 }
    }

    fn write(&mut self, text: &str) {
        self.versions += 1;
        let version = format!("..version-{}", self.versions);
        std::fs::create_dir(self.path(&version)).unwrap();
        std::fs::write(self.path(&version).join("net-conf.json"), text).unwrap();
        symlink(&version, self.path("..data_tmp")).unwrap();
        std::fs::rename(self.path("..data_tmp"), self.path("..data")).unwrap();
        if self.versions == 1 {
            symlink("..data/net-conf.json", self.path("net-conf.json")).unwrap();
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn manager(&self) -> Arc<KubeSubnetManager> {
        manager(&self.path("net-conf.json"))
    }
}

fn manager(net_config: &Path) -> Arc<KubeSubnetManager> {
    let mut options = options(&[]);
    net_config.clone_into(&mut options.net_config);
    KubeSubnetManager::new(options)
}

async fn next(updates: &mut futures::stream::BoxStream<'static, ConfigUpdate>) -> ConfigUpdate {
    timeout(TIMEOUT, updates.next()).await.expect("no update").unwrap()
}

#[tokio::test]
async fn an_edited_config_map_is_sent() {
    let mut mount = Mount::new();
    mount.write(V4);
    let mut updates = mount.manager().watch_config();
    let first = next(&mut updates).await;
    assert!(!first.config.unwrap().mixed);
    mount.write(r#"{"Network":"10.244.0.0/16","Mixed":true}"#);
    let second = next(&mut updates).await;
    assert!(second.config.unwrap().mixed);
    assert_ne!(first.revision, second.revision);
}

#[tokio::test]
async fn all_nodes_give_one_config_one_revision() {
    let (mut here, mut there) = (Mount::new(), Mount::new());
    here.write("{}");
    here.write(V4);
    there.write(V4);
    let here = next(&mut here.manager().watch_config()).await;
    assert_eq!(here, next(&mut there.manager().watch_config()).await);
    assert_ne!(here.revision, 0);
}

#[tokio::test]
async fn an_invalid_config_is_reported_and_its_fix_waited_for() {
    let mut mount = Mount::new();
    mount.write(r#"{"Network":"10.244.0.0/33"}"#);
    let manager = mount.manager();
    let mut updates = manager.watch_config();
    let reason = next(&mut updates).await.config.unwrap_err().to_string();
    assert!(reason.contains("net-conf.json: Network is"), "{reason}");
    // This does not report on the API server, which has not been used yet.
    assert_eq!(*manager.state().borrow(), StoreState::Unknown);
    mount.write(V4);
    assert!(next(&mut updates).await.config.is_ok());
}

#[tokio::test]
async fn the_error_of_a_missing_file_names_the_mount() {
    let manager = manager(Path::new("/nowhere/net-conf.json"));
    let update = next(&mut manager.watch_config()).await;
    let reason = update.config.unwrap_err().to_string();
    assert!(reason.starts_with("/nowhere/net-conf.json: "), "{reason}");
    assert!(reason.ends_with("mount the ConfigMap with the network config there"), "{reason}");
    assert_eq!(update.revision, 0);
}
