//! Stores of all kinds, by one interface.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::AmazonS3Builder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    Certificate, ClientOptions, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, RetryConfig,
};

use crate::error::innermost;
use crate::hub::Hub;
use crate::location::{Files, Place};
use crate::{Error, Location};

/// Questions to a store at the same time.
const AT_ONCE: usize = 16;
/// A connection that carries nothing for so long is given up, and the rest is asked for anew.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// More than there is patience for.
const MOST_RETRIES: usize = 1000;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A file of a store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RemoteFile {
    /// Below the location's folder: parts of a path, with slashes between.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Another one if the content is another one: the store's entity tag, or its time of change; empty if the store tells neither.
    pub tag: String,
    /// The entity tag that an answer with its content must have.
    pub(crate) e_tag: Option<String>,
    path: Path,
}

/// The store of a location.
#[derive(Debug)]
pub struct Store {
    location: Location,
    objects: Arc<dyn ObjectStore>,
    hub: Option<Hub>,
}

impl Store {
    /// The store of a location, with credentials from the environment: those of AWS's and Google's own tools, or `HF_TOKEN`. What fails
    /// is tried again for `patience`.
    ///
    /// # Errors
    /// Where the environment's settings are no good, or the Hub does not know the data set.
    pub async fn open(location: Location, patience: Duration) -> Result<Self, Error> {
        // Another part of the process may have chosen the same one already.
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
        let mut hub = None;
        let objects: Result<Arc<dyn ObjectStore>, object_store::Error> = match &location.place {
            Place::S3 { bucket } => AmazonS3Builder::from_env()
                .with_bucket_name(bucket)
                .with_client_options(options)
                .with_retry(retries)
                .build()
                .map(|store| Arc::new(store) as _),
            Place::Gcs { bucket } => GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(bucket)
                .with_client_options(options)
                .with_retry(retries)
                .build()
                .map(|store| Arc::new(store) as _),
            Place::Http { origin } => HttpBuilder::new()
                .with_url(origin)
                .with_client_options(options)
                .with_retry(retries)
                .build()
                .map(|store| Arc::new(store) as _),
            Place::Hub { dataset, revision } => {
                let known = Hub::open(dataset, revision, patience).await?;
                let built = HttpBuilder::new()
                    .with_url(known.files_url())
                    .with_client_options(options.with_default_headers(known.headers()))
                    .with_retry(retries)
                    .build();
                hub = Some(known);
                built.map(|store| Arc::new(store) as _)
            }
        };
        let objects = objects.map_err(|error| Error::Location {
            text: location.to_string(),
            expected: innermost(&error),
        })?;
        Ok(Self {
            location,
            objects,
            hub,
        })
    }

    /// The files of the location, sorted by name.
    ///
    /// # Errors
    /// Where there are none, or they cannot be listed.
    pub async fn list(&self) -> Result<Vec<RemoteFile>, Error> {
        let mut files = match &self.location.files {
            Files::Named(names) => {
                let heads = futures::stream::iter(names).map(|name| self.head(name));
                heads.buffered(AT_ONCE).try_collect().await?
            }
            Files::All => {
                let mut files = self.listed().await?;
                if files.is_empty() && self.hub.is_none() && !self.location.folder.is_empty() {
                    files = vec![self.head("").await?];
                }
                files
            }
            Files::Between(before, after) => {
                let mut files = self.listed().await?;
                files.retain(|file| {
                    let rest = file.name.strip_prefix(before.as_str());
                    rest.is_some_and(|rest| rest.ends_with(after.as_str())) && !file.name.contains('/')
                });
                files
            }
        };
        if files.is_empty() {
            return Err(Error::Missing {
                place: self.location.to_string(),
            });
        }
        for file in &files {
            if file
                .name
                .split('/')
                .any(|part| part.is_empty() || part == "." || part == "..")
            {
                return Err(Error::Name {
                    name: file.name.clone(),
                });
            }
        }
        files.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok(files)
    }

    /// All files below the folder.
    async fn listed(&self) -> Result<Vec<RemoteFile>, Error> {
        let folder = &self.location.folder;
        if let Some(hub) = &self.hub {
            let files = hub.list(folder).await?;
            return Ok(files
                .into_iter()
                .map(|file| RemoteFile {
                    path: Path::from(file.path.as_str()),
                    name: below(folder, &file.path),
                    bytes: file.bytes,
                    tag: file.tag,
                    // Files of one commit, which come from servers with tags of their own.
                    e_tag: None,
                })
                .collect());
        }
        let prefix = Path::from(folder.as_str());
        let found: Vec<ObjectMeta> = self
            .objects
            .list((!folder.is_empty()).then_some(&prefix))
            .try_collect()
            .await
            .map_err(|error| self.refused(None, &error))?;
        // Tools write empty objects for folders, whose names end in a slash, which the library leaves out.
        let files = found.into_iter().filter(|object| object.location != prefix);
        Ok(files.map(|object| self.file(object)).collect())
    }

    /// A file of the location's folder, or the folder itself, which is a file then.
    async fn head(&self, name: &str) -> Result<RemoteFile, Error> {
        let folder = &self.location.folder;
        let path = [folder.as_str(), name]
            .into_iter()
            .filter(|part| !part.is_empty());
        let path = Path::from(path.collect::<Vec<_>>().join("/"));
        let object = self
            .objects
            .head(&path)
            .await
            .map_err(|error| self.refused(Some(path.as_ref()), &error))?;
        let mut file = self.file(object);
        if name.is_empty() {
            file.name = file.path.filename().unwrap_or_default().to_owned();
        }
        Ok(file)
    }

    fn file(&self, object: ObjectMeta) -> RemoteFile {
        let time = object.last_modified.timestamp_millis();
        let time = if time == 0 {
            String::new()
        } else {
            time.to_string()
        };
        RemoteFile {
            name: below(&self.location.folder, object.location.as_ref()),
            bytes: object.size,
            tag: object.e_tag.clone().unwrap_or(time),
            e_tag: object.e_tag,
            path: object.location,
        }
    }

    /// The content of a file, from a place on; none where the server sends whole files only. What breaks off is asked for again, if
    /// the store tells the file by a tag.
    pub(crate) async fn get(&self, file: &RemoteFile, start: u64) -> Result<Option<GetResult>, Error> {
        let options = GetOptions {
            range: (start > 0).then_some(GetRange::Offset(start)),
            ..GetOptions::default()
        };
        match self.objects.get_opts(&file.path, options).await {
            Err(object_store::Error::NotSupported { .. }) if start > 0 => Ok(None),
            answer => answer
                .map(Some)
                .map_err(|error| self.refused(Some(&file.name), &error)),
        }
    }

    /// What a store's error about one of its files, or about all, means.
    pub(crate) fn refused(&self, name: Option<&str>, error: &object_store::Error) -> Error {
        let how = match self.location.place {
            Place::S3 { .. } => {
                "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set AWS_SKIP_SIGNATURE to true for a public bucket"
            }
            Place::Gcs { .. } => {
                "as GOOGLE_SERVICE_ACCOUNT_KEY, or set GOOGLE_SKIP_SIGNATURE to true for a public bucket"
            }
            Place::Http { .. } => "or a server that asks for none",
            Place::Hub { .. } => "as HF_TOKEN",
        };
        let place = self.location.to_string();
        let place = name.map_or(place.clone(), |name| format!("{name} of {place}"));
        Error::of_store(place, how, error)
    }
}

/// Mozilla's certificates, beside those of the system: images have none.
fn roots() -> Vec<Certificate> {
    let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
    roots
        .filter_map(|root| Certificate::from_der(root).ok())
        .collect()
}

/// A path without the folder before it.
fn below(folder: &str, path: &str) -> String {
    let inner = path.strip_prefix(folder).unwrap_or(path);
    inner.trim_start_matches('/').to_owned()
}
