//! Opens a connection to one etcd server, and classifies its errors.

use std::error::Error as StdError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, Channel, Client, ConnectOptions, Error, Identity, TlsOptions};
use tonic::Code;
use tweed_client::failover::Refusal;
use tweed_client::transport::{Transport, with_cause};

use crate::excerpt;

/// The endpoints of etcd, and the prefix of our network.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// `http://10.0.0.1:2379`; without a scheme it is `https` if there are TLS files.
    pub endpoints: Vec<String>,
    /// `/coreos.com/network`.
    pub prefix: String,
    /// The CA certificates that servers are verified against.
    pub ca_file: Option<PathBuf>,
    /// The client certificate and its key, for servers that require one.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub credentials: Option<Credentials>,
    pub transport: Transport<Channel>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The sum of both is the time after which a server that hangs is detected.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// With credentials, a token is requested; without, no request is sent yet. An etcd whose
/// authentication is not enabled has no tokens, and is used without.
/// The TLS files are read each time, so that they may be replaced while the daemon runs.
///
/// # Errors
/// The message contains no secrets.
pub(super) async fn open(options: &EtcdOptions, endpoint: &str) -> Result<Client, String> {
    let mut connect = ConnectOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE_TIMEOUT)
        .with_keep_alive_while_idle(true)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some(tls) = tls(options, endpoint)? {
        connect = connect.with_tls(tls);
    }
    let connected = match &options.transport {
        Transport::Sockets => Client::connect([endpoint], Some(connect)).await,
        Transport::Channels(open) => Client::from_channel(open(endpoint)?, Some(connect)).await,
    };
    let mut client = connected.map_err(|error| describe(&error))?;
    let Some(Credentials { user, password }) = &options.credentials else { return Ok(client) };
    match client.update_user(Some((user.clone(), password.clone()))).await {
        Err(error) if !lacks_authentication(&error) => Err(describe(&error)),
        Ok(()) | Err(_) => Ok(client),
    }
}

/// Flannel ignores this error, too.
fn lacks_authentication(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message() == NO_AUTHENTICATION)
}

/// Flannel accepts TLS files for `http` endpoints; the library does not.
fn tls(options: &EtcdOptions, endpoint: &str) -> Result<Option<TlsOptions>, String> {
    if endpoint.starts_with("http://") {
        return Ok(None);
    }
    let mut tls = TlsOptions::new();
    // Without a file, those that the host trusts, as for flanneld.
    tls = match &options.ca_file {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(read_certificate(ca)?)),
        None => tls.with_native_roots(),
    };
    match (&options.cert_file, &options.key_file) {
        (Some(cert), Some(key)) => {
            tls = tls.identity(Identity::from_pem(read_certificate(cert)?, read(key)?));
        }
        (None, None) => {}
        (Some(_), None) => return Err("etcd-certfile is given, but etcd-keyfile is not".to_owned()),
        (None, Some(_)) => return Err("etcd-keyfile is given, but etcd-certfile is not".to_owned()),
    }
    Ok(Some(tls))
}

/// The library accepts a file without a certificate, and then trusts no server.
fn read_certificate(file: &Path) -> Result<Vec<u8>, String> {
    let pem = read(file)?;
    let holds_one = String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----");
    if holds_one { Ok(pem) } else { Err(format!("{}: contains no certificate", file.display())) }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// `endpoint` without a user and password.
pub fn shown(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

/// The message and the innermost cause, as one line, since a server may quote foreign text.
pub(super) fn describe(error: &Error) -> String {
    let text = match error {
        Error::GRpcStatus(status) => with_cause(status.message(), status.source()),
        Error::TransportError(error) => with_cause(&error.to_string(), error.source()),
        other => other.to_string(),
    };
    excerpt::sentence(&text)
}

pub(super) enum Fault {
    Answer(Refusal),
    /// The server reports that it cannot answer.
    Server,
    Connection,
    /// The request had no token, and must have one.
    NoToken(Refusal),
}

const LEASE_EXISTS: &str = "etcdserver: lease already exists";
/// The answer of a member that has no vote yet. Before etcd 3.6, its code is `Unavailable`.
const OF_LEARNER: &str = "etcdserver: rpc not supported for learner";
const NOT_LEADER: &str = "etcdserver: not leader";
const NO_AUTHENTICATION: &str = "etcdserver: authentication is not enabled";
/// The answer to a token from before a change of users or roles.
const OLD_TOKEN: &str = "etcdserver: revision of auth store is old";
/// The answer to a request without a token, once authentication is enabled.
const NO_TOKEN: &str = "etcdserver: user name is empty";

pub(super) fn fault(error: &Error) -> Fault {
    let Error::GRpcStatus(status) = error else { return Fault::Connection };
    match status.code() {
        Code::NotFound => Fault::Answer(Refusal::Absent),
        Code::FailedPrecondition => match status.message() {
            LEASE_EXISTS => Fault::Answer(Refusal::Exists),
            OF_LEARNER | NOT_LEADER => Fault::Server,
            _ => Fault::Answer(Refusal::Invalid(describe(error))),
        },
        Code::OutOfRange if is_of_server(status.message()) => Fault::Answer(Refusal::NoHistory),
        Code::OutOfRange => Fault::Answer(Refusal::TooLarge(describe(error))),
        Code::PermissionDenied => Fault::Answer(Refusal::Denied(describe(error))),
        // A new connection gets a new token.
        Code::InvalidArgument if status.message() == OLD_TOKEN => Fault::Connection,
        Code::InvalidArgument if status.message() == NO_TOKEN => {
            Fault::NoToken(Refusal::Invalid(describe(error)))
        }
        Code::InvalidArgument | Code::ResourceExhausted => {
            Fault::Answer(Refusal::Invalid(describe(error)))
        }
        Code::Unavailable if is_of_server(status.message()) => Fault::Server,
        _ => Fault::Connection,
    }
}

/// Whether the server sent it: the library's own errors have the same codes.
fn is_of_server(message: &str) -> bool {
    message.starts_with("etcdserver: ")
}

/// None if this etcd user lacks the permission.
pub(super) fn unless_denied<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if matches!(fault(&error), Fault::Answer(Refusal::Denied(_))) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Whether etcd rejects such a request, from this user or from any.
pub(super) fn is_unwelcome(error: &Error) -> bool {
    matches!(fault(error), Fault::Answer(Refusal::Denied(_) | Refusal::Invalid(_)))
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let credentials = Credentials { user: "flannel".into(), password: "tr0ub4dor".into() };
        let options = EtcdOptions { credentials: Some(credentials), ..EtcdOptions::default() };
        assert!(!format!("{options:?}").contains("tr0ub4dor"));
        assert_eq!(shown("https://root:tr0ub4dor@10.0.0.1:2379"), "https://10.0.0.1:2379");
        assert_eq!(shown("10.0.0.1:2379"), "10.0.0.1:2379");
    }

    #[test]
    fn a_keep_alive_whose_stream_ended_is_no_answer() {
        let ended = Error::WatchError("failed to create lease keeper".to_owned());
        assert!(matches!(fault(&ended), Fault::Connection));
    }

    #[test]
    fn a_token_from_before_a_change_of_users_ends_the_connection() {
        let refused = |message: &str| Error::GRpcStatus(Status::invalid_argument(message));
        assert!(matches!(fault(&refused(OLD_TOKEN)), Fault::Connection));
        let other = refused("etcdserver: key is not provided");
        assert!(matches!(fault(&other), Fault::Answer(Refusal::Invalid(_))));
    }

    #[test]
    fn only_a_lease_exists_already() {
        let answer =
            |message: &str| fault(&Error::GRpcStatus(Status::failed_precondition(message)));
        let exists = answer("etcdserver: lease already exists");
        assert!(matches!(exists, Fault::Answer(Refusal::Exists)));
        for message in ["etcdserver: rpc not supported for learner", "etcdserver: not leader"] {
            assert!(matches!(answer(message), Fault::Server), "{message}");
        }
        let other = answer("etcdserver: cluster has a downgrade job in progress");
        assert!(matches!(other, Fault::Answer(Refusal::Invalid(_))));
    }

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let options = EtcdOptions { cert_file: Some("/cert".into()), ..EtcdOptions::default() };
        let error = tls(&options, "https://10.0.0.1:2379").unwrap_err();
        assert_eq!(error, "etcd-certfile is given, but etcd-keyfile is not");
        assert!(tls(&options, "http://10.0.0.1:2379").unwrap().is_none());
    }

    #[test]
    fn a_missing_file_is_named() {
        let options = EtcdOptions { ca_file: Some("/nowhere/ca".into()), ..EtcdOptions::default() };
        let error = tls(&options, "https://10.0.0.1:2379").unwrap_err();
        assert_eq!(error, "/nowhere/ca: No such file or directory (os error 2)");
    }
}
