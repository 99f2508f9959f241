//! Opens a client of one API server.

use std::error::Error as StdError;
use std::io;
use std::iter::successors;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::task::spawn_blocking;

use crate::transport::{Transport, is_protected, with_cause};

/// How to reach the API servers.
#[derive(Clone, Debug, Default)]
pub struct ApiOptions {
    /// `https://10.0.0.10:6443`; if empty, the server of `kubeconfig` or the cluster's own.
    pub urls: Vec<String>,
    /// None means the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    pub transport: Transport<Client>,
}

/// The program that sends requests.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// As the API server shall log it: `tweedd/0.1.0`.
    pub agent: &'static str,
    /// What names the API server outside of a pod: "set --kubeconfig".
    pub flags: &'static str,
    /// The document that lists the permissions it needs.
    pub permissions: &'static str,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The files of the service account, which every pod has.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Sends no request yet. Kubeconfig, certificates and token are read each time, so that they may be
/// replaced while the program runs.
///
/// # Errors
/// The message contains no secrets.
pub(super) async fn open(
    options: &ApiOptions,
    program: Program,
    url: Option<&str>,
) -> Result<Client, String> {
    if let Transport::Channels(open) = &options.transport {
        return open(url.unwrap_or_default());
    }
    let mut config = match (&options.kubeconfig, url) {
        (Some(file), _) => from_file(file).await?,
        (None, None) => Config::incluster().map_err(|error| {
            let error = describe(&error);
            format!("{error}: outside of a pod, {}", program.flags)
        })?,
        (None, Some(url)) => of_account(url)?,
    };
    if let Some(url) = url {
        config.cluster_url = parse(url)?;
    }
    keep_secrets(&config)?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // The caller retries.
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_static(program.agent)));
    let proxy = config.proxy_url.clone();
    let account = &config.auth_info;
    let opened = if account.exec.is_some() || account.auth_provider.is_some() {
        // The library waits for a program that fetches credentials, by a network that may be down.
        let opened = spawn_blocking(|| Client::try_from(config)).await;
        opened.map_err(|error| error.to_string())?
    } else {
        // Without a wait, in which a watch that is not polled would keep the lock of the connection.
        Client::try_from(config)
    };
    opened.map_err(|error| without_secrets(proxy.as_ref(), &describe(&error)))
}

/// The namespace of this pod, from its files.
pub fn own_namespace() -> Option<String> {
    let namespace = std::fs::read_to_string(Path::new(ACCOUNT).join("namespace")).ok()?;
    Some(namespace.trim().to_owned()).filter(|namespace| !namespace.is_empty())
}

async fn from_file(file: &Path) -> Result<Config, String> {
    let named =
        |error: &(dyn StdError + 'static)| format!("{}: {}", file.display(), describe(error));
    let kubeconfig = Kubeconfig::read_from(file).map_err(|error| named(&error))?;
    let mut clusters = kubeconfig.clusters.iter().filter_map(|it| it.cluster.as_ref());
    let has_proxy = clusters.any(|it| it.proxy_url.is_some());
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| named(&error))?;
    // Otherwise the library has taken the proxy of the environment, and does not read NO_PROXY.
    if !has_proxy && Matcher::from_env().intercept(&config.cluster_url).is_none() {
        config.proxy_url = None;
    }
    Ok(config)
}

/// `error` without the user and password of the proxy.
fn without_secrets(proxy: Option<&Uri>, error: &str) -> String {
    let authority = proxy.and_then(Uri::authority);
    match authority.and_then(|it| it.as_str().rsplit_once('@')) {
        Some((secret, _)) => error.replace(secret, "***"),
        None => error.to_owned(),
    }
}

/// With the service account of the pod, if there is one.
fn of_account(url: &str) -> Result<Config, String> {
    let mut config = Config::new(parse(url)?);
    let file = |name: &str| Some(Path::new(ACCOUNT).join(name)).filter(|file| file.exists());
    config.root_cert_file = file("ca.crt");
    config.auth_info = AuthInfo {
        token_file: file("token").map(|file| file.display().to_string()),
        ..AuthInfo::default()
    };
    Ok(config)
}

/// Refuses to send a token or password unencrypted.
fn keep_secrets(config: &Config) -> Result<(), String> {
    let AuthInfo { password, token, token_file, auth_provider, exec, .. } = &config.auth_info;
    let has_secret = [
        password.is_some(),
        token.is_some(),
        token_file.is_some(),
        auth_provider.is_some(),
        exec.is_some(),
    ];
    if is_protected(&config.cluster_url) || !has_secret.contains(&true) {
        return Ok(());
    }
    let url = &config.cluster_url;
    Err(format!("{url}: the token or password of this account is not sent unencrypted: use https"))
}

fn parse(url: &str) -> Result<hyper::Uri, String> {
    url.parse().map_err(|error| format!("{url}: {error}"))
}

/// Why a request has no answer.
pub(super) fn failure(error: &kube::Error) -> String {
    match error {
        kube::Error::Service(cause) => describe(cause.as_ref()),
        other => describe(other),
    }
}

/// The message and the innermost cause.
fn describe(error: &(dyn StdError + 'static)) -> String {
    let innermost = successors(Some(error), |error| (*error).source()).last();
    let io_error = innermost.and_then(|error| error.downcast_ref::<io::Error>());
    // As by a killed server: the message of TLS does not help operators.
    if io_error.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
        return "the API server closed the connection".to_owned();
    }
    with_cause(&error.to_string(), error.source())
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("error reading a body from connection")]
    struct Reading(#[source] Error);

    #[test]
    fn a_server_that_was_killed_is_reported_in_plain_words() {
        let eof = Error::new(ErrorKind::UnexpectedEof, "no close_notify: https://docs.rs/rustls");
        let message = describe(&Reading(eof));
        assert_eq!(message, "the API server closed the connection");
    }

    #[test]
    fn the_innermost_cause_is_reported() {
        let refused = Error::new(ErrorKind::ConnectionRefused, "connection refused");
        assert_eq!(
            describe(&Reading(refused)),
            "error reading a body from connection: connection refused"
        );
    }

    /// A kubeconfig of a user with `secret`, for the server `url`.
    fn kubeconfig(url: &str, secret: &str) -> tempfile::NamedTempFile {
        let text = format!(
            "apiVersion: v1\n\
             kind: Config\n\
             current-context: c\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n\
             users: [{{name: u, user: {{{secret}}}}}]\n"
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        file
    }

    async fn refusal(url: &str, secret: &str, flag: Option<&str>) -> Option<String> {
        let file = kubeconfig(url, secret);
        let kubeconfig = Some(file.path().to_owned());
        let program = Program { agent: "test", flags: "set a flag", permissions: "a document" };
        open(&ApiOptions { kubeconfig, ..ApiOptions::default() }, program, flag).await.err()
    }

    #[tokio::test]
    async fn the_proxy_of_a_kubeconfig_is_used_and_its_password_is_not_shown() {
        let through = |proxy: &str| format!("https://10.0.0.1:6443', proxy-url: '{proxy}");
        for proxy in ["http://u:secret@127.0.0.1:3128", "socks5://127.0.0.1:1080"] {
            assert_eq!(refusal(&through(proxy), "", None).await, None, "{proxy}");
        }
        let refused = refusal(&through("ftp://u:secret@127.0.0.1"), "", None).await.unwrap();
        assert!(refused.contains("***@127.0.0.1") && !refused.contains("secret"), "{refused}");
    }

    #[tokio::test]
    async fn no_token_or_password_is_sent_unencrypted() {
        let plain = "http://10.0.0.1:8080";
        for secret in ["token: abc", "username: u, password: p"] {
            let refused = refusal(plain, secret, None).await.unwrap();
            assert_eq!(
                refused,
                "http://10.0.0.1:8080/: the token or password of this account is not sent \
                 unencrypted: use https"
            );
            assert_eq!(refusal("https://10.0.0.1:6443", secret, Some(plain)).await, Some(refused));
            assert_eq!(refusal("http://127.0.0.1:8001", secret, None).await, None);
        }
        assert_eq!(refusal(plain, "", None).await, None, "there is nothing to keep");
    }
}
