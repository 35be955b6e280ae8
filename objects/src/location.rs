//! Locations of files.

use std::fmt;
use std::str::FromStr;

use contract::FileNames;
use object_store::path::Path;

use crate::Error;
use crate::error::innermost;

const EXPECTED: &str = "must be s3://BUCKET/PATH, gs://BUCKET/PATH, hf://[datasets/]OWNER/NAME[@REVISION][/PATH], or https://HOST/PATH";

const UNLISTED: &str = "a web server does not list files: name one, or a range such as train-{000..127}.tar";

/// A selection of files in a place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Location {
    text: String,
    pub(crate) place: Place,
    /// Folder in the place, without slashes around it; empty for the root.
    pub(crate) folder: String,
    pub(crate) files: Files,
}

/// A store of files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    S3 {
        bucket: String,
    },
    Gcs {
        bucket: String,
    },
    /// Scheme, host and port.
    Http {
        origin: String,
    },
    /// A data set or a model of the Hugging Face Hub.
    Hub {
        repository: Repository,
        revision: String,
    },
}

/// A repository of the Hub.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Repository {
    pub(crate) is_dataset: bool,
    /// OWNER/NAME.
    pub(crate) name: String,
}

impl Place {
    /// How to give credentials.
    pub(crate) fn credentials(&self) -> &'static str {
        match self {
            Self::S3 { .. } => {
                "give credentials as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set AWS_SKIP_SIGNATURE to true for a public bucket"
            }
            Self::Gcs { .. } => {
                "give credentials as GOOGLE_SERVICE_ACCOUNT_KEY, or set GOOGLE_SKIP_SIGNATURE to true for a public bucket"
            }
            Self::Http { .. } => "credentials for web servers are not supported",
            Self::Hub { .. } => "give credentials as HF_TOKEN",
        }
    }
}

/// Selection of a folder's files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Files {
    /// All below it, or the file of this name if the folder does not exist.
    All,
    /// Those directly in it with this prefix and suffix.
    Between(String, String),
    /// The named ones.
    Named(Vec<String>),
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |expected: &str| Error::Location {
            text: text.into(),
            expected: expected.into(),
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| refused(EXPECTED))?;
        let (place, path) = match scheme {
            "s3" | "gs" => {
                let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
                let bucket = bucket.to_owned();
                (
                    if scheme == "s3" {
                        Place::S3 { bucket }
                    } else {
                        Place::Gcs { bucket }
                    },
                    path,
                )
            }
            "http" | "https" => {
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                if let Some((_, host)) = host.rsplit_once('@') {
                    // Hides the password.
                    return Err(Error::Location {
                        text: format!("{scheme}://***@{host}/{path}"),
                        expected: "credentials for web servers are not supported: remove the user name"
                            .into(),
                    });
                }
                let origin = format!("{scheme}://{host}");
                (Place::Http { origin }, path)
            }
            "hf" => {
                let (is_dataset, path) = match rest.strip_prefix("datasets/") {
                    Some(path) => (true, path),
                    None => (false, rest),
                };
                let mut parts = path.splitn(3, '/');
                let (Some(owner), Some(name)) = (parts.next(), parts.next()) else {
                    return Err(refused(EXPECTED));
                };
                let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
                let mut inner = parts.next().unwrap_or("");
                let mut revision = revision.to_owned();
                // Branches by the Hub, such as refs/convert/parquet.
                if revision == "refs" {
                    let mut rest = inner.splitn(3, '/');
                    let (Some(kind), Some(branch)) = (rest.next(), rest.next()) else {
                        return Err(refused(EXPECTED));
                    };
                    revision = format!("refs/{kind}/{branch}");
                    inner = rest.next().unwrap_or("");
                }
                if owner.is_empty() || name.is_empty() || revision.is_empty() {
                    return Err(refused(EXPECTED));
                }
                let name = format!("{owner}/{name}");
                let repository = Repository { is_dataset, name };
                (Place::Hub { repository, revision }, inner)
            }
            _ => return Err(refused(EXPECTED)),
        };
        if let Place::S3 { bucket } | Place::Gcs { bucket } = &place
            && bucket.is_empty()
        {
            return Err(refused(EXPECTED));
        }
        // Keys of buckets are literal; URLs have %20 for a space.
        let decoded = match place {
            Place::Http { .. } => Path::from_url_path(path),
            Place::S3 { .. } | Place::Gcs { .. } | Place::Hub { .. } => Path::parse(path),
        };
        let decoded = decoded.map_err(|error| refused(&innermost(&error)))?;
        let path = decoded.as_ref();
        if matches!(place, Place::Http { .. }) && text.contains(['?', '#']) {
            return Err(refused(
                "URLs with ? or # are not supported, which includes presigned ones",
            ));
        }
        let (folder, last) = path.rsplit_once('/').unwrap_or(("", path));
        if folder.contains(['*', '{']) {
            return Err(refused(
                "* and {FIRST..LAST} are allowed only in the last part of the path",
            ));
        }
        let files = files(last).map_err(|expected| refused(&expected))?;
        let (folder, files) = match (&place, files) {
            (Place::Http { .. }, Some(Files::Named(names))) => (folder, Files::Named(names)),
            (Place::Http { .. }, None) if !last.is_empty() && !text.ends_with('/') => {
                (folder, Files::Named(vec![last.to_owned()]))
            }
            (Place::Http { .. }, _) => return Err(refused(UNLISTED)),
            (_, Some(files)) => (folder, files),
            (_, None) => (path, Files::All),
        };
        Ok(Self {
            text: text.into(),
            place,
            folder: folder.into(),
            files,
        })
    }
}

/// The files of a name with `*` or a range; `None` without either.
fn files(name: &str) -> Result<Option<Files>, String> {
    let is_closed = name.matches('{').count() == name.matches('}').count();
    match FileNames::parse(name).filter(|_| is_closed) {
        Some(FileNames::One(_)) => Ok(None),
        Some(FileNames::Range(names)) => Ok(Some(Files::Named(names))),
        Some(FileNames::Between(before, after)) => Ok(Some(Files::Between(before, after))),
        None => Err("a name may have one * or one ascending range such as {000..127}".to_owned()),
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_from_its_name() {
        let s3 = |bucket: &str| Place::S3 {
            bucket: bucket.into(),
        };
        let named = |names: &[&str]| Files::Named(names.iter().map(|name| (*name).to_owned()).collect());
        let repository = |is_dataset, name: &str| Repository {
            is_dataset,
            name: name.into(),
        };
        let hub = |revision: &str| Place::Hub {
            repository: repository(true, "uoft-cs/cifar10"),
            revision: revision.into(),
        };
        let model = Place::Hub {
            repository: repository(false, "timm/vit_base_patch16_dinov3.lvd1689m"),
            revision: "1f2e".into(),
        };
        let http = Place::Http {
            origin: "https://a.example:8443".into(),
        };
        for (text, place, folder, files) in [
            ("s3://images", s3("images"), "", Files::All),
            ("s3://images/a/b/", s3("images"), "a/b", Files::All),
            (
                "s3://images/a/x-*.tar",
                s3("images"),
                "a",
                Files::Between("x-".into(), ".tar".into()),
            ),
            (
                "gs://images/x-{08..10}.tar",
                Place::Gcs {
                    bucket: "images".into(),
                },
                "",
                named(&["x-08.tar", "x-09.tar", "x-10.tar"]),
            ),
            (
                "https://a.example:8443/~a/%C3%A9%20b/x%25.tar",
                http,
                "~a/é b",
                named(&["x%.tar"]),
            ),
            (
                "s3://images/caf\u{e9}/50%",
                s3("images"),
                "caf\u{e9}/50%",
                Files::All,
            ),
            (
                "hf://datasets/uoft-cs/cifar10@refs/convert/parquet/plain_text",
                hub("refs/convert/parquet"),
                "plain_text",
                Files::All,
            ),
            ("hf://datasets/uoft-cs/cifar10", hub("main"), "", Files::All),
            (
                "hf://datasets/uoft-cs/cifar10@1f2e/plain_text",
                hub("1f2e"),
                "plain_text",
                Files::All,
            ),
            (
                "hf://timm/vit_base_patch16_dinov3.lvd1689m@1f2e/model.safetensors",
                model,
                "model.safetensors",
                Files::All,
            ),
        ] {
            let found: Location = text.parse().expect(text);
            assert_eq!(
                (&found.place, found.folder.as_str(), &found.files),
                (&place, folder, &files),
                "{text}"
            );
            assert_eq!(found.to_string(), text);
        }
    }

    #[test]
    fn what_names_no_place_is_refused_with_what_would() {
        for (text, expected) in [
            ("/data", EXPECTED),
            ("ftp://a/b", EXPECTED),
            ("s3:///a", EXPECTED),
            ("hf://cifar10", EXPECTED),
            ("hf://datasets/cifar10", EXPECTED),
            (
                "https://a/b?c",
                "URLs with ? or # are not supported, which includes presigned ones",
            ),
            (
                "s3://images/*/a.tar",
                "* and {FIRST..LAST} are allowed only in the last part of the path",
            ),
            (
                "s3://images/a-{3..1}.tar",
                "a name may have one * or one ascending range such as {000..127}",
            ),
            (
                "s3://images/a-{1..2}*",
                "a name may have one * or one ascending range such as {000..127}",
            ),
            ("https://a/b/", UNLISTED),
            ("https://a/b/*.tar", UNLISTED),
        ] {
            let error = text.parse::<Location>().expect_err(text);
            assert_eq!(
                error.to_string(),
                format!("{text} is not a valid location: {expected}")
            );
        }
        let error = "https://me:secret@a/b".parse::<Location>().expect_err("refused");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
