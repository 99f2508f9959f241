//! What operators read and write: the `ConfigMap`, by compare-and-swap, and leases and reports of
//! nodes.

use hyper::body::Bytes;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::annotations::AnnotationPrefix;
use super::client::Client;
use super::connect::ApiOptions;
use super::node::Reader;
use super::request::{self, ApiRequest};
use super::watch::pages;
use crate::excerpt;
use crate::model::config::NetworkConfig;
use crate::model::lease::{LeaseId, Record};
use crate::model::prefix::Prefix;
use crate::model::report::NodeReport;
use crate::store::ClusterStore;
use crate::store::failover::{Failure, Refusal};
use crate::store::operator::{StoreContents, Swap, Unavailable, Written};

/// How operators reach a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeClusterOptions {
    pub api: ApiOptions,
    pub annotation_prefix: AnnotationPrefix,
    /// The namespace of the `ConfigMap` that daemons mount, and of their reports.
    pub namespace: String,
    pub config_map: String,
}

/// A network in Kubernetes, for its operator.
pub struct KubeClusterStore {
    client: Client,
    options: KubeClusterOptions,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigMaps {
    items: Vec<ConfigMap>,
}

impl KubeClusterStore {
    /// Does not connect yet.
    pub fn new(options: KubeClusterOptions) -> Self {
        Self { client: Client::new(options.api.clone()), options }
    }

    async fn config(&self) -> Result<Option<Written>, Unavailable> {
        let ask = request::config_map(&self.options.namespace, &self.options.config_map);
        let body = match self.ask(&ask).await {
            Err(Failure::Refused(Refusal::Absent)) => return Ok(None),
            answer => answer.map_err(|failure| self.client.explained(failure))?,
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
            let nodes = pages(&self.client, |node| {
                let id = LeaseId::new(node.metadata.name.as_ref());
                records.extend(reader.record(node, id));
            });
            nodes.await.map(|_| records)
        };
        self.client.try_each_server(read).await.map_err(|failure| self.client.explained(failure))
    }

    /// Only valid reports. Nodes identify a config by its text, operators by its version.
    async fn reports(&self, config: Option<&Written>) -> Result<Vec<NodeReport>, Unavailable> {
        let body = self.ask(&request::reports(&self.options.namespace)).await;
        let body = body.map_err(|failure| self.client.explained(failure))?;
        let ConfigMaps { items } = decode(&body)?;
        let texts = items.iter().filter_map(|item| item.data.as_ref()?.get(request::REPORT));
        let reports = texts.filter_map(|text| NodeReport::decode(text.as_bytes()));
        let current = config.map(|config| {
            let known = u64::from(crc32fast::hash(config.text.as_bytes()));
            (known, config.revision.unsigned_abs())
        });
        let translated = reports.map(|report| {
            let is_current = |(known, _): &(u64, u64)| *known == report.config_revision;
            let revision = current.filter(is_current).map_or(0, |(_, revision)| revision);
            NodeReport { config_revision: revision, ..report }
        });
        Ok(translated.collect())
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
        let reports = self.reports(config.as_ref()).await?;
        let records = self.records(config.as_ref()).await?;
        Ok(StoreContents { config, records, reports })
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Unavailable> {
        let ask =
            request::write_config(&self.options.namespace, &self.options.config_map, seen, text);
        match self.ask(&ask).await {
            Ok(body) => decode(&body).map(|object| Swap::Done(revision(&object))),
            Err(Failure::Refused(Refusal::Exists | Refusal::Absent)) => Ok(Swap::Outdated),
            Err(failure) => {
                let failure = self.client.explained(failure);
                Swap::after(failure, self.config().await?, seen, text)
            }
        }
    }
}

fn revision(object: &ConfigMap) -> i64 {
    object.metadata.resource_version.as_ref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Unavailable> {
    let unreadable = |error: serde_json::Error| {
        let error = excerpt::sentence(&error.to_string());
        Unavailable(format!("an answer of the API server cannot be read: {error}"))
    };
    serde_json::from_slice(body).map_err(unreadable)
}
