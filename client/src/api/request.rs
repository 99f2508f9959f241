//! Builds requests to the API server. Pure.

use hyper::{Request, Uri};
use kube::core::Request as Resource;
use kube::core::params::{ListParams, VersionMatch, WatchParams};

/// What is sent.
pub type ApiRequest = Request<Vec<u8>>;

/// Objects in one answer; a Node may take 20 kB.
pub(super) const PAGE: u32 = 200;

/// The objects of one kind that are read: all, or those that both selectors admit.
#[derive(Clone, Debug)]
pub struct Collection {
    /// `/api/v1/nodes`.
    pub path: &'static str,
    /// `app=web,!headless`; empty for any.
    pub labels: &'static str,
    /// `metadata.name=n1`; empty for any.
    pub fields: String,
}

impl Collection {
    pub const fn all(path: &'static str) -> Self {
        Self { path, labels: "", fields: String::new() }
    }

    /// The page after `token`, which is empty for the first page; at most `limit` objects.
    pub(super) fn page(&self, token: &str, limit: u32) -> ApiRequest {
        let params = ListParams {
            label_selector: selector(self.labels),
            field_selector: selector(&self.fields),
            ..ListParams::default().limit(limit)
        };
        let params = if token.is_empty() { params } else { params.continue_token(token) };
        built(Resource::new(self.path).list(&params))
    }

    /// A list of at most one object, as it was at `version`. `namespace` is empty for an object
    /// outside of all namespaces.
    pub(super) fn at(&self, namespace: &str, name: &str, version: u64) -> ApiRequest {
        let fields = if namespace.is_empty() {
            format!("metadata.name={name}")
        } else {
            format!("metadata.name={name},metadata.namespace={namespace}")
        };
        let params = ListParams::default().fields(&fields);
        let params = params.at(&version.to_string()).matching(VersionMatch::Exact);
        built(Resource::new(self.path).list(&params))
    }

    /// All changes after `version`, for `seconds`.
    pub(super) fn watch(&self, version: &str, seconds: u32) -> ApiRequest {
        built(Resource::new(self.path).watch(&self.watching(seconds), version))
    }

    /// All objects, one by one, and then all changes.
    pub(super) fn streamed_list(&self, seconds: u32) -> ApiRequest {
        let params = self.watching(seconds).initial_events();
        built(Resource::new(self.path).watch(&params, ""))
    }

    fn watching(&self, seconds: u32) -> WatchParams {
        WatchParams {
            label_selector: selector(self.labels),
            field_selector: selector(&self.fields),
            ..WatchParams::default().timeout(seconds)
        }
    }
}

/// Checks whether the server answers, with a cheap request that needs no permission.
pub(super) fn version() -> ApiRequest {
    built(Resource::new("/version").list(&ListParams::default()))
}

/// Fails only for an invalid name; the request is then one that the server answers with not found.
pub fn built<E>(request: Result<ApiRequest, E>) -> ApiRequest {
    request.unwrap_or_else(|_| {
        let mut request = Request::new(Vec::new());
        *request.uri_mut() = Uri::from_static("/api/v1/no-such-name");
        request
    })
}

fn selector(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: Collection = Collection::all("/api/v1/nodes");

    fn line(ask: &ApiRequest) -> String {
        format!("{} {}", ask.method(), ask.uri())
    }

    #[test]
    fn objects_are_watched_with_bookmarks_from_a_version() {
        assert_eq!(
            line(&NODES.watch("812", 270)),
            "GET /api/v1/nodes?&watch=true&timeoutSeconds=270&allowWatchBookmarks=true&resourceVersion=812"
        );
        assert_eq!(
            line(&NODES.streamed_list(270)),
            "GET /api/v1/nodes?&watch=true&timeoutSeconds=270&allowWatchBookmarks=true\
             &sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="
        );
    }

    #[test]
    fn a_former_version_of_an_object_is_read_by_its_name() {
        assert_eq!(
            line(&NODES.at("", "n1", 812)),
            "GET /api/v1/nodes?&fieldSelector=metadata.name%3Dn1&resourceVersion=812\
             &resourceVersionMatch=Exact"
        );
        assert_eq!(
            line(&Collection::all("/api/v1/services").at("default", "web", 812)),
            "GET /api/v1/services?&fieldSelector=metadata.name%3Dweb%2Cmetadata.namespace%3Ddefault\
             &resourceVersion=812&resourceVersionMatch=Exact"
        );
    }

    #[test]
    fn objects_are_listed_in_pages() {
        assert_eq!(line(&NODES.page("", PAGE)), "GET /api/v1/nodes?&limit=200");
        assert_eq!(
            line(&NODES.page("a/b=", PAGE)),
            "GET /api/v1/nodes?&limit=200&continue=a%2Fb%3D"
        );
    }

    #[test]
    fn only_selected_objects_are_read() {
        let one = Collection { fields: "metadata.name=n1".to_owned(), ..NODES };
        let fields = "fieldSelector=metadata.name%3Dn1";
        assert_eq!(line(&one.page("", 1)), format!("GET /api/v1/nodes?&{fields}&limit=1"));
        assert!(line(&one.watch("1", 1)).contains(fields));
        let labelled = Collection { labels: "app,!old", ..NODES };
        let labels = "labelSelector=app%2C%21old";
        assert_eq!(line(&labelled.page("", 1)), format!("GET /api/v1/nodes?&{labels}&limit=1"));
        assert!(line(&labelled.streamed_list(1)).contains(labels));
    }
}
