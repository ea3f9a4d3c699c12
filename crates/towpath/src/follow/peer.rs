//! Fetching pages from a peer: no redirects, no endless answers, no surprises of type.

use std::time::Duration;

use reqwest::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, RETRY_AFTER,
};
use reqwest::{Certificate, Client, Response, StatusCode, Url, redirect};
use towpath_core::notifications::PageId;

use super::page::{Page, unreadable};
use super::{FollowError, FollowPolicy};

/// The media type of a page.
const MEDIA_TYPE: &str = "application/vnd.towpath.notifications+json";

/// How long a connection may take to open.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// The longest pause a peer may ask for.
const LONGEST_ASKED_PAUSE: u64 = 600;

/// Another Towpath.
pub(super) struct Peer {
    client: Client,
    notifications: Url,
    key: Option<HeaderValue>,
    largest_page: usize,
}

/// What a peer answered.
pub(super) enum Fetched {
    /// It is what it was.
    NotModified,
    /// This, with its tag and how large it was.
    Page { page: Page, tag: Option<String>, bytes: usize },
}

impl Peer {
    pub(super) fn new(
        url: &str,
        key: Option<&str>,
        authorities: Option<&[u8]>,
        policy: &FollowPolicy,
    ) -> Result<Self, FollowError> {
        let bad = |what: String| FollowError::BadUrl(what);
        let mut notifications =
            Url::parse(url).map_err(|error| bad(format!("the peer's URL is wrong: {error}")))?;
        if !matches!(notifications.scheme(), "http" | "https") {
            return Err(bad("the peer's URL begins neither with http:// nor with https://".to_owned()));
        }
        if !notifications.username().is_empty() || notifications.password().is_some() {
            return Err(bad("the peer's URL has a user or a password in it".to_owned()));
        }
        if notifications.query().is_some() || notifications.fragment().is_some() {
            return Err(bad("the peer's URL has a query in it".to_owned()));
        }
        let path = notifications.path().trim_end_matches('/');
        let path = format!("{}/notifications", path.strip_suffix("/notifications").unwrap_or(path));
        notifications.set_path(&path);
        let key = key.map(|key| HeaderValue::from_str(&format!("Bearer {key}"))).transpose();
        let mut key = key.map_err(|_| bad("the key has characters that no header may have".to_owned()))?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // An error means that somebody else was quicker, and that is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut client = Client::builder()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .timeout(policy.answer_within)
            .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")));
        if let Some(pem) = authorities {
            let found = Certificate::from_pem_bundle(pem).unwrap_or_default();
            if found.is_empty() {
                return Err(bad("there are no certificates as PEM among the peer's authorities".to_owned()));
            }
            client = client.tls_certs_only(found);
        }
        let client = client.build().map_err(|error| bad(format!("no connections can be made: {error}")))?;
        Ok(Self { client, notifications, key, largest_page: policy.largest_page })
    }

    /// The URL, for people.
    pub(super) fn shown(&self) -> String {
        self.notifications.to_string()
    }

    /// The current page, unless it is the one with this tag.
    pub(super) async fn current(&self, known: Option<&str>) -> Result<Fetched, FollowError> {
        let mut request = self.request(&self.notifications);
        if let Some(tag) = known {
            request = request.header(IF_NONE_MATCH, tag);
        }
        let response = request.send().await.map_err(unavailable)?;
        if response.status() == StatusCode::NOT_MODIFIED && known.is_some() {
            return Ok(Fetched::NotModified);
        }
        self.read(response, None).await
    }

    /// A page by its id. It comes from the peer itself, or from a cache that has asked the peer: one that was kept from
    /// before the peer's log was rewritten would hide that.
    pub(super) async fn page(&self, id: PageId) -> Result<(Page, usize), FollowError> {
        let mut url = self.notifications.clone();
        url.set_path(&format!("{}/{id}", self.notifications.path()));
        let response =
            self.request(&url).header(CACHE_CONTROL, "no-cache").send().await.map_err(unavailable)?;
        match self.read(response, Some(id)).await? {
            Fetched::Page { page, bytes, .. } => Ok((page, bytes)),
            Fetched::NotModified => Err(unreadable("not modified, and nobody had asked for that")),
        }
    }

    fn request(&self, url: &Url) -> reqwest::RequestBuilder {
        let request = self.client.get(url.clone()).header(ACCEPT, MEDIA_TYPE);
        match &self.key {
            Some(key) => request.header(AUTHORIZATION, key.clone()),
            None => request,
        }
    }

    async fn read(&self, mut response: Response, asked: Option<PageId>) -> Result<Fetched, FollowError> {
        check_status(&response)?;
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type =
            media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
        if !media_type.eq_ignore_ascii_case(MEDIA_TYPE) {
            let shown: String = media_type.chars().take(100).collect();
            return Err(unreadable(format!("it is of type {shown:?} and not {MEDIA_TYPE}")));
        }
        let tag = response.headers().get(ETAG).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let too_large = || unreadable(format!("it has more than {} bytes", self.largest_page));
        if response.content_length().is_some_and(|length| length > self.largest_page as u64) {
            return Err(too_large());
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unavailable)? {
            if body.len() + chunk.len() > self.largest_page {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Fetched::Page { page: Page::read(&body, asked)?, tag, bytes: body.len() })
    }
}

fn check_status(response: &Response) -> Result<(), FollowError> {
    let status = response.status();
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(FollowError::PeerRefused(status.as_u16())),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Err(not_now(response)),
        status if status.is_server_error() => Err(not_now(response)),
        status if status.is_redirection() => Err(unreadable(format!(
            "it is {status}; redirects are not followed, so give the URL it leads to"
        ))),
        status => Err(unreadable(format!("it is {status}"))),
    }
}

fn not_now(response: &Response) -> FollowError {
    let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let seconds = asked.and_then(|text| text.trim().parse::<u64>().ok());
    FollowError::PeerUnavailable {
        source: format!("it answered {}", response.status()).into(),
        retry_after: seconds.map(|seconds| Duration::from_secs(seconds.min(LONGEST_ASKED_PAUSE))),
    }
}

fn unavailable(error: reqwest::Error) -> FollowError {
    FollowError::PeerUnavailable { source: error.into(), retry_after: None }
}
