//! `tweedctl dashboard`: the cluster as a page for a browser, from the reports in the store.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use jiff::{Timestamp, Unit};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tweed_http::{self as http, Response};

use super::migrate::{self, MigrationStatus};
use super::nodes::evidence::ClusterNode;
use super::nodes::{self, NodeList, NodeRow};
use super::store::StoreFlags;
use super::{Error, ExitStatus};
use crate::excerpt;
use crate::store::ClusterStore;
use crate::store::operator::StoreContents;

#[derive(Debug, Args)]
pub(super) struct DashboardOptions {
    /// Where to serve the page
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Write the page into this file instead of serving it
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    #[command(flatten)]
    store: StoreFlags,
}

/// The page, with `DATA` in place of its first data. It loads nothing else.
const PAGE: &str = include_str!("page.html");
const DATA: &str = ">DATA</script>";
/// How often an open page asks for new data: the store is read once for all of them.
const INTERVAL: Duration = Duration::from_secs(2);

/// A connection of a browser ends after 10 s.
const LONGEST_READ: Duration = Duration::from_secs(8);

/// The data of the page.
#[derive(Debug, Serialize)]
struct PageData {
    time: Timestamp,
    nodes: Vec<NodeRow>,
    /// None if no migration is under way.
    migration: Option<MigrationStatus>,
    /// Why it is not known whether one is.
    migration_error: Option<String>,
}

pub(super) async fn run(
    options: &DashboardOptions,
    socket: &Path,
    out: &mut impl Write,
) -> Result<ExitStatus, Error> {
    let store = &options.store.open(socket).await?;
    // A store that cannot be read is reported at once.
    let first = page_data(store).await?;
    if let Some(file) = &options.export {
        let failed = |error: io::Error| Error::Usage(format!("{}: {error}", file.display()));
        fs::write(file, page(&first)).map_err(failed)?;
        writeln!(out, "wrote {} nodes to {}", first.nodes.len(), file.display())?;
        return Ok(ExitStatus::Done);
    }
    let address = options.listen;
    let unusable =
        |error| Error::Usage(format!("{address}: {error}: name another address with --listen"));
    let listener = http::bind_tcp(address).map_err(unusable)?;
    writeln!(out, "the page is at http://{}/ until Ctrl-C", listener.local_addr()?)?;
    out.flush()?;
    let last = Mutex::new((Instant::now(), Ok(first)));
    http::serve(listener, async |path: String| answer(&path, store, &last).await).await;
    Ok(ExitStatus::Done)
}

type Last = Mutex<(Instant, Result<PageData, Error>)>;

async fn answer(path: &str, store: &impl ClusterStore, last: &Last) -> Response {
    if !["/", "/events"].contains(&path) {
        return http::not_found();
    }
    let mut last = last.lock().await;
    if last.0.elapsed() >= INTERVAL {
        let data = timeout(LONGEST_READ, page_data(store)).await.unwrap_or_else(|_| {
            let seconds = LONGEST_READ.as_secs();
            Err(Error::Unavailable(format!("the store has not answered for {seconds} s")))
        });
        *last = (Instant::now(), data);
    }
    match (path, &last.1) {
        ("/", Ok(data)) => http::html(&page(data)),
        ("/", Err(error)) => http::text(503, &format!("{}\n", excerpt::line(&error.to_string()))),
        (_, data) => http::event_stream(&event(data)),
    }
}

async fn page_data(store: &impl ClusterStore) -> Result<PageData, Error> {
    let now = Timestamp::now();
    let StoreContents { config, records, reports } = nodes::read(store).await?;
    let cluster = ClusterNode::all(records, reports);
    let nodes = NodeList::new(&cluster, now).rows;
    let (migration, migration_error) = match migrate::status(store, config, cluster) {
        Ok(status) => (Some(status).filter(MigrationStatus::is_under_way), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let time = now.round(Unit::Second).unwrap_or(now);
    Ok(PageData { time, nodes, migration, migration_error })
}

fn json(data: &PageData) -> String {
    // Texts, numbers and addresses always have a JSON form, so this cannot fail.
    excerpt::printable_json(serde_json::to_string(data).unwrap_or_default())
}

fn page(data: &PageData) -> String {
    // In a script element, `</script` would end it.
    let data = json(data).replace('<', "\\u003c");
    let (before, after) = PAGE.split_once(DATA).unwrap_or((PAGE, ""));
    [before, ">", &data, "</script>", after].concat()
}

/// A stream of one server-sent event: the browser asks again after the interval.
fn event(data: &Result<PageData, Error>) -> String {
    let (name, data) = match data {
        Ok(data) => ("message", json(data)),
        Err(error) => ("problem", excerpt::line(&error.to_string())),
    };
    format!("retry: {}\nevent: {name}\ndata: {data}\n\n", INTERVAL.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_problem(text: &str) -> PageData {
        let migration_error = Some(text.to_owned());
        let time = Timestamp::UNIX_EPOCH;
        PageData { time, nodes: Vec::new(), migration: None, migration_error }
    }

    #[test]
    fn text_of_others_stays_text_in_the_page() {
        let page = page(&with_problem("</script><img src=x onerror=alert(1)>\u{9b}2J"));
        assert!(!page.contains("<img") && !page.contains('\u{9b}'), "{page}");
        let (_, data) = page.split_once(r#"id="data">"#).unwrap();
        let (data, _) = data.split_once("</script>").unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["migration_error"], "</script><img src=x onerror=alert(1)>\u{9b}2J");
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for address in ["http:", "https:", "//cdn", "@import", "<link rel=\"stylesheet\""] {
            assert!(!PAGE.contains(address), "{address}");
        }
        assert_eq!(PAGE.matches(DATA).count(), 1);
    }

    #[test]
    fn an_event_is_one_line_of_data_or_a_problem() {
        let stream = event(&Ok(with_problem("a\nb")));
        assert!(stream.starts_with("retry: 2000\nevent: message\ndata: {"), "{stream}");
        assert!(stream.ends_with("}\n\n") && stream.lines().count() == 4, "{stream}");
        let failed = event(&Err(Error::Unavailable("no\nstore".to_owned())));
        assert_eq!(failed.lines().count(), 4, "{failed}");
        assert!(failed.contains("event: problem\ndata: no"), "{failed}");
    }
}
