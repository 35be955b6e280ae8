//! One interface for all kinds of stores.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::AmazonS3Builder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    Certificate, ClientOptions, Error as StoreError, GetOptions, GetRange, GetResult, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, RetryConfig,
};

use crate::error::innermost;
use crate::hub::{Hub, HubFile};
use crate::location::{Files, Place};
use crate::{Error, Location};

/// Number of concurrent requests to a store.
const AT_ONCE: usize = 16;
/// After this idle time a connection is closed and the remaining bytes are requested again.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For credentials from this machine or its network.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(10);
/// In effect unlimited: patience ends first.
const MOST_RETRIES: usize = 1000;
/// The fetcher's subfolder; hidden, because readers of data sets skip hidden folders.
pub(crate) const OWN: &str = ".fetch";

/// A file of a store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RemoteFile {
    /// Path below the location's folder, with slashes.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Changes with the content: the store's entity tag or modification time; empty if the store
    /// has neither.
    pub tag: String,
    /// SHA-256 of its content, if the store has it.
    pub(crate) sha256: Option<String>,
    /// Identifies responses for the listed file.
    version: Version,
    path: Path,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Version {
    /// The entity tag.
    Tag(String),
    /// The modification time in whole seconds, as in responses with content.
    Time(i64),
    /// A commit, which is in the URL; or nothing.
    Any,
}

impl RemoteFile {
    /// Whether a response is for this file as listed.
    pub(crate) fn is_of(&self, answer: &ObjectMeta) -> bool {
        let is_same = match &self.version {
            Version::Tag(tag) => answer.e_tag.as_ref() == Some(tag),
            Version::Time(time) => answer.last_modified.timestamp() == *time,
            Version::Any => true,
        };
        is_same && answer.size == self.bytes
    }
}

/// The store of a location.
#[derive(Debug)]
pub struct Store {
    location: Location,
    objects: Arc<dyn ObjectStore>,
    hub: Option<Hub>,
}

impl Store {
    /// The store of a location, with credentials from the environment: the variables of AWS's and
    /// Google's tools, or `HF_TOKEN`. Failures are retried for `patience`.
    ///
    /// # Errors
    /// If the environment's settings are invalid, credentials are missing, or the Hub does not have
    /// the data set.
    pub async fn open(location: Location, patience: Duration) -> Result<Self, Error> {
        // Another part of the process may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retries = RetryConfig {
            max_retries: MOST_RETRIES,
            retry_timeout: patience,
            ..RetryConfig::default()
        };
        let options = roots()
            .into_iter()
            .fold(ClientOptions::new(), ClientOptions::with_root_certificate)
            .with_allow_http(true)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_timeout_disabled()
            .with_read_timeout(READ_TIMEOUT);
        let unusable = |error: StoreError| Error::Location {
            text: location.to_string(),
            expected: innermost(&error),
        };
        let mut hub = None;
        let objects: Arc<dyn ObjectStore> = match &location.place {
            Place::S3 { bucket } => {
                let store = AmazonS3Builder::from_env()
                    .with_bucket_name(bucket)
                    .with_client_options(options)
                    .with_retry(retries)
                    .build()
                    .map_err(unusable)?;
                if !is_set("AWS_SKIP_SIGNATURE") {
                    in_time(&location, store.credentials().get_credential()).await?;
                }
                Arc::new(store)
            }
            Place::Gcs { bucket } => {
                let store = GoogleCloudStorageBuilder::from_env()
                    .with_bucket_name(bucket)
                    .with_client_options(options)
                    .with_retry(retries)
                    .build()
                    .map_err(unusable)?;
                if !is_set("GOOGLE_SKIP_SIGNATURE") {
                    in_time(&location, store.credentials().get_credential()).await?;
                }
                Arc::new(store)
            }
            Place::Http { origin } => {
                let builder = HttpBuilder::new().with_url(origin);
                let builder = builder.with_client_options(options).with_retry(retries);
                Arc::new(builder.build().map_err(unusable)?)
            }
            Place::Hub { repository, revision } => {
                let known = Hub::open(repository, revision, patience).await?;
                let builder = HttpBuilder::new()
                    .with_url(known.files_url())
                    .with_client_options(options.with_default_headers(known.headers()))
                    .with_retry(retries);
                hub = Some(known);
                Arc::new(builder.build().map_err(unusable)?)
            }
        };
        Ok(Self {
            location,
            objects,
            hub,
        })
    }

    /// The files of the location, sorted by name.
    ///
    /// # Errors
    /// If there are none, or they cannot be listed.
    pub async fn list(&self) -> Result<Vec<RemoteFile>, Error> {
        let folder = &self.location.folder;
        let mut files = match &self.location.files {
            Files::Named(names) => {
                let heads = futures::stream::iter(names).map(|name| self.head(name));
                heads.buffered(AT_ONCE).try_collect().await?
            }
            Files::All => match self.listed(folder).await {
                Err(Error::Missing { .. }) if !folder.is_empty() => vec![self.single().await?],
                Ok(files) if files.is_empty() && !folder.is_empty() => vec![self.single().await?],
                files => files?,
            },
            Files::Between(before, after) => {
                let mut files = self.listed(folder).await?;
                files.retain(|file| {
                    let rest = file.name.strip_prefix(before.as_str());
                    rest.is_some_and(|rest| rest.ends_with(after.as_str())) && !file.name.contains('/')
                });
                files
            }
        };
        leave_out_folders(&mut files);
        if files.is_empty() {
            return Err(Error::Missing {
                place: self.location.to_string(),
            });
        }
        let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
        let is_good = |name: &str| name.split('/').all(is_part) && name.split('/').next() != Some(OWN);
        if let Some(file) = files.iter().find(|file| !is_good(&file.name)) {
            return Err(Error::Name {
                name: file.name.clone(),
            });
        }
        files.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok(files)
    }

    /// All files below a folder.
    async fn listed(&self, folder: &str) -> Result<Vec<RemoteFile>, Error> {
        if let Some(hub) = &self.hub {
            let files = hub.list(folder).await?.into_iter();
            let file = |file: HubFile| {
                Ok(RemoteFile {
                    path: self.key(&file.path)?,
                    name: self.below(&file.path),
                    bytes: file.bytes,
                    tag: file.tag,
                    sha256: file.sha256,
                    version: Version::Any,
                })
            };
            return files.map(file).collect();
        }
        let prefix = self.key(folder)?;
        let found: Vec<ObjectMeta> = self
            .objects
            .list((!folder.is_empty()).then_some(&prefix))
            .try_collect()
            .await
            .map_err(|error| self.refused(None, &error))?;
        let files = found.into_iter().filter(|object| object.location != prefix);
        Ok(files.map(|object| self.file(object)).collect())
    }

    /// The file at the path of the location's folder.
    async fn single(&self) -> Result<RemoteFile, Error> {
        let path = &self.location.folder;
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut file = if self.hub.is_some() {
            let files = self.listed(parent).await?.into_iter();
            let mut found = files.filter(|file| file.path.as_ref() == path);
            found.next().ok_or_else(|| Error::Missing {
                place: self.location.to_string(),
            })?
        } else {
            self.head("").await?
        };
        name.clone_into(&mut file.name);
        Ok(file)
    }

    /// A file in the location's folder, or, for an empty name, the file at its path.
    async fn head(&self, name: &str) -> Result<RemoteFile, Error> {
        let parts = [self.location.folder.as_str(), name];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let path = self.key(&parts.collect::<Vec<_>>().join("/"))?;
        let object = self
            .objects
            .head(&path)
            .await
            .map_err(|error| self.refused(Some(path.as_ref()), &error))?;
        Ok(self.file(object))
    }

    /// A key without escaping.
    fn key(&self, path: &str) -> Result<Path, Error> {
        Path::parse(path).map_err(|error| self.refused(Some(path), &error.into()))
    }

    fn file(&self, object: ObjectMeta) -> RemoteFile {
        let version = match (object.e_tag, object.last_modified.timestamp()) {
            (Some(tag), _) => Version::Tag(tag),
            (None, 0) => Version::Any,
            (None, time) => Version::Time(time),
        };
        RemoteFile {
            name: self.below(object.location.as_ref()),
            bytes: object.size,
            tag: match &version {
                Version::Tag(tag) => tag.clone(),
                Version::Time(time) => time.to_string(),
                Version::Any => String::new(),
            },
            sha256: None,
            version,
            path: object.location,
        }
    }

    /// A path relative to the location's folder.
    fn below(&self, path: &str) -> String {
        let inner = path.strip_prefix(&self.location.folder).unwrap_or(path);
        inner.trim_start_matches('/').to_owned()
    }

    /// The content of a file from an offset; `None` if the server does not support ranges. Broken
    /// responses are resumed if the file has a tag.
    pub(crate) async fn get(&self, file: &RemoteFile, start: u64) -> Result<Option<GetResult>, Error> {
        let options = GetOptions {
            range: (start > 0).then_some(GetRange::Offset(start)),
            ..GetOptions::default()
        };
        match self.objects.get_opts(&file.path, options).await {
            Err(StoreError::NotSupported { .. }) if start > 0 => Ok(None),
            answer => answer
                .map(Some)
                .map_err(|error| self.refused(Some(&file.name), &error)),
        }
    }

    /// A part of a file.
    pub(crate) async fn read(&self, file: &RemoteFile, part: Range<u64>) -> Result<Bytes, Error> {
        let place = || format!("{} of {}", file.name, self.location);
        let refused = |error| self.refused(Some(&file.name), &error);
        let options = GetOptions {
            range: (part != (0..file.bytes)).then(|| GetRange::Bounded(part.clone())),
            ..GetOptions::default()
        };
        let answer = match self.objects.get_opts(&file.path, options).await {
            Err(StoreError::NotSupported { .. }) => {
                return Err(Error::Refused {
                    place: place(),
                    reason: "the server does not support range requests: use vit-trainer fetch".into(),
                });
            }
            answer => answer.map_err(refused)?,
        };
        if !file.is_of(&answer.meta) {
            return Err(Error::Changed { place: place() });
        }
        let is_asked_for = answer.range == part;
        let bytes = answer.bytes().await.map_err(refused)?;
        if !is_asked_for || bytes.len() as u64 != part.end - part.start {
            return Err(Error::Unavailable {
                place: place(),
                reason: format!("received {} bytes of {part:?}", bytes.len()),
            });
        }
        Ok(bytes)
    }

    /// Translates a store's error about one or all of its files.
    pub(crate) fn refused(&self, name: Option<&str>, error: &StoreError) -> Error {
        let place = self.location.to_string();
        let place = name.map_or(place.clone(), |name| format!("{name} of {place}"));
        Error::from_store(place, self.location.place.credentials(), error)
    }
}

/// Removes the empty objects that tools write for folders.
fn leave_out_folders(files: &mut Vec<RemoteFile>) {
    let folders: HashSet<String> = files
        .iter()
        .flat_map(|file| {
            let ends = file.name.match_indices('/');
            ends.map(|(end, _)| file.name[..end].to_owned())
        })
        .collect();
    files.retain(|file| file.bytes > 0 || !folders.contains(&file.name));
}

/// Whether an environment variable is true.
fn is_set(variable: &str) -> bool {
    std::env::var(variable)
        .is_ok_and(|value| ["1", "true", "on", "yes"].contains(&value.to_lowercase().as_str()))
}

/// Fails if credentials do not arrive soon: outside a cloud, the library would query the machine's
/// metadata service until patience ends.
async fn in_time<T>(
    location: &Location,
    credentials: impl Future<Output = Result<T, StoreError>>,
) -> Result<(), Error> {
    let reason = match tokio::time::timeout(CREDENTIALS_TIMEOUT, credentials).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => innermost(&error),
        Err(_) => "no credentials in the environment or from this machine".to_owned(),
    };
    Err(Error::Denied {
        place: location.to_string(),
        reason,
        how: location.place.credentials(),
    })
}

/// Mozilla's certificates, in addition to the system's: images have none.
fn roots() -> Vec<Certificate> {
    let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
    roots
        .filter_map(|root| Certificate::from_der(root).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_objects_that_stand_for_folders_are_left_out() {
        let file = |name: &str, bytes| RemoteFile {
            name: name.into(),
            bytes,
            tag: String::new(),
            sha256: None,
            version: Version::Any,
            path: Path::from(name),
        };
        let mut files = vec![
            file("a", 0),
            file("a/b", 0),
            file("a/b/c.tar", 9),
            file("d", 0),
            file("e", 1),
            file("e/f", 1),
        ];
        leave_out_folders(&mut files);
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["a/b/c.tar", "d", "e", "e/f"]);
    }
}
