//! Questions to the daemon, over its control socket.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::Error;
use crate::daemon::http;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("no daemon answers on {0}")]
    Absent(String),
    #[error("only root may ask the daemon on {0}")]
    Forbidden(String),
    #[error("the daemon on {socket} gives no answer: {reason}")]
    Silent { socket: String, reason: String },
}

impl From<Unanswered> for Error {
    fn from(unanswered: Unanswered) -> Self {
        Self::CannotTell(match &unanswered {
            Unanswered::Absent(_) => {
                format!("{unanswered}: start tweedd, or name its socket with --socket")
            }
            Unanswered::Forbidden(_) | Unanswered::Silent { .. } => unanswered.to_string(),
        })
    }
}

/// What the daemon behind `socket` says at `path`.
pub(super) async fn ask<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, Unanswered> {
    let name = || socket.display().to_string();
    let silent = |reason: String| Unanswered::Silent { socket: name(), reason };
    let (status, body) =
        http::get_unix(socket, path).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Unanswered::Absent(name())
            }
            io::ErrorKind::PermissionDenied => Unanswered::Forbidden(name()),
            _ => silent(error.to_string()),
        })?;
    match (status, serde_json::from_slice(&body)) {
        // "Not ready" is an answer too.
        (200 | 503, Ok(answer)) => Ok(answer),
        (200, Err(error)) => Err(silent(format!("{path} is of another version: {error}"))),
        (_, _) => {
            let says = String::from_utf8_lossy(&body);
            Err(silent(format!("{path} is {status}, {}", says.trim())))
        }
    }
}
