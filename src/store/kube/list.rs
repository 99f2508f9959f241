//! All nodes there are: streamed where the server can, else page by page. Never all in memory.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use tracing::info;

use super::answer::Refusal;
use super::client::{Client, Failure};
use super::node::{Metadata, NodeObject};
use super::request;
use super::watch::{Event, KubeSource, Lists, duration, event, first_line, interruption};
use crate::model::lease::{LeaseUpdate, Record};
use crate::store::watch::Interrupted;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Page<'a> {
    #[serde(borrow)]
    metadata: PageMetadata<'a>,
    #[serde(borrow)]
    items: Vec<NodeObject<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PageMetadata<'a> {
    #[serde(rename = "continue")]
    token: String,
    #[serde(borrow, rename = "resourceVersion")]
    version: Cow<'a, str>,
}

/// A server that knows nothing of streamed lists may begin one and never end it.
const STALL: Duration = Duration::from_secs(10);

/// In bytes. What some nodes hold must not hide the others: then fewer are asked for at once.
const LONGEST_PAGE: usize = 16 * 1024 * 1024;

const END: &str = "k8s.io/initial-events-end";

impl KubeSource {
    /// The watch that told them goes on with what changes.
    pub(super) async fn list_streamed(&mut self) -> Result<Vec<Record>, Interrupted> {
        let mut open = match self.shared.try_open(&request::streamed_list(duration())).await {
            Ok(open) => open,
            Err(Failure::Refused(Refusal::Invalid(_))) => {
                return self.list_paged_from_now_on().await;
            }
            Err(failure) => return Err(self.shared.interrupted(failure)),
        };
        let (mut records, mut progress) = (Vec::new(), Instant::now());
        loop {
            let listening = open.listen(&self.shared.client);
            let Ok(more) = timeout_at(progress + STALL, listening).await else {
                return self.list_paged_from_now_on().await;
            };
            if !more? {
                return Err(Interrupted::Away);
            }
            let lines = open.lines.take();
            let mut rest = lines.as_slice();
            while let Some((line, behind)) = first_line(rest) {
                rest = behind;
                let Some(event) = event(line) else { continue };
                match event.kind.as_ref() {
                    "ERROR" => return Err(interruption(line)),
                    "BOOKMARK" if is_end(&event.object.metadata) => {
                        self.pass(&event.object);
                        // What changed meanwhile may stand behind it.
                        open.lines.put_back(rest);
                        self.open = Some(open);
                        self.look_for_own();
                        return Ok(records);
                    }
                    // A server that streams lists says nothing else first.
                    "BOOKMARK" => return self.list_paged_from_now_on().await,
                    "ADDED" => progress = Instant::now(),
                    _ => {}
                }
                self.note(&mut records, &event);
            }
        }
    }

    /// Nodes may change, or go, or stop being managed, while they are listed.
    fn note(&mut self, records: &mut Vec<Record>, event: &Event<'_>) {
        let is_listed = self.knows(&event.object);
        let update = match event.kind.as_ref() {
            "DELETED" => self.lose(&event.object),
            _ => self.put(&event.object),
        };
        if let Some(update) = update {
            if is_listed {
                let changed = event.object.metadata.name.as_ref();
                records.retain(|record| record.id.as_str() != changed);
            }
            records.extend(record(Some(update)));
        }
    }

    async fn list_paged_from_now_on(&mut self) -> Result<Vec<Record>, Interrupted> {
        info!("the API server streams no lists: reading the nodes page by page");
        self.lists = Lists::Paged;
        self.forget();
        self.list_paged().await
    }

    pub(super) async fn list_paged(&mut self) -> Result<Vec<Record>, Interrupted> {
        let (mut records, shared) = (Vec::new(), Arc::clone(&self.shared));
        let read = pages(&shared.client, |node| records.extend(record(self.put(node)))).await;
        self.version = read.map_err(|failure| shared.interrupted(failure))?;
        self.look_for_own();
        Ok(records)
    }
}

/// Shows `each` node there is, and returns the version of what it was shown.
pub(super) async fn pages(
    client: &Client,
    mut each: impl FnMut(&NodeObject<'_>),
) -> Result<String, Failure> {
    let (mut token, mut limit) = (String::new(), request::PAGE);
    loop {
        let body = match client.once_within(&request::page(&token, limit), LONGEST_PAGE).await {
            Err(Failure::Refused(Refusal::TooLarge(_))) if limit > 1 => {
                limit /= 2;
                continue;
            }
            body => body?,
        };
        let page: Page<'_> = serde_json::from_slice(&body).map_err(|error| {
            client.report.away(&format!("the list of nodes cannot be read: {error}"));
            Failure::Away
        })?;
        page.items.iter().for_each(&mut each);
        token = page.metadata.token;
        if token.is_empty() {
            return Ok(page.metadata.version.into_owned());
        }
        limit = request::PAGE.min(limit * 2);
    }
}

fn is_end(metadata: &Metadata<'_>) -> bool {
    metadata.annotations.get(END) == Some("true")
}

fn record(update: Option<LeaseUpdate>) -> Option<Record> {
    match update? {
        LeaseUpdate::Put(record) => Some(record),
        LeaseUpdate::Snapshot(_) | LeaseUpdate::Remove(_) | LeaseUpdate::DeleteNode(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::kube::{
        AnnotationPrefix, ApiOptions, Condition, KubeOptions, KubeSubnetManager, NodeRef,
    };

    fn source() -> KubeSource {
        let options = KubeOptions {
            api: ApiOptions { urls: Vec::new(), kubeconfig: None },
            annotation_prefix: AnnotationPrefix::default(),
            node: NodeRef::Name("n1".to_owned()),
            pod: None,
            namespace: None,
            net_config: "/nowhere/net-conf.json".into(),
            condition: Condition::Untouched,
        };
        KubeSource::new(Arc::clone(&KubeSubnetManager::new(options).shared))
    }

    /// An event of node n3, which flannel manages if it has this public IP.
    fn line(kind: &str, public_ip: Option<&str>) -> Vec<u8> {
        let prefix = "flannel.alpha.coreos.com";
        let annotations = public_ip.map(|public_ip| {
            json!({
                format!("{prefix}/kube-subnet-manager"): "true",
                format!("{prefix}/backend-type"): "host-gw",
                format!("{prefix}/public-ip"): public_ip,
            })
        });
        let metadata = json!({ "name": "n3", "annotations": annotations.unwrap_or(json!({})) });
        let spec = json!({ "podCIDR": "10.244.3.0/24" });
        let object = json!({ "metadata": metadata, "spec": spec });
        json!({ "type": kind, "object": object }).to_string().into_bytes()
    }

    /// The public IPs that n3 is listed with after these events.
    fn listed(lines: &[Vec<u8>]) -> Vec<String> {
        let (mut source, mut records) = (source(), Vec::new());
        for line in lines {
            source.note(&mut records, &event(line).unwrap());
        }
        let public_ips = records.iter().map(|record| record.lease.as_ref().unwrap());
        public_ips.map(|lease| lease.endpoints[0].public_ip.to_string()).collect()
    }

    #[test]
    fn a_node_that_changes_while_it_is_listed_is_listed_as_it_is_then() {
        let (added, changed) =
            (line("ADDED", Some("172.18.0.3")), line("MODIFIED", Some("172.18.0.33")));
        assert_eq!(listed(&[added.clone(), changed]), ["172.18.0.33"]);
        assert_eq!(listed(&[added.clone(), added.clone()]), ["172.18.0.3"]);
        assert_eq!(listed(&[added.clone(), line("MODIFIED", None)]), [""; 0]);
        assert_eq!(listed(&[added, line("DELETED", None)]), [""; 0]);
    }
}
