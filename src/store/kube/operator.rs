//! What operators read and write: the `ConfigMap`, by compare-and-swap, and leases and reports of
//! nodes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use hyper::body::Bytes;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::Deserialize;
use tweed_client::api::{ApiOptions, ApiRequest, pages};
use tweed_client::failover::{Failure, Refusal};

use super::annotations::AnnotationPrefix;
use super::node::{NodeObject, Reader};
use super::watch::Nodes;
use super::{ApiClient, client, request};
use crate::excerpt;
use crate::model::config::NetworkConfig;
use crate::model::lease::{LeaseId, Record};
use crate::model::prefix::Prefix;
use crate::model::report::NodeReport;
use crate::store::ClusterStore;
use crate::store::operator::{StoreContents, StoredReport, Swap, Unavailable, Written};

/// How operators reach a cluster.
#[derive(Clone, Debug)]
pub struct KubeClusterOptions {
    pub api: ApiOptions,
    pub annotation_prefix: AnnotationPrefix,
    /// The namespace of the `ConfigMap` that daemons mount, and of their reports.
    pub namespace: String,
    pub config_map: String,
}

/// A network in Kubernetes, for its operator.
pub struct KubeClusterStore {
    client: ApiClient,
    options: KubeClusterOptions,
}

/// Reports in one answer, at most some 10 MB.
const PAGE: u32 = 500;

#[derive(Deserialize)]
struct ReportPage<'a> {
    #[serde(default)]
    metadata: ReportPageMetadata,
    #[serde(borrow)]
    items: Vec<ReportObject<'a>>,
}

#[derive(Default, Deserialize)]
struct ReportPageMetadata {
    #[serde(default, rename = "continue")]
    token: String,
}

#[derive(Deserialize)]
struct ReportObject<'a> {
    #[serde(default, borrow)]
    data: ReportData<'a>,
}

/// The keys [`request::REPORT`] and [`request::REFRESHED`].
#[derive(Default, Deserialize)]
struct ReportData<'a> {
    #[serde(default, borrow)]
    report: Cow<'a, str>,
    #[serde(default)]
    refreshed: Option<String>,
}

impl KubeClusterStore {
    /// Does not connect yet.
    pub fn new(options: KubeClusterOptions) -> Self {
        Self { client: client(options.api.clone()), options }
    }

    async fn config(&self) -> Result<Option<Written>, Unavailable> {
        let ask = request::config_map(&self.options.namespace, &self.options.config_map);
        let body = match self.ask(&ask).await {
            Err(Failure::Refused(Refusal::Absent)) => return Ok(None),
            answer => answer.map_err(|failure| self.client.report.explained(failure))?,
        };
        let object: ConfigMap = decode(&body)?;
        let revision = revision(&object);
        let text = object.data.unwrap_or_default().remove(request::NET_CONF);
        Ok(text.map(|text| Written { text, revision }))
    }

    async fn records(&self, config: Option<&Written>) -> Result<Vec<Record>, Unavailable> {
        let config = config.and_then(|it| NetworkConfig::parse(it.text.as_bytes()).ok());
        let families = config.map(|config| config.networks().map(Prefix::family).collect());
        let reader = Reader::new(self.options.annotation_prefix.clone(), families);
        let read = || async {
            let mut records = Vec::new();
            let read = |node: NodeObject<'_>| {
                let id = LeaseId::new(node.metadata.name.as_ref());
                records.extend(reader.record(&node, id));
            };
            pages::<Nodes, _>(&self.client, &request::NODES, read).await.map(|_| records)
        };
        self.client
            .try_each_server(read)
            .await
            .map_err(|failure| self.client.report.explained(failure))
    }

    /// Calls `each` for all reports.
    async fn reports(&self, mut each: impl FnMut(&ReportData<'_>)) -> Result<(), Unavailable> {
        let mut token = String::new();
        loop {
            let body = self.ask(&request::reports(&self.options.namespace, &token, PAGE)).await;
            let body = body.map_err(|failure| self.client.report.explained(failure))?;
            let page: ReportPage<'_> = decode(&body)?;
            page.items.iter().for_each(|item| each(&item.data));
            token = page.metadata.token;
            if token.is_empty() {
                return Ok(());
            }
        }
    }

    async fn ask(&self, ask: &ApiRequest) -> Result<Bytes, Failure> {
        self.client.try_each_server(|| self.client.once(ask)).await
    }
}

impl ClusterStore for KubeClusterStore {
    fn config_name(&self) -> String {
        let KubeClusterOptions { namespace, config_map, .. } = &self.options;
        format!("net-conf.json of configmap {namespace}/{config_map}")
    }

    fn hint(&self) -> &'static str {
        "name the cluster with --kubeconfig-file or --kube-api-url"
    }

    async fn read(&self) -> Result<StoreContents, Unavailable> {
        let config = self.config().await?;
        // Nodes identify a config by its text, operators by its version.
        let current = config.as_ref().map(|config| {
            let known = u64::from(crc32fast::hash(config.text.as_bytes()));
            (known, config.revision.unsigned_abs())
        });
        let records = self.records(config.as_ref()).await?;
        let ids: HashSet<&LeaseId> = records.iter().map(|record| &record.id).collect();
        let now = Timestamp::now();
        let stored = |data: &ReportData<'_>| {
            let report = NodeReport::decode(data.report.as_bytes())?;
            let report = report.sharing(|lease| ids.get(lease).copied());
            let is_current = |(known, _): &(u64, u64)| *known == report.config_revision;
            let revision = current.filter(is_current).map_or(0, |(_, revision)| revision);
            let report = NodeReport { config_revision: revision, ..report };
            Some(StoredReport { report, age: age(data.refreshed.as_deref(), now) })
        };
        let mut reports = Vec::new();
        self.reports(|data| reports.extend(stored(data))).await?;
        Ok(StoreContents { config, records, reports })
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Unavailable> {
        let ask =
            request::write_config(&self.options.namespace, &self.options.config_map, seen, text);
        match self.ask(&ask).await {
            Ok(body) => decode(&body).map(|object| Swap::Done(revision(&object))),
            Err(Failure::Refused(Refusal::Exists | Refusal::Absent)) => Ok(Swap::Outdated),
            Err(failure) => {
                let failure = self.client.report.explained(failure);
                Swap::after(failure, self.config().await?, seen, text)
            }
        }
    }
}

/// The time since `refreshed`; zero if the clock of the node is ahead of this one.
fn age(refreshed: Option<&str>, now: Timestamp) -> Option<Duration> {
    let refreshed: Timestamp = refreshed?.parse().ok()?;
    Some(now.duration_since(refreshed).try_into().unwrap_or(Duration::ZERO))
}

fn revision(object: &ConfigMap) -> i64 {
    object.metadata.resource_version.as_ref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Unavailable> {
    let unreadable = |error: serde_json::Error| {
        let error = excerpt::sentence(&error.to_string());
        Unavailable(format!("an answer of the API server cannot be read: {error}"))
    };
    serde_json::from_slice(body).map_err(unreadable)
}
