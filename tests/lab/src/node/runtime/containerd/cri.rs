//! A client of the Container Runtime Interface: the calls of a kubelet to a runtime.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::message::{
    ContainerConfig, CreateContainer, Empty, Exec, Executed, Id, Image, ImageStatus,
    ImageStatusAnswer, PodConfig, PodStatusAnswer, RunPod,
};

/// A kubelet's timeout is longer, but no call here should take as long.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Cri {
    runtime: Runtime,
    channel: Channel,
}

impl Cri {
    /// For the runtime that listens on `socket`, now or later.
    pub(super) fn new(socket: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))?;
        let channel = {
            let _inside = runtime.enter();
            endpoint.timeout(TIMEOUT).connect_lazy()
        };
        Ok(Self { runtime, channel })
    }

    /// An error until the runtime is ready.
    pub(super) fn version(&self) -> Result<()> {
        let Empty {} = self.call("/runtime.v1.RuntimeService/Version", Empty {})?;
        Ok(())
    }

    pub(super) fn has_image(&self, name: &str) -> Result<bool> {
        let question = ImageStatus { image: Some(Image { name: name.to_owned() }) };
        let answer: ImageStatusAnswer =
            self.call("/runtime.v1.ImageService/ImageStatus", question)?;
        Ok(answer.image.is_some())
    }

    /// Returns the id of the pod.
    pub(super) fn run_pod(&self, config: PodConfig) -> Result<String> {
        let question = RunPod { config: Some(config) };
        let Id { id } = self.call("/runtime.v1.RuntimeService/RunPodSandbox", question)?;
        Ok(id)
    }

    /// The addresses of a pod, with spaces between them.
    pub(super) fn addresses(&self, pod: &str) -> Result<String> {
        let answer: PodStatusAnswer =
            self.call("/runtime.v1.RuntimeService/PodSandboxStatus", id(pod))?;
        let network = answer.status.and_then(|status| status.network);
        let network = network.with_context(|| format!("{pod} has no network"))?;
        let more = network.more.into_iter().map(|address| address.ip);
        Ok(std::iter::once(network.ip).chain(more).collect::<Vec<_>>().join(" "))
    }

    pub(super) fn stop_pod(&self, pod: &str) -> Result<()> {
        let Empty {} = self.call("/runtime.v1.RuntimeService/StopPodSandbox", id(pod))?;
        Ok(())
    }

    /// Removes the containers of the pod too.
    pub(super) fn remove_pod(&self, pod: &str) -> Result<()> {
        let Empty {} = self.call("/runtime.v1.RuntimeService/RemovePodSandbox", id(pod))?;
        Ok(())
    }

    /// Returns the id of the started container.
    pub(super) fn start_container(
        &self,
        pod: &str,
        config: ContainerConfig,
        pod_config: PodConfig,
    ) -> Result<String> {
        let (config, pod_config) = (Some(config), Some(pod_config));
        let question = CreateContainer { pod: pod.to_owned(), config, pod_config };
        let created: Id = self.call("/runtime.v1.RuntimeService/CreateContainer", question)?;
        let Empty {} = self.call("/runtime.v1.RuntimeService/StartContainer", created.clone())?;
        Ok(created.id)
    }

    pub(super) fn exec(&self, container: &str, command: &[&str]) -> Result<Executed> {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let timeout = i64::try_from(TIMEOUT.as_secs())?;
        let question = Exec { container: container.to_owned(), command, timeout };
        self.call("/runtime.v1.RuntimeService/ExecSync", question)
    }

    fn call<Q, A>(&self, method: &'static str, question: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut service = Grpc::new(self.channel.clone());
        let path = PathAndQuery::from_static(method);
        let answered = self.runtime.block_on(async {
            service.ready().await?;
            let question = tonic::Request::new(question);
            Ok(service.unary(question, path, ProstCodec::<Q, A>::default()).await)
        });
        let answered = answered.map_err(|error: tonic::transport::Error| anyhow!(error))?;
        let answer = answered.map_err(|status| anyhow!("{}", status.message()));
        Ok(answer.with_context(|| method)?.into_inner())
    }
}

fn id(id: &str) -> Id {
    Id { id: id.to_owned() }
}
