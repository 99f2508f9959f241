//! Waits for the daemon to say which subnet this node has.

use std::path::Path;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::daemon;
use crate::daemon::subnet_env::{self, Malformed, SubnetEnv};
use crate::deadline::Deadline;
use crate::protocol::error::Error;

/// A daemon that starts with the node needs about so long; a runtime tries again much later.
const PATIENCE: Duration = Duration::from_secs(3);

/// What subnet.env says, as soon as it is there.
///
/// # Errors
/// It is absent for too long, or cannot be used; the sentence holds what the daemon says about it.
pub(crate) fn wait(path: &Path) -> Result<SubnetEnv, Error> {
    if let Ok(env) = SubnetEnv::read(path) {
        return Ok(env);
    }
    let deadline = Deadline::after(PATIENCE);
    loop {
        // Watched before it is read, so that no change falls between the two.
        let watch = watch(path);
        let cause = match SubnetEnv::read(path) {
            Ok(env) => return Ok(env),
            Err(cause) if is_to_come(&cause) => cause,
            Err(cause) => return Err(failure(path, &cause)),
        };
        let has_changed = watch.and_then(|watch| deadline.readable(&watch));
        if has_changed != Ok(true) {
            return Err(failure(path, &cause));
        }
    }
}

/// The daemon puts the whole file in its place at once: what is wrong with it now stays wrong.
const fn is_to_come(cause: &subnet_env::Error) -> bool {
    matches!(cause, subnet_env::Error::Absent { .. })
}

/// What subnet.env says now.
pub(crate) fn read(path: &Path) -> Result<SubnetEnv, Error> {
    SubnetEnv::read(path).map_err(|cause| failure(path, &cause))
}

/// Tells of any change in the nearest directory above `path` that exists.
fn watch(path: &Path) -> nix::Result<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let events =
        AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CLOSE_WRITE;
    let directory = path.ancestors().skip(1).find(|place| place.is_dir()).unwrap_or(Path::new("/"));
    inotify.add_watch(directory, events)?;
    Ok(inotify)
}

/// Keeps the words that operators search their logs for.
fn failure(path: &Path, cause: &subnet_env::Error) -> Error {
    let prefix = "failed to load flannel 'subnet.env' file";
    let advice = daemon::says(&path.with_extension("sock"))
        .unwrap_or_else(|| "Check the flannel pod log for this node.".to_owned());
    match cause {
        subnet_env::Error::Absent { .. } => {
            Error::try_again_later(format!("{prefix}: {cause}. {advice}"))
        }
        subnet_env::Error::Malformed { source: missing @ Malformed::Missing(_), .. } => {
            Error::invalid_config(format!("{prefix}: {} is {missing}. {advice}", path.display()))
        }
        subnet_env::Error::Malformed { source, .. } => {
            Error::invalid_config(format!("{prefix}: {cause}: {source}. {advice}"))
        }
        subnet_env::Error::Read { source, .. } | subnet_env::Error::Write { source } => {
            Error::failed(format!("{prefix}: {cause}: {source}. {advice}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_a_file_that_is_absent_may_still_come() {
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
