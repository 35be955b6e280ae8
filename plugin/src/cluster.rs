//! Which cluster, namespace and user: as kubectl finds them.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use crds::{ViTScalingStudy, ViTTrainingJob};
use http::{HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, chain};

/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Jobs that are named where another one is not there, at most.
const NAMED_INSTEAD: usize = 5;
/// After it, a server counts as unreachable; kubectl waits for as long.
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
    pub(crate) impersonate: Option<HeaderValue>,
    /// Group to act as; may be given several times
    #[arg(
        long = "as-group",
        global = true,
        value_name = "GROUP",
        requires = "impersonate"
    )]
    pub(crate) impersonate_groups: Vec<HeaderValue>,
}

/// A cluster and a namespace of it.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    server: String,
    place: Place,
}

impl Cluster {
    /// Finds the cluster; it is not asked anything yet.
    pub(crate) async fn connect(connection: &Connection) -> Result<Self, Error> {
        let mut config = config(connection).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let user = connection
            .impersonate
            .iter()
            .map(|user| ("impersonate-user", user));
        let groups = connection.impersonate_groups.iter();
        let groups = groups.map(|group| ("impersonate-group", group));
        let headers = user.chain(groups);
        let headers = headers.map(|(name, value)| (HeaderName::from_static(name), value.clone()));
        config.headers.extend(headers);
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = connection.namespace.as_ref().unwrap_or(&config.default_namespace);
        let kubeconfig = connection.kubeconfig.as_ref();
        let flags = [
            ("context", connection.context.clone()),
            ("cluster", connection.cluster.clone()),
            ("user", connection.user.clone()),
            ("kubeconfig", kubeconfig.map(|path| path.display().to_string())),
        ];
        let flags = flags
            .into_iter()
            .filter_map(|(flag, value)| Some(format!(" --{flag} {}", value?)));
        let place = Place {
            namespace: namespace.clone(),
            flags: flags.collect(),
        };
        let client = Client::try_from(config)
            .map_err(|error| Error::refused("use the credentials of the kubeconfig", &error))?;
        Ok(Self {
            client,
            server,
            place,
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.place.namespace
    }

    /// The jobs of the namespace.
    pub(crate) fn jobs(&self) -> Api<ViTTrainingJob> {
        Api::namespaced(self.client.clone(), self.namespace())
    }

    /// The studies of the namespace.
    pub(crate) fn studies(&self) -> Api<ViTScalingStudy> {
        Api::namespaced(self.client.clone(), self.namespace())
    }

    /// The pods of the namespace.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace())
    }

    /// Where commands that are proposed to the user go.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// All objects, page by page.
    pub(crate) async fn list<K>(
        &self,
        api: Api<K>,
        labels: Option<&str>,
        doing: &str,
    ) -> Result<Vec<K>, Error>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector = labels.map(Into::into);
        let mut items = vec![];
        loop {
            let page = api
                .list(&params)
                .await
                .map_err(|error| self.error(doing, error))?;
            items.extend(page.items);
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(items);
            }
        }
    }

    /// A job by its name; where there is none, the error names others.
    pub(crate) async fn job(&self, name: &JobName) -> Result<ViTTrainingJob, Error> {
        let job = self.jobs().get(name.as_str()).await;
        self.about_job("get", name, job).await
    }

    /// Merges this into a job.
    pub(crate) async fn patch(&self, name: &JobName, patch: &Value) -> Result<(), Error> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.jobs().patch(name.as_str(), &params, &patch).await;
        self.about_job("change", name, patched).await.map(drop)
    }

    /// The answer to a call about one job. Where there is no such job, the error names others.
    pub(crate) async fn about_job<T>(
        &self,
        verb: &str,
        name: &JobName,
        answer: Result<T, kube::Error>,
    ) -> Result<T, Error> {
        let error = match answer {
            Ok(value) => return Ok(value),
            Err(error) => self.error(&format!("{verb} job {name}"), error),
        };
        if !matches!(error, Error::NotFound(_)) {
            return Err(error);
        }
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
        Err(Error::NoJob {
            name: name.to_string(),
            namespace: self.namespace().into(),
            others,
        })
    }

    /// What an error of a call means.
    pub(crate) fn error(&self, doing: &str, error: kube::Error) -> Error {
        let message = match error {
            // A server that does not know a resource answers without a body of its own.
            kube::Error::Api(status) if status.code == 404 && status.details.is_none() => {
                return Error::NoResource {
                    server: self.server.clone(),
                };
            }
            kube::Error::Api(status) if status.code == 404 => return Error::NotFound(status.message),
            kube::Error::Api(status) if status.code == 401 => {
                format!("{} does not accept these credentials", self.server)
            }
            kube::Error::Api(status) => status.message,
            kube::Error::SerdeError(error) => return Error::Unreadable(error),
            error @ (kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_)) => {
                return Error::Unreachable {
                    server: self.server.clone(),
                    cause: chain(&error),
                };
            }
            error => return Error::refused(doing, &error),
        };
        Error::Refused {
            doing: doing.into(),
            message,
        }
    }
}

async fn config(connection: &Connection) -> Result<Config, Error> {
    let options = KubeConfigOptions {
        context: connection.context.clone(),
        cluster: connection.cluster.clone(),
        user: connection.user.clone(),
    };
    let is_chosen = [&options.context, &options.cluster, &options.user]
        .into_iter()
        .any(Option::is_some);
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

/// Where commands that are proposed to the user go.
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

    /// The name as kubectl prints it.
    pub(crate) fn qualified(&self) -> String {
        qualified(&self.0)
    }
}

/// The name of a job as kubectl prints it.
pub(crate) fn qualified(name: &str) -> String {
    format!("vittrainingjob.vit-operator.dev/{name}")
}

impl std::str::FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kinds = [
            "vtj",
            "vittrainingjob",
            "vittrainingjobs",
            "vittrainingjob.vit-operator.dev",
        ];
        object_name(text, &kinds, "job").map(Self)
    }
}

/// The name of an object, with or without one of these kinds before it.
pub(crate) fn object_name(text: &str, kinds: &[&str], what: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        Some((kind, name)) if kinds.contains(&kind) => name,
        _ => text,
    };
    let is_label = name
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if name.is_empty() || !is_label {
        return Err(format!(
            "must be the name of a {what}: lower-case letters, digits and '-'"
        ));
    }
    Ok(name.into())
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
        let place = crate::fixtures::place(" --context gpu");
        assert_eq!(
            [place.vit("why digits"), place.kubectl_cluster("uncordon node1")],
            [
                "kubectl vit why digits -n research --context gpu",
                "kubectl uncordon node1 --context gpu"
            ]
        );
    }
}
