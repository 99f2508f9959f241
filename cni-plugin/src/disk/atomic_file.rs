//! Replaces a whole file at once: readers see the old bytes or the new ones.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::remove;

const DIRECTORY_MODE: u32 = 0o755;

/// Makes `parts`, one after the other, the content of `path`, durably, with exactly `mode`; creates the
/// directory. On an error, which names `path`, the old file is unchanged. There must be one writer per
/// path.
pub fn write(path: &Path, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    replace(path, parts, mode)
        .map_err(|cause| io::Error::new(cause.kind(), format!("{}: {cause}", path.display())))
}

fn replace(path: &Path, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let directory = parent.unwrap_or(Path::new("."));
    ensure_directory(directory)?;
    let temporary = temporary_path(path)?;
    let replaced = fill(&temporary, parts, mode).and_then(|()| fs::rename(&temporary, path));
    if replaced.is_err() {
        let _ = remove(&temporary);
    }
    replaced?;
    // Without this a power cut may still bring the old name back.
    File::open(directory)?.sync_all()
}

fn ensure_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(DIRECTORY_MODE))
}

/// One fixed name per file, so that crashes leave one stray at most and the next write takes it.
fn temporary_path(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(".tmp");
    Ok(path.with_file_name(temporary))
}

fn fill(temporary: &Path, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    remove(temporary)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(temporary)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(path: &Path) -> io::Result<u32> {
        Ok(fs::metadata(path)?.permissions().mode() & 0o7777)
    }

    fn names_in(directory: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    #[test]
    fn a_write_creates_the_parents_and_leaves_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run/flannel/subnet.env");
        write(&path, &[b"one"], 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(mode_of(path.parent().unwrap()).unwrap(), 0o755);
        assert_eq!(names_in(path.parent().unwrap()).unwrap(), ["subnet.env"]);
    }

    #[test]
    fn the_mode_is_exact_for_a_new_and_for_a_replaced_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state");
        // No usual umask lets the group and others write.
        for mode in [0o666, 0o600, 0o644] {
            write(&path, &[b"x"], mode).unwrap();
            assert_eq!(mode_of(&path).unwrap(), mode);
        }
    }

    #[test]
    fn a_directory_that_exists_keeps_its_mode() {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o700)).unwrap();
        write(&home.path().join("state"), &[b"x"], 0o644).unwrap();
        assert_eq!(mode_of(home.path()).unwrap(), 0o700);
    }

    #[test]
    fn remains_of_a_crash_are_never_read_and_the_next_write_removes_them() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("subnet.env");
        write(&path, &[b"old"], 0o644).unwrap();
        fill(&temporary_path(&path).unwrap(), &[b"ne"], 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names_in(home.path()).unwrap().len(), 2);

        write(&path, &[b"new"], 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names_in(home.path()).unwrap(), ["subnet.env"]);
    }

    #[test]
    fn a_refused_rename_names_the_path_and_removes_the_temporary_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("subnet.env");
        fs::create_dir(&path).unwrap();
        let error = write(&path, &[b"new"], 0o644).unwrap_err();
        assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
        assert_eq!(names_in(home.path()).unwrap(), ["subnet.env"]);
    }

    #[test]
    fn a_stray_symlink_is_replaced_and_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (path, victim) = (home.path().join("state"), home.path().join("victim"));
        fs::write(&victim, b"precious").unwrap();
        std::os::unix::fs::symlink(&victim, temporary_path(&path).unwrap()).unwrap();
        write(&path, &[b"new"], 0o600).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn a_path_without_a_file_name_is_refused() {
        assert_eq!(
            write(Path::new("/"), &[b""], 0o644).unwrap_err().kind(),
            io::ErrorKind::InvalidFilename
        );
    }
}
