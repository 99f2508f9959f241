//! Files where others may have put a link, a pipe or a device: opened and read without harm.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// What becomes of a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symlink {
    Refused,
    Followed,
}

/// Opens `path`; a refused link or no regular file is [`ErrorKind::InvalidData`], and no pipe is waited for.
pub(crate) fn open(path: &Path, options: &mut OpenOptions, symlink: Symlink) -> io::Result<File> {
    let flags = match symlink {
        Symlink::Refused => OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW,
        Symlink::Followed => OFlag::O_NONBLOCK,
    };
    let file = options.custom_flags(flags.bits()).open(path).map_err(plainly)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(invalid("not a regular file")) }
}

/// The content of a regular file; more than `longest` bytes are [`ErrorKind::InvalidData`].
pub(crate) fn read(path: &Path, longest: u64, symlink: Symlink) -> io::Result<Vec<u8>> {
    let file = open(path, File::options().read(true), symlink)?;
    let mut content = Vec::new();
    file.take(longest + 1).read_to_end(&mut content)?;
    let is_longer = content.len() as u64 > longest;
    if is_longer { Err(invalid("the file is too long")) } else { Ok(content) }
}

/// When the content, the name or anything else of a file was last changed.
pub(crate) fn changed(metadata: &Metadata) -> SystemTime {
    let seconds = u64::try_from(metadata.ctime()).unwrap_or_default();
    let nanoseconds = u32::try_from(metadata.ctime_nsec()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
}

/// The errors of the kernel for a link, for a pipe without a reader, and for a directory.
fn plainly(error: io::Error) -> io::Error {
    let errno = error.raw_os_error().map(Errno::from_raw);
    match errno {
        Some(Errno::ELOOP) => invalid("the file is a symbolic link"),
        Some(Errno::ENXIO | Errno::EISDIR | Errno::ENODEV) => invalid("not a regular file"),
        _ => error,
    }
}

fn invalid(flaw: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, flaw)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn only_a_regular_file_of_limited_length_is_read() {
        let home = tempfile::tempdir().unwrap();
        let place = |name: &str| home.path().join(name);
        fs::write(place("plain"), "0123456789").unwrap();
        symlink(place("plain"), place("link")).unwrap();
        symlink("/dev/zero", place("zero")).unwrap();
        mkfifo(&place("pipe"), Mode::S_IRWXU).unwrap();
        fs::create_dir(place("folder")).unwrap();
        let kind = |name: &str, longest, link| {
            read(&place(name), longest, link).map(|content| content.len()).map_err(|e| e.kind())
        };
        assert_eq!(kind("plain", 10, Symlink::Refused), Ok(10));
        assert_eq!(kind("plain", 9, Symlink::Refused), Err(ErrorKind::InvalidData));
        assert_eq!(kind("link", 10, Symlink::Followed), Ok(10));
        assert_eq!(kind("absent", 10, Symlink::Refused), Err(ErrorKind::NotFound));
        for name in ["link", "zero", "pipe", "folder"] {
            assert_eq!(kind(name, 10, Symlink::Refused), Err(ErrorKind::InvalidData), "{name}");
        }
        assert_eq!(kind("zero", 10, Symlink::Followed), Err(ErrorKind::InvalidData));
    }

    #[test]
    fn nothing_is_written_to_a_link_or_into_a_pipe() {
        let home = tempfile::tempdir().unwrap();
        let place = |name: &str| home.path().join(name);
        fs::write(place("precious"), "precious").unwrap();
        symlink(place("precious"), place("link")).unwrap();
        mkfifo(&place("pipe"), Mode::S_IRWXU).unwrap();
        for name in ["link", "pipe"] {
            let mut options = File::options();
            let options = options.write(true).create(true);
            let opened = open(&place(name), options, Symlink::Refused);
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidData, "{name}");
        }
        assert_eq!(fs::read(place("precious")).unwrap(), b"precious");
    }
}
