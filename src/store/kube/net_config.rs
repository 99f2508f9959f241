//! Follows the file that the network config is mounted as.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::sleep;

use super::Shared;
use crate::model::config::{ConfigUpdate, NetworkConfig, Unusable};

/// A mounted ConfigMap changes by another link in its folder, which no watch on the file tells.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What the file holds, and whatever it holds from then on. Never ends.
pub(super) fn updates(shared: Arc<Shared>) -> BoxStream<'static, ConfigUpdate> {
    let steps = stream::unfold((shared, None::<ConfigUpdate>), |(shared, told)| async move {
        loop {
            let update = look(&shared.options.net_config);
            if told.as_ref() != Some(&update) {
                return Some((update.clone(), (shared, Some(update))));
            }
            sleep(LOOK_AGAIN).await;
        }
    });
    steps.boxed()
}

/// All nodes give the same text the same revision.
fn look(path: &Path) -> ConfigUpdate {
    let shown = path.display();
    match std::fs::read(path) {
        Ok(text) => {
            let config = NetworkConfig::parse(&text);
            let config = config.map_err(|error| Unusable(format!("{shown}: {error}")));
            ConfigUpdate { config, revision: u64::from(crc32fast::hash(&text)) }
        }
        Err(error) => {
            let cure = match error.kind() {
                ErrorKind::NotFound => ": mount the ConfigMap with the network config there",
                _ => "",
            };
            ConfigUpdate { config: Err(Unusable(format!("{shown}: {error}{cure}"))), revision: 0 }
        }
    }
}
