//! Checks the flags of etcd together.

use hyper::Uri;
use tweed_client::transport::{Transport, is_protected};

use super::argv::GivenFlags;
use super::flags::EtcdFlags;
use super::stop::Stop;
use crate::store::etcd::{self, Credentials, EtcdOptions, LeaseTimes};

const ENDPOINTS: &str = "etcd-endpoints";
const PASSWORD: &str = "etcd-password";

/// The options of the store. Stops at values with which no connection is possible.
pub(super) fn options(flags: EtcdFlags, settings: &mut GivenFlags) -> Result<EtcdOptions, Stop> {
    let EtcdFlags { ca_file, cert_file, key_file, username, password, .. } = flags;
    let client = both((cert_file, "etcd-certfile"), (key_file, "etcd-keyfile"), settings);
    let user = both((username, "etcd-username"), (password, PASSWORD), settings);
    let (cert_file, key_file) = client.unzip();
    let tls_flags = [(&ca_file, "etcd-cafile"), (&cert_file, "etcd-certfile")];
    let tls_flag = tls_flags.into_iter().find_map(|(file, flag)| file.as_ref().and(Some(flag)));
    Ok(EtcdOptions {
        endpoints: endpoints(&flags.endpoints, tls_flag, settings)?,
        prefix: flags.prefix,
        ca_file,
        cert_file,
        key_file,
        credentials: user.map(|(user, password)| Credentials { user, password }),
        transport: Transport::Sockets,
    })
}

/// Renewals must come before the end of the lease.
pub(super) fn check_times(times: LeaseTimes, settings: &GivenFlags) -> Result<(), Stop> {
    let [ttl, margin] = [times.ttl, times.renew_margin].map(|time| time.as_secs() / 60);
    if ttl > margin {
        return Ok(());
    }
    let allowed = format!("more than {margin}, {}", settings.name("subnet-lease-renew-margin"));
    Err(settings.bad_value("subnet-lease-ttl", &ttl.to_string(), allowed))
}

/// Warnings if others can read the password.
pub(super) fn warnings(options: &EtcdOptions, settings: &GivenFlags) -> Vec<String> {
    if options.credentials.is_none() {
        return Vec::new();
    }
    let name = settings.name(PASSWORD);
    let in_argv = name.starts_with("--").then(|| {
        format!(
            "any user of this host can read {name} in the list of processes: \
             set FLANNELD_ETCD_PASSWORD instead"
        )
    });
    let is_plain =
        |endpoint: &&String| endpoint.parse::<Uri>().is_ok_and(|uri| !is_protected(&uri));
    let plain = options.endpoints.iter().find(is_plain).map(|endpoint| {
        format!("the password of etcd is sent to {endpoint} without encryption: use https")
    });
    in_argv.into_iter().chain(plain).collect()
}

/// Both values; if only one flag is given, it is ignored.
fn both<A, B>(
    (first, first_flag): (Option<A>, &str),
    (second, second_flag): (Option<B>, &str),
    settings: &mut GivenFlags,
) -> Option<(A, B)> {
    let (given, missing) =
        if first.is_some() { (first_flag, second_flag) } else { (second_flag, first_flag) };
    if first.is_some() != second.is_some() {
        let given = settings.name(given);
        settings.ignore(&format!("{given} has no effect without --{missing}"));
    }
    first.zip(second)
}

/// `tls_flag` is a TLS flag that was given, if any.
fn endpoints(
    list: &str,
    tls_flag: Option<&str>,
    settings: &mut GivenFlags,
) -> Result<Vec<String>, Stop> {
    let scheme = if tls_flag.is_some() { "https" } else { "http" };
    let (empty, given): (Vec<&str>, Vec<&str>) =
        list.split(',').map(str::trim).partition(|text| text.is_empty());
    if !empty.is_empty() && !given.is_empty() {
        settings.warnings.push(format!("{} has an empty item", settings.name(ENDPOINTS)));
    }
    let given = if given.is_empty() { vec![""] } else { given };
    let endpoints = given.into_iter().map(|text| endpoint(text, scheme, settings));
    let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
    let is_plain = |endpoint: &String| endpoint.starts_with("http://");
    if let Some(flag) = tls_flag.filter(|_| endpoints.iter().all(is_plain)) {
        let (file, endpoints) = (settings.name(flag), settings.name(ENDPOINTS));
        settings.ignore(&format!("{file} has no effect: {endpoints} has no https:// server"));
    }
    Ok(endpoints)
}

fn endpoint(text: &str, scheme: &str, settings: &mut GivenFlags) -> Result<String, Stop> {
    let url = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let shown = etcd::shown(&url);
    if shown != url {
        let (name, allowed) = (settings.name(ENDPOINTS), "--etcd-username and --etcd-password");
        settings.ignore(&format!("{name} holds a user or a password; allowed: {allowed}"));
    }
    match shown.parse::<Uri>() {
        Ok(uri) if is_web(&uri) => Ok(format!("{uri}").trim_end_matches('/').to_owned()),
        _ => Err(settings.bad_value(
            ENDPOINTS,
            masked(text),
            "http:// or https:// with host and port",
        )),
    }
}

/// `text`, a refused URL, unless it may have a password.
pub(super) fn masked(text: &str) -> &str {
    if text.contains('@') { "***" } else { text }
}

pub(super) fn is_web(uri: &Uri) -> bool {
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    has_host && matches!(uri.scheme_str(), Some("http" | "https"))
}
