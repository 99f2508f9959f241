//! A certificate authority of one test.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

pub(crate) struct Authority {
    directory: TempDir,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let authority = Self { directory: TempDir::new().unwrap() };
        authority.openssl(&format!(
            "req -x509 {KEY} -keyout ca.key -out ca.pem -days 9 -subj /CN={name}"
        ));
        authority
    }

    /// A certificate `name.pem` with its key `name.key`, for a server known as `names` or for a client.
    pub(crate) fn issue(&self, name: &str, names: &str) {
        let extensions = format!("basicConstraints=CA:FALSE\nsubjectAltName={names}\n");
        std::fs::write(self.file("extensions"), extensions).unwrap();
        self.openssl(&format!("req {KEY} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem \
             -days 9 -extfile extensions"
        ));
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(self.directory.path() as &Path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

const KEY: &str = "-newkey rsa:2048 -nodes";
