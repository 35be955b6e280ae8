//! Which cluster, namespace and user: as kubectl finds them.

use std::path::PathBuf;
use std::time::Duration;

use crds::ViTTrainingJob;
use http::{HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::Value;

use crate::error::{Error, chain};

/// Jobs that are named where another one is not there, at most.
const NAMED_INSTEAD: usize = 5;
/// A server that does not answer within that is told as unreachable; kubectl waits for as long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Flags that say which cluster, namespace and user; their names are kubectl's.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Connection {
    /// Context of the kubeconfig, in place of the current one
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Namespace, in place of the context's
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Kubeconfig file, in place of $KUBECONFIG or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Cluster of the kubeconfig, in place of the context's
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// User of the kubeconfig, in place of the context's
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// User to act as
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) impersonate: Option<String>,
    /// Group to act as; may be given several times
    #[arg(
        long = "as-group",
        global = true,
        value_name = "GROUP",
        requires = "impersonate"
    )]
    pub(crate) impersonate_groups: Vec<String>,
}

/// A cluster and a namespace of it.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    server: String,
    namespace: String,
    /// Flags that another command needs to get to the same place.
    flags: String,
}

impl Cluster {
    /// Finds the cluster; it is not asked anything yet.
    pub(crate) async fn connect(connection: &Connection) -> Result<Self, Error> {
        let mut config = config(connection).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.headers.extend(impersonation(connection)?);
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = connection
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let unusable = |error: kube::Error| Error::Refused {
            doing: "use the credentials of the kubeconfig".into(),
            message: chain(&error),
        };
        let mut flags = String::new();
        for (flag, value) in [
            ("context", connection.context.clone()),
            ("cluster", connection.cluster.clone()),
            ("user", connection.user.clone()),
            (
                "kubeconfig",
                connection
                    .kubeconfig
                    .as_ref()
                    .map(|path| path.display().to_string()),
            ),
        ] {
            if let Some(value) = value {
                flags += &format!(" --{flag} {value}");
            }
        }
        Ok(Self {
            client: Client::try_from(config).map_err(unusable)?,
            server,
            namespace,
            flags,
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The jobs of the namespace.
    pub(crate) fn jobs(&self) -> Api<ViTTrainingJob> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The pods of the namespace.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Where commands that are proposed to the user are to go.
    pub(crate) fn place(&self) -> Place {
        Place {
            namespace: self.namespace.clone(),
            flags: self.flags.clone(),
        }
    }

    /// A job by its name; where there is none, the error names others.
    pub(crate) async fn job(&self, name: &JobName) -> Result<ViTTrainingJob, Error> {
        match self.jobs().get(name.as_str()).await {
            Ok(job) => Ok(job),
            Err(error) => Err(self.job_error(&format!("get job {name}"), name, error).await),
        }
    }

    /// Merges this into a job.
    pub(crate) async fn change(&self, name: &JobName, patch: &Value) -> Result<(), Error> {
        let changed = self
            .jobs()
            .patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match changed {
            Ok(_) => Ok(()),
            Err(error) => Err(self.job_error(&format!("change job {name}"), name, error).await),
        }
    }

    /// What an error of a call about one job means.
    pub(crate) async fn job_error(&self, doing: &str, name: &JobName, error: kube::Error) -> Error {
        let error = self.error(doing, error);
        let Error::NotFound(_) = error else {
            return error;
        };
        let params = ListParams::default().limit(200);
        let mut others: Vec<String> = match self.jobs().list_metadata(&params).await {
            Ok(list) => list.items.iter().map(kube::ResourceExt::name_any).collect(),
            Err(_) => vec![],
        };
        let more = others.len().saturating_sub(NAMED_INSTEAD);
        others.truncate(NAMED_INSTEAD);
        let others = match (others.is_empty(), more) {
            (true, _) => ", which has no jobs; kubectl vit list -A shows all".to_owned(),
            (false, 0) => format!(", which has {}", others.join(", ")),
            (false, more) => format!(", which has {} and {more} more", others.join(", ")),
        };
        Error::NoJob {
            name: name.to_string(),
            namespace: self.namespace.clone(),
            others,
        }
    }

    /// What an error of a call means.
    pub(crate) fn error(&self, doing: &str, error: kube::Error) -> Error {
        match error {
            // A server that does not know a resource answers without a body of its own.
            kube::Error::Api(status) if status.code == 404 && status.details.is_none() => Error::NoResource {
                server: self.server.clone(),
            },
            kube::Error::Api(status) if status.code == 404 => Error::NotFound(status.message),
            kube::Error::Api(status) if status.code == 401 => Error::Refused {
                doing: doing.into(),
                message: format!("{} does not accept these credentials", self.server),
            },
            kube::Error::Api(status) => Error::Refused {
                doing: doing.into(),
                message: status.message,
            },
            kube::Error::SerdeError(error) => Error::Unreadable(error),
            error @ (kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_)) => {
                Error::Unreachable {
                    server: self.server.clone(),
                    cause: chain(&error),
                }
            }
            error => Error::Refused {
                doing: doing.into(),
                message: chain(&error),
            },
        }
    }
}

async fn config(connection: &Connection) -> Result<Config, Error> {
    let options = KubeConfigOptions {
        context: connection.context.clone(),
        cluster: connection.cluster.clone(),
        user: connection.user.clone(),
    };
    let is_chosen = connection.context.is_some() || connection.cluster.is_some() || connection.user.is_some();
    let kubeconfig = match &connection.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    match kubeconfig {
        Ok(kubeconfig) => Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?),
        // In a pod there is no kubeconfig, but an account.
        Err(error) if connection.kubeconfig.is_none() && !is_chosen => {
            Config::incluster().map_err(|_| error.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// The headers by which the API server knows whom to act as.
fn impersonation(connection: &Connection) -> Result<Vec<(HeaderName, HeaderValue)>, Error> {
    let user = connection
        .impersonate
        .iter()
        .map(|user| ("impersonate-user", "--as", user));
    let groups = connection
        .impersonate_groups
        .iter()
        .map(|group| ("impersonate-group", "--as-group", group));
    user.chain(groups)
        .map(|(header, flag, value)| {
            let value = HeaderValue::from_str(value).map_err(|_| {
                Error::Usage(format!(
                    "{flag} {value:?}: must be a name without control characters"
                ))
            })?;
            Ok((HeaderName::from_static(header), value))
        })
        .collect()
}

/// Where commands that are proposed to the user are to go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) namespace: String,
    pub(crate) flags: String,
}

impl Place {
    /// A command of this plugin, such as `why digits`.
    pub(crate) fn vit(&self, command: &str) -> String {
        format!("kubectl vit {command} -n {}{}", self.namespace, self.flags)
    }

    /// A command of kubectl in the namespace.
    pub(crate) fn kubectl(&self, command: &str) -> String {
        format!("kubectl {command} -n {}{}", self.namespace, self.flags)
    }

    /// A command of kubectl about what is in no namespace.
    pub(crate) fn kubectl_cluster(&self, command: &str) -> String {
        format!("kubectl {command}{}", self.flags)
    }
}

/// The name of a job; `vtj/NAME`, as kubectl prints it, means the same.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct JobName(String);

impl JobName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kinds = [
            "vtj/",
            "vittrainingjob/",
            "vittrainingjobs/",
            "vittrainingjob.vit-operator.dev/",
        ];
        let name = kinds
            .iter()
            .find_map(|kind| text.strip_prefix(kind))
            .unwrap_or(text);
        let is_label = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if name.is_empty() || !is_label {
            return Err("must be the name of a job: lower-case letters, digits and '-'".into());
        }
        Ok(Self(name.into()))
    }
}

impl std::fmt::Display for JobName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_may_be_named_as_kubectl_prints_it() {
        for text in ["digits", "vtj/digits", "vittrainingjob.vit-operator.dev/digits"] {
            assert_eq!(text.parse::<JobName>().expect("a name").as_str(), "digits");
        }
        for text in ["", "pod/digits", "Digits", "a b"] {
            text.parse::<JobName>().expect_err(text);
        }
    }

    #[test]
    fn proposed_commands_go_to_the_same_place() {
        let place = Place {
            namespace: "research".into(),
            flags: " --context gpu".into(),
        };
        assert_eq!(
            [place.vit("why digits"), place.kubectl_cluster("uncordon node1")],
            [
                "kubectl vit why digits -n research --context gpu",
                "kubectl uncordon node1 --context gpu"
            ]
        );
    }

    #[test]
    fn a_user_that_no_header_can_carry_is_refused() {
        let connection = Connection {
            impersonate: Some("a\nb".into()),
            ..Connection::default()
        };
        assert!(impersonation(&connection).is_err());
    }
}
