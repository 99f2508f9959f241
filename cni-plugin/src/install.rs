//! Puts this program and its config where runtimes look for them, each at once.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::disk::atomic_file;
use crate::excerpt;
use crate::protocol::json::{self, Object};

/// What an init container of the daemon is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// This program goes into a directory under its own name, or to a path that ends with it.
    Plugin { to: PathBuf },
    /// A list of configs goes from one path to another.
    Config { from: PathBuf, to: PathBuf },
}

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("usage: flannel install DIRECTORY | flannel install-conf FROM TO")]
    Usage,
    #[error("reading {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not installed: {reason}", path.display())]
    NotAConfig { path: PathBuf, reason: String },
    #[error("{} is not a directory: name a directory, or a path that ends with flannel", path.display())]
    NotADirectory { path: PathBuf },
    /// The error itself names the path.
    #[error(transparent)]
    Write(#[from] io::Error),
}

const CONFIG: &str = "install-conf";
const PROGRAM: &str = "flannel";

/// The arguments. Called `install-conf`, as in flannel's image, the program needs no verb.
pub fn words(mut line: impl Iterator<Item = String>) -> Vec<String> {
    let program = line.next().unwrap_or_default();
    let is_verb = Path::new(&program).file_name().is_some_and(|name| name == CONFIG);
    is_verb.then(|| CONFIG.to_owned()).into_iter().chain(line).collect()
}

impl Task {
    pub fn parse(words: &[String]) -> Result<Self, InstallError> {
        match words {
            [verb, to] if verb == "install" => Ok(Self::Plugin { to: to.into() }),
            [verb, from, to] if verb == CONFIG => {
                Ok(Self::Config { from: from.into(), to: to.into() })
            }
            _ => Err(InstallError::Usage),
        }
    }

    /// A runtime sees the former file or the new one, and never a part.
    pub fn carry_out(&self, program: &Path) -> Result<(), InstallError> {
        match self {
            Self::Plugin { to } => put(&target(to)?, &read(program)?, 0o755),
            Self::Config { from, to } => {
                let config = read(from)?;
                check(&config)
                    .map_err(|reason| InstallError::NotAConfig { path: from.clone(), reason })?;
                put(to, &config, 0o644)
            }
        }
    }
}

/// Nothing is written if all is there: the daemon of a node whose disk is full or read-only starts
/// nevertheless.
fn put(to: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    let is_there = fs::symlink_metadata(to)
        .is_ok_and(|there| there.is_file() && there.permissions().mode() & 0o7777 == mode)
        && fs::read(to).is_ok_and(|there| there == content);
    if is_there { Ok(()) } else { Ok(atomic_file::write(to, &[content], mode)?) }
}

/// A directory that is not there yet is made; a runtime would not find a program of another name.
fn target(to: &Path) -> Result<PathBuf, InstallError> {
    let is_program = to.file_name().is_some_and(|name| name == PROGRAM);
    match fs::metadata(to) {
        Ok(there) if there.is_dir() => Ok(to.join(PROGRAM)),
        _ if is_program => Ok(to.to_owned()),
        Ok(_) => Err(InstallError::NotADirectory { path: to.to_owned() }),
        Err(_) => Ok(to.join(PROGRAM)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, InstallError> {
    fs::read(path).map_err(|source| InstallError::Read { path: path.to_owned(), source })
}

/// A runtime that cannot read the config takes another network's, or none.
fn check(config: &[u8]) -> Result<(), String> {
    let config: Object =
        serde_json::from_slice(config).map_err(|error| excerpt::sentence(&error.to_string()))?;
    let plugins = json::get(&config, "plugins").and_then(Value::as_array);
    let first = plugins.and_then(|plugins| plugins.first()?.get("type")?.as_str());
    match first {
        Some("flannel") => Ok(()),
        Some(other) => {
            Err(format!("its first plugin is {}, and not \"flannel\"", excerpt::quoted(other)))
        }
        None => Err("it has no list of plugins".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_program_replaces_a_running_one() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("flannel");
        // Another process copies it: a file that is open for writing here is open in every process
        // that other tests start, and cannot be executed.
        let copied = Command::new("cp").args(["/bin/sleep".as_ref(), target.as_path()]).status();
        assert!(copied.unwrap().success());
        let mut busy = Command::new(&target).arg("60").spawn().unwrap();
        let task = Task::Plugin { to: home.path().to_owned() };
        task.carry_out(Path::new("/bin/true")).unwrap();
        assert_eq!(fs::read(&target).unwrap(), fs::read("/bin/true").unwrap());
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
        busy.kill().unwrap();
        busy.wait().unwrap();
    }

    #[test]
    fn what_is_there_is_not_written_again() {
        let home = tempfile::tempdir().unwrap();
        let (target, task) =
            (home.path().join("flannel"), Task::Plugin { to: home.path().to_owned() });
        task.carry_out(Path::new("/bin/true")).unwrap();
        let written = || fs::metadata(&target).unwrap().ino();
        let before = written();
        task.carry_out(Path::new("/bin/true")).unwrap();
        assert_eq!(written(), before);
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
        task.carry_out(Path::new("/bin/true")).unwrap();
        assert_ne!(written(), before);
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
        fs::remove_file(&target).unwrap();
        std::os::unix::fs::symlink("/bin/true", &target).unwrap();
        task.carry_out(Path::new("/bin/true")).unwrap();
        assert!(fs::symlink_metadata(&target).unwrap().is_file());
    }

    #[test]
    fn an_absent_directory_is_created_and_another_kind_of_file_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let install = |to: PathBuf| Task::Plugin { to }.carry_out(Path::new("/bin/true"));
        let bin = home.path().join("opt/cni/bin");
        for to in [bin.clone(), bin.join("flannel"), bin.clone()] {
            install(to).unwrap();
            let names: Vec<_> =
                fs::read_dir(&bin).unwrap().map(|it| it.unwrap().file_name()).collect();
            assert_eq!(names, ["flannel"]);
        }
        let other = home.path().join("bridge");
        fs::write(&other, "another plugin").unwrap();
        let error = install(other.clone()).unwrap_err().to_string();
        assert!(error.ends_with(
            "bridge is not a directory: name a directory, or a path that ends with flannel"
        ));
        assert_eq!(fs::read(&other).unwrap(), b"another plugin");
    }

    #[test]
    fn an_unreadable_config_does_not_replace_the_former() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = (home.path().join("from"), home.path().join("net.d/10-flannel.conflist"));
        let task =
            Task::parse(&words(&format!("install-conf {} {}", from.display(), to.display())));
        let task = task.unwrap();
        let good = r#"{"name":"cbr0","plugins":[{"type":"flannel"}]}"#;
        fs::write(&from, good).unwrap();
        task.carry_out(Path::new("/none")).unwrap();
        for bad in ["{", "[]", "{}", r#"{"plugins":[{"type":"calico"}]}"#] {
            fs::write(&from, bad).unwrap();
            assert!(task.carry_out(Path::new("/none")).is_err(), "{bad}");
            assert_eq!(fs::read_to_string(&to).unwrap(), good);
        }
    }

    #[test]
    fn with_the_name_of_its_task_it_needs_no_verb() {
        let line = |text: &str| super::words(words(text).into_iter());
        assert_eq!(line("/opt/bin/install-conf a b"), words("install-conf a b"));
        assert_eq!(line("/flannel install-conf a b"), words("install-conf a b"));
        assert_eq!(line("/opt/cni/bin/flannel"), Vec::<String>::new());
    }

    #[test]
    fn other_arguments_print_the_usage() {
        for line in ["remove", "install", "install-conf a", "install a b"] {
            let error = Task::parse(&words(line)).unwrap_err();
            assert!(error.to_string().starts_with("usage: "), "{line}");
        }
    }
}
