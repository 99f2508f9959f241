//! The messages of the Container Runtime Interface that a pod with one container needs.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

/// Many messages contain only the id of a pod or of a container.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Id {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) uid: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
}

/// The protocol of a port is TCP by default.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PortMapping {
    #[prost(int32, tag = "2")]
    pub(super) container_port: i32,
    #[prost(int32, tag = "3")]
    pub(super) host_port: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<PodMetadata>,
    #[prost(string, tag = "2")]
    pub(super) hostname: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) port_mappings: Vec<PortMapping>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RunPod {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<PodConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<PodStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodStatus {
    #[prost(message, optional, tag = "5")]
    pub(super) network: Option<PodNetwork>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodNetwork {
    #[prost(string, tag = "1")]
    pub(super) ip: String,
    /// All but the first.
    #[prost(message, repeated, tag = "2")]
    pub(super) more: Vec<PodIp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodIp {
    #[prost(string, tag = "1")]
    pub(super) ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Image {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(super) image: Option<Image>,
    #[prost(string, repeated, tag = "3")]
    pub(super) command: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateContainer {
    #[prost(string, tag = "1")]
    pub(super) pod: String,
    #[prost(message, optional, tag = "2")]
    pub(super) config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub(super) pod_config: Option<PodConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Exec {
    #[prost(string, tag = "1")]
    pub(super) container: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) command: Vec<String>,
    /// In seconds.
    #[prost(int64, tag = "3")]
    pub(super) timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Executed {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(super) exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageStatus {
    #[prost(message, optional, tag = "1")]
    pub(super) image: Option<Image>,
}

/// The field of an image that does not exist is absent.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) image: Option<Empty>,
}
