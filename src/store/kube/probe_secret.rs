//! The secret of path probes: made by whoever comes first, read by all others.

use k8s_openapi::ByteString;
use serde::Deserialize;
use tokio::time::sleep;

use super::Shared;
use super::answer::Refusal;
use super::client::Failure;
use super::connect::own_namespace;
use super::request;
use crate::excerpt;
use crate::model::probe_secret::Secret;
use crate::store::backoff::Backoff;

/// What is read of a Secret.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SecretObject {
    data: Data,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    secret: ByteString,
}

impl Shared {
    /// Waits for the API server.
    ///
    /// # Errors
    /// What keeps us from the secret, in a sentence that does not hold it.
    pub(super) async fn probe_secret(&self) -> Result<Secret, String> {
        let namespace = self.namespace().ok_or("POD_NAMESPACE is not set")?;
        let mut backoff = Backoff::default();
        loop {
            match self.client.once(&request::probe_secret(&namespace)).await {
                Ok(body) => return understand(&body, &namespace),
                Err(Failure::Refused(Refusal::Absent)) => self.make_secret(&namespace).await?,
                Err(failure) => given_up(failure)?,
            }
            sleep(backoff.delay(rand::random())).await;
        }
    }

    /// Where our own objects lie.
    pub(super) fn namespace(&self) -> Option<String> {
        self.options.namespace.clone().or_else(own_namespace)
    }

    /// Whoever was first, the next reading tells.
    async fn make_secret(&self, namespace: &str) -> Result<(), String> {
        let ask = request::create_probe_secret(namespace, &Secret::text(&rand::random()));
        match self.client.once(&ask).await {
            Ok(_) | Err(Failure::Refused(Refusal::Exists)) => Ok(()),
            Err(Failure::Refused(Refusal::Absent)) => {
                Err(format!("there is no namespace {namespace}"))
            }
            Err(Failure::Refused(Refusal::Denied(reason))) => {
                Err(format!("there is no secret {namespace}/tweed-probes, and {reason}"))
            }
            Err(failure) => given_up(failure),
        }
    }
}

/// Only what waiting may mend is waited for.
fn given_up(failure: Failure) -> Result<(), String> {
    match failure {
        Failure::Away => Ok(()),
        Failure::Refused(Refusal::Denied(reason)) => Err(reason),
        Failure::Refused(refusal) => Err(format!("the API server refuses: {refusal}")),
    }
}

fn understand(body: &[u8], namespace: &str) -> Result<Secret, String> {
    let named = |error: &dyn ToString| {
        format!("secret {namespace}/tweed-probes: {}", excerpt::value(&error.to_string()))
    };
    let object: SecretObject = serde_json::from_slice(body).map_err(|error| named(&error))?;
    Secret::parse(&object.data.secret.0).map_err(|error| named(&error))
}
