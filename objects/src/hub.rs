//! Lists the files of a data set or a model on the Hugging Face Hub. The files are read as from any web
//! server.
//!
//! The crate hf-hub would add about 60 dependencies for its chunked storage. The protocol is
//! described at <https://huggingface.co/docs/hub/api>.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::error::innermost;
use crate::location::Repository;

const ENDPOINT: &str = "https://huggingface.co";
const TIMEOUT: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// A repository at one commit.
#[derive(Debug)]
pub(crate) struct Hub {
    client: Client,
    endpoint: String,
    repository: Repository,
    commit: String,
    token: Option<HeaderValue>,
    patience: Duration,
}

/// A file of a repository.
#[derive(Debug)]
pub(crate) struct HubFile {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) tag: String,
    /// Of the content; only for large files.
    pub(crate) sha256: Option<String>,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

/// A large file, for which Git has a pointer.
#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Hub {
    /// A repository, at the current commit of a revision, so that all later reads see the same one.
    pub(crate) async fn open(
        repository: &Repository,
        revision: &str,
        patience: Duration,
    ) -> Result<Self, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let token = variable("HF_TOKEN").and_then(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        let mut hub = Self {
            client: Client::builder()
                .timeout(TIMEOUT)
                .tls_certs_merge(roots())
                .build()
                .map_err(|error| Error::Unavailable {
                    place: endpoint.clone(),
                    reason: innermost(&error),
                })?,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            repository: repository.clone(),
            commit: String::new(),
            token,
            patience,
        };
        let revision = revision.replace('/', "%2F");
        let (found, _) = hub.ask::<Revision>(&format!("revision/{revision}")).await?;
        hub.commit = found.sha;
        Ok(hub)
    }

    /// URL of the files.
    pub(crate) fn files_url(&self) -> String {
        let kind = if self.repository.is_dataset {
            "datasets/"
        } else {
            ""
        };
        let name = &self.repository.name;
        format!("{}/{kind}{name}/resolve/{}", self.endpoint, self.commit)
    }

    /// Headers of every request.
    pub(crate) fn headers(&self) -> HeaderMap {
        self.token
            .iter()
            .map(|token| (AUTHORIZATION, token.clone()))
            .collect()
    }

    /// All files in a folder and below.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<HubFile>, Error> {
        let mut next = Some(format!("tree/{}/{}?recursive=true", self.commit, escaped(folder)));
        let (mut files, mut seen) = (Vec::new(), HashSet::new());
        while let Some(page) = next {
            let (entries, after) = self.ask::<Vec<Entry>>(&page).await?;
            let entries = entries.into_iter().filter(|entry| entry.kind == "file");
            files.extend(entries.map(|entry| match entry.lfs {
                Some(Lfs { oid, size }) => HubFile {
                    path: entry.path,
                    bytes: size,
                    sha256: Some(oid.clone()),
                    tag: oid,
                },
                None => HubFile {
                    path: entry.path,
                    bytes: entry.size,
                    sha256: None,
                    tag: entry.oid,
                },
            }));
            // A page that links back would never end.
            next = after.filter(|after| seen.insert(after.clone()));
        }
        Ok(files)
    }

    /// A response and the URL of the next page. Temporary failures are retried until patience ends.
    async fn ask<Answer: DeserializeOwned>(&self, question: &str) -> Result<(Answer, Option<String>), Error> {
        // Following pages have absolute URLs.
        let address = if question.starts_with("http") {
            question.to_owned()
        } else {
            let kind = if self.repository.is_dataset {
                "datasets"
            } else {
                "models"
            };
            let name = &self.repository.name;
            format!("{}/api/{kind}/{name}/{question}", self.endpoint)
        };
        let place = format!("{} of the Hub", self.repository.name);
        let url = Url::parse(&address).map_err(|error| Error::Location {
            text: address.clone(),
            expected: error.to_string(),
        })?;
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let sent = self.client.get(url.clone()).headers(self.headers()).send().await;
            let (reason, wanted) = match sent {
                Ok(response) if response.status().is_success() => {
                    let after = next_page(&response);
                    match response.bytes().await {
                        Ok(answer) => {
                            let answer = serde_json::from_slice(&answer).map(|answer| (answer, after));
                            return answer.map_err(|error| Error::Refused {
                                place,
                                reason: format!("the response of {} is not valid: {error}", self.endpoint),
                            });
                        }
                        Err(error) => (innermost(&error), None),
                    }
                }
                Ok(response) => {
                    let status = response.status();
                    match status {
                        StatusCode::NOT_FOUND => return Err(Error::Missing { place }),
                        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                            return Err(Error::Denied {
                                place,
                                reason: status.to_string(),
                                how: "give credentials as HF_TOKEN",
                            });
                        }
                        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {}
                        _ if status.is_server_error() => {}
                        _ => {
                            return Err(Error::Refused {
                                place,
                                reason: status.to_string(),
                            });
                        }
                    }
                    (status.to_string(), retry_after(&response))
                }
                Err(error) => (innermost(&error), None),
            };
            let left = self.patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Error::Unavailable { place, reason });
            }
            tracing::warn!("{place} does not respond ({reason}): retrying");
            tokio::time::sleep(wanted.unwrap_or(pause).max(pause).min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// A path escaped for a URL.
fn escaped(path: &str) -> String {
    let mut url = Url::parse("http://host").expect("an address");
    if let Ok(mut segments) = url.path_segments_mut() {
        segments
            .clear()
            .extend(path.split('/').filter(|part| !part.is_empty()));
    }
    url.path().trim_start_matches('/').to_owned()
}

/// Mozilla's certificates, in addition to the system's.
fn roots() -> Vec<Certificate> {
    let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
    roots
        .filter_map(|root| Certificate::from_der(root).ok())
        .collect()
}

/// The time of a `Retry-After` header.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(http::header::RETRY_AFTER)?.to_str().ok()?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// The URL in a header such as `Link: <https://...>; rel="next"`.
fn next_page(response: &Response) -> Option<String> {
    let link = response.headers().get(http::header::LINK)?.to_str().ok()?;
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let (address, _) = next.trim().strip_prefix('<')?.split_once('>')?;
    Some(address.to_owned())
}
