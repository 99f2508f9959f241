//! The daemon of this node: waits for its subnets, and asks its control socket.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};

use crate::deadline::Deadline;
use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::subnet_env::{Malformed, SubnetEnv, SubnetEnvError};

/// A daemon that is well answers in a fraction of this, also while it works hard.
const TIMEOUT: Duration = Duration::from_secs(2);

/// No answer of ours is longer, in bytes.
const LONGEST_ANSWER: u64 = 1 << 16;

/// Why the daemon is not ready, as a sentence; none if it reports none.
fn reasons(subnet_file: &Path) -> Option<String> {
    let (_, body) = ask(subnet_file, "/readyz").ok()?;
    let answer: Object = serde_json::from_slice(&body).ok()?;
    let reasons = excerpt::sentence(&json::texts(&answer, "reasons").ok()?.join("; "));
    (!reasons.is_empty()).then(|| format!("the daemon reports: {reasons}"))
}

/// Why the loop of the daemon is stuck, in the daemon's own words where it has any; none if it is not.
/// A daemon that starts or stops is no reason for alarm: pods stay connected without it.
pub(crate) fn stuck(subnet_file: &Path) -> Option<String> {
    match ask(subnet_file, "/healthz") {
        Ok((200, _)) => None,
        Ok((_, body)) => Some(excerpt::sentence(String::from_utf8_lossy(&body).trim())),
        Err(error) => is_late(&error).then(|| "the daemon does not answer".to_owned()),
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Status and body. The control socket of the daemon is next to the file that it writes.
fn ask(subnet_file: &Path, path: &str) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = connect(&subnet_file.with_extension("sock"))?;
    // In one write: a server that answers the first half of it may close before the second.
    let question = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer)?;
    parse(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `UnixStream::connect` waits forever if the queue of connections is full, because the daemon is
/// stopped. A wait with a time limit ends at any signal, so this one does not wait at all.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream =
        UnixStream::from(socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?);
    socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    const END: &[u8] = b"\r\n\r\n";
    let end = answer.windows(END.len()).position(|window| window == END)?;
    let head = String::from_utf8_lossy(answer.get(..end)?);
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer.get(end + END.len()..)?.to_vec()))
}

/// A daemon that starts with the node needs about so long; a runtime tries again much later.
const START: Duration = Duration::from_secs(3);

/// The content of subnet.env, as soon as the file exists; an error quotes the daemon's reasons.
pub(crate) fn wait_for_subnets(path: &Path) -> Result<SubnetEnv, Error> {
    if let Ok(env) = SubnetEnv::read(path) {
        return Ok(env);
    }
    let deadline = Deadline::after(START);
    loop {
        // Watched before it is read, so that no change falls between the two.
        let watch = watch(path);
        let cause = match SubnetEnv::read(path) {
            Ok(env) => return Ok(env),
            Err(cause) => cause,
        };
        let has_changed = || watch.and_then(|watch| deadline.readable(&watch)) == Ok(true);
        if !is_to_come(&cause) || !has_changed() {
            return Err(failure(path, &cause));
        }
    }
}

/// The daemon puts the whole file in its place at once: what is wrong with it now stays wrong.
const fn is_to_come(cause: &SubnetEnvError) -> bool {
    matches!(cause, SubnetEnvError::Absent { .. })
}

/// The present content of subnet.env.
pub(crate) fn subnets(path: &Path) -> Result<SubnetEnv, Error> {
    SubnetEnv::read(path).map_err(|cause| failure(path, &cause))
}

/// Reports any change in the nearest directory above `path` that exists.
fn watch(path: &Path) -> nix::Result<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let events =
        AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CLOSE_WRITE;
    let directory = path.ancestors().skip(1).find(|place| place.is_dir()).unwrap_or(Path::new("/"));
    inotify.add_watch(directory, events)?;
    Ok(inotify)
}

/// Keeps the words that operators search their logs for.
fn failure(path: &Path, cause: &SubnetEnvError) -> Error {
    let prefix = "failed to load flannel 'subnet.env' file";
    let advice =
        reasons(path).unwrap_or_else(|| "Check the flannel pod log for this node.".to_owned());
    match cause {
        SubnetEnvError::Absent { .. } => {
            Error::try_again_later(format!("{prefix}: {cause}. {advice}"))
        }
        SubnetEnvError::Malformed { source: missing @ Malformed::Missing(_), .. } => {
            Error::invalid_config(format!("{prefix}: {} is {missing}. {advice}", path.display()))
        }
        SubnetEnvError::Malformed { source, .. } => {
            Error::invalid_config(format!("{prefix}: {cause}: {source}. {advice}"))
        }
        SubnetEnvError::Read { source, .. } => {
            Error::failed(format!("{prefix}: {cause}: {source}. {advice}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use nix::sys::socket::Backlog;

    use super::*;

    /// Answers one question with `answer`.
    fn daemon(answer: &'static str) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(home.path().join("subnet.sock")).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        home
    }

    #[test]
    fn reasons_become_a_sentence() {
        let home = daemon(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 60\r\n\r\n\
             {\"ready\":false,\"reasons\":[\"no lease yet\",\"etcd is away\"]}",
        );
        assert_eq!(
            reasons(&home.path().join("subnet.env")).unwrap(),
            "the daemon reports: no lease yet; etcd is away"
        );
    }

    #[test]
    fn an_absent_daemon_reports_nothing() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(reasons(&home.path().join("subnet.env")), None);
        assert_eq!(stuck(&home.path().join("subnet.env")), None);
    }

    #[test]
    fn a_stuck_loop_is_reported_in_the_words_of_the_daemon() {
        let home = daemon("HTTP/1.1 503 x\r\n\r\nthe loop has been stuck for 40 s\n");
        assert_eq!(
            stuck(&home.path().join("subnet.env")).as_deref(),
            Some("the loop has been stuck for 40 s")
        );
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_stuck() {
        let home = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(home.path().join("subnet.sock")).unwrap();
        let silent = stuck(&home.path().join("subnet.env"));
        assert_eq!(silent.as_deref(), Some("the daemon does not answer"));
    }

    #[test]
    fn a_daemon_that_accepts_no_connection_is_stuck() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("subnet.sock");
        let listener = UnixListener::bind(&path).unwrap();
        socket::listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _first = UnixStream::connect(&path).unwrap();
        let silent = stuck(&home.path().join("subnet.env"));
        assert_eq!(silent.as_deref(), Some("the daemon does not answer"));
    }

    #[test]
    fn only_an_absent_file_is_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("subnet.env");
        let cause = |path: &Path| SubnetEnv::read(path).unwrap_err();
        assert!(is_to_come(&cause(&path)));
        for text in ["", "FLANNEL_MTU\n", "FLANNEL_MTU=1450\n", "FLANNEL_MTU=many\n"] {
            fs::write(&path, text).unwrap();
            assert!(!is_to_come(&cause(&path)), "{text:?}");
        }
        assert!(!is_to_come(&cause(home.path())));
    }
}
